"""All current objects, and the extent of the last changes.

The extent decides the cost. Changed endpoints and weights, the frequent case, concern the servers of one Service; a
written status changes no plan. `take_touched` returns the extent.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias, cast
from weakref import WeakSet

from vipwire.kube.gateway_addresses import GATEWAY
from vipwire.model.names import ObjectName
from vipwire.model.net import Address
from vipwire.model.problem import Problem
from vipwire.watched_objects.event import Deleted, Listed, Upserted
from vipwire_l7.watch.compact import SetsByKey
from vipwire_l7.watch.objects import (
    INGRESS_KINDS,
    BackendService,
    BackendSlice,
    GatewayObject,
    Ingress,
    IngressClass,
    IngressEvent,
    IngressKind,
    IngressObject,
    Secret,
)

_KINDS: Final[Mapping[type[IngressObject], IngressKind]] = {
    Ingress: IngressKind.INGRESS,
    IngressClass: IngressKind.INGRESS_CLASS,
    BackendService: IngressKind.SERVICE,
    BackendSlice: IngressKind.SLICE,
    Secret: IngressKind.SECRET,
}
ObjectRef: TypeAlias = tuple[IngressKind, ObjectName]


@dataclass(frozen=True, slots=True)
class ChangeExtent:
    """The extent of a change: Services with other endpoints or weights, objects by name, or everything."""

    services: frozenset[ObjectName] = frozenset()
    named: frozenset[ObjectRef] = frozenset()
    structure: bool = False

    def __bool__(self) -> bool:
        return self.structure or bool(self.services) or bool(self.named)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why vipwire refuses a destination of a Service. `whole` means that no destination is left."""

    message: str
    whole: bool


class Changes:
    """The objects that changed since the last `take`. `kinds` None means all kinds."""

    def __init__(self, kinds: Collection[IngressKind] | None = None) -> None:
        self._kinds = kinds
        self._refs = set[ObjectRef]()

    def add(self, ref: ObjectRef) -> None:
        if self._kinds is None or ref[0] in self._kinds:
            self._refs.add(ref)

    def __contains__(self, ref: ObjectRef) -> bool:
        return ref in self._refs

    def take(self) -> set[ObjectRef]:
        """Return the objects that changed since the last call."""
        taken, self._refs = self._refs, set()
        return taken


class Snapshot:
    """The objects by kind. `apply` takes an event, `take_touched` returns the extent of the changes since then."""

    def __init__(self, kinds: Iterable[IngressKind] = INGRESS_KINDS) -> None:
        """`kinds` are those to read."""
        kinds = frozenset(kinds)
        self._objects: dict[IngressKind, dict[ObjectName, IngressObject]] = {
            kind: {} for kind in kinds.union(INGRESS_KINDS)
        }
        self._slices = SetsByKey[ObjectName, ObjectName]()
        """The names of each Service's slices."""
        self.cluster_ips: dict[Address, ObjectName] = {}
        """The Services by their ClusterIPs."""
        self._grants: dict[str, dict[ObjectName, GatewayObject[object]]] = {}
        self._assigned: dict[ObjectName, dict[ObjectName, BackendService]] = {}
        self._problems: dict[tuple[IngressKind, ObjectName], tuple[Problem, ...]] = {}
        self._waiting = set(kinds)
        self._services: set[ObjectName] = set()
        self._named: set[tuple[IngressKind, ObjectName]] = set()
        self._structure = False
        self._judged = set[ObjectRef]()
        """The objects whose problems changed since the last `take_changed_problems`."""
        self._refusals: Mapping[ObjectName, Refusal] = {}
        self._events = Counter[IngressKind]()
        self._followers, self._readers = WeakSet[Changes](), WeakSet[Changes]()

    def follow_changes(self, *, statuses_of: Collection[IngressKind] | None = None) -> Changes:
        """Record changes while the caller keeps the result; for `statuses_of`, also changed statuses."""
        made = Changes(statuses_of)
        (self._followers if statuses_of is None else self._readers).add(made)
        return made

    @property
    def refusals(self) -> Mapping[ObjectName, Refusal]:
        """The refused destinations of each Service (`plan.destinations`)."""
        return self._refusals

    @refusals.setter
    def refusals(self, now: Mapping[ObjectName, Refusal]) -> None:
        before, self._refusals = self._refusals, now
        for name in before.keys() | now.keys():
            if before.get(name) != now.get(name):
                self._tell_followers(IngressKind.SERVICE, name)

    @property
    def complete(self) -> bool:
        """Whether every kind has been listed once: before that, HAProxy gets no configuration."""
        return not self._waiting

    @property
    def ingresses(self) -> Mapping[ObjectName, Ingress]:
        return cast("Mapping[ObjectName, Ingress]", self._objects[IngressKind.INGRESS])

    @property
    def classes(self) -> Mapping[ObjectName, IngressClass]:
        return cast("Mapping[ObjectName, IngressClass]", self._objects[IngressKind.INGRESS_CLASS])

    @property
    def services(self) -> Mapping[ObjectName, BackendService]:
        return cast("Mapping[ObjectName, BackendService]", self._objects[IngressKind.SERVICE])

    @property
    def secrets(self) -> Mapping[ObjectName, Secret]:
        return cast("Mapping[ObjectName, Secret]", self._objects[IngressKind.SECRET])

    def list_gateway_objects(self, kind: IngressKind) -> Mapping[ObjectName, GatewayObject[object]]:
        """Return all objects of one of the Gateway API's kinds."""
        found = {} if kind in INGRESS_KINDS else self._objects.get(kind, {})
        return cast("Mapping[ObjectName, GatewayObject[object]]", found)

    def list_grants(self, namespace: str) -> Iterable[GatewayObject[object]]:
        return self._grants.get(namespace, {}).values()

    def list_services_of(self, gateway: ObjectName) -> Collection[BackendService]:
        return self._assigned.get(gateway, {}).values()

    def find_address_service(self, gateway: ObjectName) -> BackendService | None:
        """Return the Service that gives a Gateway its addresses."""
        return next(iter(self.list_services_of(gateway)), None)

    @property
    def problems(self) -> tuple[Problem, ...]:
        return tuple(problem for problems in self._problems.values() for problem in problems)

    def take_changed_problems(self) -> dict[ObjectRef, tuple[Problem, ...]]:
        """Return the problems of the objects whose problems changed since the last call."""
        taken, self._judged = self._judged, set()
        return {ref: self._problems.get(ref, ()) for ref in taken}

    def list_slices(self, service: ObjectName) -> tuple[BackendSlice, ...]:
        """Return a Service's slices, by name."""
        slices = cast("Mapping[ObjectName, BackendSlice]", self._objects[IngressKind.SLICE])
        return tuple(slices[name] for name in sorted(self._slices.get(service)))

    def count_events(self, kinds: Iterable[IngressKind]) -> int:
        """Return the number of events of these kinds: their objects are the same as long as the number is."""
        return sum(self._events[kind] for kind in kinds)

    def apply(self, event: IngressEvent) -> None:
        match event:
            case Listed(kind, objects, problems):
                self._apply_list(kind, objects, problems)
            case Deleted(kind, name, problems):
                self._set_object(kind, name, None, problems)
            case Upserted(changed, problems):
                kind = get_kind(changed)
                self._set_object(kind, changed.name, changed, problems)
        self._events[kind] += 1

    def take_touched(self) -> ChangeExtent:
        """Return the extent of the changes since the last call."""
        touched = ChangeExtent(frozenset(self._services), frozenset(self._named), self._structure)
        self._services, self._named, self._structure = set(), set(), False
        return touched

    def _apply_list(
        self, kind: IngressKind, objects: tuple[IngressObject, ...], problems: tuple[Problem, ...]
    ) -> None:
        for name in self._objects[kind].keys() - {each.name for each in objects}:
            self._set_object(kind, name, None, ())
        for each in objects:
            self._set_object(kind, each.name, each, ())
        self._judged |= {key for key in self._problems if key[0] is kind}
        self._problems = {key: value for key, value in self._problems.items() if key[0] is not kind}
        for problem in problems:
            key = (kind, problem.object)
            self._problems[key] = (*self._problems.get(key, ()), problem)
            self._judged.add(key)
        if kind in self._waiting:
            self._waiting.discard(kind)
            self._structure = True

    def _set_object(
        self, kind: IngressKind, name: ObjectName, after: IngressObject | None, problems: tuple[Problem, ...]
    ) -> None:
        if problems != self._problems.pop((kind, name), ()):
            self._judged.add((kind, name))
        if problems:
            self._problems[kind, name] = problems
        for each in self._readers:
            each.add((kind, name))
        objects = self._objects[kind]
        before = objects.get(name)
        if after is None:
            objects.pop(name, None)
        else:
            objects[name] = after  # even if equal: the fields that do not count, such as the status, may differ
        if before != after:
            self._record_change(kind, name, before, after)

    def _record_change(
        self, kind: IngressKind, name: ObjectName, before: IngressObject | None, after: IngressObject | None
    ) -> None:
        self._tell_followers(kind, name)
        if kind is IngressKind.SERVICE:
            self._record_service(before, after)
        elif kind is IngressKind.REFERENCE_GRANT:
            self._record_grant(name, after)
        if kind is IngressKind.SLICE:
            self._record_slice(before, after)
        elif isinstance(before, BackendService) and isinstance(after, BackendService) and _keeps_pools(before, after):
            self._services.add(name)
        elif kind is IngressKind.INGRESS_CLASS:
            self._structure = True
        else:
            self._named.add((kind, name))

    def _tell_followers(self, kind: IngressKind, name: ObjectName) -> None:
        for each in self._followers:
            each.add((kind, name))

    def _record_service(self, before: IngressObject | None, after: IngressObject | None) -> None:
        """Record ClusterIPs, and the Gateway whose addresses a Service gives: these may change without its object."""
        for each, is_there in ((before, False), (after, True)):
            if not isinstance(each, BackendService):
                continue
            for address in each.cluster_ips:
                if is_there:
                    self.cluster_ips[address] = each.name
                else:
                    self.cluster_ips.pop(address, None)
            if GATEWAY in each.annotations:
                gateway = ObjectName(each.name.namespace, each.annotations[GATEWAY])
                if is_there:
                    self._assigned.setdefault(gateway, {})[each.name] = each
                else:
                    self._assigned[gateway].pop(each.name)
                self._named.add((IngressKind.GATEWAY, gateway))
                self._tell_followers(IngressKind.GATEWAY, gateway)

    def _record_grant(self, name: ObjectName, after: IngressObject | None) -> None:
        found = self._grants.setdefault(name.namespace, {})
        if isinstance(after, GatewayObject):
            found[name] = after
        else:
            found.pop(name, None)
        self._tell_followers(IngressKind.REFERENCE_GRANT, ObjectName(name.namespace, ""))

    def touch_services(self, services: Iterable[ObjectName]) -> None:
        self._services.update(services)

    def _record_slice(self, before: IngressObject | None, after: IngressObject | None) -> None:
        if isinstance(before, BackendSlice):
            self._slices.discard(before.service, before.name)
            self._services.add(before.service)
        if isinstance(after, BackendSlice):
            self._slices.add(after.service, after.name)
            self._services.add(after.service)


def get_kind(value: IngressObject) -> IngressKind:
    return value.kind if isinstance(value, GatewayObject) else _KINDS[type(value)]


def _keeps_pools(before: BackendService, after: BackendService) -> bool:
    """Report whether a changed Service keeps its pools: weights and family only concern its servers.

    A Gateway's address, which may be that of a Service, must not change either.
    """
    gateway = before.annotations.get(GATEWAY)
    return (
        (before.ports, before.external, before.udp_ports) == (after.ports, after.external, after.udp_ports)
        and gateway == after.annotations.get(GATEWAY)
        and (not gateway or before.balanced == after.balanced)
    )
