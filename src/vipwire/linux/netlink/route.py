"""rtnetlink, as far as a service proxy reads it: the interfaces of this network namespace and their addresses.

Formats: include/uapi/linux/{rtnetlink,if_link,if_addr}.h; unlike in nfnetlink, numbers are in host byte order.
"""

import struct
from typing import NamedTuple

from vipwire.errors import DecodeError
from vipwire.linux.netlink.attributes import attribute, attributes, text_of
from vipwire.model.net import Address, Family, Prefix

NEW_LINK, GET_LINK = 16, 18
NEW_ADDRESS, DELETE_ADDRESS, GET_ADDRESS = 20, 21, 22
GET_ROUTE = 26

GROUP_LINK = 1  # RTNLGRP_LINK
GROUP_IPV4_ADDRESS, GROUP_IPV6_ADDRESS = 5, 9  # RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR

FLAG_DUPLICATE = 0x08  # IFA_F_DADFAILED: another machine has this address, so that the kernel does not use it
SCOPE_GLOBAL, SCOPE_LINK, SCOPE_HOST = 0, 253, 254

_UP, _LOOPBACK, _CARRIER = 0x1, 0x8, 0x10000  # IFF_UP, IFF_LOOPBACK, IFF_LOWER_UP
_LINK = struct.Struct("=BxHiII")  # ifinfomsg: family, device type, index, flags, which flags change
_ADDRESS = struct.Struct("=BBBBI")  # ifaddrmsg: family, prefix length, flags, scope, interface index
_ROUTE = struct.Struct("=BBBBBBBBI")  # rtmsg: family, destination and source length, TOS, table, …, type, flags
_TABLE_LOCAL, _DELIVERED = 255, (2, 3, 4)  # RTN_LOCAL, RTN_BROADCAST, RTN_ANYCAST
_U32 = struct.Struct("=I")
_FAMILIES = {Family.IPV4: (2, 4), Family.IPV6: (10, 16)}
_WIDTHS = dict(_FAMILIES.values())


class Link(NamedTuple):
    """A network interface; `number` is its ifindex. `loopback`: what leaves by it comes back."""

    number: int
    name: str
    loopback: bool = False


class InterfaceAddress(NamedTuple):
    """An address of this machine. `link` is the ifindex of its interface, `flags` are IFA_F_*."""

    link: int
    address: Address
    prefix_length: int
    scope: int
    flags: int


def links_request(number: int = 0) -> bytes:
    """Encode the payload of a GET_LINK dump, or of a request for one link.

    Without the statistics, which are most of an answer (RTEXT_FILTER_SKIP_STATS).
    """
    return _LINK.pack(0, 0, number, 0, 0) + attribute(29, _U32.pack(1 << 3))


def addresses_request(family: Family | None = None) -> bytes:
    """Encode the payload of a GET_ADDRESS dump, of one family or of all."""
    return _ADDRESS.pack(_FAMILIES[family][0] if family else 0, 0, 0, 0, 0)


def local_routes_request(family: Family) -> bytes:
    """Encode the payload of a GET_ROUTE dump of the table `local`, which says what is delivered to this machine."""
    return _ROUTE.pack(_FAMILIES[family][0], 0, 0, 0, _TABLE_LOCAL, 0, 0, 0, 0)


def decode_local_route(payload: memoryview) -> Prefix | None:
    """Decode one answer to a GET_ROUTE dump; None for a route that leads to other machines."""
    if len(payload) < _ROUTE.size:
        raise DecodeError("rtnetlink route message is cut short")
    family, length, _, _, _, _, _, kind, _ = _ROUTE.unpack_from(payload)
    width = _WIDTHS.get(family)
    if width is None or kind not in _DELIVERED:
        return None
    value = attributes(payload, _ROUTE.size).get(1)  # RTA_DST; without it the route is for all addresses
    if value is not None and len(value) != width:
        raise DecodeError("rtnetlink route message has no address of its family")
    return Prefix(Address(bytes(value) if value is not None else bytes(width)), length)


def decode_link(payload: memoryview) -> Link:
    """Decode one answer to a GET_LINK dump."""
    if len(payload) < _LINK.size:
        raise DecodeError("rtnetlink link message is cut short")
    name = attributes(payload, _LINK.size).get(3)  # IFLA_IFNAME
    if name is None:
        raise DecodeError("rtnetlink link message has no name")
    _, _, number, flags, _ = _LINK.unpack_from(payload)
    return Link(number, text_of(name), bool(flags & _LOOPBACK))


def is_running(payload: memoryview) -> bool:
    """Read from an answer to GET_LINK whether the interface is up and has a carrier."""
    if len(payload) < _LINK.size:
        raise DecodeError("rtnetlink link message is cut short")
    flags: int = _LINK.unpack_from(payload)[3]
    return flags & (_UP | _CARRIER) == _UP | _CARRIER


def decode_address(payload: memoryview) -> InterfaceAddress | None:
    """Decode one answer to a GET_ADDRESS dump; None for one of a family other than IPv4 and IPv6 (MCTP, phonet)."""
    if len(payload) < _ADDRESS.size:
        raise DecodeError("rtnetlink address message is cut short")
    family, length, flags, scope, index = _ADDRESS.unpack_from(payload)
    width = _WIDTHS.get(family)
    if width is None:
        return None
    values = attributes(payload, _ADDRESS.size)
    # IFA_LOCAL is ours; where there is none (IPv6), IFA_ADDRESS is, and otherwise the peer's or the same.
    value = values.get(2, values.get(1))
    if value is None or len(value) != width:
        raise DecodeError("rtnetlink address message has no address of its family")
    if (all_flags := values.get(8)) is not None and len(
        all_flags
    ) == 4:  # IFA_FLAGS: the header has room for 8 of them
        flags = _U32.unpack(all_flags)[0]
    return InterfaceAddress(index, Address(bytes(value)), length, scope, flags)
