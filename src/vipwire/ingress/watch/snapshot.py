"""All objects as they are now, and what the last events touched.

Two things may have changed: endpoints only, which is the frequent case and a matter of servers, or anything else,
which has everything planned anew. `take` tells which.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar, cast

from vipwire.ingress.watch.objects import Ingress, IngressClass, Kind, Secret, Service, Slice, Thing
from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire.state.event import Deleted, Event, Listed

_KINDS = {
    Ingress: Kind.INGRESS,
    IngressClass: Kind.INGRESS_CLASS,
    Service: Kind.SERVICE,
    Slice: Kind.SLICE,
    Secret: Kind.SECRET,
}
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Touched:
    """What has changed: `services` whose endpoints have, and whether anything else has too."""

    services: frozenset[ObjectName] = frozenset()
    structure: bool = False

    def __bool__(self) -> bool:
        return self.structure or bool(self.services)


class Snapshot:
    """The objects by kind. `apply` takes an event, `take` tells what has changed since it was asked last."""

    def __init__(self) -> None:
        self._things: dict[Kind, dict[ObjectName, Thing]] = {kind: {} for kind in Kind}
        self._slices: dict[ObjectName, dict[ObjectName, Slice]] = {}
        self._problems: dict[tuple[Kind, ObjectName], tuple[Problem, ...]] = {}
        self._waiting = set(Kind)
        self._services: set[ObjectName] = set()
        self._structure = False

    @property
    def complete(self) -> bool:
        """Whether every kind has been listed once; nothing may be configured before."""
        return not self._waiting

    @property
    def ingresses(self) -> Mapping[ObjectName, Ingress]:
        """All Ingresses."""
        return self._of(Kind.INGRESS, Ingress)

    @property
    def classes(self) -> Mapping[ObjectName, IngressClass]:
        """All IngressClasses."""
        return self._of(Kind.INGRESS_CLASS, IngressClass)

    @property
    def services(self) -> Mapping[ObjectName, Service]:
        """All Services."""
        return self._of(Kind.SERVICE, Service)

    @property
    def secrets(self) -> Mapping[ObjectName, Secret]:
        """All Secrets."""
        return self._of(Kind.SECRET, Secret)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What was wrong with objects when they were read."""
        return tuple(problem for problems in self._problems.values() for problem in problems)

    def slices(self, service: ObjectName) -> tuple[Slice, ...]:
        """Look up a Service's slices, by name."""
        found = self._slices.get(service, {})
        return tuple(found[name] for name in sorted(found))

    def apply(self, event: Event) -> None:
        """Take an event of a source."""
        kind = self._kind(event)
        if isinstance(event, Listed):
            self._list(kind, event)
        elif isinstance(event, Deleted):
            self._set(kind, event.name, None, event.problems)
        else:
            thing = cast("Thing", event.object)
            self._set(kind, thing.name, thing, event.problems)

    def take(self) -> Touched:
        """Tell what has changed, once."""
        touched = Touched(frozenset(self._services), self._structure)
        self._services, self._structure = set(), False
        return touched

    @staticmethod
    def _kind(event: Event) -> Kind:
        carried: Any = event.kind if isinstance(event, (Listed, Deleted)) else _KINDS[type(cast("Any", event.object))]
        return cast("Kind", carried)

    def _list(self, kind: Kind, event: Listed) -> None:
        things = {thing.name: thing for thing in cast("tuple[Thing, ...]", event.objects)}
        for name in self._things[kind].keys() - things.keys():
            self._set(kind, name, None, ())
        for name, thing in things.items():
            self._set(kind, name, thing, ())
        self._problems = {key: value for key, value in self._problems.items() if key[0] is not kind}
        for problem in event.problems:
            key = (kind, problem.object)
            self._problems[key] = (*self._problems.get(key, ()), problem)
        if kind in self._waiting:
            self._waiting.discard(kind)
            self._structure = True

    def _set(self, kind: Kind, name: ObjectName, thing: Thing | None, problems: tuple[Problem, ...]) -> None:
        self._problems.pop((kind, name), None)
        if problems:
            self._problems[kind, name] = problems
        things = self._things[kind]
        before = things.get(name)
        if before == thing:
            self._structure = self._structure or bool(problems)
            return
        if thing is None:
            things.pop(name, None)
        else:
            things[name] = thing
        if kind is Kind.SLICE:
            self._note_slice(cast("Slice | None", before), cast("Slice | None", thing))
        else:
            self._structure = True

    def _note_slice(self, before: Slice | None, after: Slice | None) -> None:
        if before is not None:
            self._slices[before.service].pop(before.name, None)
            self._services.add(before.service)
        if after is not None:
            self._slices.setdefault(after.service, {})[after.name] = after
            self._services.add(after.service)

    def _of(self, kind: Kind, _type: type[_Value]) -> Mapping[ObjectName, _Value]:
        return MappingProxyType(cast("dict[ObjectName, _Value]", self._things[kind]))
