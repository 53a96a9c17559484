"""All objects as they are now, and what the last events touched.

What has changed decides what it costs. Endpoints and weights, the frequent case, are a matter of one Service's
servers. Ingresses matter that are ours, and the Services and Secrets that they name; a status that is written back
matters to nobody. All else has everything planned anew. `take` tells which.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
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
    """What has changed: Services whose endpoints or weights have, objects that may matter by name, or the rest."""

    services: frozenset[ObjectName] = frozenset()
    named: frozenset[tuple[Kind, ObjectName]] = frozenset()
    structure: bool = False

    def __bool__(self) -> bool:
        return self.structure or bool(self.services) or bool(self.named)


class Snapshot:
    """The objects by kind. `apply` takes an event, `take` tells what has changed since it was asked last."""

    def __init__(self) -> None:
        self._things: dict[Kind, dict[ObjectName, Thing]] = {kind: {} for kind in Kind}
        self._slices: dict[ObjectName, dict[ObjectName, Slice]] = {}
        self._problems: dict[tuple[Kind, ObjectName], tuple[Problem, ...]] = {}
        self._waiting = set(Kind)
        self._services: set[ObjectName] = set()
        self._named: set[tuple[Kind, ObjectName]] = set()
        self._structure = False
        self.judgements = 0
        """Counts the changes of `problems`."""

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
        touched = Touched(frozenset(self._services), frozenset(self._named), self._structure)
        self._services, self._named, self._structure = set(), set(), False
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
        self.judgements += 1
        for problem in event.problems:
            key = (kind, problem.object)
            self._problems[key] = (*self._problems.get(key, ()), problem)
        if kind in self._waiting:
            self._waiting.discard(kind)
            self._structure = True

    def _set(self, kind: Kind, name: ObjectName, thing: Thing | None, problems: tuple[Problem, ...]) -> None:
        if problems != self._problems.pop((kind, name), ()):
            self.judgements += 1
        if problems:
            self._problems[kind, name] = problems
        things = self._things[kind]
        before = things.get(name)
        if before == thing:
            return
        if thing is None:
            things.pop(name, None)
        else:
            things[name] = thing
        self._note(kind, name, before, thing)

    def _note(self, kind: Kind, name: ObjectName, before: Thing | None, after: Thing | None) -> None:
        """Take note of what a change may matter to."""
        if kind is Kind.SLICE:
            self._note_slice(cast("Slice | None", before), cast("Slice | None", after))
        elif isinstance(before, Service) and isinstance(after, Service) and _has_same_ports(before, after):
            self._services.add(name)
        elif kind is Kind.INGRESS_CLASS:
            self._structure = True
        elif not (isinstance(before, Ingress) and isinstance(after, Ingress) and _asks_the_same(before, after)):
            self._named.add((kind, name))

    def _note_slice(self, before: Slice | None, after: Slice | None) -> None:
        if before is not None:
            self._slices[before.service].pop(before.name, None)
            self._services.add(before.service)
        if after is not None:
            self._slices.setdefault(after.service, {})[after.name] = after
            self._services.add(after.service)

    def _of(self, kind: Kind, _type: type[_Value]) -> Mapping[ObjectName, _Value]:
        return MappingProxyType(cast("dict[ObjectName, _Value]", self._things[kind]))


def _has_same_ports(before: Service, after: Service) -> bool:
    """Tell whether no pool is another for a change of a Service: weights and family are a matter of its servers."""
    return (before.ports, before.external) == (after.ports, after.external)


def _asks_the_same(before: Ingress, after: Ingress) -> bool:
    """Tell whether nothing but the status of an Ingress has changed."""
    return replace(before, addresses=after.addresses) == after
