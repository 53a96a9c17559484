"""Plans how a lab's hosts are connected: from a topology to the content of each namespace.

    client ── underlay ── node-1 ── pod-1a, pod-1b, ...
                    └──── node-2 ── pod-2a, ...

Every line is a veth pair between routers and hosts with /32 and /128 addresses: no bridge, no subnet, no ARP (as in
Calico and clouds; test kernels often lack bridges). Host routes lead to each address; default routes lead through a
link-local gateway with a fixed hardware address. A Pod's packets to itself return through its node, so hairpin works
like any other route. Packets to unused addresses of a node's Pod range are dropped.

The underlay knows nodes, Pods and clients, and no VIP: it answers a packet for a VIP with "network unreachable", so
that a missing rule never looks like a drop or reject rule. A client's packets to unknown addresses go to its gateway
node; replies of other nodes return directly, so a missing masquerade breaks the connection, as in reality.
"""

import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Final

from vipwire.linux.netlink.links import LOOPBACK
from vipwire.model.net import Family
from vipwire_lab.namespaces import netns, rtnetlink
from vipwire_lab.namespaces.errors import LabError
from vipwire_lab.namespaces.rtnetlink import IPAddress, IPNetwork, Request
from vipwire_lab.namespaces.topology import UNDERLAY, Client, Node, Pod, Topology

UPLINK = 100
"""Index of each host's interface eth0. Kernels take low numbers for devices in each new namespace."""

# ICMPv6 errors need a source address.
_UNDERLAY: tuple[IPAddress, ...] = (ip_address("192.0.2.1"), ip_address("2001:db8::1"))
_GATEWAYS: dict[int, IPAddress] = {4: ip_address("169.254.1.1"), 6: ip_address("fe80::1")}
_EVERYWHERE: dict[int, IPNetwork] = {4: ip_network("0.0.0.0/0"), 6: ip_network("::/0")}
_FAMILY = {4: Family.IPV4, 6: Family.IPV6}
_ROUTER_MAC = bytes.fromhex("020000000001")
_HOST_MAC = bytes.fromhex("020000000002")
_GATEWAY_TABLE = 100  # plus the number of the client
_AFTER_MAIN = 40000  # the rule of the main table has priority 32766


@dataclass(frozen=True, slots=True)
class Wire:
    """A veth pair: `index` and the host's name are the router's end, eth0 is the host's."""

    router: str
    host: str
    index: int

    def build_request(self, namespace: int) -> Request:
        """Build the request for the pair in the router's namespace, with a descriptor of the host's namespace."""
        peer = rtnetlink.veth_peer(UPLINK, "eth0", _HOST_MAC)
        return rtnetlink.new_veth(self.index, self.host, _ROUTER_MAC, peer, namespace)


@dataclass(frozen=True, slots=True)
class Wiring:
    """The wires of a lab, and the requests that configure each namespace."""

    wires: tuple[Wire, ...]
    requests: dict[str, tuple[Request, ...]]


def plan_wiring(topology: Topology) -> Wiring:
    wires = tuple(_plan_wires(topology))
    requests: dict[str, list[Request]] = {name: [rtnetlink.set_link_up(LOOPBACK)] for name in topology.host_names()}
    hosts = {host.name: host for host in topology.list_hosts()}
    for wire in wires:
        addresses = _parse_addresses(hosts[wire.host].addresses)
        requests[wire.host] += _host_end_requests(addresses)
        requests[wire.router] += _router_end_requests(
            wire.index, addresses, _source_addresses(hosts.get(wire.router))
        )
    for node in topology.nodes:
        requests[node.name] += [rtnetlink.add_blackhole_route(ip_network(cidr)) for cidr in node.pod_cidrs]
    requests[UNDERLAY] += _underlay_requests(topology, {wire.host: wire.index for wire in wires})
    return Wiring(wires, {name: tuple(each) for name, each in requests.items()})


def sysctls_of(*, router: bool) -> dict[str, str]:
    """Return files of /proc/sys/net to set before the first interface, so that interfaces inherit them."""
    settings = {
        "ipv4/icmp_ratemask": "0",  # no limit, because an unsent rejection looks like a drop
        "ipv6/icmp/ratemask": "2",  # only type 2, which the kernel never limits
        "ipv4/icmp_ratelimit": "0",
        "ipv6/icmp/ratelimit": "0",
        "ipv4/ping_group_range": "0 2147483647",
        # SCTP sees a refusal only when it repeats its INIT: the first error finds the socket busy sending.
        "sctp/rto_min": "100",
        "sctp/rto_initial": "100",
    }
    for which in ("all", "default"):
        settings |= {
            f"ipv4/conf/{which}/rp_filter": "0",  # replies may return by another path
            f"ipv4/conf/{which}/accept_redirects": "0",  # a hairpin packet leaves by its incoming interface
            f"ipv4/conf/{which}/send_redirects": "0",
            f"ipv6/conf/{which}/accept_redirects": "0",
            f"ipv6/conf/{which}/accept_ra": "0",
            f"ipv6/conf/{which}/accept_dad": "0",
            f"ipv6/conf/{which}/dad_transmits": "0",
        }
    if router:
        settings |= {"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1", "ipv6/conf/default/forwarding": "1"}
    return settings


def _plan_wires(topology: Topology) -> list[Wire]:
    return [
        *(Wire(UNDERLAY, node.name, 200 + number) for number, node in enumerate(topology.nodes)),
        *(Wire(UNDERLAY, client.name, 2000 + number) for number, client in enumerate(topology.clients)),
        *(Wire(pod.node, pod.name, 200 + number) for number, pod in enumerate(topology.pods)),
    ]


def _host_end_requests(addresses: list[IPAddress]) -> list[Request]:
    # The kernel prefers the first IPv4 address, and the last IPv6 address.
    fours: list[IPAddress] = [address for address in addresses if address.version == 4]
    sixes: list[IPAddress] = [address for address in addresses if address.version == 6]
    requests = [rtnetlink.set_link_up(UPLINK)]
    requests += [rtnetlink.add_address(UPLINK, address) for address in (*fours, *reversed(sixes))]
    for primary in (*fours[:1], *sixes[:1]):
        gateway, everywhere = _GATEWAYS[primary.version], _EVERYWHERE[primary.version]
        requests.append(rtnetlink.add_neighbour(UPLINK, gateway, _ROUTER_MAC))
        requests.append(rtnetlink.add_route(everywhere, UPLINK, via=gateway, source=primary))
    return requests


def _router_end_requests(index: int, addresses: list[IPAddress], source: dict[int, IPAddress]) -> list[Request]:
    requests: list[Request] = []
    for address in addresses:
        requests.append(rtnetlink.add_neighbour(index, address, _HOST_MAC))
        requests.append(rtnetlink.add_route(ip_network(address), index, source=source.get(address.version)))
    return requests


def _underlay_requests(topology: Topology, index: dict[str, int]) -> list[Request]:
    primary = {node.name: _source_addresses(node) for node in topology.nodes}
    requests = [rtnetlink.add_address(LOOPBACK, address) for address in _UNDERLAY]
    for node in topology.nodes:
        for cidr in map(ip_network, node.pod_cidrs):
            via = primary[node.name][cidr.version]
            requests.append(rtnetlink.add_route(cidr, index[node.name], via=via))
    for number, client in enumerate(topology.clients):
        table = _GATEWAY_TABLE + number
        for version, via in primary[client.gateway].items():
            requests.append(rtnetlink.add_route(_EVERYWHERE[version], index[client.gateway], via=via, table=table))
            requests.append(rtnetlink.add_rule(_FAMILY[version], client.name, table, _AFTER_MAIN))
    return requests


def _parse_addresses(addresses: tuple[str, ...]) -> list[IPAddress]:
    return [ip_address(text) for text in addresses]


def _source_addresses(host: Node | Pod | Client | None) -> dict[int, IPAddress]:
    if host is None:
        return {}
    return {address.version: address for address in reversed(_parse_addresses(host.addresses))}


BRIDGE: Final = "lan"


def build_lan(namespaces: Mapping[str, Path], topology: Topology) -> None:
    """Build one Ethernet for some hosts: a bridge in the underlay, and an interface lan0 in each host.

    For ARP, NDP, and addresses that move between machines; the lab's other wires are between routers. Raise LabError
    without iproute2, or if the kernel has no bridges.
    """
    _run_ip(namespaces[UNDERLAY], _bridge_lines(topology, namespaces))
    for host in topology.lan:
        lines = [f"address add {each} dev lan0 nodad" for each in topology.lan_addresses(host) if ":" in each]
        lines += [f"address add {each} dev lan0" for each in topology.lan_addresses(host) if ":" not in each]
        _run_ip(namespaces[host], ["link set lan0 up", *lines])


def lan_port_name(host: str) -> str:
    """Return the host's port of the bridge: setting it down cuts the host off."""
    return f"lan-{host}"[:15]


def _bridge_lines(topology: Topology, namespaces: Mapping[str, Path]) -> Iterator[str]:
    yield f"link add {BRIDGE} type bridge forward_delay 0 mcast_snooping 0"
    yield f"link set {BRIDGE} up"
    for host in topology.lan:
        yield f"link add {lan_port_name(host)} type veth peer name lan0 netns {namespaces[host].name}"
        yield f"link set {lan_port_name(host)} master {BRIDGE}"
        yield f"link set {lan_port_name(host)} up"


def _run_ip(namespace: Path, lines: Iterator[str] | list[str]) -> None:
    batch = "".join(f"{line}\n" for line in lines)
    with netns.enter_namespace(namespace):
        try:
            done = subprocess.run(["ip", "-batch", "-"], input=batch, capture_output=True, text=True, check=False)  # noqa: S607
        except FileNotFoundError as error:
            raise LabError("a lab with an Ethernet needs the command ip (Debian: apt install iproute2)") from error
    if done.returncode:
        raise LabError(f"cannot build the lab's Ethernet: {done.stderr.strip()}")
