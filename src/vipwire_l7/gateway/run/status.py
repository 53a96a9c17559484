"""Writes the statuses of what is ours, where the API server has others.

What other controllers have written stays: their parents of a route, their ancestors of a policy, conditions of types
that are not ours. A condition keeps the time at which its status changed last. A write names the version that it was
made for, so that of two writers at once one is refused and tries again.
"""

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from vipwire.kube.access.access import Access
from vipwire.kube.objects import FencedObjects, path_of
from vipwire.kube.write_loop import Pauses, WriteLoop
from vipwire.model.names import ObjectName
from vipwire.model.times import format_time
from vipwire_l7.gateway.plan.planner import PARENTS
from vipwire_l7.gateway.plan.statuses import Json
from vipwire_l7.watch.kinds import IngressResource
from vipwire_l7.watch.objects import INGRESS_KINDS, Declared, IngressKind
from vipwire_l7.watch.snapshot import Snapshot

Key = tuple[IngressKind, ObjectName]
_PAUSES: Final = Pauses(refused=5.0, conflict=0.0)
_SOMETIMES: Final = frozenset({"PartiallyInvalid", "OverlappingTLSConfig"})
"""Conditions of routes and listeners that are ours, and go when there is nothing to say."""
_BY_CONTROLLER: Final = ("parents", "ancestors")


def merged(ours: Json, theirs: Json | None, controller: str, now: str) -> Json:
    """Return the status to write: ours, with what others have written and the times of what has not changed."""
    before = theirs or {}
    made = {**before, **ours}
    for field in _BY_CONTROLLER:
        if field in ours:
            known = before.get(field, ())
            own = [_timed(each, _same(each, known, controller), now) for each in ours[field]]
            made[field] = [*own, *(each for each in known if each.get("controllerName") != controller)]
    if "listeners" in ours:
        by_name = {each["name"]: each for each in before.get("listeners", ())}
        made["listeners"] = [_timed(each, by_name.get(each["name"]), now) for each in ours["listeners"]]
    return _timed(made, before, now) if "conditions" in ours else made


def _same(entry: Json, known: Iterable[Json], controller: str) -> Json | None:
    ref = entry.get("parentRef") or entry.get("ancestorRef")
    for each in known:
        if each.get("controllerName") == controller and ref == (each.get("parentRef") or each.get("ancestorRef")):
            return each
    return None


def _parents_first(key: Key) -> tuple[bool, str, ObjectName]:
    """Sorts objects as they are written: whoever reads that a route is accepted finds its parents' status as well."""
    kind, name = key
    return kind not in PARENTS, kind.value, name


def _timed(entry: Json, before: Json | None, now: str) -> Json:
    """Give conditions their times; keep those of types that we do not write."""
    known = {each["type"]: each for each in (before or {}).get("conditions", ())}
    made = []
    for condition in entry["conditions"]:
        old = known.pop(condition["type"], None)
        unchanged = old is not None and old.get("status") == condition["status"] and old.get("lastTransitionTime")
        made.append({**condition, "lastTransitionTime": unchanged or now})
    own = _SOMETIMES if {"parentRef", "supportedKinds"} & entry.keys() else frozenset[str]()
    return {**entry, "conditions": [*made, *(each for kind, each in known.items() if kind not in own)]}


class GatewayStatusWriter:
    """Writes statuses as long as we are the one who is to."""

    def __init__(
        self,
        access: Access,
        resources: Mapping[IngressKind, IngressResource],
        controller: str,
        snapshot: Snapshot,
        leading: Callable[[], bool],
    ) -> None:
        self._resources, self._controller, self._snapshot = resources, controller, snapshot
        kinds = resources.keys() - set(INGRESS_KINDS)
        self._loop = WriteLoop[Key](access, "vipwire-gateway", leading, lambda: snapshot.events(kinds), _PAUSES)
        self._written: dict[Key, tuple[str, int]] = {}
        """The version of each object at our last write, and a hash of what was written: it is not written again."""
        self._objects, self._due = snapshot.follow(statuses=True), set[Key]()
        """The objects that are to be looked at."""
        self._changed: Callable[[], Collection[Key]] | None = None
        self._seen: Mapping[Key, Json] | None = None

    def wake(self) -> None:
        """Look now for what is to be written."""
        self._loop.wake()

    async def run(
        self, wanted: Callable[[], Mapping[Key, Json]], changed: Callable[[], Collection[Key]] | None = None
    ) -> None:
        """Write until cancelled. `wanted` has the statuses by object, `changed` names those that may be others.

        Without it they are all looked at where `wanted` is another object.
        """
        self._changed, self._seen = changed, None
        await self._loop.run(wanted, self._keep_all)

    async def _keep_all(self, objects: FencedObjects, wanted: Mapping[Key, Json]) -> None:
        changed = self._changed() if self._changed is not None else ()
        if self._seen is None or (self._changed is None and self._seen is not wanted):
            changed = (*wanted, *self._written)
        self._seen = wanted
        self._due |= {*changed, *self._objects.take()}
        for key in sorted((key for key in self._due if not self._loop.waits(key)), key=_parents_first):
            found, status = self._find(key), wanted.get(key)
            if found is not None and status is not None:
                await self._keep(objects, key, found, status)
            elif found is not None and key in self._written and "parents" in (found.status or {}):
                # Take our parents back from a route that names none of our Gateways any more.
                await self._keep(objects, key, found, {"parents": []})
            if not self._loop.waits(key):  # it was not refused
                self._due.discard(key)
                if found is None or status is None:
                    self._written.pop(key, None)

    def _find(self, key: Key) -> Declared[Any] | None:
        kind, name = key
        return self._snapshot.declared(kind).get(name)

    async def _keep(self, objects: FencedObjects, key: Key, found: Declared[Any], status: Json) -> None:
        written = found.version, hash(msgspec.json.encode(status))
        if self._written.get(key) == written:
            return
        now = format_time(dt.datetime.now(dt.UTC))  # noqa: TID251  # this is the shell
        there = found.status
        made = merged(status, there, self._controller, now)
        if made != there and await self._write(objects, key, found.version, made):
            self._written[key] = written

    async def _write(self, objects: FencedObjects, key: Key, version: str, status: Json) -> bool:
        """Write a status, on condition that the object still has this version; report whether that was done."""
        kind, name = key
        resource = self._resources[kind]
        path = path_of(resource.path, resource.plural, *name, "status")
        send = partial(objects.merge, path, {"metadata": {"resourceVersion": version}, "status": status})
        return await self._loop.write(key, send, "cannot write a status", kind=kind.value, object=name)
