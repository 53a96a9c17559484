"""Encodes and decodes rtnetlink: interfaces, addresses, routes, routing rules and neighbours.

Formats: include/uapi/linux/{rtnetlink,if_link,if_addr,neighbour,fib_rules}.h; unlike nfnetlink, numbers are in host
byte order. Table numbers above 255 are not supported.
"""

import struct
from typing import NamedTuple

from vipwire.errors import DecodeError
from vipwire.linux.netlink.attributes import attribute, attributes, encode_nested, string, text_of
from vipwire.model.net import Address, Family, Prefix, family_of

NEW_LINK, DELETE_LINK, GET_LINK = 16, 17, 18
NEW_ADDRESS, DELETE_ADDRESS, GET_ADDRESS = 20, 21, 22
NEW_ROUTE, DELETE_ROUTE, GET_ROUTE = 24, 25, 26
NEW_NEIGHBOUR = 28
NEW_RULE, DELETE_RULE, GET_RULE = 32, 33, 34

GROUP_LINK = 1  # RTNLGRP_LINK
GROUP_IPV4_ADDRESS, GROUP_IPV6_ADDRESS = 5, 9  # RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR

LOOPBACK = 1  # the ifindex of lo
NO_DETECTION, FLAG_DUPLICATE = 0x02, 0x08  # IFA_F_NODAD; IFA_F_DADFAILED: the kernel does not use the address
SCOPE_GLOBAL, SCOPE_LINK, SCOPE_HOST, SCOPE_ANY = 0, 253, 254, 255
TABLE_MAIN, TABLE_LOCAL = 254, 255
STATIC = 4  # RTPROT_STATIC: made by an operator
UNICAST, LOCAL, BROADCAST, ANYCAST, BLACKHOLE = 1, 2, 3, 4, 6  # RTN_*
ON_LINK = 4  # RTNH_F_ONLINK: the gateway is a neighbour even without a route to it

_UP, _LOOPBACK, _CARRIER = 0x1, 0x8, 0x10000  # IFF_UP, IFF_LOOPBACK, IFF_LOWER_UP
_PERMANENT, _TO_TABLE = 0x80, 1  # NUD_PERMANENT, FR_ACT_TO_TBL
_LINK = struct.Struct("=BxHiII")  # ifinfomsg: family, device type, index, flags, which flags change
_ADDRESS = struct.Struct("=BBBBI")  # ifaddrmsg: family, prefix length, flags, scope, interface index
# rtmsg, fib_rule_hdr: family, lengths of destination and source, TOS, table, protocol, scope, type or action, flags
_ROUTE = struct.Struct("=BBBBBBBBI")
_NEIGHBOUR = struct.Struct("=BxxxiHBB")  # ndmsg: family, index, state, flags, type
_DEPRECATED = struct.pack("=IIII", 0, 0xFFFFFFFF, 0, 0)  # ifa_cacheinfo: preferred for no time, valid forever
_U32 = struct.Struct("=I")
_DESTINATION, _DEVICE, _GATEWAY, _SOURCE, _TABLE = 1, 4, 5, 7, 15  # RTA_*; FRA_TABLE is the same
_INTERFACE, _PRIORITY, _MARK, _MASK = 3, 6, 10, 16  # FRA_IIFNAME, FRA_PRIORITY, FRA_FWMARK, FRA_FWMASK
_FAMILIES = {Family.IPV4: (2, 4), Family.IPV6: (10, 16)}
_WIDTHS = dict(_FAMILIES.values())


class Interface(NamedTuple):
    """A network interface; `number` is its ifindex. `loopback`: packets sent by it come back."""

    number: int
    name: str
    loopback: bool = False


class Link(NamedTuple):
    """An interface with its kind ("" for a device), and the number of its XDP program (0: none)."""

    number: int
    name: str
    kind: str = ""
    xdp: int = 0


class InterfaceAddress(NamedTuple):
    """An address of this machine. `link` is the ifindex of its interface, `flags` are IFA_F_*."""

    link: int
    address: Address
    prefix_length: int
    scope: int
    flags: int


class Route(NamedTuple):
    """A route. `link` is the ifindex of the output interface (0: none); `source` the preferred source.

    `type` is one of RTN_*, `protocol` of RTPROT_*; `flags` are RTNH_F_*.
    """

    destination: Prefix
    link: int = 0
    gateway: Address | None = None
    source: Address | None = None
    table: int = TABLE_MAIN
    protocol: int = STATIC
    scope: int = SCOPE_GLOBAL
    type: int = UNICAST
    flags: int = 0


class RoutingRule(NamedTuple):
    """A routing rule: packets with `mark` (0: any) from `interface` ("": any) use the routes of `table`."""

    table: int
    priority: int
    mark: int = 0
    interface: str = ""


def encode_link(
    number: int = 0, *, name: str = "", mac: bytes = b"", up: bool | None = None, kind: str = "", data: bytes = b""
) -> bytes:
    """Encode the payload of a request for an interface, by number or name; `data` are attributes of its `kind`."""
    parts = [attribute(1, mac)] if mac else []
    if name:
        parts.append(string(3, name))
    if kind:
        parts.append(encode_nested(18, string(1, kind), *([encode_nested(2, data)] if data else [])))  # IFLA_LINKINFO
    change = 0 if up is None else _UP
    return _LINK.pack(0, 0, number, _UP if up else 0, change) + b"".join(parts)


def encode_veth_peer(peer: bytes, namespace: int) -> bytes:
    """Encode the data of a `veth` link: its peer, in the network namespace of the descriptor `namespace`."""
    return attribute(1, peer + attribute(28, _U32.pack(namespace)))  # VETH_INFO_PEER, IFLA_NET_NS_FD


def encode_list_links(number: int = 0) -> bytes:
    """Encode the payload of a GET_LINK dump, or of a request for one link.

    Asks for no statistics, which are most of an answer (RTEXT_FILTER_SKIP_STATS).
    """
    return encode_link(number) + attribute(29, _U32.pack(1 << 3))


def encode_address(number: int, value: Address, *, flags: int = 0, scope: int = 0, deprecated: bool = False) -> bytes:
    """Encode an interface's address without a subnet. The kernel avoids a deprecated address as source."""
    family, width = _FAMILIES[family_of(value)]
    head = _ADDRESS.pack(family, 8 * width, flags, scope, number)
    return head + attribute(2, value) + attribute(1, value) + (attribute(6, _DEPRECATED) if deprecated else b"")


def encode_list_addresses(family: Family | None = None) -> bytes:
    return _ADDRESS.pack(_FAMILIES[family][0] if family else 0, 0, 0, 0, 0)


def encode_route(route: Route) -> bytes:
    to, table, link = route.destination, _U32.pack(route.table), _U32.pack(route.link) if route.link else None
    family, numbers = _FAMILIES[to.family][0], (route.table, route.protocol, route.scope, route.type, route.flags)
    parts = (
        (_DESTINATION, to.network if to.length else None),
        (_DEVICE, link),
        (_GATEWAY, route.gateway),
        (_SOURCE, route.source),
        (_TABLE, table),
    )
    head = _ROUTE.pack(family, to.length, 0, 0, *numbers)
    return head + b"".join(attribute(kind, value) for kind, value in parts if value is not None)


def encode_list_routes(family: Family, table: int = 0) -> bytes:
    """Encode the payload of a GET_ROUTE or GET_RULE dump; a socket that filters dumps gets one table's routes."""
    return _ROUTE.pack(_FAMILIES[family][0], 0, 0, 0, table, 0, 0, 0, 0)


def encode_get_route(to: Address) -> bytes:
    family, width = _FAMILIES[family_of(to)]
    return _ROUTE.pack(family, 8 * width, 0, 0, 0, 0, 0, 0, 0) + attribute(_DESTINATION, to)


def encode_rule(family: Family, rule: RoutingRule) -> bytes:
    head = _ROUTE.pack(_FAMILIES[family][0], 0, 0, 0, rule.table, 0, 0, _TO_TABLE, 0)
    numbers = {_MARK: rule.mark, _MASK: 0xFFFFFFFF} if rule.mark else {}
    numbers |= {_TABLE: rule.table, _PRIORITY: rule.priority}
    name = string(_INTERFACE, rule.interface) if rule.interface else b""
    return head + name + b"".join(attribute(kind, _U32.pack(number)) for kind, number in numbers.items())


def encode_neighbour(number: int, value: Address, mac: bytes) -> bytes:
    """Encode a permanent neighbour entry of an interface."""
    head = _NEIGHBOUR.pack(_FAMILIES[family_of(value)][0], number, _PERMANENT, 0, 0)
    return head + attribute(1, value) + attribute(2, mac)


def decode_route(payload: memoryview) -> Route | None:
    """Decode one answer to GET_ROUTE; None for a family other than IPv4 and IPv6."""
    if len(payload) < _ROUTE.size:
        raise DecodeError("rtnetlink route message is cut short")
    family, length, _, _, table, protocol, scope, kind, flags = _ROUTE.unpack_from(payload)
    width = _WIDTHS.get(family)
    if width is None:
        return None
    values = attributes(payload, _ROUTE.size)
    to, gateway, source = (
        None if value is None else Address(bytes(value))
        for value in map(values.get, (_DESTINATION, _GATEWAY, _SOURCE))
    )
    if to is not None and len(to) != width:
        raise DecodeError("rtnetlink route message has no address of its family")
    destination = Prefix(Address(bytes(width)) if to is None else to, length)
    table = _number(values.get(_TABLE)) or table
    return Route(destination, _number(values.get(_DEVICE)), gateway, source, table, protocol, scope, kind, flags)


def decode_rule(payload: memoryview) -> RoutingRule:
    if len(payload) < _ROUTE.size:
        raise DecodeError("rtnetlink rule message is cut short")
    values = attributes(payload, _ROUTE.size)
    table, priority, mark = (_number(values.get(kind)) for kind in (_TABLE, _PRIORITY, _MARK))
    return RoutingRule(table, priority, mark, text_of(values.get(_INTERFACE, memoryview(b""))))


def _number(value: memoryview | None) -> int:
    if value is None:
        return 0
    if len(value) != _U32.size:
        raise DecodeError(f"rtnetlink attribute has {len(value)} bytes and not 4")
    number: int = _U32.unpack(value)[0]
    return number


def decode_link(payload: memoryview) -> Interface:
    if len(payload) < _LINK.size:
        raise DecodeError("rtnetlink link message is cut short")
    name = attributes(payload, _LINK.size).get(3)  # IFLA_IFNAME
    if name is None:
        raise DecodeError("rtnetlink link message has no name")
    _, _, number, flags, _ = _LINK.unpack_from(payload)
    return Interface(number, text_of(name), bool(flags & _LOOPBACK))


def decode_whole_link(payload: memoryview) -> Link:
    """Decode one answer to a GET_LINK dump with the interface's kind and XDP program."""
    interface = decode_link(payload)
    values = attributes(payload, _LINK.size)
    nothing = memoryview(b"")
    kind = attributes(values.get(18, nothing)).get(1, nothing)  # IFLA_LINKINFO, IFLA_INFO_KIND
    program = attributes(values.get(43, nothing)).get(4)  # IFLA_XDP, IFLA_XDP_PROG_ID
    return Link(interface.number, interface.name, text_of(kind) if kind else "", _number(program))


def is_running(payload: memoryview) -> bool:
    if len(payload) < _LINK.size:
        raise DecodeError("rtnetlink link message is cut short")
    flags: int = _LINK.unpack_from(payload)[3]
    return flags & (_UP | _CARRIER) == _UP | _CARRIER


def decode_address(payload: memoryview) -> InterfaceAddress | None:
    """Decode one answer to a GET_ADDRESS dump; None for families other than IPv4 and IPv6 (MCTP, phonet)."""
    if len(payload) < _ADDRESS.size:
        raise DecodeError("rtnetlink address message is cut short")
    family, length, flags, scope, index = _ADDRESS.unpack_from(payload)
    width = _WIDTHS.get(family)
    if width is None:
        return None
    values = attributes(payload, _ADDRESS.size)
    # IFA_LOCAL is this machine's address. IPv6 has only IFA_ADDRESS; in IPv4 that may be the peer's.
    value = values.get(2, values.get(1))
    if value is None or len(value) != width:
        raise DecodeError("rtnetlink address message has no address of its family")
    all_flags = values.get(8)  # IFA_FLAGS: the header has room for 8 flags
    if all_flags is not None and len(all_flags) == _U32.size:
        flags = _U32.unpack(all_flags)[0]
    return InterfaceAddress(index, Address(bytes(value)), length, scope, flags)
