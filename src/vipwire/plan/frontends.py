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
    Reason,
    Reject,
    ServicePlan,
)
from vipwire.plan.topology import Candidate, Endpoints, candidates, categorize

Holder = Callable[[FrontendKey], ObjectName | None]
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
    lost: dict[FrontendKey, ObjectName] = {}
    ready_local: set[Address] = set()
    for port in service.ports:
        name = service.port_name(port)
        found = candidates(name, node.family, slices, node.name)
        endpoints = categorize(found, node)
        ready_local |= endpoints.ready_local
        policies = _policies(node, service, endpoints)
        serving = _serving(found) if port.protocol is Protocol.UDP else frozenset()
        for kind, key in _keys(node, service, port):
            if (winner := holder(key)) is not None:
                lost[key] = winner
                continue
            internal = kind is FrontendKind.CLUSTER_IP
            frontend = Frontend(
                name,
                kind,
                key,
                policies.internal if internal else policies.external,
                None if internal else policies.short_circuit,
                _allowed(node, service, key.address) if kind is FrontendKind.LOAD_BALANCER else None,
                serving,
            )
            if key not in frontends or _stricter(frontend, frontends[key]):
                frontends[key] = frontend
    return ServicePlan(
        service.name,
        tuple(frontends.values()),
        of_family(node.family, service.cluster_ips),
        HealthCheck(service.health_check_node_port, len(ready_local)) if service.health_check_node_port else None,
        tuple(lost.items()),
    )


def _stricter(frontend: Frontend, other: Frontend) -> bool:
    """Tell which to keep of an address that stands twice in a Service: source ranges count.

    They never count for a ClusterIP, which everybody in the cluster may reach.
    """
    return frontend.allowed_sources is not None and other.kind is not FrontendKind.CLUSTER_IP


def claims(node: NodePlan, service: Service) -> Iterator[FrontendKey]:
    """Yield every frontend that a Service asks for, whoever gets it."""
    for port in service.ports:
        for _, key in _keys(node, service, port):
            yield key


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


def _policies(node: NodePlan, service: Service, endpoints: Endpoints) -> _Policies:
    """Decide what becomes of internal and of external traffic, and of external traffic that starts on this node."""
    affinity = service.affinity_seconds
    if node.masquerade_all:
        internal_masquerade = Masquerade.ALWAYS
    else:
        internal_masquerade = Masquerade.UNLESS_POD if node.pod_traffic else Masquerade.NEVER
    if not endpoints.anywhere:
        nobody = Reject(Reason.NO_ENDPOINTS)
        return _Policies(nobody, nobody, None)
    internal: Action
    if service.internal_policy is TrafficPolicy.CLUSTER:
        internal = Forward(endpoints.cluster, internal_masquerade, affinity)
    elif endpoints.local:
        internal = Forward(endpoints.local, internal_masquerade, affinity, TrafficPolicy.LOCAL)
    else:
        internal = Drop(Reason.NO_LOCAL_ENDPOINTS)
    if service.external_policy is TrafficPolicy.CLUSTER:
        return _Policies(internal, Forward(endpoints.cluster, Masquerade.ALWAYS, affinity), None)
    external: Action = Drop(Reason.NO_LOCAL_ENDPOINTS)
    if endpoints.local:
        external = Forward(endpoints.local, Masquerade.NEVER, affinity, TrafficPolicy.LOCAL)
    return _Policies(internal, external, Forward(endpoints.cluster, Masquerade.UNLESS_POD, affinity))


def _allowed(node: NodePlan, service: Service, vip: Address | None) -> tuple[Prefix, ...] | None:
    """Compute the sources that a load balancer IP accepts; None for everyone.

    If the node itself is allowed then so is the VIP as a source: a load balancer may send from it.
    """
    ranges = [prefix for prefix in service.source_ranges if prefix.family is node.family]
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
