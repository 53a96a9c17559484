"""Makes counts of Service ports out of IPVS' counters: connections, packets, bytes, open connections. Pure.

The kernel keeps the numbers of a virtual server and of each real server, and adds them up every two seconds. With
`net.ipv4.vs.run_estimation=0` it does not, and they stand still. What is refused, the counters of the rules tell, for
all Services together: `[packets:bytes] -A chain rule`, as `iptables-save -c` prints them.

A Service's frontends have virtual servers of their own, a node port one for each address: a Service port is the sum.
What endpoints answer past this node (direct return) nobody counts here.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from vipwire.linux.netlink.ipvs import Counters, Method, RealServerState, VirtualServer
from vipwire.model.names import ServicePortName
from vipwire.model.net import Address
from vipwire.modes.ipvs.hints import method_of
from vipwire.modes.ipvs.marks import Marks, MarkScope
from vipwire.modes.ipvs.objects import ranges
from vipwire.modes.xtables.save import counted_rules
from vipwire.plan.plan import Frontend, FrontendKey, FrontendKind, RangeKey, ServicePlan
from vipwire.reconcile.counts import Count, Counts, EndpointName, OpenConnections, Refusal

K = TypeVar("K")

_FIREWALL = {
    "KUBE-SOURCE-RANGES-FIREWALL": Refusal.SOURCE_RANGE,
    "KUBE-NO-LOCAL-ENDPOINTS": Refusal.NO_LOCAL_ENDPOINTS,
    "KUBE-PROXY-FIREWALL": Refusal.UNALLOCATED_CLUSTER_IP,
    ranges.FIREWALL: Refusal.SOURCE_RANGE,
    ranges.NO_LOCAL: Refusal.NO_LOCAL_ENDPOINTS,
}
"""Chains, and what each DROP in them means."""
_REFUSING = {
    "KUBE-NO-ENDPOINTS": Refusal.NO_ENDPOINTS,
    ranges.NOBODY: Refusal.NO_ENDPOINTS,
    ranges.STRAYS: Refusal.UNDEFINED_PORT,
}
"""Chains, and what each REJECT in them means."""


class Origin(NamedTuple):
    """Whose a virtual server is. `both_ways`: answers come back through this node.

    `port` is what is meant by the port 0 of an endpoint that keeps the client's.
    """

    port_name: ServicePortName
    both_ways: bool
    port: int = 0


def origins(plans: Iterable[ServicePlan], marks: Marks) -> dict[VirtualServer, Origin]:
    """Name the virtual servers that plans may have; a mark may have the masquerade bit as well."""
    return {server: origin for plan in plans for server, origin in _of_plan(plan, marks)}


def _of_plan(plan: ServicePlan, marks: Marks) -> Iterator[tuple[VirtualServer, Origin]]:
    direct = method_of(plan.wishes) is not Method.MASQUERADE
    for frontend in plan.frontends:
        key = frontend.key
        for address in plan.node_port_addresses if key.address is None else (key.address,):
            yield VirtualServer(key.protocol, address, key.port), Origin(frontend.port_name, both_ways=True)
        yield from _marked(frontend, key, marks, direct=direct)
    for wide in plan.ranges:
        yield from _marked(wide.frontend, wide.key, marks, direct=direct)


def _marked(
    frontend: Frontend, key: FrontendKey | RangeKey, marks: Marks, *, direct: bool
) -> Iterator[tuple[VirtualServer, Origin]]:
    outside = frontend.kind in (FrontendKind.EXTERNAL_IP, FrontendKind.LOAD_BALANCER)
    origin = Origin(frontend.port_name, not (direct and outside), frontend.key.port)
    for mark in filter(None, (marks.given.get((key, side)) for side in MarkScope)):
        for number in (mark, mark | marks.avoid):
            yield VirtualServer(0, Address(b""), 0, number), origin


def service_counts(
    named: Mapping[VirtualServer, Origin],
    servers: Mapping[VirtualServer, Counters],
    reals: Mapping[VirtualServer, Iterable[RealServerState]],
    refused: Mapping[Refusal, int],
) -> Counts:
    """Add up what the kernel holds."""
    ports: dict[ServicePortName, Count] = {}
    for server, counters in servers.items():
        origin = named[server]
        _add(ports, origin.port_name, _count(counters, both_ways=origin.both_ways))
    endpoints: dict[EndpointName, Count] = {}
    opened: dict[EndpointName, OpenConnections] = {}
    for server, states in reals.items():
        for state in states:
            origin = named[server]
            name = EndpointName(origin.port_name, state.address, state.port or origin.port)
            both_ways = state.forwarding.method is Method.MASQUERADE
            _add(endpoints, name, _count(state.counters, both_ways=both_ways))
            before = opened.get(name, OpenConnections(0, 0))
            opened[name] = OpenConnections(before.active + state.active, before.inactive + state.inactive)
    seen: dict[tuple[Refusal, ServicePortName | None], int] = {
        (reason, None): packets for reason, packets in refused.items() if packets
    }
    return Counts(ports, endpoints, seen, opened)


def _add(counted: dict[K, Count], name: K, count: Count) -> None:
    before = counted.get(name)
    counted[name] = count if before is None else before.plus(count)


def _count(counters: Counters, *, both_ways: bool) -> Count:
    back = (counters.packets_out, counters.bytes_out) if both_ways else (None, None)
    return Count(counters.connections, counters.packets_in, counters.bytes_in, *back)


def refusals(text: str) -> dict[Refusal, int]:
    """Read how many packets the rules have refused from the output of `iptables-save -c`."""
    found: dict[Refusal, int] = {}
    for packets, chain, rule in counted_rules(text):
        reason = None
        if rule.endswith("-j DROP"):
            reason = _FIREWALL.get(chain)
        elif "-j REJECT" in rule:
            reason = _REFUSING.get(chain)
        elif chain == "KUBE-NO-ENDPOINTS" and rule.endswith("-j RETURN"):
            reason = Refusal.NO_ENDPOINTS
        if reason is not None:
            found[reason] = found.get(reason, 0) + packets
    return found
