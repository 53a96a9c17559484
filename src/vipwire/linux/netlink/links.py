"""Encodes and decodes rtnetlink's interfaces and their addresses.

Formats: include/uapi/linux/{rtnetlink,if_link,if_addr}.h; unlike nfnetlink, numbers are in host byte order.
"""

import struct
from typing import Final, NamedTuple

from vipwire.errors import DecodeError
from vipwire.linux.netlink.message import (
    collect_attributes,
    decode_text,
    encode_attribute,
    encode_nested,
    encode_string,
)
from vipwire.model.net import Address, Family, family_of

NEW_LINK, DELETE_LINK, GET_LINK = 16, 17, 18
NEW_ADDRESS, DELETE_ADDRESS, GET_ADDRESS = 20, 21, 22

GROUP_LINK = 1  # RTNLGRP_LINK
GROUP_IPV4_ADDRESS, GROUP_IPV6_ADDRESS = 5, 9  # RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR

LOOPBACK = 1  # the ifindex of lo
NO_DETECTION, FLAG_DUPLICATE = 0x02, 0x08  # IFA_F_NODAD; IFA_F_DADFAILED: the kernel does not use the address
SCOPE_GLOBAL, SCOPE_LINK, SCOPE_HOST, SCOPE_ANY = 0, 253, 254, 255

_UP, _LOOPBACK, _CARRIER = 0x1, 0x8, 0x10000  # IFF_UP, IFF_LOOPBACK, IFF_LOWER_UP
_LINK = struct.Struct("=BxHiII")  # ifinfomsg: family, device type, index, flags, which flags change
_ADDRESS = struct.Struct("=BBBBI")  # ifaddrmsg: family, prefix length, flags, scope, interface index
_DEPRECATED = struct.pack("=IIII", 0, 0xFFFFFFFF, 0, 0)  # ifa_cacheinfo: preferred for no time, valid forever
U32: Final = struct.Struct("=I")
FAMILIES: Final = {Family.IPV4: (2, 4), Family.IPV6: (10, 16)}
"""The AF_* number and the bytes of an address."""
WIDTHS: Final = dict(FAMILIES.values())


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


def encode_link(
    number: int = 0, *, name: str = "", mac: bytes = b"", up: bool | None = None, kind: str = "", data: bytes = b""
) -> bytes:
    """Encode the payload of a request for an interface, by number or name; `data` are attributes of its `kind`."""
    parts = [encode_attribute(1, mac)] if mac else []
    if name:
        parts.append(encode_string(3, name))
    if kind:
        parts.append(
            encode_nested(18, encode_string(1, kind), *([encode_nested(2, data)] if data else []))
        )  # IFLA_LINKINFO
    change = 0 if up is None else _UP
    return _LINK.pack(0, 0, number, _UP if up else 0, change) + b"".join(parts)


def encode_veth_peer(peer: bytes, namespace: int) -> bytes:
    """Encode the data of a `veth` link: its peer, in the network namespace of the descriptor `namespace`."""
    return encode_attribute(1, peer + encode_attribute(28, U32.pack(namespace)))  # VETH_INFO_PEER, IFLA_NET_NS_FD


def encode_list_links(number: int = 0) -> bytes:
    """Encode the payload of a GET_LINK dump, or of a request for one link.

    Asks for no statistics, which are most of an answer (RTEXT_FILTER_SKIP_STATS).
    """
    return encode_link(number) + encode_attribute(29, U32.pack(1 << 3))


def encode_address(number: int, value: Address, *, flags: int = 0, scope: int = 0, deprecated: bool = False) -> bytes:
    """Encode an interface's address without a subnet. The kernel avoids a deprecated address as source."""
    family, width = FAMILIES[family_of(value)]
    head = _ADDRESS.pack(family, 8 * width, flags, scope, number)
    return (
        head
        + encode_attribute(2, value)
        + encode_attribute(1, value)
        + (encode_attribute(6, _DEPRECATED) if deprecated else b"")
    )


def encode_list_addresses(family: Family | None = None) -> bytes:
    return _ADDRESS.pack(FAMILIES[family][0] if family else 0, 0, 0, 0, 0)


def decode_link(payload: memoryview) -> Interface:
    if len(payload) < _LINK.size:
        raise DecodeError("rtnetlink link message is cut short")
    name = collect_attributes(payload, _LINK.size).get(3)  # IFLA_IFNAME
    if name is None:
        raise DecodeError("rtnetlink link message has no name")
    _, _, number, flags, _ = _LINK.unpack_from(payload)
    return Interface(number, decode_text(name), bool(flags & _LOOPBACK))


def decode_whole_link(payload: memoryview) -> Link:
    """Decode one answer to a GET_LINK dump with the interface's kind and XDP program."""
    interface = decode_link(payload)
    values = collect_attributes(payload, _LINK.size)
    nothing = memoryview(b"")
    kind = collect_attributes(values.get(18, nothing)).get(1, nothing)  # IFLA_LINKINFO, IFLA_INFO_KIND
    program = collect_attributes(values.get(43, nothing)).get(4)  # IFLA_XDP, IFLA_XDP_PROG_ID
    return Link(interface.number, interface.name, decode_text(kind) if kind else "", number_of_u32(program))


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
    width = WIDTHS.get(family)
    if width is None:
        return None
    values = collect_attributes(payload, _ADDRESS.size)
    # IFA_LOCAL is this machine's address. IPv6 has only IFA_ADDRESS; in IPv4 that may be the peer's.
    value = values.get(2, values.get(1))
    if value is None or len(value) != width:
        raise DecodeError("rtnetlink address message has no address of its family")
    all_flags = values.get(8)  # IFA_FLAGS: the header has room for 8 flags
    if all_flags is not None and len(all_flags) == U32.size:
        flags = U32.unpack(all_flags)[0]
    return InterfaceAddress(index, Address(bytes(value)), length, scope, flags)


def number_of_u32(value: memoryview | None) -> int:
    if value is None:
        return 0
    if len(value) != U32.size:
        raise DecodeError(f"rtnetlink attribute has {len(value)} bytes and not 4")
    number: int = U32.unpack(value)[0]
    return number
