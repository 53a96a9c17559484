"""`vipwire explain`: the way of a packet by the plan and by the kernel's objects.

resolve   the plan's answer                          ┐
walk      what the kernel's objects do               ├▶ one document; a difference of the first two is its headline
checks    health checks that vipwire answers itself  │
flows     tracked connections                        ┘
"""

import enum
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial

from vipwire.errors import UnsupportedError
from vipwire.inspect.command.show import join_words
from vipwire.inspect.earlier.look import EarlierChain, find_earlier_chains_for
from vipwire.inspect.explain.routes import find_interface_towards, find_obstacle_towards, find_source_towards
from vipwire.inspect.node.family_view import FamilyView
from vipwire.inspect.node.situation import Situation
from vipwire.inspect.status.document import compute_shares, format_share
from vipwire.inspect.status.usage import DrainedTarget, EjectedTarget, list_drained, list_ejected
from vipwire.linux.netlink.conntrack import Flow
from vipwire.model.net import Address, Protocol, family_of, format_address, format_endpoint, is_loopback
from vipwire.model.service import Service, ServicePort
from vipwire.model.spread import Algorithm
from vipwire.plan.plan import Forward, Frontend, Target, join_health_checks
from vipwire.plan.resolve import Answered, Dropped, Outcome, Packet, Rejected, is_from_pod, resolve_packet
from vipwire.proxy_daemon.serve.service_health import ServiceHealthCheck
from vipwire.proxy_daemon.sync.node_plan import health_check_prefixes
from vipwire.reconcile.explainer import Direct, Endpoint, Walk
from vipwire.reconcile.steps import End

_Shares = Mapping[Endpoint | None, Fraction]
_NEARLY = Fraction(1, 100)

EarlierThan = Callable[[Packet, Collection[Target]], tuple[EarlierChain, ...]]
"""Finds chains of other programs that may decide about a packet before vipwire."""

SourceTowards = Callable[[Address], Address | None]
"""Returns the address from which this node sends to another; None without a route."""

ObstacleTowards = Callable[[Address], str]
"""Returns why this node cannot send to an address; "" if it can."""


class Agreement(enum.Enum):
    """The comparison of plan and kernel for one packet. UNDECIDED: a chain of another program may decide."""

    SAME = "same"
    OTHERWISE = "otherwise"
    UNDECIDED = "undecided"
    UNKNOWN = "unknown"


_ENDS = {Answered: End.ANSWERED, Dropped: End.DROPPED, Rejected: End.REJECTED}


@dataclass(frozen=True)
class Explanation:
    """Everything known about a packet. `walk` is None if the kernel or the mode cannot tell.

    `earlier` are chains of other programs that may decide before vipwire.
    """

    situation: Situation
    side: FamilyView
    packet: Packet
    outcome: Outcome
    walk: Walk | None
    source_towards: SourceTowards
    obstacle_towards: ObstacleTowards = lambda _: ""
    flows: tuple[Flow, ...] | None = None
    earlier: tuple[EarlierChain, ...] = ()

    @property
    def planned(self) -> End:
        return _ENDS.get(type(self.outcome), End.UNTOUCHED)

    @property
    def frontend(self) -> Frontend | None:
        return getattr(self.outcome, "frontend", None)

    @property
    def action(self) -> Forward | None:
        """The plan's action for the packet; None unless the packet is forwarded."""
        if not isinstance(self.outcome, Answered):
            return None
        frontend = self.outcome.frontend
        here = self.packet.from_node or is_from_pod(self.side.node, self.packet)
        chosen = frontend.short_circuit if frontend.short_circuit is not None and here else frontend.action
        return chosen if isinstance(chosen, Forward) else None

    @cached_property
    def service(self) -> tuple[Service, ServicePort] | None:
        if self.frontend is None:
            return None
        name = self.frontend.port_name
        service = self.situation.store.services.get(name.service)
        ports = service.ports if service is not None else ()
        return next(((service, port) for port in ports if service and service.port_name(port) == name), None)

    @cached_property
    def drained(self) -> tuple[DrainedTarget, ...]:
        return () if self.service is None else tuple(list_drained(self.situation.store, self.side, *self.service))

    @cached_property
    def ejected(self) -> tuple[EjectedTarget, ...]:
        return () if self.service is None else tuple(list_ejected(self.situation.store, self.side, *self.service))

    @cached_property
    def health_checks(self) -> tuple[ServiceHealthCheck, ...]:
        """The health checks that vipwire's listeners answer, if neither kernel nor plan takes the packet."""
        end = self.planned if self.walk is None or self.walk.end is End.UNKNOWN else self.walk.end
        return list_health_checks_at(self.situation, self.packet) if end is End.UNTOUCHED else ()

    @property
    def pool(self) -> dict[Target, Fraction]:
        """The plan's targets with their shares of this client's new connections.

        If the client's address decides, the kernel's rules tell the target.
        """
        if self.action is None:
            return {}
        pool = compute_shares(self.action)
        if self.by_address and self.walk is not None and self.walk.shares:
            held = self.walk.shares
            chosen = {each: held[each.address, each.port] for each in pool if (each.address, each.port) in held}
            return chosen or pool
        return pool

    @property
    def by_address(self) -> bool:
        return self.action is not None and self.action.spread.algorithm is Algorithm.SOURCE_HASH


def find_bypassed(explanation: Explanation) -> frozenset[Target]:
    """Return remote targets that see a remote client's address and so may answer past this node.

    The client drops such an untranslated answer, unless the network routes the answer through this node.
    """
    packet, outcome = explanation.packet, explanation.outcome
    node = explanation.situation.store.nodes.get(explanation.situation.node_name)
    if node is not None and node.pod_cidrs:
        here = any(packet.source in prefix for prefix in node.pod_cidrs)
    else:
        here = is_from_pod(explanation.side.node, packet)
    if here or packet.from_node or not isinstance(outcome, Answered):
        return frozenset()
    return frozenset(
        target for target in explanation.pool if not target.local and target.address not in outcome.masqueraded
    )


def explain_packet(
    situation: Situation,
    packet: Packet,
    source_towards: SourceTowards,
    obstacle_towards: ObstacleTowards = lambda _: "",
    earlier: EarlierThan = lambda *_: (),
) -> Explanation | None:
    side = situation.find_view(family_of(packet.destination))
    if side is None:
        return None
    outcome = resolve_packet(side.plan, packet)
    walk = None
    if side.explainer is not None and side.observed is not None and not side.remains:
        walk = side.explainer.walk(side.observed, side.wanted, packet, situation.own_addresses)
    made = Explanation(situation, side, packet, outcome, walk, source_towards, obstacle_towards)
    direct = _find_direct(made)
    if direct is None:  # after a socket program, chains see a packet to the endpoint
        made = replace(made, earlier=earlier(packet, made.pool.keys()))
    if walk is not None and direct is not None and direct.affinity:
        return replace(made, walk=replace(walk, remembered=None))  # the rules' affinity
    return made


def remove_interface(packet: Packet) -> Packet:
    """Add the interface by which a packet arrives, as the routes say."""
    if packet.from_node or packet.interface:
        return packet
    return packet._replace(interface=find_interface_towards(packet.source))


def explain_here(situation: Situation, packet: Packet) -> Explanation:
    """Explain a packet by this machine's routes and other programs' chains. Raise UnsupportedError without IPv6."""
    earlier = partial(find_earlier_chains_for, situation.config, own=situation.own_addresses)
    found = explain_packet(situation, packet, find_source_towards, find_obstacle_towards, earlier)
    if found is None:
        raise UnsupportedError("this machine has no IPv6")
    return found


def compare_kernel_with_plan(explanation: Explanation) -> tuple[Agreement, str]:
    """Compare plan and kernel: the agreement, and the difference in words.

    If another program's chain may decide before vipwire's rules, the agreement is UNDECIDED. Routes count as the
    kernel's: without a route a local process sends no packet that a rule could match.
    """
    agrees, difference = _compare_rules_with_plan(explanation)
    direct = _find_direct(explanation)
    if direct is not None and direct.difference:
        return Agreement.OTHERWISE, "; ".join(filter(None, (difference, direct.difference)))
    if direct is not None and agrees is Agreement.OTHERWISE:
        return agrees, f"{difference}; the socket programs of ebpf mode are as planned"
    if agrees is Agreement.SAME and (missing := _describe_missing_route(explanation)):
        return Agreement.OTHERWISE, missing
    if agrees is Agreement.SAME and explanation.earlier:
        return Agreement.UNDECIDED, join_words([str(each) for each in explanation.earlier])
    return agrees, difference


def _find_direct(explanation: Explanation) -> Direct | None:
    """Return the effect of socket programs on this client; None if no program sees its sockets."""
    direct = explanation.walk.direct if explanation.walk is not None else None
    packet = explanation.packet
    if direct is None:
        return None
    concerned = direct.node if packet.from_node else direct.pods and is_from_pod(explanation.side.node, packet)
    return direct if concerned else None


def _describe_missing_route(explanation: Explanation) -> str:
    """Return the first address on the way without a route from this node; "" if all have one."""
    packet, obstacle = explanation.packet, explanation.obstacle_towards
    if explanation.planned is End.UNTOUCHED:
        return ""
    if packet.from_node and _find_direct(explanation) is None and (why := obstacle(packet.destination)):
        return f"this node has no route to {format_address(packet.destination)} ({why}): the packet meets no rule"
    if explanation.planned is not End.ANSWERED:
        return ""
    lost = [target for target, share in explanation.pool.items() if share and obstacle(target.address)]
    if lost:
        return f"this node has no route to {join_words([format_endpoint(each.address, each.port) for each in lost])}"
    through = explanation.pool.keys() - find_bypassed(explanation)
    if through and not packet.from_node and (why := obstacle(packet.source)):
        return f"this node has no route back to the client {format_address(packet.source)} ({why})"
    return ""


def _compare_rules_with_plan(explanation: Explanation) -> tuple[Agreement, str]:
    walk, planned = explanation.walk, explanation.planned
    if walk is None:
        reason = (
            explanation.side.obstacle or explanation.side.remains or "vipwire cannot show a packet's way in this mode"
        )
        return Agreement.UNKNOWN, reason
    if walk.end is End.UNKNOWN:
        return Agreement.UNKNOWN, "another program has changed rules on the way, and vipwire cannot read their effect"
    if walk.refuses_strays and explanation.frontend is None:
        return Agreement.SAME, ""
    difference = ""
    if walk.end is not planned:
        difference = f"the plan says {planned.value}, the kernel's rules say {walk.end.value}"
    elif isinstance(explanation.outcome, Answered):
        difference = _describe_difference(explanation, explanation.outcome, walk)
    return Agreement.OTHERWISE if difference else Agreement.SAME, difference


def _describe_difference(explanation: Explanation, outcome: Answered, walk: Walk) -> str:
    """Describe how the kernel's answer differs from the plan's; "" if they agree."""
    planned = {(target.address, target.port): share for target, share in explanation.pool.items()}
    held = walk.shares or {}
    if not _are_same_shares(planned, held):
        return "; ".join(_describe_share_differences(planned, held))
    reached = outcome.masqueraded & {target.address for target in explanation.pool}
    if walk.masqueraded != reached and not walk.relayed and not _is_delivered_here(explanation):
        return "the kernel does not masquerade for the endpoints of the plan"
    return ""


def _is_delivered_here(explanation: Explanation) -> bool:
    """Report whether a target is this node itself; packets to it do not pass POSTROUTING."""
    return any(target.address in explanation.situation.own_addresses for target in explanation.pool)


def _are_same_shares(planned: Mapping[Endpoint, Fraction], held: _Shares) -> bool:
    """Compare shares. Maglev tables and large weights have whole slots, so shares are met approximately."""
    wanted = {target for target, share in planned.items() if share}
    return wanted == held.keys() and all(abs(held[target] - planned[target]) <= _NEARLY for target in wanted)


def _describe_share_differences(planned: Mapping[Endpoint, Fraction], held: _Shares) -> Iterable[str]:
    if None in held:
        yield f"{format_share(held[None])} of new connections go to no endpoint"
    if left_out := [format_endpoint(*target) for target, share in planned.items() if share and target not in held]:
        yield f"no connection goes to {join_words(left_out)}"
    extra = [target for target in held if target is not None and target not in planned]
    if extra:
        yield f"some go to {join_words([format_endpoint(*target) for target in extra])}, which are not in the plan"
    if not (left_out or extra or None in held):
        yield "the endpoints' shares differ from the plan"


def find_seen_source(explanation: Explanation, target: Target) -> Address | None:
    """Return the source address that the endpoint sees; None if the node's address is unknown."""
    packet, outcome = explanation.packet, explanation.outcome
    assert isinstance(outcome, Answered)  # noqa: S101 - an endpoint sees only answered packets
    if explanation.walk is not None and explanation.walk.relayed:
        return explanation.source_towards(target.address) or explanation.side.node.address
    if target.address not in outcome.masqueraded:
        return packet.source
    if target.address in explanation.situation.own_addresses and not packet.from_node:
        return packet.source
    return explanation.source_towards(target.address) or explanation.side.node.address


Check = tuple[int, ServiceHealthCheck]


def list_health_checks(situation: Situation) -> Iterator[Check]:
    for name in sorted({name for side in situation.sides for name in side.plans}):
        check = join_health_checks(side.plans.get(name) for side in situation.sides)
        if check is not None:
            yield check.port, ServiceHealthCheck(name, check.local_endpoints)


def is_health_check(situation: Situation, packet: Packet) -> bool:
    """Report whether vipwire answers health checks at a packet's destination, unless rules take the packet."""
    here = packet.to_node or packet.destination in situation.vips
    if not here or (is_loopback(packet.destination) and not packet.from_node):
        return False
    chosen = health_check_prefixes(situation.config)
    return not chosen or any(packet.destination in prefix for prefix in chosen)


def list_health_checks_at(situation: Situation, packet: Packet) -> tuple[ServiceHealthCheck, ...]:
    """Return the Services for which vipwire answers a packet that no frontend takes.

    If several Services ask for one port, which only manifests can, vipwire answers for the last.
    """
    if packet.protocol is not Protocol.TCP or not is_health_check(situation, packet):
        return ()
    return tuple(check for port, check in list_health_checks(situation) if port == packet.port)
