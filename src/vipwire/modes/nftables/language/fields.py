"""The fields that rules match, and constants for them: nft's words, type, width, and how the kernel loads each.

The type numbers are nft's (include/datatype.h): NFTA_SET_KEY_TYPE holds six bits for each part of a concatenation.
nft stores `typeof` as expressions in userdata (its parse_udata and build_udata), with numbers of nft, not the kernel.
"""

import enum
import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple

from vipwire.linux.netlink.nftables import expressions as kernel
from vipwire.linux.netlink.nftables.userdata import encode_entry, encode_number
from vipwire.model.net import Family, Prefix, parse_address
from vipwire.model.value import Value
from vipwire.modes.nftables.language.scan import Scanner


class Type(enum.IntEnum):
    """nft's data types that vipwire uses."""

    INTEGER = 4
    IPV4_ADDRESS = 7
    IPV6_ADDRESS = 8
    PROTOCOL = 12
    SERVICE = 13
    MARK = 19
    CLASS_ID = 23
    CT_STATE = 26
    CT_DIRECTION = 27
    CT_STATUS = 28
    FIB_ADDRESS_TYPE = 40
    INTERFACE_NAME = 41


class Order(enum.IntEnum):
    """Byte order, with nft's numbers in userdata."""

    NONE = 0
    HOST = 1
    NETWORK = 2


class Field(Value, frozen=True):
    """A property of a packet or connection, by nft's words: `ip daddr`.

    `size` is in bytes. `load` returns the expression that loads the field into registers from a word on. `typeof` is
    empty for a field that no set can have.
    """

    name: str
    type: Type
    size: int
    order: Order
    load: Callable[[int], bytes]
    typeof: bytes = b""

    @property
    def words(self) -> int:
        return -(-self.size // 4)


class HeaderField(Field, frozen=True):
    """A field of a packet's header: `offset` bytes into the header `base`."""

    base: int = 0
    offset: int = 0


_PAYLOAD, _META, _CONCAT, _VERDICT = 7, 9, 13, 1
_PROTOCOL_TH, _PROTOCOL_IP, _PROTOCOL_IP6 = 11, 12, 13


def _encode_typeof(kind: int, *data: tuple[int, int]) -> bytes:
    return encode_number(0, kind) + encode_entry(1, b"".join(encode_number(index, value) for index, value in data))


def encode_concatenation_typeof(fields: tuple[Field, ...]) -> bytes:
    """Encode nft's userdata for `typeof` of one field or a concatenation."""
    if len(fields) == 1:
        return fields[0].typeof
    return encode_number(0, _CONCAT) + encode_entry(
        1, b"".join(encode_entry(at, field.typeof) for at, field in enumerate(fields))
    )


EMPTY_TYPEOF = encode_number(0, _CONCAT) + encode_entry(1, b"")
"""nft's userdata for a concatenation of types."""
VERDICT_TYPEOF = encode_number(0, _VERDICT) + encode_entry(1, b"")


def _build_header_field(
    name: str, type_: Type, size: int, place: tuple[int, int], note: tuple[int, int]
) -> HeaderField:
    """Build a header field; `note` is nft's number of the protocol and of the field in it."""
    base, offset = place
    typeof = _encode_typeof(_PAYLOAD, (0, note[0]), (1, note[1]))
    return HeaderField(
        name, type_, size, Order.NETWORK, lambda word: kernel.payload(word, base, offset, size), typeof, base, offset
    )


def _build_meta_field(name: str, key: int, type_: Type, size: int) -> Field:
    return Field(name, type_, size, Order.HOST, lambda word: kernel.meta(word, key), _encode_typeof(_META, (0, key)))


def _build_ct_field(
    name: str, key: int, type_: Type, size: int, direction: int | None = None, order: Order = Order.HOST
) -> Field:
    return Field(name, type_, size, order, lambda word: kernel.ct(word, key, direction))


def _build_fib_field(name: str, flags: int) -> Field:
    return Field(name, Type.FIB_ADDRESS_TYPE, 4, Order.HOST, lambda word: kernel.fib(word, flags))


_COMMON = (
    _build_meta_field("meta l4proto", kernel.META_L4PROTO, Type.PROTOCOL, 1),
    _build_meta_field("meta priority", kernel.META_PRIORITY, Type.CLASS_ID, 4),
    _build_meta_field("meta mark", kernel.META_MARK, Type.MARK, 4),
    _build_meta_field("iifname", kernel.META_IIFNAME, Type.INTERFACE_NAME, 16),
    _build_ct_field("ct state", kernel.CT_STATE, Type.CT_STATE, 4),
    _build_ct_field("ct status", kernel.CT_STATUS, Type.CT_STATUS, 4),
    _build_ct_field("ct direction", kernel.CT_DIRECTION, Type.CT_DIRECTION, 1),
    _build_ct_field("ct packets", kernel.CT_PACKETS, Type.INTEGER, 8),
    _build_ct_field("ct original proto-dst", kernel.CT_PROTO_DST, Type.SERVICE, 2, 0, Order.NETWORK),
    _build_ct_field("ct reply proto-src", kernel.CT_PROTO_SRC, Type.SERVICE, 2, 1, Order.NETWORK),
    _build_fib_field("fib saddr type", kernel.FIB_SADDR),
    _build_fib_field("fib daddr type", kernel.FIB_DADDR),
    _build_header_field("th sport", Type.SERVICE, 2, (kernel.TRANSPORT_HEADER, 0), (_PROTOCOL_TH, 1)),
    _build_header_field("th dport", Type.SERVICE, 2, (kernel.TRANSPORT_HEADER, 2), (_PROTOCOL_TH, 2)),
)


def _build_address_fields(
    ip: str, type_: Type, size: int, offsets: tuple[int, int], notes: tuple[int, int, int]
) -> list[Field]:
    source, destination = (
        kernel.CT_SRC_IP if size == 4 else kernel.CT_SRC_IP6,
        kernel.CT_DST_IP if size == 4 else kernel.CT_DST_IP6,
    )
    return [
        _build_header_field(f"{ip} saddr", type_, size, (kernel.NETWORK_HEADER, offsets[0]), (notes[0], notes[1])),
        _build_header_field(f"{ip} daddr", type_, size, (kernel.NETWORK_HEADER, offsets[1]), (notes[0], notes[2])),
        _build_ct_field(f"ct original {ip} daddr", destination, type_, size, 0, Order.NETWORK),
        _build_ct_field(f"ct reply {ip} saddr", source, type_, size, 1, Order.NETWORK),
    ]


def _index_by_words(fields: Iterable[Field]) -> dict[tuple[str, ...], Field]:
    return {tuple(field.name.split()): field for field in fields}


_FIELDS: dict[Family, dict[tuple[str, ...], Field]] = {
    Family.IPV4: _index_by_words(
        (*_COMMON, *_build_address_fields("ip", Type.IPV4_ADDRESS, 4, (12, 16), (_PROTOCOL_IP, 11, 12)))
    ),
    Family.IPV6: _index_by_words(
        (*_COMMON, *_build_address_fields("ip6", Type.IPV6_ADDRESS, 16, (8, 24), (_PROTOCOL_IP6, 8, 9)))
    ),
}


def parse_field(words: Scanner, family: Family) -> Field:
    """Parse one field; raise RuleSyntaxError for any other word."""
    ahead, fields = words.ahead(4), _FIELDS[family]
    length = next((length for length in range(1, 5) if ahead[:length] in fields), 0)
    if not length:
        words.fail(f"{words.peek()!r} begins nothing that a rule of {family.value} can look at")
    words.skip(*ahead[:length])
    return fields[ahead[:length]]


def parse_fields(words: Scanner, family: Family) -> tuple[Field, ...]:
    fields = [parse_field(words, family)]
    while words.skip("."):
        fields.append(parse_field(words, family))
    return tuple(fields)


def load_fields(fields: tuple[Field, ...], word: int, *, ordered: bool = False) -> bytes:
    """Load fields one after the other from register `word` on.

    `ordered`: for the key of an interval set, whose values must sort as bytes. nft swaps all values that are not in
    network order, single bytes too.
    """
    parts: list[bytes] = []
    for field in fields:
        parts.append(field.load(word))
        if ordered and field.order is not Order.NETWORK:
            parts.append(kernel.host_to_network(word, field.size, 4 if field.size == 4 else 2))
        word += field.words
    return b"".join(parts)


PROTOCOLS = {"tcp": 6, "udp": 17, "sctp": 132}
CT_STATES = {"invalid": 1, "established": 2, "related": 4, "new": 8, "untracked": 64}
CT_STATUSES = {"expected": 1, "seen-reply": 2, "assured": 4, "confirmed": 8, "snat": 16, "dnat": 32, "dying": 512}
ADDRESS_TYPES = {"unspec": 0, "unicast": 1, "local": 2, "broadcast": 3, "anycast": 4, "multicast": 5}
_NAMES = {
    Type.CT_STATE: CT_STATES,
    Type.CT_STATUS: CT_STATUSES,
    Type.CT_DIRECTION: {"original": 0, "reply": 1},
    Type.FIB_ADDRESS_TYPE: ADDRESS_TYPES,
    Type.PROTOCOL: PROTOCOLS,
    Type.CLASS_ID: {"none": 0},
}
_BYTES = frozenset({Type.PROTOCOL, Type.CT_DIRECTION})
_INTERFACE_LENGTH = 16


class Constant(NamedTuple):
    """A value for comparison with a field.

    A shorter `value` compares only the field's first bytes. `mask` selects bits of it; None selects all.
    """

    value: bytes
    mask: bytes | None = None


def parse_constant(words: Scanner, type_: Type) -> Constant:
    """Parse a constant of a field's type; raise RuleSyntaxError if it does not fit."""
    match type_:
        case Type.IPV4_ADDRESS | Type.IPV6_ADDRESS:
            return _parse_prefix(words, 4 if type_ is Type.IPV4_ADDRESS else 16)
        case Type.INTERFACE_NAME:
            return _parse_interface(words)
        case Type.MARK:
            return Constant(struct.pack("=I", words.number()))
    names, name = _NAMES.get(type_, {}), words.take("a name")
    if name not in names:
        words.fail_before(f"{name!r} is none of {', '.join(names)}" if names else "expected a set or a map")
    return Constant(names[name].to_bytes(1) if type_ in _BYTES else struct.pack("=I", names[name]))


def _parse_prefix(words: Scanner, size: int) -> Constant:
    word = words.take("an address")
    try:
        prefix = Prefix.parse(word) if "/" in word else Prefix.host(parse_address(word))
    except ValueError as error:
        words.fail_before(str(error))
    if len(prefix.network) != size:
        words.fail_before(f"{word} is of the other family")
    whole, part = divmod(prefix.length, 8)
    if prefix.length == 0:
        words.fail_before("a prefix of length 0 matches everything; leave the match out")
    if not part:
        return Constant(prefix.network[:whole])
    bits = size * 8
    ones = (1 << bits) - (1 << (bits - prefix.length))
    return Constant(prefix.network, ones.to_bytes(size))


def _parse_interface(words: Scanner) -> Constant:
    name = words.read_quoted()
    value = name.encode()
    if not 0 < len(value) < _INTERFACE_LENGTH or value == b"*":
        words.fail_before("an interface's name has 1 to 15 bytes")
    if value.endswith(b"*"):
        return Constant(value[:-1])
    return Constant(value.ljust(_INTERFACE_LENGTH, b"\0"))
