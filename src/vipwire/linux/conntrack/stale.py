"""Decides which tracked flows are stale: those whose packets still go to a wrong endpoint. Pure.

The first packet of a flow decides its DNAT, and each later packet keeps the conntrack entry alive. So vipwire deletes
stale UDP entries when a Service changes. TCP and SCTP flows that have an answer do not need this: an endpoint answers
with a reset, or the client gives up.

    original:  client:port  ->  10.96.0.10:53      is this a frontend to judge?
    reply:     10.1.2.3:53  ->  client:port        is this one of its serving endpoints?

If a Service only gains endpoints, its flows stay valid; unless it had none, because those flows were not translated.
kube-proxy skips Services that have lost their last endpoint or were deleted (k/k#139628).

The kernel remembers an unanswered SYN for two minutes, and sends a repeated SYN, or a new connection from the same
port, the same way. So unanswered flows of any protocol are stale, too, if they wait for an ejected endpoint, or if
they began before vipwire's rules, or while another program had removed the rules.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from vipwire.linux.netlink.conntrack import STATUS_SEEN_REPLY, Flow
from vipwire.model.net import Address, Family, Prefix, Protocol, family_of
from vipwire.model.value import Value
from vipwire.plan.plan import Forward, RangeFrontend, ServicePlan
from vipwire.plan.planner import PlanChange

UdpEndpoint: TypeAlias = tuple[Address, int]

UdpFrontend: TypeAlias = tuple[Address | None, int]
"""Address and port of a frontend; without an address a node port."""

UdpFrontends: TypeAlias = Mapping[UdpFrontend, frozenset[UdpEndpoint]]
"""Each frontend's serving endpoints (ready, or terminating but serving); empty if the frontend has none or is gone.
All serving endpoints count, whatever the traffic policy chooses: vipwire does not break working flows.
"""

_UDP = int(Protocol.UDP)  # comparing with the enum's member takes longer than all other checks of a flow


def _list_families(addresses: Iterable[Address]) -> tuple[Family, ...]:
    present = {family_of(address) for address in addresses}
    return tuple(family for family in Family if family in present)


class Staleness(Value, frozen=True):
    """Decides which flows are stale.

    `frontends` are the changed ones, or all. `node_addresses` are the addresses of node ports on this node.
    `service_cidrs` may be given only with *all* frontends: translated flows into these ranges without a frontend are
    stale, too, because their Service was deleted while no proxy watched.
    """

    frontends: UdpFrontends
    node_addresses: frozenset[Address] = frozenset()
    service_cidrs: tuple[Prefix, ...] = ()

    def __call__(self, flow: Flow) -> bool:
        """Report whether this flow is stale.

        Only the default zone counts, which service proxies use; OVS tracks the same packet untranslated in another.
        """
        if flow.protocol != _UDP or flow.zone:
            return False
        address, port = flow.destination, flow.destination_port
        serving = self.frontends.get((address, port))
        if address in self.node_addresses:
            at_node = self.frontends.get((None, port))
            if at_node is not None:
                serving = at_node if serving is None else serving | at_node
        source = flow.reply_source, flow.reply_source_port
        if serving is not None:
            return source not in serving
        return source != (address, port) and any(address in cidr for cidr in self.service_cidrs)

    def list_families(self) -> tuple[Family, ...]:
        addresses = {address for address, _ in self.frontends if address is not None}
        addresses.update(cidr.network for cidr in self.service_cidrs)
        if any(address is None for address, _ in self.frontends):
            addresses |= self.node_addresses
        return _list_families(addresses)

    def list_protocols(self) -> tuple[Protocol, ...]:
        return (Protocol.UDP,)

    def list_ports(self) -> frozenset[int] | None:
        return None if self.service_cidrs else frozenset(port for _, port in self.frontends)

    def selects_unanswered(self) -> bool:
        return False


def collect_udp_frontends(plans: Iterable[ServicePlan | None]) -> dict[UdpFrontend, frozenset[UdpEndpoint]]:
    """Collect the plans' UDP frontends with their serving endpoints; a frontend for each port of a range."""
    found: dict[UdpFrontend, frozenset[UdpEndpoint]] = {}
    for plan in plans:
        if plan is not None:
            for wide in plan.ranges:
                if wide.key.protocol is Protocol.UDP:
                    found.update(_split_range(wide))
            found.update(
                ((each.key.address, each.key.port), each.serving)
                for each in plan.frontends
                if each.key.protocol is Protocol.UDP
            )
    return found


def _split_range(wide: RangeFrontend) -> Iterator[tuple[UdpFrontend, frozenset[UdpEndpoint]]]:
    """Yield the frontends of a range's ports without a Frontend object for each: a range may have all ports."""
    named = wide.frontend.key.port
    moving = [address for address, port in wide.frontend.serving if port == named]
    staying = frozenset(each for each in wide.frontend.serving if each[1] != named)
    for port in range(wide.key.first, wide.key.last + 1):
        serving = staying.union([(address, port) for address in moving]) if moving else staying
        yield (wide.frontend.key.address, port), serving


def _may_have_udp(changes: Iterable[PlanChange]) -> bool:
    for change in changes:
        for plan in change:
            if plan is not None and (plan.ranges or Protocol.UDP in [each.key.protocol for each in plan.frontends]):
                return True
    return False


def find_changed_udp_frontends(changes: Iterable[PlanChange]) -> dict[UdpFrontend, frozenset[UdpEndpoint]]:
    """Collect the frontends whose flows may be stale, with their serving endpoints."""
    changes = tuple(changes)
    if not _may_have_udp(changes):
        return {}
    before = collect_udp_frontends([change.old for change in changes])
    after = collect_udp_frontends([change.new for change in changes])
    nobody: frozenset[UdpEndpoint] = frozenset()
    return {
        frontend: after.get(frontend, nobody)
        for frontend in {**before, **after}
        if not (before.get(frontend) and before[frontend] <= after.get(frontend, nobody))
    }


ProtocolEndpoint = tuple[int, Address, int]


class Unanswered(Value, frozen=True):
    """Selects unanswered flows to these endpoints. `destination_ports` are the frontends'; None for any."""

    endpoints: frozenset[ProtocolEndpoint]
    destination_ports: frozenset[int] | None = None

    def __call__(self, flow: Flow) -> bool:
        """Report whether this flow came through a Service and has no answer."""
        return (
            not flow.status & STATUS_SEEN_REPLY
            and not flow.zone
            and (flow.protocol, flow.reply_source, flow.reply_source_port) in self.endpoints
            and (flow.reply_source, flow.reply_source_port) != (flow.destination, flow.destination_port)
        )

    def list_families(self) -> tuple[Family, ...]:
        return _list_families(address for _, address, _ in self.endpoints)

    def list_protocols(self) -> tuple[Protocol, ...]:
        return tuple(sorted({Protocol(protocol) for protocol, _, _ in self.endpoints}))

    def list_ports(self) -> frozenset[int] | None:
        return self.destination_ports

    def selects_unanswered(self) -> bool:
        return True


class Untranslated(Value, frozen=True):
    """Selects unanswered flows of TCP and SCTP to these addresses of Services that no rule has translated."""

    addresses: frozenset[Address]

    def __call__(self, flow: Flow) -> bool:
        return (
            not flow.status & STATUS_SEEN_REPLY
            and not flow.zone
            and flow.destination in self.addresses
            and (flow.reply_source, flow.reply_source_port) == (flow.destination, flow.destination_port)
        )

    def list_families(self) -> tuple[Family, ...]:
        return _list_families(self.addresses)

    def list_protocols(self) -> tuple[Protocol, ...]:
        return (Protocol.TCP, Protocol.SCTP)

    def list_ports(self) -> frozenset[int] | None:
        return None

    def selects_unanswered(self) -> bool:
        return True


def collect_served_addresses(plans: Iterable[ServicePlan]) -> frozenset[Address]:
    """Collect the addresses of all frontends but node ports."""
    return frozenset(
        frontend.key.address
        for plan in plans
        for frontend in (*plan.frontends, *(wide.frontend for wide in plan.ranges))
        if frontend.key.address is not None
    )


def find_unanswered(changes: Iterable[PlanChange]) -> Unanswered:
    """Collect the ejected endpoints of the changed Services that use ejection."""
    endpoints: set[ProtocolEndpoint] = set()
    ports: set[int] = set()
    ranges = False
    for old, new in changes:
        if old is not None and new is not None and new.wishes.eject_after is not None:
            gone = _collect_used_endpoints(old) - _collect_used_endpoints(new)
            endpoints |= gone
            ranges |= bool(gone and old.ranges)
            ports |= {frontend.key.port for frontend in old.frontends} if gone else set()
    return Unanswered(frozenset(endpoints), None if ranges else frozenset(ports))


def _collect_used_endpoints(plan: ServicePlan) -> frozenset[ProtocolEndpoint]:
    return frozenset(_list_endpoints(plan))


def _list_endpoints(plan: ServicePlan) -> Iterator[ProtocolEndpoint]:
    """Yield the endpoints of new connections from any client."""
    for frontend in (*plan.frontends, *(wide.frontend for wide in plan.ranges)):
        for action in (frontend.action, frontend.short_circuit):
            if isinstance(action, Forward):
                protocol = int(frontend.key.protocol)
                yield from ((protocol, target.address, target.port) for target in action.pool)
