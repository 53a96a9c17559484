"""Reads the packet counters of IPVS and of ipvs mode's iptables rules.

The kernel updates IPVS counters every two seconds, unless `net.ipv4.vs.run_estimation` is 0. A Service port is the
sum of its virtual servers. IPVS does not count answers of direct return. iptables rules count refused packets for all
Services together.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from vipwire.errors import UnsupportedError
from vipwire.linux.netlink.ipvs import Method, RealServerState, TrafficStats, VirtualServer
from vipwire.model.names import ServicePortName
from vipwire.model.net import Address, Family
from vipwire.modes.ipvs.marks import Marks, MarkScope
from vipwire.modes.ipvs.objects import ranges
from vipwire.modes.ipvs.objects.iptables_tool import ChainTool
from vipwire.modes.ipvs.objects.servers import IpvsServers
from vipwire.modes.ipvs.scheduling import choose_method
from vipwire.modes.xtables.counted import counted_rules
from vipwire.plan.plan import Frontend, FrontendKey, FrontendKind, RangeKey, ServicePlan
from vipwire.reconcile.counts import Counts, EndpointName, Measure, Owner, Refusal

_FIREWALL = {
    "KUBE-SOURCE-RANGES-FIREWALL": Refusal.SOURCE_RANGE,
    "KUBE-NO-LOCAL-ENDPOINTS": Refusal.NO_LOCAL_ENDPOINTS,
    "KUBE-PROXY-FIREWALL": Refusal.UNALLOCATED_CLUSTER_IP,
    ranges.FIREWALL: Refusal.SOURCE_RANGE,
    ranges.NO_LOCAL: Refusal.NO_LOCAL_ENDPOINTS,
}
"""The reason for which each DROP of a chain refuses."""
_REFUSING = {
    "KUBE-NO-ENDPOINTS": Refusal.NO_ENDPOINTS,
    ranges.NOBODY: Refusal.NO_ENDPOINTS,
    ranges.STRAYS: Refusal.UNDEFINED_PORT,
}
"""The reason for which each REJECT of a chain refuses."""


def read_counts(
    family: Family, tool: ChainTool, plans: Iterable[ServicePlan], marks: Marks, *, endpoints: bool
) -> Counts:
    """Read the counters of these Services in the calling thread's network namespace.

    Real servers cost one netlink request for each virtual server, so vipwire reads only those of servers with
    connections.
    """
    named = list_origins_by_server(plans, marks)
    with contextlib.closing(IpvsServers(family)) as kernel:
        servers = {server: counters for server, (_, counters) in kernel.read_services().items() if server in named}
        busy = [server for server, counters in servers.items() if counters.connections] if endpoints else []
        reals = {server: kernel.read_real_servers(server) for server in busy}
    counts = service_counts(named, servers, reals)
    with contextlib.suppress(UnsupportedError):
        for reason, packets in parse_refusals(tool.read_counted()).items() if servers else ():
            if packets:
                counts.add(reason, None, packets)
    return counts


class Origin(NamedTuple):
    """The Service port of a virtual server.

    `both_ways`: answers come back through this node. `port`: the port of endpoints that IPVS lists with port 0.
    """

    port_name: ServicePortName
    both_ways: bool
    port: int = 0


def list_origins_by_server(plans: Iterable[ServicePlan], marks: Marks) -> dict[VirtualServer, Origin]:
    """Map every virtual server that these plans may have to its Service port.

    A mark counts with and without the masquerade bit.
    """
    return {server: origin for plan in plans for server, origin in _list_origins(plan, marks)}


def _list_origins(plan: ServicePlan, marks: Marks) -> Iterator[tuple[VirtualServer, Origin]]:
    direct = choose_method(plan.wishes) is not Method.MASQUERADE
    for frontend in plan.frontends:
        key = frontend.key
        for address in plan.node_port_addresses if key.address is None else (key.address,):
            yield VirtualServer(key.protocol, address, key.port), Origin(frontend.port_name, both_ways=True)
        yield from _list_marked_servers(frontend, key, marks, direct=direct)
    for wide in plan.ranges:
        yield from _list_marked_servers(wide.frontend, wide.key, marks, direct=direct)


def _list_marked_servers(
    frontend: Frontend, key: FrontendKey | RangeKey, marks: Marks, *, direct: bool
) -> Iterator[tuple[VirtualServer, Origin]]:
    outside = frontend.kind in (FrontendKind.EXTERNAL_IP, FrontendKind.LOAD_BALANCER)
    origin = Origin(frontend.port_name, not (direct and outside), frontend.key.port)
    for mark in filter(None, (marks.given.get((key, side)) for side in MarkScope)):
        for number in (mark, mark | marks.avoid):
            yield VirtualServer(0, Address(b""), 0, number), origin


def service_counts(
    named: Mapping[VirtualServer, Origin],
    servers: Mapping[VirtualServer, TrafficStats],
    reals: Mapping[VirtualServer, Iterable[RealServerState]],
) -> Counts:
    counts = Counts()
    for server, counters in servers.items():
        _add_counters(counts, named[server].port_name, counters, both_ways=named[server].both_ways)
    for server, states in reals.items():
        origin = named[server]
        for state in states:
            endpoint = EndpointName(origin.port_name, state.address, state.port or origin.port)
            _add_counters(counts, endpoint, state.counters, both_ways=state.forwarding.method is Method.MASQUERADE)
            counts.add(Measure.ACTIVE, endpoint, state.active)
            counts.add(Measure.INACTIVE, endpoint, state.inactive)
    return counts


def _add_counters(counts: Counts, owner: Owner, counters: TrafficStats, *, both_ways: bool) -> None:
    counts.add(Measure.CONNECTIONS, owner, counters.connections)
    counts.add(Measure.PACKETS, owner, counters.packets_in)
    counts.add(Measure.BYTES, owner, counters.bytes_in)
    if both_ways:
        counts.add(Measure.REPLY_PACKETS, owner, counters.packets_out)
        counts.add(Measure.REPLY_BYTES, owner, counters.bytes_out)


def parse_refusals(text: str) -> dict[Refusal, int]:
    """Read the count of refused packets, by reason, from the output of `iptables-save -c`."""
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
