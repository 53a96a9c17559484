"""Encodes and decodes rtnetlink's routes, routing rules and neighbours; `links` has interfaces and addresses.

Formats: include/uapi/linux/{rtnetlink,neighbour,fib_rules}.h. Table numbers above 255 are not supported.
"""

import struct
from typing import NamedTuple

from vipwire.errors import DecodeError
from vipwire.linux.netlink.links import FAMILIES, SCOPE_GLOBAL, U32, WIDTHS, number_of_u32
from vipwire.linux.netlink.message import collect_attributes, decode_text, encode_attribute, encode_string
from vipwire.model.net import Address, Family, Prefix, family_of

NEW_ROUTE, DELETE_ROUTE, GET_ROUTE = 24, 25, 26
NEW_NEIGHBOUR = 28
NEW_RULE, DELETE_RULE, GET_RULE = 32, 33, 34

TABLE_MAIN, TABLE_LOCAL = 254, 255
STATIC = 4  # RTPROT_STATIC: made by an operator
UNICAST, LOCAL, BROADCAST, ANYCAST, BLACKHOLE = 1, 2, 3, 4, 6  # RTN_*
ON_LINK = 4  # RTNH_F_ONLINK: the gateway is a neighbour even without a route to it

_PERMANENT, _TO_TABLE = 0x80, 1  # NUD_PERMANENT, FR_ACT_TO_TBL
# rtmsg, fib_rule_hdr: family, lengths of destination and source, TOS, table, protocol, scope, type or action, flags
_ROUTE = struct.Struct("=BBBBBBBBI")
_NEIGHBOUR = struct.Struct("=BxxxiHBB")  # ndmsg: family, index, state, flags, type
_DESTINATION, _DEVICE, _GATEWAY, _SOURCE, _TABLE = 1, 4, 5, 7, 15  # RTA_*; FRA_TABLE is the same
_INTERFACE, _PRIORITY, _MARK, _MASK = 3, 6, 10, 16  # FRA_IIFNAME, FRA_PRIORITY, FRA_FWMARK, FRA_FWMASK


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


def encode_route(route: Route) -> bytes:
    to, table, link = route.destination, U32.pack(route.table), U32.pack(route.link) if route.link else None
    family, numbers = FAMILIES[to.family][0], (route.table, route.protocol, route.scope, route.type, route.flags)
    parts = (
        (_DESTINATION, to.network if to.length else None),
        (_DEVICE, link),
        (_GATEWAY, route.gateway),
        (_SOURCE, route.source),
        (_TABLE, table),
    )
    head = _ROUTE.pack(family, to.length, 0, 0, *numbers)
    return head + b"".join(encode_attribute(kind, value) for kind, value in parts if value is not None)


def encode_list_routes(family: Family, table: int = 0) -> bytes:
    """Encode the payload of a GET_ROUTE or GET_RULE dump; a socket that filters dumps gets one table's routes."""
    return _ROUTE.pack(FAMILIES[family][0], 0, 0, 0, table, 0, 0, 0, 0)


def encode_get_route(to: Address) -> bytes:
    family, width = FAMILIES[family_of(to)]
    return _ROUTE.pack(family, 8 * width, 0, 0, 0, 0, 0, 0, 0) + encode_attribute(_DESTINATION, to)


def encode_rule(family: Family, rule: RoutingRule) -> bytes:
    head = _ROUTE.pack(FAMILIES[family][0], 0, 0, 0, rule.table, 0, 0, _TO_TABLE, 0)
    numbers = {_MARK: rule.mark, _MASK: 0xFFFFFFFF} if rule.mark else {}
    numbers |= {_TABLE: rule.table, _PRIORITY: rule.priority}
    name = encode_string(_INTERFACE, rule.interface) if rule.interface else b""
    return head + name + b"".join(encode_attribute(kind, U32.pack(number)) for kind, number in numbers.items())


def encode_neighbour(number: int, value: Address, mac: bytes) -> bytes:
    """Encode a permanent neighbour entry of an interface."""
    head = _NEIGHBOUR.pack(FAMILIES[family_of(value)][0], number, _PERMANENT, 0, 0)
    return head + encode_attribute(1, value) + encode_attribute(2, mac)


def decode_route(payload: memoryview) -> Route | None:
    """Decode one answer to GET_ROUTE; None for a family other than IPv4 and IPv6."""
    if len(payload) < _ROUTE.size:
        raise DecodeError("rtnetlink route message is cut short")
    family, length, _, _, table, protocol, scope, kind, flags = _ROUTE.unpack_from(payload)
    width = WIDTHS.get(family)
    if width is None:
        return None
    values = collect_attributes(payload, _ROUTE.size)
    to, gateway, source = (
        None if value is None else Address(bytes(value))
        for value in map(values.get, (_DESTINATION, _GATEWAY, _SOURCE))
    )
    if to is not None and len(to) != width:
        raise DecodeError("rtnetlink route message has no address of its family")
    destination = Prefix(Address(bytes(width)) if to is None else to, length)
    table = number_of_u32(values.get(_TABLE)) or table
    return Route(
        destination, number_of_u32(values.get(_DEVICE)), gateway, source, table, protocol, scope, kind, flags
    )


def decode_rule(payload: memoryview) -> RoutingRule:
    if len(payload) < _ROUTE.size:
        raise DecodeError("rtnetlink rule message is cut short")
    values = collect_attributes(payload, _ROUTE.size)
    table, priority, mark = (number_of_u32(values.get(kind)) for kind in (_TABLE, _PRIORITY, _MARK))
    return RoutingRule(table, priority, mark, decode_text(values.get(_INTERFACE, memoryview(b""))))
