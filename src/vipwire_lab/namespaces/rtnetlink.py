"""The rtnetlink requests of a lab, sent in one batch for each namespace.

A lab takes some 150 requests: seconds as `ip` processes (half a minute in User-Mode Linux), a third of a second for
importing pyroute2, a few milliseconds here. The caller chooses interface indexes, so that addresses and routes can be
packed before the interface exists.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from vipwire.linux.netlink import links
from vipwire.linux.netlink import route as codec
from vipwire.linux.netlink.batch import NetlinkRequest, send_batch
from vipwire.linux.netlink.message import NLM_F_CREATE, NLM_F_EXCL
from vipwire.linux.netlink.socket import NETLINK_ROUTE, NetlinkSocket
from vipwire.model.net import Address, Family, Prefix
from vipwire_lab.namespaces.errors import LabError

IPAddress = IPv4Address | IPv6Address
IPNetwork = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class Request:
    """One requested change. `text` is its ip(8) command, for errors."""

    kind: int
    payload: bytes
    text: str
    creates: bool = True


def new_veth(index: int, name: str, mac: bytes, peer: Request, namespace: int) -> Request:
    """Build a veth pair: one end here, already up, its `peer` in the namespace of the descriptor."""
    data = links.encode_veth_peer(peer.payload, namespace)
    payload = links.encode_link(index, name=name, mac=mac, up=True, kind="veth", data=data)
    return Request(links.NEW_LINK, payload, f"ip link add {name} type veth peer {peer.text}")


def veth_peer(index: int, name: str, mac: bytes) -> Request:
    """Describe the far end of a pair. It starts down: veth opens no end without a peer."""
    return Request(links.NEW_LINK, links.encode_link(index, name=name, mac=mac), name)


def set_link_up(index: int) -> Request:
    return Request(links.NEW_LINK, links.encode_link(index, up=True), f"ip link set {index} up", creates=False)


def add_address(index: int, value: IPAddress) -> Request:
    """Add an address to an interface, without a subnet or duplicate address detection (nodad)."""
    payload = links.encode_address(index, Address(value.packed), flags=links.NO_DETECTION)
    return Request(links.NEW_ADDRESS, payload, f"ip address add {value} dev {index}")


def add_route(
    to: IPNetwork,
    index: int,
    *,
    via: IPAddress | None = None,
    source: IPAddress | None = None,
    table: int = codec.TABLE_MAIN,
) -> Request:
    """Send `to` out of an interface: directly, or via a neighbour; `source` is the preferred source address."""
    asked = codec.Route(
        _prefix_of(to),
        index,
        gateway=Address(via.packed) if via else None,
        source=Address(source.packed) if source else None,
        table=table,
        scope=links.SCOPE_GLOBAL if via or to.version == 6 else links.SCOPE_LINK,
        flags=codec.ON_LINK if via else 0,
    )
    hop, preferred = f" via {via}" if via else "", f" src {source}" if source else ""
    text = f"ip route add {to} dev {index} table {table}{hop}{preferred}"
    return Request(codec.NEW_ROUTE, codec.encode_route(asked), text)


def add_blackhole_route(to: IPNetwork) -> Request:
    """Drop packets to `to` that have no better route."""
    payload = codec.encode_route(codec.Route(_prefix_of(to), type=codec.BLACKHOLE))
    return Request(codec.NEW_ROUTE, payload, f"ip route add blackhole {to}")


def add_neighbour(index: int, value: IPAddress, mac: bytes) -> Request:
    payload = codec.encode_neighbour(index, Address(value.packed), mac)
    return Request(codec.NEW_NEIGHBOUR, payload, f"ip neighbour add {value} lladdr {mac.hex(':')} dev {index}")


def add_rule(family: Family, came_in_by: str, table: int, priority: int) -> Request:
    """Look up another table for packets from an interface."""
    payload = codec.encode_rule(family, codec.RoutingRule(table, priority, interface=came_in_by))
    return Request(codec.NEW_RULE, payload, f"ip rule add iif {came_in_by} lookup {table} priority {priority}")


def apply_requests(requests: Sequence[Request]) -> None:
    """Send all requests in the calling thread's namespace; raise LabError with the first refused one."""
    messages = [
        NetlinkRequest(each.kind, each.payload, NLM_F_CREATE | NLM_F_EXCL if each.creates else 0) for each in requests
    ]
    with NetlinkSocket(NETLINK_ROUTE) as link:
        for at, answer in send_batch(link, messages).refused.items():
            why = f"{os.strerror(answer.errno)} {answer.text}".rstrip()
            raise LabError(f"the kernel refused `{requests[at].text}`: {why}")


def _prefix_of(network: IPNetwork) -> Prefix:
    return Prefix(Address(network.network_address.packed), network.prefixlen)
