"""The plan in its parts: hosts, pools, certificates and so on, with the parts that an update changed.

A planner adds parts and removes them. Equal parts of several objects are stored once.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire_l7.plan.limits import MOST, Most
from vipwire_l7.plan.sites import (
    Certificate,
    Choice,
    DatagramFrontend,
    Frontend,
    Pool,
    Route,
    SitePlan,
)
from vipwire_l7.watch.snapshot import ObjectRef, Snapshot

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class HostPlan:
    """The plan of one site: its routes, and their choices. `shares` are the weighted choices."""

    routes: tuple[Route, ...] = ()
    choices: tuple[Choice, ...] = ()
    shares: tuple[Choice, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanChange:
    """The keys of added, changed and removed parts. A key that the plan lacks was removed."""

    hosts: set[str]
    pools: set[str]
    certificates: set[str]
    whole: bool
    """Whether frontends changed, or the target for requests without a match."""
    others: bool
    """Whether files or datagrams changed."""
    problems: set[ObjectRef]
    admitted: set[ObjectName]

    def __bool__(self) -> bool:
        parts = (self.hosts, self.pools, self.certificates, self.problems, self.admitted)
        return self.whole or self.others or any(parts)


class Table(dict[K, V]):
    """Values by key. Records the keys of changed values in `changed`."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = set[K]()

    def take_changed(self) -> set[K]:
        taken, self.changed = self.changed, set()
        return taken

    def put(self, key: K, value: V | None) -> bool:
        """Set a value, or remove the key for None; report whether it changed."""
        if self.get(key) == value:
            return False
        if value is None:
            del self[key]
        else:
            self[key] = value
        self.changed.add(key)
        return True

    def arrange(self, now: Mapping[K, V]) -> None:
        """Set all values, in this order."""
        self.put_all(tuple(self), now)
        self.clear()
        self.update(now)

    def put_all(self, before: Iterable[K], now: Mapping[K, V]) -> None:
        """Replace the values that the same author set before."""
        for key in before:
            if key not in now:
                self.put(key, None)
        for key, value in now.items():
            self.put(key, value)


class CountedTable(Table[K, V], Generic[K, V]):
    """Values that several authors set: a value stays until its last author removes it."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: dict[K, int] = {}

    def replace_values(self, before: Iterable[K], now: Mapping[K, V]) -> None:
        """Replace an author's values."""
        for key, value in now.items():
            self._counts[key] = self._counts.get(key, 0) + 1
            self.put(key, value)
        for key in before:
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]
                self.put(key, None)


class Plan:
    """The plan of all hosts. Each table records its changes until `take_change`."""

    def __init__(self) -> None:
        self.hosts = Table[str, HostPlan]()
        self.pools = CountedTable[str, Pool]()
        self.certificates = Table[str, Certificate]()
        self.frontends = Table[str, Frontend]()
        """The frontends beside the operator's own addresses. The choices belong to their hosts."""
        self.files = CountedTable[str, str]()
        """Files named by policies: CA certificates in PEM, and bodies of responses."""
        self.datagrams = Table[str, DatagramFrontend]()
        self.problems = Table[ObjectRef, tuple[Problem, ...]]()
        self.admitted = Table[ObjectName, bool]()
        """This controller's Ingresses."""
        self.default = Table[str, str]()
        """The target for requests without a match, under the empty text, if there is one."""

    def take_change(self) -> PlanChange:
        whole = self.frontends.take_changed() | self.default.take_changed()
        return PlanChange(
            self.hosts.take_changed(),
            self.pools.take_changed(),
            self.certificates.take_changed(),
            bool(whole),
            any((self.files.take_changed(), self.datagrams.take_changed())),
            self.problems.take_changed(),
            self.admitted.take_changed(),
        )

    def build_site_plan(self) -> SitePlan:
        hosts = (each for _, each in sorted(self.hosts.items()))
        return replace(
            build_site_plan(hosts, self.frontends.values(), self.pools, self.default.get("", "")),
            pools=tuple(pool for _, pool in sorted(self.pools.items())),
            certificates=tuple(each for _, each in sorted(self.certificates.items())),
            authorities=tuple(sorted(self.files.items())),
        )

    def list_problems(self) -> Iterator[Problem]:
        refs = sorted(self.problems, key=lambda ref: (ref[0].value, ref[1]))
        return (problem for ref in refs for problem in self.problems[ref])


def build_site_plan(
    hosts: Iterable[HostPlan], frontends: Iterable[Frontend], pools: Mapping[str, Pool], default: str = ""
) -> SitePlan:
    """Return the plan of some hosts, with the pools that they lead to."""
    own, frontends, routes = _Choices(), tuple(frontends), list[Route]()
    by_mark = {each.mark: _Choices() for each in frontends}
    for host in hosts:
        routes += host.routes
        if host.choices or host.shares:
            _, colon, rest = host.routes[0].site.partition(":")
            by_mark.get(colon + rest, own).add_host(host)
    every = {mark: found.all for mark, found in by_mark.items()}
    led = {each.target for each in routes}
    led |= {target for found in (own.all, *every.values()) for choice in found for target in choice.targets}
    return SitePlan(
        tuple(routes),
        tuple(pools[name] for name in sorted(led) if name in pools),
        own.all,
        default=default,
        frontends=tuple(replace(each, choices=every[each.mark]) for each in frontends),
    )


class _Choices:
    """The distinct choices of a frontend. A choice that leads to a weighted one comes first."""

    def __init__(self) -> None:
        self._choices: dict[str, Choice] = {}
        self._shares: dict[str, Choice] = {}

    def add_host(self, host: HostPlan) -> None:
        self._choices |= {each.name: each for each in host.choices}
        self._shares |= {each.name: each for each in host.shares}

    @property
    def all(self) -> tuple[Choice, ...]:
        return tuple(each for found in (self._choices, self._shares) for _, each in sorted(found.items()))


CONTROLLER = "vipwire.io/ingress"


@dataclass(frozen=True, slots=True)
class Setting:
    """The operator's choices for Ingresses.

    `controller` is that of this controller's IngressClasses, `zone` this node's.

    With `hosts_apart` a host belongs to one namespace, with all its paths.
    """

    class_name: str = "vipwire"
    controller: str = CONTROLLER
    without_class: bool = False
    zone: str = ""
    hosts_apart: bool = False
    limits: Most = field(default_factory=lambda: MOST)


class Planner(Protocol):
    """Plans HAProxy's configuration from the objects of some kinds."""

    @property
    def zone(self) -> str:
        """This node's zone, if known."""

    @property
    def looked_at(self) -> Collection[ObjectRef]:
        """The objects that the plan depends on, whether those exist or not."""

    kept: Plan
    """The current plan."""

    def update(self, snapshot: Snapshot, now: float, refused: Collection[str] = ()) -> None:
        """Plan the changes since the last call, and update `kept`. `refused` frontends are left out.

        `now` is in seconds since the epoch: the validity of certificates may change the plan.
        """
