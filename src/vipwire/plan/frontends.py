"""From a Service and its endpoints to its plan: every policy question is answered here, once for all modes.

Who answers, by traffic policy (KEP-2086 for the internal one):

    frontend                     policy    client      goes to     masqueraded
    ClusterIP                    Cluster   any         cluster     unless a Pod (always with masqueradeAll)
    ClusterIP                    Local     any         local       unless a Pod (always with masqueradeAll)
    external, LB IP, node port   Cluster   any         cluster     always
    external, LB IP, node port   Local     Pod         cluster     no
    external, LB IP, node port   Local     this node   cluster     yes
    external, LB IP, node port   Local     other       local       no

Where Pods cannot be told from other clients nobody counts as one, and a ClusterIP is not masqueraded.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from vipwire.model.endpoint import EndpointSlice
from vipwire.model.names import ObjectName
from vipwire.model.net import Address, Family, Prefix, Protocol, family_of
from vipwire.model.service import Service, ServicePort, TrafficPolicy
from vipwire.plan.annotations import NOTHING, Wishes, wishes
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
)
from vipwire.plan.ranges import PortRange, ranges
from vipwire.plan.spread import EVENLY, Spread
from vipwire.plan.topology import Candidate, Endpoints, candidates, categorize

Holder = Callable[[FrontendKey | RangeKey], ObjectName | None]
"""Tells which other Service holds a key, None if the asking Service itself does."""


class _Policies(NamedTuple):
    internal: Action
    external: Action
    short_circuit: Forward | None


def plan_service(
    node: NodePlan, service: Service, slices: Sequence[EndpointSlice], holder: Holder = lambda _: None
) -> ServicePlan:
    """Plan one Service for one family. `holder` names the Service that keeps a frontend from this one."""
    frontends: dict[FrontendKey, Frontend] = {}
    lost: dict[FrontendKey | RangeKey, ObjectName] = {}
    ranged: list[RangeFrontend] = []
    ready_local: set[Address] = set()
    asked = wishes(service)
    wide = ranges(service, asked, served=node.port_ranges)
    for port in service.ports:
        name = service.port_name(port)
        found = candidates(name, node.family, slices, node.name)
        endpoints = categorize(not_drained(found, asked, node, service.name), node)
        ready_local |= endpoints.ready_local
        policies = _policies(node, service, endpoints, asked)
        serving = _serving(found) if port.protocol is Protocol.UDP else frozenset()
        for kind, key in _keys(node, service, port):
            internal = kind is FrontendKind.CLUSTER_IP
            frontend = Frontend(
                name,
                kind,
                key,
                policies.internal if internal else policies.external,
                None if internal else policies.short_circuit,
                _allowed(node, service, key.address, kind, asked),
                serving,
            )
            if (range_key := _range_key(key, wide.of.get(port))) is not None:
                if (winner := holder(range_key)) is not None:
                    lost[range_key] = winner
                else:
                    ranged.append(RangeFrontend(range_key, frontend))
            if (winner := holder(key)) is not None:
                lost[key] = winner
            elif key not in frontends or _stricter(frontend, frontends[key]):
                frontends[key] = frontend
    return ServicePlan(
        service.name,
        tuple(frontends.values()),
        of_family(node.family, service.cluster_ips),
        HealthCheck(service.health_check_node_port, len(ready_local)) if service.health_check_node_port else None,
        tuple(lost.items()),
        _serving_node_ports(node, frontends),
        tuple(address for address in node.addresses if any(key.address == address for key in frontends)),
        service.annotations,
        asked.problems + wide.problems,
        _strict_ranges(ranged),
    )


def _strict_ranges(ranged: Iterable[RangeFrontend]) -> tuple[RangeFrontend, ...]:
    """Leave one of an address that stands twice in a Service, as for single ports."""
    found: dict[RangeKey, RangeFrontend] = {}
    for each in ranged:
        if each.key not in found or _stricter(each.frontend, found[each.key].frontend):
            found[each.key] = each
    return tuple(found.values())


def _range_key(key: FrontendKey, ports: PortRange | None) -> RangeKey | None:
    """Widen a frontend to a range, if its port has one; node ports stay single."""
    if ports is None or key.address is None:
        return None
    return RangeKey(key.address, key.protocol, *ports)


def _serving_node_ports(node: NodePlan, frontends: Iterable[FrontendKey]) -> tuple[Address, ...]:
    """Choose the node's addresses that serve node ports, for a Service that has any."""
    if not any(key.address is None for key in frontends):
        return ()
    return tuple(a for a in node.addresses if any(a in prefix for prefix in node.node_port_addresses))


def _stricter(frontend: Frontend, other: Frontend) -> bool:
    """Tell which to keep of an address that stands twice in a Service: source ranges count.

    They never count for a ClusterIP, which everybody in the cluster may reach.
    """
    return frontend.allowed_sources is not None and other.kind is not FrontendKind.CLUSTER_IP


def claims(node: NodePlan, service: Service) -> Iterator[FrontendKey | RangeKey]:
    """Yield every frontend that a Service asks for, whoever gets it."""
    wide = ranges(service, wishes(service), served=node.port_ranges)
    for port in service.ports:
        for _, key in _keys(node, service, port):
            yield key
            if (range_key := _range_key(key, wide.of.get(port))) is not None:
                yield range_key


def _keys(node: NodePlan, service: Service, port: ServicePort) -> Iterator[tuple[FrontendKind, FrontendKey]]:
    """Yield the frontends of a Service port. A Service without a ClusterIP of the family has none of that family."""
    number, protocol = port.port, port.protocol
    cluster_ips = of_family(node.family, service.cluster_ips)
    if not cluster_ips:
        return
    for address in cluster_ips:
        yield FrontendKind.CLUSTER_IP, FrontendKey(address, protocol, number)
    if node.external_ips:
        for address in of_family(node.family, service.external_ips):
            yield FrontendKind.EXTERNAL_IP, FrontendKey(address, protocol, number)
    for address in of_family(node.family, service.load_balancer_ips):
        yield FrontendKind.LOAD_BALANCER, FrontendKey(address, protocol, number)
    if port.node_port:
        yield FrontendKind.NODE_PORT, FrontendKey(None, protocol, port.node_port)


def of_family(family: Family, addresses: tuple[Address, ...]) -> tuple[Address, ...]:
    """Choose the addresses of one family."""
    if len(addresses) <= 1:
        return addresses if addresses and family_of(addresses[0]) is family else ()
    return tuple([address for address in addresses if family_of(address) is family])


def not_drained(
    found: Sequence[Candidate], asked: Wishes, node: NodePlan, service: ObjectName
) -> Sequence[Candidate]:
    """Leave out endpoints of weight 0 and those that are drained on this node: no new connection goes there."""
    if asked.weights:
        found = [candidate for candidate in found if asked.weights.get(candidate.target.address, 1)]
    if node.drained:
        found = [candidate for candidate in found if not node.drains(service, *candidate.target[:2])]
    return found


def _spread(pool: Pool, asked: Wishes) -> Spread:
    """Say how a pool is spread over, with the weights of its targets unless they are all the same."""
    weights = tuple(asked.weights.get(target.address, 1) for target in pool) if asked.weights else ()
    return Spread(asked.algorithm, weights if len(set(weights)) > 1 else ())


def _policies(node: NodePlan, service: Service, endpoints: Endpoints, asked: Wishes) -> _Policies:
    """Decide what becomes of internal and of external traffic, and of external traffic that starts on this node."""

    def forward(pool: Pool, masquerade: Masquerade, policy: TrafficPolicy = TrafficPolicy.CLUSTER) -> Forward:
        spread = EVENLY if asked is NOTHING else _spread(pool, asked)
        return Forward(pool, masquerade, service.affinity_seconds, policy, spread, asked.shared_affinity)

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
    if service.external_policy is TrafficPolicy.CLUSTER:
        return _Policies(internal, forward(endpoints.cluster, Masquerade.ALWAYS), None)
    external: Action = Drop(Reason.NO_LOCAL_ENDPOINTS)
    if endpoints.local:
        external = forward(endpoints.local, Masquerade.NEVER, TrafficPolicy.LOCAL)
    return _Policies(internal, external, forward(endpoints.cluster, Masquerade.UNLESS_POD))


def _allowed(
    node: NodePlan, service: Service, vip: Address | None, kind: FrontendKind, asked: Wishes
) -> tuple[Prefix, ...] | None:
    """Compute the sources that a load balancer IP accepts, and node ports where an annotation says so; None for all.

    If the node itself is allowed then so is the VIP as a source: a load balancer may send from it.
    """
    given: tuple[Prefix, ...] = ()
    if kind is FrontendKind.LOAD_BALANCER:
        given = service.source_ranges
    elif kind is FrontendKind.NODE_PORT:
        given = asked.node_port_sources
    if not given:
        return None
    ranges = [prefix for prefix in given if prefix.family is node.family]
    if not ranges or any(prefix.length == 0 for prefix in ranges):
        return None
    if node.address is not None and vip is not None and any(node.address in prefix for prefix in ranges):
        ranges.append(Prefix.host(vip))
    return _collapsed(ranges)


def _collapsed(prefixes: Iterable[Prefix]) -> tuple[Prefix, ...]:
    """Leave out prefixes that lie in another: two prefixes nest or are disjoint, and the kernel refuses overlaps."""
    kept: list[Prefix] = []
    for prefix in sorted(set(prefixes)):
        if not (kept and prefix.network in kept[-1]):
            kept.append(prefix)
    return tuple(kept)


def _serving(found: Iterable[Candidate]) -> frozenset[tuple[Address, int]]:
    return frozenset(
        (candidate.target.address, candidate.target.port)
        for candidate in found
        if candidate.endpoint.ready or candidate.endpoint.serving
    )
