"""The reference semantics: the plan's verdict on the first packet of a connection.

Every mode is tested against this, and `vipwire explain` prints it. Written for reading, not for speed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from vipwire.model.net import Address, Protocol, is_loopback
from vipwire.plan.node import NodePlan, PodBridge, PodInterfaces, PodPrefixes
from vipwire.plan.plan import (
    Action,
    Drop,
    Forward,
    Frontend,
    FrontendKey,
    Masquerade,
    Memory,
    Pool,
    RangeFrontend,
    Reason,
    ServicePlan,
    Target,
    choose_memory,
)


class Packet(NamedTuple):
    """The first packet of a connection, as it arrives at this node or leaves a process on it.

    `interface` is the incoming interface, "" for a local process. `from_node`, `to_node`: the address is this node's.
    """

    source: Address
    destination: Address
    protocol: Protocol
    port: int
    interface: str = ""
    from_node: bool = False
    to_node: bool = False


class Answered(NamedTuple):
    """One of `pool` answers. The targets `masqueraded` see this node's address instead of the client's."""

    frontend: Frontend
    pool: Pool
    masqueraded: frozenset[Address]


class Dropped(NamedTuple):
    """The packet is dropped. `why` names the plan's sentence that says so."""

    why: str
    frontend: Frontend | None = None


class Rejected(NamedTuple):
    """The client gets an error. `why` names the plan's sentence that says so."""

    why: str
    frontend: Frontend | None = None


class Untouched(NamedTuple):
    """The plan does not apply to this packet: the kernel routes it unchanged."""


Outcome: TypeAlias = Answered | Dropped | Rejected | Untouched

NOBODY: Mapping[Memory, Target] = MappingProxyType({})
"""An empty affinity memory."""


@dataclass(frozen=True)
class Plan:
    """The plan of one family, indexed for `resolve_packet`."""

    node: NodePlan
    services: Mapping[object, ServicePlan]
    frontends: dict[FrontendKey, Frontend] = field(init=False, default_factory=dict)
    ranges: dict[tuple[Address, Protocol], list[RangeFrontend]] = field(init=False, default_factory=dict)
    cluster_ips: set[Address] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        for service in self.services.values():
            self.frontends.update((frontend.key, frontend) for frontend in service.frontends)
            self.cluster_ips.update(service.cluster_ips)
            for wide in service.ranges:
                self.ranges.setdefault((wide.key.address, wide.key.protocol), []).append(wide)


def resolve_packet(plan: Plan, packet: Packet, remembered: Mapping[Memory, Target] = NOBODY) -> Outcome:
    """Return the plan's verdict on a packet. `remembered` is session affinity's memory of the client."""
    frontend = _find_frontend(plan, packet)
    if frontend is None:
        return _resolve_without_frontend(plan, packet)
    if not _is_allowed(frontend, packet.source):
        return Dropped("the source is not in loadBalancerSourceRanges", frontend)
    pod = is_from_pod(plan.node, packet)
    action: Action = frontend.action
    if frontend.short_circuit is not None and (pod or packet.from_node):
        action = frontend.short_circuit
    if isinstance(action, Forward):
        bound = find_remembered(frontend, action, remembered) if action.affinity_seconds is not None else None
        action = action if bound is None else replace(action, pool=(bound,))
        return Answered(frontend, action.pool, _masqueraded_targets(action, packet, plan.node, pod=pod))
    if isinstance(action, Drop):
        return Dropped(f"{frontend.port_name} {action.reason.value}", frontend)
    return Rejected(f"{frontend.port_name} {Reason.NO_ENDPOINTS.value}", frontend)


def _find_frontend(plan: Plan, packet: Packet) -> Frontend | None:
    """Find the frontend of a packet.

    If an address of this node is an external IP of one Service and serves the node port of another, the address comes
    first, and a port range last; a Service without endpoints leaves the packet to the other.
    """
    keys = [FrontendKey(packet.destination, packet.protocol, packet.port)]
    if packet.to_node and serves_node_ports(plan.node, packet.destination):
        keys.append(FrontendKey(None, packet.protocol, packet.port))
    single = [plan.frontends[key] for key in keys if key in plan.frontends]
    wide = _find_range(plan, packet)
    for frontend in (*single, *wide):
        if not _lacks_endpoints(frontend):
            return frontend
    address = [frontend for frontend in single if frontend.key.address is not None]
    return next(iter((*address, *wide, *single)), None)


def _find_range(plan: Plan, packet: Packet) -> list[Frontend]:
    """Return the range frontend of a packet's port, narrowed to that port; at most one."""
    found = plan.ranges.get((packet.destination, packet.protocol), ())
    return [narrow_to_port(wide, packet.port) for wide in found if wide.key.first <= packet.port <= wide.key.last]


def narrow_to_port(wide: RangeFrontend, port: int) -> Frontend:
    """Narrow a range to one port: the action for packets to that port."""

    def narrowed(action: Action) -> Action:
        if not isinstance(action, Forward):
            return action
        pool = tuple(each._replace(port=port) if wide.keeps_port(each) else each for each in action.pool)
        return replace(action, pool=pool)

    frontend = wide.frontend
    short = frontend.short_circuit
    made = narrowed(short) if short is not None else None
    return replace(
        frontend,
        key=frontend.key._replace(port=port),
        action=narrowed(frontend.action),
        short_circuit=made if isinstance(made, Forward) else None,
        serving=frozenset((a, port if p == frontend.key.port else p) for a, p in frontend.serving),
    )


def _lacks_endpoints(frontend: Frontend) -> bool:
    return frontend.short_circuit is None and not isinstance(frontend.action, Forward)


def _resolve_without_frontend(plan: Plan, packet: Packet) -> Outcome:
    if packet.destination in plan.cluster_ips:
        return Rejected("the ClusterIP has no such port")
    if any(packet.destination in prefix for prefix in plan.node.service_cidrs):
        return Dropped("no Service has this ClusterIP")
    return Untouched()


def serves_node_ports(node: NodePlan, address: Address) -> bool:
    """Loopback addresses never serve node ports."""
    return not is_loopback(address) and any(address in prefix for prefix in node.node_port_addresses)


def is_from_pod(node: NodePlan, packet: Packet) -> bool:
    match node.pod_traffic:
        case PodPrefixes(prefixes):
            return any(packet.source in prefix for prefix in prefixes)
        case PodBridge(interface):
            return packet.interface == interface
        case PodInterfaces(prefix):
            return packet.interface.startswith(prefix)
    return False


def _is_allowed(frontend: Frontend, source: Address) -> bool:
    return frontend.allowed_sources is None or any(source in prefix for prefix in frontend.allowed_sources)


def _masqueraded_targets(action: Forward, packet: Packet, node: NodePlan, *, pod: bool) -> frozenset[Address]:
    """Return the targets of a pool that see this node's address.

    Packets from elsewhere to an endpoint in this host's network are never masqueraded: their answers pass this node
    anyway.
    """
    if action.masquerade is Masquerade.ALWAYS or (action.masquerade is Masquerade.UNLESS_POD and not pod):
        replaced = frozenset(target.address for target in action.pool)
    else:
        replaced = frozenset(_find_hairpins(action.pool, packet.source))
    return replaced - {node.address} if packet.interface else replaced


def _find_hairpins(pool: Pool, source: Address) -> Iterable[Address]:
    return (target.address for target in pool if target.address == source)


def find_remembered(frontend: Frontend, action: Forward, remembered: Mapping[Memory, Target]) -> Target | None:
    """Return the client's remembered target; None if the frontend must choose one."""
    own = choose_memory(frontend, action)
    for memory in (own, own.other):
        target = remembered.get(memory)
        if target is not None and target in action.pool:
            return target
        if target is not None and action.shared_affinity:
            found = next((each for each in action.pool if each.address == target.address), None)
            if found is not None:
                return found
    return None
