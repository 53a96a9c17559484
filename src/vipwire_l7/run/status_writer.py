"""Writes the statuses of Ingresses, Gateways, routes and policies to an API server, from the elected replica.

A write costs one object: the planner names the statuses that it changed, the snapshot the changed objects. Each write
has the resourceVersion of its object: of two writers at once the API server refuses one, which tries again.
"""

import datetime as dt
import heapq
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Protocol

from vipwire.kube.access.access import Access
from vipwire.kube.objects import FencedObjects, Object, path_of
from vipwire.kube.write_loop import Pauses, WriteLoop
from vipwire.model.names import ObjectName
from vipwire.model.times import format_time
from vipwire_l7.run.desired import Desired
from vipwire_l7.run.rates import Rate
from vipwire_l7.watch.kinds import IngressResource
from vipwire_l7.watch.objects import IngressKind
from vipwire_l7.watch.snapshot import ObjectRef, Snapshot

_PAUSES: Final = Pauses(refused=5.0, conflict=0.0)
_SLOWED: Final = 1.0
"""The minimum of seconds that a namespace waits after its last allowed write."""
_ROUND: Final = 32
"""The maximum of writes for one namespace before vipwire writes for the next one."""
_PARENTS: Final = frozenset((IngressKind.GATEWAY_CLASS, IngressKind.LISTENER_SET, IngressKind.GATEWAY))


class Statuses(Protocol):
    """The statuses that vipwire writes for some kinds."""

    @property
    def revision(self) -> int | None:
        """A count of changes; None before the first plan."""

    def list_all(self) -> Iterable[ObjectRef]: ...

    def take_changed(self) -> Collection[ObjectRef]:
        """Return the objects whose statuses may have changed since the last call."""

    def make_patch(self, ref: ObjectRef, now: str) -> Object | None:
        """Return the merge patch that an object needs, with its resourceVersion; None if it needs none."""


class StatusWriter:
    """Writes statuses while this replica is the leader. `kinds` are the kinds of the objects."""

    def __init__(
        self,
        access: Access,
        kinds: Mapping[IngressKind, IngressResource],
        statuses: Statuses,
        snapshot: Snapshot,
        leading: Callable[[], bool],
        rate: Rate,
    ) -> None:
        self._kinds, self._statuses, self._rate = kinds, statuses, rate

        def count_changes() -> int:
            return snapshot.count_events(kinds) + (statuses.revision or 0)

        self._loop = WriteLoop[ObjectRef](access, "vipwire-status", leading, count_changes, _PAUSES)
        self._objects = snapshot.follow_changes(statuses_of=kinds.keys())
        self._due: dict[str, set[ObjectRef]] | None = None
        """The objects to check, by namespace; None for all."""
        self._written: dict[ObjectRef, str] = {}
        """The resourceVersions of the last writes' objects: the watch must show a later one first."""

    def wake(self) -> None:
        self._loop.wake()

    async def run(self) -> None:
        await self._loop.run(
            lambda: None if self._statuses.revision is None else self._statuses, self._write_due_statuses
        )

    async def _write_due_statuses(self, objects: FencedObjects, statuses: Statuses) -> None:
        if self._due is None:
            self._due = _group_by_namespace(statuses.list_all())
        for namespace, more in _group_by_namespace((*statuses.take_changed(), *self._objects.take())).items():
            self._due.setdefault(namespace, set()).update(more)
        may = (refs for namespace, refs in self._due.items() if not self._rate.get_wait(namespace))
        for ref in sorted((ref for refs in may for ref in self._choose_round(refs)), key=rank_for_writing):
            if not self._rate.get_wait(ref[1].namespace):
                await self._write_status(objects, ref)
                if not self._loop.waits(ref):  # the API server accepted the write
                    self._due[ref[1].namespace].discard(ref)
        self._due = {namespace: refs for namespace, refs in self._due.items() if refs}
        self._schedule_rest(self._due)

    def _choose_round(self, refs: Iterable[ObjectRef]) -> list[ObjectRef]:
        """Choose the next objects of one namespace."""
        return heapq.nsmallest(_ROUND, (ref for ref in refs if not self._loop.waits(ref)), rank_for_writing)

    def _schedule_rest(self, due: Mapping[str, set[ObjectRef]]) -> None:
        """Schedule the next round for the rest: at once, or when a waiting namespace may have writes again."""
        for namespace, refs in due.items():
            wait = self._rate.get_wait(namespace)
            ref = next((each for each in refs if wait or not self._loop.waits(each)), None)
            if ref is not None and not self._loop.waits(ref):
                self._loop.pause(ref, max(_SLOWED, wait) if wait else 0.0)
                self.wake()

    async def _write_status(self, objects: FencedObjects, ref: ObjectRef) -> None:
        patch = self._statuses.make_patch(ref, format_time(dt.datetime.now(dt.UTC)))  # noqa: TID251  # this is the shell
        written = self._written.pop(ref, None)
        if patch is None:
            return
        (kind, name), version = ref, patch["metadata"]["resourceVersion"]
        if written == version:
            self._written[ref] = version
            return

        async def send() -> None:
            resource = self._kinds[kind]
            path = path_of(resource.path, resource.plural, *name, "status")
            answer = await objects.merge(path, patch)
            if answer.get("metadata", {}).get("resourceVersion") != version:  # the status did change
                self._written[ref] = version

        self._rate.spend(name.namespace)
        await self._loop.write(ref, send, "cannot write a status", kind=kind.value, object=name)


def _group_by_namespace(refs: Iterable[ObjectRef]) -> dict[str, set[ObjectRef]]:
    found: dict[str, set[ObjectRef]] = {}
    for ref in refs:
        found.setdefault(ref[1].namespace, set()).add(ref)
    return found


async def write_statuses(writer: StatusWriter, desired: Desired) -> None:
    """Write until cancelled, after each change that HAProxy has."""
    with desired.call_after_changes(writer.wake):
        await writer.run()


def rank_for_writing(ref: ObjectRef) -> tuple[bool, str, ObjectName]:
    """Return the order of writes: a reader of an accepted route finds the status of its parents."""
    kind, name = ref
    return kind not in _PARENTS, kind.value, name
