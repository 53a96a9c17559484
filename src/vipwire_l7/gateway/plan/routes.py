"""Plans one route from the frame and the objects that the route names. Pure.

A rule that is invalid, or fails with an unexpected exception, is left out, and the route's status tells why.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TypeVar

from vipwire.kube.resource import describe_unexpected
from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire_l7.gateway.plan.attach import Attachment, Parent, isolate_hostnames, resolve_parents
from vipwire_l7.gateway.plan.frame import Frame, list_problems
from vipwire_l7.gateway.plan.kinds.hostnames import rank_breadth
from vipwire_l7.gateway.plan.kinds.objects import ROUTE_KINDS, GatewayWorld, RouteObject, no
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
from vipwire_l7.watch.objects import IngressKind, Json

FrontendKey = tuple[str, Mode]
"""An address and port, and the mode of its frontend."""


def rank_route(route: RouteObject) -> tuple[str, ObjectName, int]:
    """Return the sort key by which routes are planned: the oldest first."""
    return (*route.age, ROUTE_KINDS.index(route.kind))


@dataclass(frozen=True, slots=True)
class HostEntries:
    """The entries of a route for one host. `site` is the host with the mark of the address and port."""

    way: FrontendKey
    host: str
    site: str
    entries: tuple[Entry, ...]

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
    read: RuleErrors = field(default_factory=RuleErrors)
    brought: tuple[HostEntries, ...] = ()
    datagrams: Mapping[str, Shares] = field(default_factory=dict)
    """The UDP frontends' shares, by address and port."""
    pools: Mapping[str, Pool] = field(default_factory=dict)
    shares: Mapping[str, Choice] = field(default_factory=dict)
    """The weighted choices that the route leads to."""
    files: Mapping[str, str] = field(default_factory=dict)
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
        return self.read.list_failures(len(rules))

    def count_demand(self) -> Demand:
        hosts = tuple(dict.fromkeys((each.way, each.host) for each in self.brought))
        paths = sum(len(each.entries) for each in self.brought)
        return Demand(rank_route(self.route), hosts, paths, tuple(self.pools))

    def leave_out(self, text: str) -> None:
        """Leave the route out, but deny its guarded paths: without the route, older paths could bypass the guard."""
        closed = (each.deny_guarded(self.guarded) for each in self.brought)
        self.limit, self.brought = text, tuple(each for each in closed if each.entries)
        self.pools, self.shares, self.files, self.datagrams = {}, {}, {}, {}

    def write_status(self, controller: str) -> Json:
        told = controller, self.read.resolved, self.list_failures()
        return {"parents": [write_parent_status(self.route, each, *told) for each in self.parents]}

    def list_problems(self) -> tuple[Problem, ...]:
        failed = (no("", text) for text in self.list_failures())
        return (
            *list_problems(self.route, "spec.rules", self.read.resolved, *failed),
            *list_problems(self.route, "spec.parentRefs", *(each.accepted for each in self.parents)),
        )


SetT = TypeVar("SetT")


@lru_cache(maxsize=1024)
def _share_equal(found: SetT) -> SetT:
    """Return the one stored set that equals this one, to save memory."""
    return found


def plan_route(route: RouteObject, frame: Frame, world: GatewayWorld) -> RouteResult | None:
    """Attach a route to the listeners that allow it; None if no parent belongs to this controller."""
    parents = resolve_parents(route, frame.listeners, world)
    if not parents:
        return None
    made = RouteResult(route, parents)
    try:
        _read_route(made, frame, world)
    except Exception as error:  # noqa: BLE001  # an unexpected exception must cost this route only
        made.read.failed = dict.fromkeys(range(len(route.spec.rules)), describe_unexpected(error))
        made.brought, made.datagrams = (), {}
    return made


def _read_route(made: RouteResult, frame: Frame, world: GatewayWorld) -> None:
    route, brought, datagrams = made.route, list[HostEntries](), dict[str, Shares]()
    attachments: dict[ListenerKey, Attachment] = {}
    for each in (each for parent in made.parents for each in parent.attachments):
        attachments.setdefault(each.listener.key, each)
    made.services, made.listeners = tuple(list_services(route)), _share_equal(frozenset(attachments))
    world.looked_at |= {(IngressKind.SERVICE, each) for each in made.services}
    made.gateways = _share_equal(frozenset(each.listener.gateway.name for each in attachments.values()))
    targets = Targets(world, frame)
    made.pools, made.shares, made.files = targets.pools, targets.choices, targets.bodies
    for attachment in attachments.values():
        listener = attachment.listener
        if listener.is_udp:
            datagrams |= dict.fromkeys(listener.places, plan_shares(route, targets, made.read))
            continue
        entries = tuple(plan_entries(route, attachment, targets, made.read))
        for place in listener.places:
            brought += _bring_entries(attachment, entries, place, frame, world)
    made.brought, made.datagrams = tuple(brought), datagrams
    leading = {entry.target for found in brought for entry in found.entries}
    made.guarded = _share_equal(frozenset(filter(targets.is_guarded, leading)))


def _bring_entries(
    attachment: Attachment, entries: tuple[Entry, ...], place: str, frame: Frame, world: GatewayWorld
) -> Iterator[HostEntries]:
    """Yield the route's entries for each hostname of a listener at one address and port."""
    world.looked_at.add(make_place_ref(place))
    port = frame.ports[place]
    for host in isolate_hostnames(attachment, port.hosts):
        own = attachment.hosts[host]
        ranked = entries if own == host else tuple(replace(each, breadth=rank_breadth(own)) for each in entries)
        yield HostEntries((place, attachment.listener.mode), host, f"{host}{port.mark}", ranked)
