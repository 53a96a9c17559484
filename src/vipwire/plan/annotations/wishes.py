"""The annotations of a Service as typed wishes, independent of the mode.

An invalid value is a Problem and counts as absent; in a list or map the valid parts count. An unknown key with
vipwire's prefix is a Problem too, and so is a key close to one of kube-router's.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from vipwire.model.names import ObjectName
from vipwire.model.net import Address, Prefix
from vipwire.model.problem import Problem
from vipwire.model.service import Service
from vipwire.model.spread import Algorithm
from vipwire.model.text import find_nearest
from vipwire.plan.annotations.values import Balancing, ForwardingMethod, SchedulerFlag, Scope
from vipwire.plan.annotations.words import BY_KEY, KUBE_ROUTER, KUBE_ROUTERS_OWN, LOCAL, PREFIX

_NEARLY: Final = 0.8
_WEIGHTS: Final = f"{PREFIX}weights"
_ALGORITHMS: Final = {Balancing(each.value): each for each in Algorithm}
_NO_WEIGHTS: Final[Mapping[Address, int]] = MappingProxyType({})
_NONE_GIVEN: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Wishes:
    """The valid annotations of a Service. `given` maps fields to the keys that set them.

    `balancing` None leaves the choice to the mode. `slow_start` and `drain_seconds` are in seconds, None without.
    `eject_after` is failures in a row, `eject_for` seconds and `eject_at_most` percent; None without ejection.
    `port_ranges` are (port name or "", (first, last)). `hash_flags` apply to schedulers that hash if
    `scheduler_flags` is None. `local_only` is kube-router's annotation for external policy Local.
    """

    balancing: Balancing | None = None
    weights: Mapping[Address, int] = field(default_factory=lambda: _NO_WEIGHTS, hash=False)
    scope: Scope = Scope.PORT
    slow_start: int | None = None
    eject_after: int | None = None
    eject_for: int = 30
    eject_at_most: int = 50
    eject_udp: bool = False
    proxy_protocol: int = 0
    node_port_sources: tuple[Prefix, ...] = ()
    port_ranges: tuple[tuple[str, tuple[int, int]], ...] = ()
    scheduler: str = ""
    scheduler_flags: frozenset[SchedulerFlag] | None = None
    hash_flags: frozenset[SchedulerFlag] | None = None
    forwarding: ForwardingMethod = ForwardingMethod.NAT
    drain_seconds: int | None = None
    local_only: bool = False
    given: Mapping[str, str] = field(default_factory=lambda: _NONE_GIVEN, hash=False)
    problems: tuple[Problem, ...] = ()

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm of pools; random if the mode decides."""
        return _ALGORITHMS.get(self.balancing, Algorithm.RANDOM) if self.balancing else Algorithm.RANDOM

    @property
    def shared_affinity(self) -> bool:
        return self.scope is Scope.SERVICE


NOTHING = Wishes()


def read_wishes(service: Service) -> Wishes:
    return _read_annotations(service.name, service.annotations) if service.annotations else NOTHING


def annotation_problems(name: ObjectName, annotations: Mapping[str, str]) -> tuple[Problem, ...]:
    """Return the problems of a Service's annotations, without reading the Service."""
    return _read_annotations(name, tuple(annotations.items())).problems


def wants_local(annotations: Mapping[str, str]) -> bool:
    """Report whether kube-router's annotation asks for external policy Local; ignores invalid values."""
    return LOCAL in annotations and _parse_value(LOCAL, annotations[LOCAL])[0] is True


def read_weights(annotations: Mapping[str, str]) -> tuple[Mapping[Address, int], tuple[str, ...]]:
    """Read only the weights of a Service's endpoints; return them with the complaints."""
    return _parse_weights(annotations[_WEIGHTS]) if _WEIGHTS in annotations else (_NO_WEIGHTS, ())


@lru_cache(maxsize=1024)
def _parse_weights(text: str) -> tuple[Mapping[Address, int], tuple[str, ...]]:
    found, complaints = _parse_value(_WEIGHTS, text)
    return found or _NO_WEIGHTS, complaints


def field_of(key: str) -> str:
    """Return the field path of an annotation, as Problems name it."""
    return f"metadata.annotations[{key}]"


def _parse_value(key: str, text: str) -> tuple[Any, tuple[str, ...]]:
    """Read one annotation; return its value (None if absent) and the complaints."""
    try:
        value, complaints = BY_KEY[key].read(text)
    except ValueError as error:
        return None, (str(error),)
    return (None if complaints and not value else value), complaints


@lru_cache(maxsize=1024)
def _read_annotations(name: ObjectName, annotations: tuple[tuple[str, str], ...]) -> Wishes:
    found: dict[str, Any] = {}
    given: dict[str, str] = {}
    problems: list[Problem] = []
    present = dict(annotations)
    for key in (key for key in BY_KEY if key in present):
        value, complaints = _parse_value(key, present[key])
        problems += (Problem("Service", name, field_of(key), text) for text in complaints)
        if value is not None:
            found[BY_KEY[key].wish], given[BY_KEY[key].wish] = value, key
    problems += (Problem("Service", name, field_of(key), text) for key, text in _find_unknown(present))
    problems += _remove_ineffective(name, found, given)
    if "slow_start" in found and found.get("balancing") is Balancing.SOURCE_HASH:
        # Each step of slow start would move clients of all endpoints, which contradicts a hash.
        del found["slow_start"]
        why = "has no effect with the algorithm source-hash"
        problems.append(Problem("Service", name, field_of(given.pop("slow_start")), why))
    return Wishes(**found, given=MappingProxyType(given), problems=tuple(problems))


def _remove_ineffective(name: ObjectName, found: dict[str, Any], given: dict[str, str]) -> Iterator[Problem]:
    """Remove annotations that have no effect without another one; yield a Problem for each."""
    if "eject_after" in found:
        return
    for wish in [wish for wish in given if wish.startswith("eject_")]:
        del found[wish]
        yield Problem("Service", name, field_of(given.pop(wish)), f"has no effect without {PREFIX}eject-after")


def _find_unknown(keys: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for key in keys:
        if key in BY_KEY or key in KUBE_ROUTERS_OWN:
            continue
        near = find_nearest(key, BY_KEY, _NEARLY)
        if key.startswith(PREFIX):
            yield key, "is not an annotation of Services" + (f"; did you mean {near}?" if near else "")
        elif key.startswith(KUBE_ROUTER) and near:
            yield key, f"is not an annotation of vipwire; did you mean {near}?"


class Lack(NamedTuple):
    """A wish (a field of `Wishes`), or some of its values, that a mode lacks. `instead` says the mode's behaviour."""

    wish: str
    instead: str
    values: tuple[object, ...] = ()


def find_ineffective(service: ObjectName, wishes: Wishes, lacks: Iterable[Lack]) -> Iterator[Problem]:
    """Yield a Problem for each wish of a Service that the mode lacks."""
    for lack in lacks:
        if lack.wish in wishes.given and (not lack.values or getattr(wishes, lack.wish) in lack.values):
            yield Problem("Service", service, field_of(wishes.given[lack.wish]), lack.instead)
