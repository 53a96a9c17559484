"""The ipset messages of netfilter netlink: sets and their elements, as bytes without a socket.

Supports the set types of a service proxy: addresses, ports and protocols, with one more address or prefix, and a mark
that iptables' SET target copies to packets. One message holds many elements. Layouts:
include/uapi/linux/netfilter/ipset/ip_set.h; numbers are in network order.
"""

import enum
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from vipwire.errors import DecodeError
from vipwire.linux.netlink.message import (
    collect_attributes,
    decode_number,
    decode_text,
    encode_attribute,
    encode_nested,
    encode_string,
    walk_attributes,
)
from vipwire.model.net import Address, Family, Prefix

_SUBSYSTEM: Final = 6 << 8  # NFNL_SUBSYS_IPSET
_PROTOCOL: Final = 6
"""The oldest protocol version that every kernel since 2.6.39 accepts."""
_NETWORK_ORDER: Final = 0x4000
_WITH_MARKS: Final = 1 << 6  # IPSET_FLAG_WITH_SKBINFO
_EVICTS: Final = 1 << 5  # IPSET_FLAG_WITH_FORCEADD
_NFPROTO = {Family.IPV4: 2, Family.IPV6: 10}
_PER_MESSAGE: Final = 512
MOST_ELEMENTS: Final = 1 << 20
_MAXELEM, _TIMEOUT, _NETMASK, _BITMASK = 19, 6, 20, 12


class IpsetMessage(enum.IntEnum):
    """Message types (IPSET_CMD_* within the subsystem)."""

    CREATE = _SUBSYSTEM | 2
    DESTROY = _SUBSYSTEM | 3
    SWAP = _SUBSYSTEM | 6
    LIST = _SUBSYSTEM | 7
    ADD = _SUBSYSTEM | 9
    DELETE = _SUBSYSTEM | 10
    TYPE = _SUBSYSTEM | 13


class SetType(enum.Enum):
    """The set types that vipwire uses; the value is ipset's name."""

    ADDRESS = "hash:ip"
    ADDRESS_PORT = "hash:ip,port"
    ADDRESS_PORT_ADDRESS = "hash:ip,port,ip"
    ADDRESS_PORT_PREFIX = "hash:ip,port,net"
    PORT = "bitmap:port"


class IpsetSpec(NamedTuple):
    """The definition of a set. `marks`: every element carries a mark for packets.

    `limits`: the options of an existing set that keep elements out or end them, such as `maxelem 65536`.
    """

    type: SetType
    marks: bool = False
    limits: str = ""


class IpsetEntry(NamedTuple):
    """One element; the set's type decides which fields count. Every port but a PORT set's has a protocol."""

    address: Address = Address(b"")
    protocol: int = 0
    port: int = 0
    other: Address | Prefix | None = None


class Found(NamedTuple):
    """One message of a listing: the set's definition, and some of its elements with their marks (0: none).

    Only the first message of a set has a type. A set of ports has no family.
    """

    name: str
    type: str
    family: Family | None
    marks: bool
    limits: str
    elements: tuple[tuple[IpsetEntry, int], ...]


def _encode_header(family: int) -> bytes:
    return struct.pack("!BBH", family, 0, 0) + encode_attribute(1, bytes((_PROTOCOL,)))


def _encode_u8(kind: int, value: int) -> bytes:
    return encode_attribute(kind, bytes((value,)))


def _encode_be16(kind: int, value: int) -> bytes:
    return encode_attribute(kind | _NETWORK_ORDER, value.to_bytes(2))


def _encode_be32(kind: int, value: int) -> bytes:
    return encode_attribute(kind | _NETWORK_ORDER, value.to_bytes(4))


@lru_cache(maxsize=8192)
def _encode_address(kind: int, address: Address) -> bytes:
    return encode_nested(kind, encode_attribute((1 if len(address) == 4 else 2) | _NETWORK_ORDER, address))


def encode_get_type(family: Family, kind: SetType) -> bytes:
    """Encode the request for the kernel's revisions of a set type; the kernel loads the module."""
    number = 0 if kind is SetType.PORT else _NFPROTO[family]
    return _encode_header(number) + encode_string(3, kind.value) + _encode_u8(5, number)


def decode_revision(payload: memoryview) -> int:
    value = collect_attributes(payload, 4).get(4)
    if value is None or len(value) != 1:
        raise DecodeError("ipset names no revision of a type")
    return value[0]


def encode_create(family: Family, name: str, spec: IpsetSpec, revision: int) -> bytes:
    """Encode the payload that creates a set: a bitmap of all ports, or a hash for MOST_ELEMENTS."""
    number = 0 if spec.type is SetType.PORT else _NFPROTO[family]
    parts = (
        [_encode_be16(4, 0), _encode_be16(5, 65535)]
        if spec.type is SetType.PORT
        else [_encode_be32(_MAXELEM, MOST_ELEMENTS)]
    )
    if spec.marks:
        parts.append(_encode_be32(8, _WITH_MARKS))
    typed = (
        encode_string(2, name) + encode_string(3, spec.type.value) + _encode_u8(4, revision) + _encode_u8(5, number)
    )
    return _encode_header(number) + typed + encode_nested(7, *parts)


def encode_set_name(family: Family, name: str) -> bytes:
    return _encode_header(_NFPROTO[family]) + encode_string(2, name)


def encode_swap(family: Family, name: str, other: str) -> bytes:
    """Encode the payload that gives two sets each other's name; rules follow the name."""
    return encode_set_name(family, name) + encode_string(3, other)


def encode_changes(family: Family, name: str, elements: Sequence[tuple[IpsetEntry, int]]) -> Iterator[bytes]:
    for start in range(0, len(elements), _PER_MESSAGE):
        part = elements[start : start + _PER_MESSAGE]
        blobs = [encode_nested(7, *_encode_element(element, mark)) for element, mark in part]
        # The kernel requires the line-number attribute beside several elements, and returns the refused one's number.
        yield (
            _encode_header(_NFPROTO[family])
            + encode_string(2, name)
            + encode_nested(8, *blobs)
            + encode_attribute(9, bytes(4))
        )


def _encode_element(element: IpsetEntry, mark: int) -> Iterable[bytes]:
    if element.address:
        yield _encode_address(1, element.address)
    if element.port:
        yield _encode_be16(4, element.port)
    if element.protocol:
        yield _encode_u8(7, element.protocol)
    if isinstance(element.other, Prefix):
        yield _encode_address(20, element.other.network)
        yield _encode_u8(21, element.other.length)
    elif element.other is not None:
        yield _encode_address(20, element.other)
    if mark:
        yield encode_attribute(27 | _NETWORK_ORDER, (mark << 32 | 0xFFFFFFFF).to_bytes(8))


def decode_list(payload: memoryview) -> Found:
    found = collect_attributes(payload, 4)
    if 2 not in found:
        raise DecodeError("ipset lists a set without a name")
    header = collect_attributes(found[7]) if 7 in found else {}
    flags = decode_number(header[8]) if 8 in header else 0
    elements = []
    if 8 in found:
        elements = [_decode_element(value) for kind, value in walk_attributes(found[8]) if kind == 7]
    kind = decode_text(found[3]) if 3 in found else ""
    number = decode_number(found[5]) if 5 in found else 0
    family = next((each for each, code in _NFPROTO.items() if code == number), None)
    limits = " ".join(_list_limits(header, flags))
    return Found(decode_text(found[2]), kind, family, bool(flags & _WITH_MARKS), limits, tuple(elements))


def _list_limits(header: Mapping[int, memoryview], flags: int) -> Iterator[str]:
    """Yield, as ipset writes them, the options that keep elements out or end them."""
    if _MAXELEM in header and (most := decode_number(header[_MAXELEM])) < MOST_ELEMENTS:
        yield f"maxelem {most}"
    if 5 in header and (ports := (decode_number(header[4]) if 4 in header else 0, decode_number(header[5]))) != (
        0,
        65535,
    ):
        yield f"range {ports[0]}-{ports[1]}"
    if _TIMEOUT in header:
        yield f"timeout {decode_number(header[_TIMEOUT])}"
    yield from (name for option, name in ((_NETMASK, "netmask"), (_BITMASK, "bitmask")) if option in header)
    if flags & _EVICTS:
        yield "forceadd"


def _decode_element(data: memoryview) -> tuple[IpsetEntry, int]:
    found = collect_attributes(data)
    other: Address | Prefix | None = None
    if 20 in found:
        other = _decode_address(found[20])
        if 21 in found:
            length = decode_number(found[21])
            if length > len(other) * 8:
                raise DecodeError(f"ipset lists a prefix of length {length}")
            other = Prefix(other, length)
    mark = decode_number(found[27]) >> 32 if 27 in found else 0
    element = IpsetEntry(
        _decode_address(found[1]) if 1 in found else Address(b""),
        decode_number(found[7]) if 7 in found else 0,
        decode_number(found[4]) if 4 in found else 0,
        other,
    )
    return element, mark


def _decode_address(data: memoryview) -> Address:
    for kind, value in walk_attributes(data):
        if (kind, len(value)) in ((1, 4), (2, 16)):
            return Address(bytes(value))
    raise DecodeError("ipset lists an element whose address is of no known kind")
