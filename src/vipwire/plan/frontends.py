"""Plans a Service from its spec and endpoints: answers every policy question once for all modes.

Endpoints by traffic policy (KEP-2086 for the internal one):

    frontend                     policy    client      goes to     masqueraded
    ClusterIP                    Cluster   any         cluster     unless a Pod (always with masqueradeAll)
    ClusterIP                    Local     any         local       unless a Pod (always with masqueradeAll)
    external, LB IP, node port   Cluster   any         cluster     always
    external, LB IP, node port   Local     Pod         cluster     no
    external, LB IP, node port   Local     this node   cluster     yes
    external, LB IP, node port   Local     other       local       no

If vipwire cannot recognise Pods, no client counts as one, and a ClusterIP is not masqueraded.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from msgspec import Struct, field

from vipwire.model.names import ObjectName, ServicePortName
from vipwire.model.net import Address, Family, Prefix, Protocol, family_of
from vipwire.model.service import EndpointSlice, Service, ServicePort, TrafficPolicy
from vipwire.model.spread import EVENLY, Spread
from vipwire.plan.annotations import NOTHING, Wishes, read_wishes
from vipwire.plan.ejection import EndpointKey
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import (
    Action,
    Drop,
    Forward,
    Frontend,
    FrontendKey,
    FrontendKind,
    HealthCheck,
    Masquerade,
    Pool,
    RangeFrontend,
    RangeKey,
    Reason,
    Reject,
    ServicePlan,
    Target,
)
from vipwire.plan.ranges import PortRange, find_ranges
from vipwire.plan.topology import Candidate, Endpoints, categorize, choose_anywhere, list_candidates, usual_endpoints

Holder = Callable[[FrontendKey | RangeKey], ObjectName | None]
"""Returns the other Service that holds a key; None if the asking Service holds it."""


_NOBODY: Final[frozenset[tuple[Address, int]]] = frozenset()


class _Policies(NamedTuple):
    internal: Action
    external: Action
    short_circuit: Forward | None


_IPV4_BYTES: Final = 4


class _Share(Struct):
    """The frontends that a Service gets, and the holders of the others."""

    holder: Holder
    frontends: dict[FrontendKey, Frontend] = field(default_factory=dict)
    ranges: dict[RangeKey, RangeFrontend] = field(default_factory=dict)
    lost: dict[FrontendKey | RangeKey, ObjectName] = field(default_factory=dict)

    def add_frontend(self, frontend: Frontend) -> None:
        """Add a frontend, unless another Service holds it."""
        key = frontend.key
        if (winner := self.holder(key)) is not None:
            self.lost[key] = winner
        elif key not in self.frontends or _is_stricter(frontend, self.frontends[key]):
            self.frontends[key] = frontend

    def add_range(self, key: RangeKey, frontend: Frontend) -> None:
        """Add a port range that is served like a frontend, unless another Service holds it."""
        if (winner := self.holder(key)) is not None:
            self.lost[key] = winner
        elif key not in self.ranges or _is_stricter(frontend, self.ranges[key].frontend):
            self.ranges[key] = RangeFrontend(key, frontend)


def plan_service(
    node: NodePlan,
    service: Service,
    slices: Sequence[EndpointSlice],
    holder: Holder = lambda _: None,
    ejected: frozenset[EndpointKey] = frozenset(),
) -> ServicePlan:
    """Plan one Service for one family. `holder` returns the Service that keeps a frontend from this one."""
    share = _Share(holder)
    ready_local: set[Address] = set()
    wishes = read_wishes(service)
    wide = find_ranges(service, wishes, served=node.port_ranges)
    cluster_ips, addresses = select_family(node.family, service.cluster_ips), _addresses(node, service)
    outer = any(kind is not FrontendKind.CLUSTER_IP for kind, _ in addresses)
    for port in service.ports:
        name = service.port_name(port)
        endpoints, serving = None, _NOBODY
        if port.protocol is not Protocol.UDP and not (ejected or wishes.weights or node.drained):
            endpoints = usual_endpoints(name, node, slices)
        if endpoints is None:
            found = list_candidates(name, node.family, slices, node.name)
            usable = leave_out_drained(found, wishes, node, service.name)
            endpoints = categorize(usable, node, build_ejection_test(ejected, port.protocol))
            serving = _select_serving(found) if port.protocol is Protocol.UDP else _NOBODY
        ready_local |= endpoints.ready_local
        outside = outer or bool(port.node_port)
        policies = _build_policies(node, service, endpoints, wishes, outside=outside)
        spread = wide.of.get(port) if wide.of else None
        for kind, key in _list_keys(addresses, port):
            allowed = choose_allowed_sources(node, service, key.address, kind, wishes)
            inside = kind is FrontendKind.CLUSTER_IP
            action = policies.internal if inside else policies.external
            short_circuit = None if inside else policies.short_circuit
            frontend = Frontend(name, kind, key, action, short_circuit, allowed, serving)
            if spread is not None and (range_key := _build_range_key(frontend.key, spread)) is not None:
                share.add_range(range_key, frontend)
            share.add_frontend(frontend)
    return ServicePlan(
        service.name,
        tuple(share.frontends.values()),
        cluster_ips,
        HealthCheck(service.health_check_node_port, len(ready_local)) if service.health_check_node_port else None,
        tuple(share.lost.items()),
        _select_node_port_addresses(node, share.frontends),
        _choose_own_addresses(node, share.frontends) if node.addresses else (),
        wishes,
        wishes.problems + wide.problems,
        tuple(share.ranges.values()),
    )


def _choose_own_addresses(node: NodePlan, frontends: Iterable[FrontendKey]) -> tuple[Address, ...]:
    """Choose the node's addresses that are frontends too."""
    named = {key.address for key in frontends}
    return tuple(address for address in node.addresses if address in named)


def _build_range_key(key: FrontendKey, ports: PortRange | None) -> RangeKey | None:
    if ports is None or key.address is None:
        return None
    return RangeKey(key.address, key.protocol, *ports)


def _select_node_port_addresses(node: NodePlan, frontends: Iterable[FrontendKey]) -> tuple[Address, ...]:
    for key in frontends:
        if key.address is None:
            break
    else:
        return ()
    return tuple(a for a in node.addresses if any(a in prefix for prefix in node.node_port_addresses))


def _is_stricter(frontend: Frontend, other: Frontend) -> bool:
    """Return whether `frontend` replaces `other` at the same address: the one with source ranges wins.

    A ClusterIP stays without source ranges, because every client in the cluster may reach it.
    """
    return frontend.allowed_sources is not None and other.kind is not FrontendKind.CLUSTER_IP


def list_claimed_keys(node: NodePlan, service: Service) -> Iterator[FrontendKey | RangeKey]:
    """Yield every frontend that a Service asks for, even if another Service holds it."""
    wide = find_ranges(service, read_wishes(service), served=node.port_ranges)
    addresses = _addresses(node, service)
    for port in service.ports:
        spread = wide.of.get(port) if wide.of else None
        for _, key in _list_keys(addresses, port):
            yield key
            if spread is not None and (range_key := _build_range_key(key, spread)) is not None:
                yield range_key


_Addresses: TypeAlias = Sequence[tuple[FrontendKind, Address]]


def _addresses(node: NodePlan, service: Service) -> _Addresses:
    """List the addresses of a Service; none without a ClusterIP of the family.

    A ClusterIP that a host may have is served like an external IP, so the host keeps its other ports.
    """
    usual, as_external = FrontendKind.CLUSTER_IP, FrontendKind.EXTERNAL_IP
    cluster_ips = select_family(node.family, service.cluster_ips)
    found = [(as_external if node.leads_to_host(each) else usual, each) for each in cluster_ips]
    if found and service.external_ips and node.external_ips:
        found += [(FrontendKind.EXTERNAL_IP, each) for each in select_family(node.family, service.external_ips)]
    if found and service.load_balancer_ips:
        found += [
            (FrontendKind.LOAD_BALANCER, each) for each in select_family(node.family, service.load_balancer_ips)
        ]
    return found


def _list_keys(addresses: _Addresses, port: ServicePort) -> Iterator[tuple[FrontendKind, FrontendKey]]:
    """Yield the frontends of a Service port."""
    for kind, address in addresses:
        yield kind, FrontendKey(address, port.protocol, port.port)
    if addresses and port.node_port:
        yield FrontendKind.NODE_PORT, FrontendKey(None, port.protocol, port.node_port)


def select_family(family: Family, addresses: tuple[Address, ...]) -> tuple[Address, ...]:
    if len(addresses) == 1:
        return addresses if (len(addresses[0]) == _IPV4_BYTES) is (family is Family.IPV4) else ()
    return tuple([address for address in addresses if family_of(address) is family]) if addresses else ()


def build_ejection_test(ejected: frozenset[EndpointKey], protocol: Protocol) -> Callable[[Target], bool] | None:
    """Return a test for ejected targets of a protocol; None if none is ejected."""
    return (lambda target: (protocol, target.address, target.port) in ejected) if ejected else None


def ejectable_endpoints(
    node: NodePlan, service: Service, slices: Sequence[EndpointSlice], asked: Wishes
) -> dict[ServicePortName, frozenset[EndpointKey]]:
    """Return by Service port the endpoints of new connections, for the protocols that ejection watches."""
    found: dict[ServicePortName, frozenset[EndpointKey]] = {}
    for port in service.ports:
        if port.protocol is Protocol.UDP and not asked.eject_udp:
            continue
        name = service.port_name(port)
        usable = leave_out_drained(list_candidates(name, node.family, slices, node.name), asked, node, service.name)
        local = categorize(usable, node).local
        targets = {*local, *(candidate.target for candidate in choose_anywhere(usable))}
        keys = (EndpointKey(port.protocol, each.address, each.port) for each in targets)
        found[name] = frozenset(keys)
    return found


def leave_out_drained(
    found: Sequence[Candidate], wishes: Wishes, node: NodePlan, service: ObjectName
) -> Sequence[Candidate]:
    """Leave out endpoints of weight 0 and those drained on this node: they get no new connections."""
    if wishes.weights:
        found = [candidate for candidate in found if wishes.weights.get(candidate.target.address, 1)]
    if node.drained:
        found = [candidate for candidate in found if not node.drains(service, *candidate.target[:2])]
    return found


def _choose_spread(pool: Pool, wishes: Wishes) -> Spread:
    """Return the spread of a pool, without weights if all are equal."""
    weights = tuple(wishes.weights.get(target.address, 1) for target in pool) if wishes.weights else ()
    return Spread(wishes.algorithm, weights if len(set(weights)) > 1 else ())


def _build_policies(
    node: NodePlan, service: Service, endpoints: Endpoints, wishes: Wishes, *, outside: bool
) -> _Policies:
    """Choose the actions for internal traffic, external traffic, and external traffic from this node.

    Without `outside` the Service has no external frontend, and the external actions are unused.
    """

    def forward(pool: Pool, masquerade: Masquerade, policy: TrafficPolicy = TrafficPolicy.CLUSTER) -> Forward:
        spread = EVENLY if wishes is NOTHING else _choose_spread(pool, wishes)
        return Forward(pool, masquerade, service.affinity_seconds, policy, spread, wishes.shared_affinity)

    if not endpoints.anywhere:
        nobody = Reject(Reason.NO_ENDPOINTS)
        return _Policies(nobody, nobody, None)
    internal_masquerade = Masquerade.UNLESS_POD if node.pod_traffic else Masquerade.NEVER
    if node.masquerade_all:
        internal_masquerade = Masquerade.ALWAYS
    internal: Action
    if service.internal_policy is TrafficPolicy.CLUSTER:
        internal = forward(endpoints.cluster, internal_masquerade)
    elif endpoints.local:
        internal = forward(endpoints.local, internal_masquerade, TrafficPolicy.LOCAL)
    else:
        internal = Drop(Reason.NO_LOCAL_ENDPOINTS)
    if not outside:
        return _Policies(internal, internal, None)
    if service.external_policy is TrafficPolicy.CLUSTER:
        return _Policies(internal, forward(endpoints.cluster, Masquerade.ALWAYS), None)
    external: Action = Drop(Reason.NO_LOCAL_ENDPOINTS)
    if endpoints.local:
        external = forward(endpoints.local, Masquerade.NEVER, TrafficPolicy.LOCAL)
    return _Policies(internal, external, forward(endpoints.cluster, Masquerade.UNLESS_POD))


def _select_serving(found: Iterable[Candidate]) -> frozenset[tuple[Address, int]]:
    return frozenset(
        (candidate.target.address, candidate.target.port)
        for candidate in found
        if candidate.endpoint.ready or candidate.endpoint.serving
    )


def choose_allowed_sources(
    node: NodePlan, service: Service, vip: Address | None, kind: FrontendKind, wishes: Wishes
) -> tuple[Prefix, ...] | None:
    """Return the allowed sources of a load balancer IP, or of a node port with the annotation; None for all.

    If the node is allowed, so is the VIP as a source, because a load balancer may send from it.
    """
    given: tuple[Prefix, ...] = ()
    if kind is FrontendKind.LOAD_BALANCER:
        given = service.source_ranges
    elif kind is FrontendKind.NODE_PORT:
        given = wishes.node_port_sources
    if not given:
        return None
    ranges = [prefix for prefix in given if prefix.family is node.family]
    if not ranges or any(prefix.length == 0 for prefix in ranges):
        return None
    if node.address is not None and vip is not None and any(node.address in prefix for prefix in ranges):
        ranges.append(Prefix.host(vip))
    return _leave_out_nested_prefixes(ranges)


def _leave_out_nested_prefixes(prefixes: Iterable[Prefix]) -> tuple[Prefix, ...]:
    """Leave out prefixes inside others, because the kernel refuses overlapping ones."""
    kept: list[Prefix] = []
    for prefix in sorted(set(prefixes)):
        if not (kept and prefix.network in kept[-1]):
            kept.append(prefix)
    return tuple(kept)
