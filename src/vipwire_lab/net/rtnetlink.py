"""The few rtnetlink requests that a lab is made of, and sending them in one batch per namespace.

A lab takes some 150 requests. As `ip` processes that is seconds (and half a minute in User-Mode Linux), through
pyroute2 it costs an import of a third of a second alone; packed here it is a few milliseconds. Interface indexes are
chosen by the caller, so that addresses and routes can be packed before the interface exists.
Layouts: include/uapi/linux/{rtnetlink,if_link,if_addr,neighbour,fib_rules}.h; all in host byte order.
"""

import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from vipwire.linux.netlink.attributes import attribute, nested, string
from vipwire.linux.netlink.message import NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, encode
from vipwire.linux.netlink.socket import NETLINK_ROUTE, NetlinkSocket
from vipwire_lab.net.errors import LabError

IPAddress = IPv4Address | IPv6Address
IPNetwork = IPv4Network | IPv6Network

LOOPBACK = 1
_UP = 1
_NEWLINK, _DELLINK, _NEWADDR, _NEWROUTE, _NEWNEIGH, _NEWRULE = 16, 17, 20, 24, 28, 32
_LINK = struct.Struct("=BxHiII")  # family, device type, index, flags, which flags change
_ADDRESS = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, index
_ROUTE = struct.Struct(
    "=BBBBBBBBI"
)  # family, destination length, source length, tos, table, origin, scope, type, flags
_NEIGHBOUR = struct.Struct("=BxxxiHBB")  # family, index, state, flags, type
_RULE = struct.Struct("=BBBBBBBBI")  # family, destination length, source length, tos, table, -, -, action, flags
_U32 = struct.Struct("=I")


@dataclass(frozen=True, slots=True)
class Request:
    """One change to ask for. `text` says it in the words of ip(8), for errors."""

    kind: int
    payload: bytes
    text: str
    creates: bool = True


def veth(index: int, name: str, mac: bytes, peer: Request, namespace: int) -> Request:
    """Build a pair of connected interfaces: one here, already up, its `peer` in the namespace of that descriptor."""
    other = peer.payload + attribute(28, _U32.pack(namespace))  # IFLA_NET_NS_FD
    kind = nested(18, string(1, "veth"), nested(2, attribute(1, other)))  # IFLA_LINKINFO: kind, data: VETH_INFO_PEER
    payload = _LINK.pack(0, 0, index, _UP, _UP) + _identity(name, mac) + kind
    return Request(_NEWLINK, payload, f"ip link add {name} type veth peer {peer.text}")


def far_end(index: int, name: str, mac: bytes) -> Request:
    """Describe the far end of a pair. It cannot be up at once: veth opens no end that has no peer yet."""
    return Request(_NEWLINK, _LINK.pack(0, 0, index, 0, 0) + _identity(name, mac), name)


def _identity(name: str, mac: bytes) -> bytes:
    return attribute(1, mac) + string(3, name)


def up(index: int, *, up: bool = True) -> Request:
    """Switch an interface on or off."""
    word = "up" if up else "down"
    return Request(_NEWLINK, _LINK.pack(0, 0, index, int(up), _UP), f"ip link set {index} {word}", creates=False)


def address(index: int, value: IPAddress) -> Request:
    """Add an address to an interface, without a subnet and without duplicate address detection (nodad)."""
    payload = _ADDRESS.pack(_family(value), value.max_prefixlen, 0x02, 0, index)
    payload += attribute(2, value.packed) + attribute(1, value.packed)
    return Request(_NEWADDR, payload, f"ip address add {value} dev {index}")


def route(
    to: IPNetwork,
    index: int,
    *,
    via: IPAddress | None = None,
    source: IPAddress | None = None,
    table: int = 254,
    onlink: bool = True,
) -> Request:
    """Send `to` out of an interface: to that very address, or via a neighbour; `source` is the preferred one."""
    scope = 0 if via or to.version == 6 else 253
    payload = _ROUTE.pack(_family(to), to.prefixlen, 0, 0, table, 4, scope, 1, 4 if via and onlink else 0)
    payload += attribute(1, to.network_address.packed) + attribute(4, _U32.pack(index))
    text = f"ip route add {to} dev {index} table {table}"
    if via:
        payload += attribute(5, via.packed)
        text += f" via {via}"
    if source:
        payload += attribute(7, source.packed)
        text += f" src {source}"
    return Request(_NEWROUTE, payload, text)


def blackhole(to: IPNetwork) -> Request:
    """Swallow what goes to `to` and has no better route."""
    payload = _ROUTE.pack(_family(to), to.prefixlen, 0, 0, 254, 4, 0, 6, 0)
    payload += attribute(1, to.network_address.packed)
    return Request(_NEWROUTE, payload, f"ip route add blackhole {to}")


def neighbour(index: int, value: IPAddress, mac: bytes) -> Request:
    """Set a neighbour's hardware address permanently."""
    payload = _NEIGHBOUR.pack(_family(value), index, 0x80, 0, 0) + attribute(1, value.packed) + attribute(2, mac)
    return Request(_NEWNEIGH, payload, f"ip neighbour add {value} lladdr {mac.hex(':')} dev {index}")


def rule(family: int, came_in_by: str, table: int, priority: int) -> Request:
    """Look up another table for packets from an interface."""
    payload = _RULE.pack(family, 0, 0, 0, table, 0, 0, 1, 0)
    payload += string(3, came_in_by) + attribute(6, _U32.pack(priority)) + attribute(15, _U32.pack(table))
    return Request(_NEWRULE, payload, f"ip rule add iif {came_in_by} lookup {table} priority {priority}")


def apply(requests: Sequence[Request]) -> None:
    """Send all requests in the namespace of the calling thread; raise LabError with the first that was refused."""
    with NetlinkSocket(NETLINK_ROUTE) as link:
        first = link.sequence(len(requests))
        # A bounded datagram: the kernel answers every request, and the answers must fit the receive buffer.
        for start in range(0, len(requests), 256):
            part = requests[start : start + 256]
            link.send(b"".join(_message(request, first + start + at) for at, request in enumerate(part)))
            for answer in link.acknowledgements():
                if answer.errno:
                    request = requests[answer.sequence - first]
                    why = f"{os.strerror(answer.errno)} {answer.text}".rstrip()
                    raise LabError(f"the kernel refused `{request.text}`: {why}")


def _message(request: Request, sequence: int) -> bytes:
    flags = NLM_F_REQUEST | NLM_F_ACK | (NLM_F_CREATE | NLM_F_EXCL if request.creates else 0)
    return encode(request.kind, flags, sequence, request.payload)


def _family(value: IPAddress | IPNetwork) -> int:
    return socket.AF_INET if value.version == 4 else socket.AF_INET6
