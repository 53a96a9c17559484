"""The current objects, and the Services that the last events touched.

Pure apart from its own dictionaries: the same events in any order per object leave the same contents.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Final, TypeAlias

from vipwire.errors import HaltedError
from vipwire.model.names import KUBERNETES, ObjectName
from vipwire.model.net import Family
from vipwire.model.node import Node, ServiceCIDR
from vipwire.model.problem import Problem
from vipwire.model.service import EndpointSlice, Service
from vipwire.watched_objects.event import Deleted, Event, Kind, Listed, Object, Upserted, kind_of

CROWD: Final = 1000
"""With more endpoints than this, at all ports, kube-proxy writes less (its largeClusterEndpointsThreshold)."""
THINNED: Final = 900
"""The number below which the full texts return: avoids rewriting rules again and again near the limit."""

_NAME: Final = attrgetter("name")
_Subject: TypeAlias = tuple[Kind, ObjectName]
"""The object of an event."""


class Store:
    """The current objects. `apply` applies an event; `take_touched` returns the Services to plan again."""

    def __init__(self) -> None:
        self._services: dict[ObjectName, Service] = {}
        self._slices: dict[ObjectName, tuple[EndpointSlice, ...]] = {}  # by name: nearly all Services have one
        self._slice_service: dict[ObjectName, ObjectName] = {}
        self._nodes: dict[str, Node] = {}
        self._cidrs: dict[str, ServiceCIDR] = {}
        self._problems: dict[_Subject, tuple[Problem, ...]] = {}
        self._waiting = set(Kind)
        self._closed = False
        self._dirty: dict[ObjectName, bool] = {}
        self._endpoints: Counter[Family] = Counter()
        self.crowded: frozenset[Family] = frozenset()
        """The families with so many endpoints that a mode may write less about each."""
        self.node_changed = True
        self.services = MappingProxyType(self._services)
        self.nodes = MappingProxyType(self._nodes)

    @property
    def waiting(self) -> frozenset[Kind]:
        """The kinds that no source has listed yet. Nothing may be programmed while Services or slices are missing."""
        return frozenset(self._waiting)

    @property
    def service_cidrs(self) -> tuple[ServiceCIDR, ...]:
        """The ranges of ClusterIPs, ordered by name."""
        return tuple(self._cidrs[name] for name in sorted(self._cidrs))

    @property
    def problems(self) -> tuple[Problem, ...]:
        return tuple(problem for problems in self._problems.values() for problem in problems)

    def view(self, name: ObjectName) -> tuple[Service | None, Sequence[EndpointSlice]]:
        """Return a Service and its slices, ordered by name. Raise HaltedError after `close`."""
        if self._closed:
            raise HaltedError
        return self._services.get(name), self._slices.get(name, ())

    def close(self) -> None:
        """Let `view` raise HaltedError from now on, also in another thread."""
        self._closed = True

    def triggered(self, name: ObjectName) -> float | None:
        """Return when the newest change of a Service's endpoints was triggered, in seconds since the epoch."""
        newest = None
        for piece in self._slices.get(name, ()):
            if piece.triggered is not None and (newest is None or piece.triggered > newest):
                newest = piece.triggered
        return newest

    @property
    def dirty(self) -> bool:
        return bool(self._dirty)

    @property
    def touched(self) -> int:
        return len(self._dirty)

    def take_touched(self) -> Mapping[ObjectName, bool]:
        """Return the Services changed since the last call, in the order of their first change.

        The value is True if the object itself changed, False if only its endpoints did.
        """
        dirty, self._dirty = self._dirty, {}
        return dirty

    def apply(self, event: Event) -> tuple[Problem, ...]:
        """Apply an event; return its new problems."""
        known = (
            {problem for problems in self._problems_before(event) for problem in problems}
            if event.problems
            else set()
        )
        match event:
            case Listed(kind, objects, problems):
                self._replace_all(kind, objects)
                self._apply_list(kind, objects, problems)
            case Upserted(changed, problems):
                self._put_object(changed)
                if problems or self._problems:
                    self._keep_problems(_build_subject(changed), problems)
            case Deleted(kind, name, problems):
                self._drop_object(kind, name)
                self._keep_problems((kind, name), problems)
        return tuple([problem for problem in dict.fromkeys(problems) if problem not in known]) if problems else ()

    def _apply_list(self, kind: Kind, objects: Iterable[Object], problems: Iterable[Problem]) -> None:
        """Keep a list's problems under the objects that later events will name; of Endpoints, their first slice."""
        slices = [item for item in objects if isinstance(item, EndpointSlice) and ":" in item.name.name]
        spoken = {piece.service: piece.name for piece in reversed(slices)}
        self._problems = {key: old for key, old in self._problems.items() if key[0] is not kind}
        for problem in problems:
            name = spoken.get(problem.object, problem.object) if problem.kind == "Endpoints" else problem.object
            self._problems[kind, name] = (*self._problems.get((kind, name), ()), problem)

    def _keep_problems(self, subject: _Subject, problems: tuple[Problem, ...]) -> None:
        """Keep the problems of an event until the next event about the same object.

        A problem's own kind and object are no key here: Endpoints come as slices, and a file as a Service.
        """
        if problems:
            self._problems[subject] = problems
        elif self._problems:
            self._problems.pop(subject, None)

    def _problems_before(self, event: Event) -> Iterable[tuple[Problem, ...]]:
        if isinstance(event, Listed):
            return [problems for (kind, _), problems in self._problems.items() if kind is event.kind]
        subject = _build_subject(event.object) if isinstance(event, Upserted) else (event.kind, event.name)
        return [self._problems.get(subject, ())]

    def _replace_all(self, kind: Kind, objects: Iterable[Object]) -> None:
        listed = tuple(objects)
        self._waiting.discard(kind)
        names = {_find_name(item) for item in listed}
        for gone in [name for name in self._list_names(kind) if name not in names]:
            self._drop_object(kind, gone)
        for item in listed:
            self._put_object(item)

    def _list_names(self, kind: Kind) -> Iterable[ObjectName]:
        match kind:
            case Kind.SERVICE:
                return self._services
            case Kind.ENDPOINT_SLICE:
                return self._slice_service
            case Kind.NODE:
                return [ObjectName("", name) for name in self._nodes]
            case Kind.SERVICE_CIDR:
                return [ObjectName("", name) for name in self._cidrs]

    def _put_object(self, item: Object) -> None:
        match item:
            case Service():
                if self._services.get(item.name) != item:
                    self._services[item.name] = item
                    self._mark_touched(item.name, itself=True)
            case EndpointSlice():
                self._put_slice(item)
            case Node():
                self.node_changed |= self._nodes.get(item.name) != item
                self._nodes[item.name] = item
            case ServiceCIDR():
                self.node_changed |= self._cidrs.get(item.name) != item
                self._cidrs[item.name] = item

    def _put_slice(self, piece: EndpointSlice) -> None:
        owner = self._slice_service.get(piece.name)
        if owner is not None and owner != piece.service:
            self._drop_object(Kind.ENDPOINT_SLICE, piece.name)
        slices = self._slices.get(piece.service, ())
        at, old = _find_slice(slices, piece.name)
        if old == piece:
            return
        self._count_slice(old, piece)
        self._slices[piece.service] = (*slices[:at], piece, *slices[at + (old is not None) :])
        self._slice_service[piece.name] = piece.service
        self._mark_touched(piece.service)

    def _drop_object(self, kind: Kind, name: ObjectName) -> None:
        match kind:
            case Kind.SERVICE:
                if self._services.pop(name, None) is not None:
                    self._mark_touched(name, itself=True)
            case Kind.ENDPOINT_SLICE:
                owner = self._slice_service.pop(name, None)
                if owner is not None:
                    slices = self._slices.pop(owner)
                    at, old = _find_slice(slices, name)
                    self._count_slice(old, None)
                    if len(slices) > 1:
                        self._slices[owner] = (*slices[:at], *slices[at + 1 :])
                    self._mark_touched(owner)
            case Kind.NODE:
                self.node_changed |= self._nodes.pop(name.name, None) is not None
            case Kind.SERVICE_CIDR:
                self.node_changed |= self._cidrs.pop(name.name, None) is not None

    def _mark_touched(self, name: ObjectName, *, itself: bool = False) -> None:
        """Record a changed Service, or its changed endpoints; the API server's endpoints concern the node plan."""
        self._dirty[name] = itself or self._dirty.get(name, False)
        self.node_changed |= name == KUBERNETES

    def _count_slice(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        """Count the endpoints of each family at all ports; update `crowded`."""
        for piece, by in ((old, -1), (new, +1)):
            if piece is not None:
                self._endpoints[piece.family] += by * len(piece.endpoints) * len(piece.ports)
        for family, count in self._endpoints.items():
            limit = THINNED if family in self.crowded else CROWD
            if (count > limit) is not (family in self.crowded):
                self.crowded ^= {family}
                self.node_changed = True


def _find_slice(slices: tuple[EndpointSlice, ...], name: ObjectName) -> tuple[int, EndpointSlice | None]:
    """Return the index of a slice by name, or its insertion point, and the slice if it exists."""
    at = bisect_left(slices, name, key=_NAME) if slices else 0
    return at, slices[at] if at < len(slices) and slices[at].name == name else None


def _find_name(item: Object) -> ObjectName:
    return item.name if isinstance(item.name, ObjectName) else ObjectName("", item.name)


def _build_subject(item: Object) -> _Subject:
    return kind_of(item), _find_name(item)
