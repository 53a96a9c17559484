"""Merges the statuses that vipwire writes with the statuses at the API server. Pure.

Entries of other controllers stay: their parents of a route, their ancestors of a policy, and conditions of types that
vipwire does not write. A condition keeps its last transition time until its status changes.
"""

from collections.abc import Collection, Iterable
from typing import Final

from vipwire_l7.gateway.plan.planner import GatewayPlanner
from vipwire_l7.watch.objects import Json
from vipwire_l7.watch.snapshot import ObjectRef, Snapshot

_SOMETIMES: Final = frozenset({"PartiallyInvalid", "OverlappingTLSConfig"})
"""Conditions of routes and listeners that vipwire writes only when true, and removes otherwise."""
_BY_CONTROLLER: Final = ("parents", "ancestors")


def merge_status(ours: Json, theirs: Json | None, controller: str, now: str) -> Json:
    """Return the status to write: `ours`, other controllers' entries, and the old times of unchanged conditions."""
    before = theirs or {}
    made = {**before, **ours}
    for field in _BY_CONTROLLER:
        if field in ours:
            known = before.get(field, ())
            own = [
                _set_transition_times(each, _find_entry_for_ref(each, known, controller), now) for each in ours[field]
            ]
            made[field] = [*own, *(each for each in known if each.get("controllerName") != controller)]
    if "listeners" in ours:
        by_name = {each["name"]: each for each in before.get("listeners", ())}
        made["listeners"] = [
            _set_transition_times(each, by_name.get(each["name"]), now) for each in ours["listeners"]
        ]
    return _set_transition_times(made, before, now) if "conditions" in ours else made


def _find_entry_for_ref(entry: Json, known: Iterable[Json], controller: str) -> Json | None:
    ref = entry.get("parentRef") or entry.get("ancestorRef")
    for each in known:
        if each.get("controllerName") == controller and ref == (each.get("parentRef") or each.get("ancestorRef")):
            return each
    return None


def _set_transition_times(entry: Json, before: Json | None, now: str) -> Json:
    """Set the transition times of conditions; keep conditions of types that vipwire does not write."""
    known = {each["type"]: each for each in (before or {}).get("conditions", ())}
    made = []
    for condition in entry["conditions"]:
        old = known.pop(condition["type"], None)
        unchanged = old is not None and old.get("status") == condition["status"] and old.get("lastTransitionTime")
        made.append({**condition, "lastTransitionTime": unchanged or now})
    own = _SOMETIMES if {"parentRef", "supportedKinds"} & entry.keys() else frozenset[str]()
    return {**entry, "conditions": [*made, *(each for kind, each in known.items() if kind not in own)]}


class GatewayStatuses:
    """The statuses of the Gateway API's kinds."""

    def __init__(self, planner: GatewayPlanner, snapshot: Snapshot, controller: str) -> None:
        self._planner, self._snapshot, self._controller = planner, snapshot, controller

    @property
    def revision(self) -> int | None:
        return self._planner.revision

    def list_all(self) -> Iterable[ObjectRef]:
        return self._planner.list_objects_with_status()

    def take_changed(self) -> Collection[ObjectRef]:
        return self._planner.take_changed_statuses()

    def make_patch(self, ref: ObjectRef, now: str) -> Json | None:
        kind, name = ref
        found = self._snapshot.list_gateway_objects(kind).get(name)
        if found is None or self._planner.has_changed(ref):
            return None
        ours = self._planner.write_status(ref)
        if ours is None and self._controller.encode() not in found.written_status:
            return None
        there = found.status
        if ours is None:  # remove the entries that vipwire wrote while the object belonged to this controller
            ours = {field: [] for field in _BY_CONTROLLER if field in (there or {})}
        made = merge_status(ours, there, self._controller, now)
        return None if made == there else {"metadata": {"resourceVersion": found.version}, "status": made}
