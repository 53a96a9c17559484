"""Plans one route from the frame and the objects that the route names. Pure.

A rule that is invalid, or fails with an unexpected exception, is left out, and the route's status tells why.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from vipwire.kube.resource import describe_unexpected
from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire_l7.gateway.plan.attach import Attachment, Parent, isolate_hostnames, resolve_parents
from vipwire_l7.gateway.plan.frame import Frame, list_problems
from vipwire_l7.gateway.plan.kinds.hostnames import rank_breadth
from vipwire_l7.gateway.plan.kinds.objects import ROUTE_KINDS, GatewayWorld, RouteObject, Verdict, no
from vipwire_l7.gateway.plan.listeners import ListenerKey
from vipwire_l7.gateway.plan.matching.matches import ALL
from vipwire_l7.gateway.plan.matching.precedence import Entry, is_tried
from vipwire_l7.gateway.plan.places import make_place_ref
from vipwire_l7.gateway.plan.rules import RuleErrors, Shares, list_services, plan_entries, plan_shares
from vipwire_l7.gateway.plan.statuses import write_parent_status
from vipwire_l7.gateway.plan.targets import Targets
from vipwire_l7.plan.budget import estimate_condition_steps
from vipwire_l7.plan.expressions import estimate_steps
from vipwire_l7.plan.limits import Demand
from vipwire_l7.plan.sites import CLOSED, Choice, Match, Mode, Pool
from vipwire_l7.watch.compact import NO_PARTS, share_equal
from vipwire_l7.watch.objects import IngressKind, Json

FrontendKey: TypeAlias = tuple[str, Mode]
"""An address and port, and the mode of its frontend."""
HostKey: TypeAlias = tuple[FrontendKey, str]
"""A frontend and a host."""


def rank_route(route: RouteObject) -> tuple[str, ObjectName, int]:
    """Return the sort key by which routes are planned: the oldest first."""
    return (*route.age, ROUTE_KINDS.index(route.kind))


@dataclass(frozen=True, slots=True)
class HostEntries:
    """The entries of a route for one host. `mark` is that of the address and port."""

    key: HostKey
    mark: str
    entries: tuple[Entry, ...]

    @property
    def site(self) -> str:
        return f"{self.key[1]}{self.mark}"

    @property
    def is_tried(self) -> bool:
        return any(map(is_tried, self.entries))

    def estimate_steps(self) -> int:
        """Estimate the steps of PCRE for a request that matches none of the entries."""
        paths = (each.match.path for each in self.entries)
        conditions = (condition for each in self.entries for condition in each.match.conditions)
        return sum(
            estimate_steps(each.path) for each in paths if each.match is Match.EXPRESSION
        ) + estimate_condition_steps(conditions)

    def deny_guarded(self, guarded: Iterable[str]) -> "HostEntries":
        """Deny the guarded entries, and drop all others."""
        return replace(self, entries=tuple(each.deny_match() for each in self.entries if each.target in guarded))

    def deny_host(self) -> "HostEntries":
        """Deny all requests of the host that no other entry matches."""
        return replace(self, entries=(replace(self.entries[0], match=ALL, target=CLOSED),))


@dataclass(slots=True)
class RouteResult:
    """The result of one route. `brought` has the entries it asks for; the budget decides which of them it gets."""

    route: RouteObject
    parents: tuple[Parent, ...]
    """Without their attachments, which planning alone needs."""
    resolved: Verdict
    failures: tuple[str, ...] = ()
    """A message for each rule left out."""
    brought: tuple[HostEntries, ...] = ()
    datagrams: Mapping[str, Shares] = field(default_factory=lambda: NO_PARTS)
    """The UDP frontends' shares, by address and port."""
    pools: tuple[str, ...] = ()
    fresh: Mapping[str, Pool] = field(default_factory=lambda: NO_PARTS)
    """The pools by name, until the plan has them."""
    shares: Mapping[str, Choice] = field(default_factory=lambda: NO_PARTS)
    """The weighted choices that the route leads to."""
    files: Mapping[str, str] = field(default_factory=lambda: NO_PARTS)
    guarded: frozenset[str] = frozenset()
    """The targets with access controls."""
    services: tuple[ObjectName, ...] = ()
    listeners: frozenset[ListenerKey] = frozenset()
    gateways: frozenset[ObjectName] = frozenset()
    excess: str = ""
    """Why the route exceeds its namespace's budget."""
    limit: str = ""
    """The limit of its namespace that the route exceeds."""

    def list_failures(self) -> tuple[str, ...]:
        """Return a message for each part that is left out."""
        rules = self.route.spec.rules
        if text := self.limit or self.excess:
            return tuple(f"rules[{index}]: {text}" for index in range(len(rules)))
        return self.failures

    def count_demand(self) -> Demand:
        hosts = tuple(dict.fromkeys(each.key for each in self.brought))
        paths = sum(len(each.entries) for each in self.brought)
        return Demand(rank_route(self.route), hosts, paths, self.pools)

    def leave_out(self, text: str) -> None:
        """Leave the route out, but deny its guarded paths: without the route, older paths could bypass the guard."""
        closed = (each.deny_guarded(self.guarded) for each in self.brought)
        self.limit, self.brought = text, tuple(each for each in closed if each.entries)
        self.pools, self.fresh, self.shares, self.files, self.datagrams = (), NO_PARTS, NO_PARTS, NO_PARTS, NO_PARTS

    def write_status(self, controller: str) -> Json:
        told = controller, self.resolved, self.list_failures()
        return {"parents": [write_parent_status(self.route, each, *told) for each in self.parents]}

    def list_problems(self) -> tuple[Problem, ...]:
        failed = (no("", text) for text in self.list_failures())
        return (
            *list_problems(self.route, "spec.rules", self.resolved, *failed),
            *list_problems(self.route, "spec.parentRefs", *(each.accepted for each in self.parents)),
        )


def plan_route(route: RouteObject, frame: Frame, world: GatewayWorld) -> RouteResult | None:
    """Attach a route to the listeners that allow it; None if no parent belongs to this controller."""
    parents = resolve_parents(route, frame.listeners, world)
    if not parents:
        return None
    read = RuleErrors()
    made = RouteResult(route, share_equal(tuple(Parent(each.ref, each.accepted) for each in parents)), read.resolved)
    try:
        _read_route(made, parents, read, frame, world)
    except Exception as error:  # noqa: BLE001  # an unexpected exception must cost this route only
        read.failed = dict.fromkeys(range(len(route.spec.rules)), describe_unexpected(error))
        made.brought, made.datagrams = (), NO_PARTS
    made.resolved, made.failures = read.resolved, read.list_failures(len(route.spec.rules))
    return made


def _read_route(
    made: RouteResult, parents: Iterable[Parent], read: RuleErrors, frame: Frame, world: GatewayWorld
) -> None:
    route, brought, datagrams = made.route, list[HostEntries](), dict[str, Shares]()
    attachments: dict[ListenerKey, Attachment] = {}
    for each in (each for parent in parents for each in parent.attachments):
        attachments.setdefault(each.listener.key, each)
    made.services, made.listeners = tuple(list_services(route)), share_equal(frozenset(attachments))
    world.looked_at |= {(IngressKind.SERVICE, each) for each in made.services}
    made.gateways = share_equal(frozenset(each.listener.gateway.name for each in attachments.values()))
    targets = Targets(world, frame)
    for attachment in attachments.values():
        listener = attachment.listener
        if listener.is_udp:
            datagrams |= dict.fromkeys(listener.places, plan_shares(route, targets, read))
            continue
        entries = tuple(plan_entries(route, attachment, targets, read))
        for place in listener.places:
            brought += _bring_entries(attachment, entries, place, frame, world)
    made.brought, made.datagrams = tuple(brought), datagrams or NO_PARTS
    made.pools, made.fresh = tuple(targets.pools), targets.pools
    made.shares, made.files = targets.choices or NO_PARTS, targets.bodies or NO_PARTS
    leading = {entry.target for found in brought for entry in found.entries}
    made.guarded = share_equal(frozenset(filter(targets.is_guarded, leading)))


def _bring_entries(
    attachment: Attachment, entries: tuple[Entry, ...], place: str, frame: Frame, world: GatewayWorld
) -> Iterator[HostEntries]:
    """Yield the route's entries for each hostname of a listener at one address and port."""
    world.looked_at.add(make_place_ref(place))
    port, way = frame.ports[place], share_equal((place, attachment.listener.mode))
    for host in isolate_hostnames(attachment, port.hosts):
        own = attachment.hosts[host]
        ranked = entries if own == host else tuple(replace(each, breadth=rank_breadth(own)) for each in entries)
        yield HostEntries((way, host), port.mark, ranked)
