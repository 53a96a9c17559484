"""The fields that a rule can match: words, type, width, how each is loaded, and how nft records it in a set.

Numbers of types are those of nft (include/datatype.h): they go into NFTA_SET_KEY_TYPE, six bits each in a
concatenation. What nft remembers of `typeof` is an expression in userdata entries (parse_udata and build_udata of its
expressions); the numbers in them are nft's own, not the kernel's.
"""

import enum
from collections.abc import Callable, Iterator

from vipwire.linux.netlink.nftables import expressions as kernel
from vipwire.linux.netlink.nftables.userdata import entry, number
from vipwire.model.net import Family
from vipwire.model.value import Value
from vipwire.modes.nftables.language.scan import Scanner


class Type(enum.IntEnum):
    """The data types of nft that occur here."""

    INTEGER = 4
    IPV4_ADDRESS = 7
    IPV6_ADDRESS = 8
    PROTOCOL = 12
    SERVICE = 13
    MARK = 19
    CT_STATE = 26
    CT_DIRECTION = 27
    CT_STATUS = 28
    CLASS_ID = 23
    FIB_ADDRESS_TYPE = 40
    INTERFACE_NAME = 41


class Order(enum.IntEnum):
    """The byte order of a value, numbered as nft does in userdata."""

    NONE = 0
    HOST = 1
    NETWORK = 2


Load = Callable[[int, int], bytes]
"""Makes the expressions that load a field into a word, given the first word that is free for intermediate values."""


class Field(Value, frozen=True):
    """Something of a packet or a connection, by the words of nft: `ip daddr`.

    `size` is in bytes. `typeof` is empty for what no set can be declared with; `scratch` is how many words are needed
    while it is computed.
    """

    name: str
    type: Type
    size: int
    order: Order
    load: Load
    typeof: bytes = b""
    scratch: int = 0

    @property
    def words(self) -> int:
        """The number of four-byte registers that it fills."""
        return -(-self.size // 4)


class Header(Field, frozen=True):
    """A field of a packet's header: `offset` bytes into the header `base`, of packets of `protocol` (0: any)."""

    base: int = 0
    offset: int = 0
    protocol: int = 0


class Numgen(Field, frozen=True):
    """A number by chance, or in turn."""

    in_turn: bool = False
    modulus: int = 1
    offset: int = 0


class Jhash(Field, frozen=True):
    """A hash of other fields, Jenkins'."""

    sources: tuple[Field, ...] = ()
    modulus: int = 1
    seed: int = 0
    offset: int = 0


_PAYLOAD, _META, _NUMGEN, _CONCAT, _VERDICT = 7, 9, 23, 13, 1
_PROTOCOL_TH, _PROTOCOL_IP, _PROTOCOL_IP6 = 11, 12, 13


def _typeof(kind: int, *data: tuple[int, int]) -> bytes:
    return number(0, kind) + entry(1, b"".join(number(index, value) for index, value in data))


def concatenation_typeof(fields: tuple[Field, ...]) -> bytes:
    """Write what nft remembers of a concatenation of fields, or of a single one."""
    if len(fields) == 1:
        return fields[0].typeof
    return number(0, _CONCAT) + entry(1, b"".join(entry(at, field.typeof) for at, field in enumerate(fields)))


EMPTY_TYPEOF = number(0, _CONCAT) + entry(1, b"")
"""What nft remembers of a concatenation of types."""
VERDICT_TYPEOF = number(0, _VERDICT) + entry(1, b"")


def _header(name: str, type_: Type, size: int, place: tuple[int, int], typeof: bytes, protocol: int = 0) -> Header:
    base, offset = place

    def load(word: int, _: int) -> bytes:
        return kernel.payload(word, base, offset, size)

    return Header(name, type_, size, Order.NETWORK, load, typeof, 0, base, offset, protocol)


def _meta(name: str, key: int, type_: Type, size: int) -> Field:
    def load(word: int, _: int) -> bytes:
        return kernel.meta(word, key)

    return Field(name, type_, size, Order.HOST, load, _typeof(_META, (0, key)))


def _ct(
    name: str, key: int, type_: Type, size: int, direction: int | None = None, order: Order = Order.HOST
) -> Field:
    def load(word: int, _: int) -> bytes:
        return kernel.ct(word, key, direction)

    return Field(name, type_, size, order, load)


def _fib(name: str, flags: int) -> Field:
    def load(word: int, _: int) -> bytes:
        return kernel.fib(word, flags)

    return Field(name, Type.FIB_ADDRESS_TYPE, 4, Order.HOST, load)


def _ports(word: str, offset: int, typeof: int) -> list[Field]:
    place = (kernel.TRANSPORT_HEADER, offset)
    plain = _header(f"th {word}", Type.SERVICE, 2, place, _typeof(_PAYLOAD, (0, _PROTOCOL_TH), (1, typeof)))
    return [plain, *(_header(f"{p} {word}", Type.SERVICE, 2, place, b"", value) for p, value in PROTOCOLS.items())]


PROTOCOLS = {"tcp": 6, "udp": 17, "sctp": 132}

L4PROTO = _meta("meta l4proto", kernel.META_L4PROTO, Type.PROTOCOL, 1)
_COMMON = [
    L4PROTO,
    _meta("meta priority", kernel.META_PRIORITY, Type.CLASS_ID, 4),
    _meta("meta mark", kernel.META_MARK, Type.MARK, 4),
    _meta("iifname", kernel.META_IIFNAME, Type.INTERFACE_NAME, 16),
    _meta("oifname", kernel.META_OIFNAME, Type.INTERFACE_NAME, 16),
    _ct("ct state", kernel.CT_STATE, Type.CT_STATE, 4),
    _ct("ct status", kernel.CT_STATUS, Type.CT_STATUS, 4),
    _ct("ct direction", kernel.CT_DIRECTION, Type.CT_DIRECTION, 1),
    _ct("ct packets", kernel.CT_PACKETS, Type.INTEGER, 8),
    _ct("ct mark", kernel.CT_MARK, Type.MARK, 4),
    _ct("ct original proto-dst", kernel.CT_PROTO_DST, Type.SERVICE, 2, 0, Order.NETWORK),
    _ct("ct reply proto-src", kernel.CT_PROTO_SRC, Type.SERVICE, 2, 1, Order.NETWORK),
    _fib("fib saddr type", kernel.FIB_SADDR),
    _fib("fib daddr type", kernel.FIB_DADDR),
    *_ports("sport", 0, 1),
    *_ports("dport", 2, 2),
]


def _addresses(
    word: str, type_: Type, size: int, places: tuple[int, int], ids: tuple[int, int, int]
) -> Iterator[Field]:
    protocol, source, destination = ids
    for name, offset, typeof in (("saddr", places[0], source), ("daddr", places[1], destination)):
        note = _typeof(_PAYLOAD, (0, protocol), (1, typeof))
        yield _header(f"{word} {name}", type_, size, (kernel.NETWORK_HEADER, offset), note)


def _by_words(*fields: Field) -> dict[tuple[str, ...], Field]:
    return {tuple(field.name.split()): field for field in fields}


_FIELDS: dict[Family, dict[tuple[str, ...], Field]] = {
    Family.IPV4: _by_words(
        *_COMMON,
        *_addresses("ip", Type.IPV4_ADDRESS, 4, (12, 16), (_PROTOCOL_IP, 11, 12)),
        _ct("ct original ip saddr", kernel.CT_SRC_IP, Type.IPV4_ADDRESS, 4, 0, Order.NETWORK),
        _ct("ct original ip daddr", kernel.CT_DST_IP, Type.IPV4_ADDRESS, 4, 0, Order.NETWORK),
        _ct("ct reply ip saddr", kernel.CT_SRC_IP, Type.IPV4_ADDRESS, 4, 1, Order.NETWORK),
    ),
    Family.IPV6: _by_words(
        *_COMMON,
        *_addresses("ip6", Type.IPV6_ADDRESS, 16, (8, 24), (_PROTOCOL_IP6, 8, 9)),
        _ct("ct original ip6 saddr", kernel.CT_SRC_IP6, Type.IPV6_ADDRESS, 16, 0, Order.NETWORK),
        _ct("ct original ip6 daddr", kernel.CT_DST_IP6, Type.IPV6_ADDRESS, 16, 0, Order.NETWORK),
        _ct("ct reply ip6 saddr", kernel.CT_SRC_IP6, Type.IPV6_ADDRESS, 16, 1, Order.NETWORK),
    ),
}


def parse_field(words: Scanner, family: Family) -> Field:
    """Read one field; fail on a word that begins none."""
    if words.skip("numgen"):
        return _numgen(words)
    if words.skip("jhash"):
        return _jhash(words, family)
    ahead, fields = words.ahead(4), _FIELDS[family]
    length = next((length for length in range(1, 5) if ahead[:length] in fields), 0)
    if not length:
        words.fail(f"{words.peek()!r} begins nothing that a rule of {family.value} can look at")
    words.skip(*ahead[:length])
    return fields[ahead[:length]]


def parse_fields(words: Scanner, family: Family) -> tuple[Field, ...]:
    """Read a field or a concatenation of several."""
    fields = [parse_field(words, family)]
    while words.skip("."):
        fields.append(parse_field(words, family))
    return tuple(fields)


def _numgen(words: Scanner) -> Field:
    kinds = {"inc": kernel.NUMGEN_INCREMENTAL, "random": kernel.NUMGEN_RANDOM}
    word = words.take("inc or random")
    if word not in kinds:
        words.fail_before("expected inc or random")
    kind = kinds[word]
    words.expect("mod")
    modulus = words.number()
    offset = words.number() if words.skip("offset") else 0
    _check_range(words, modulus, offset)

    def load(word: int, _: int) -> bytes:
        return kernel.numgen(word, kind, modulus, offset)

    typeof = _typeof(_NUMGEN, (0, kind), (1, modulus), (2, offset))
    in_turn = kind == kernel.NUMGEN_INCREMENTAL
    return Numgen("numgen", Type.INTEGER, 4, Order.HOST, load, typeof, 0, in_turn, modulus, offset)


def _jhash(words: Scanner, family: Family) -> Field:
    """Read a hash. It has no `typeof`: nft 1.0.6 crashes when it lists a set that is declared with one."""
    sources = parse_fields(words, family)
    words.expect("mod")
    modulus = words.number()
    seed = words.number() if words.skip("seed") else None
    offset = words.number() if words.skip("offset") else 0
    _check_range(words, modulus, offset)
    length = 4 * sum(source.words for source in sources)

    def load(word: int, free: int) -> bytes:
        hashed = load_fields(sources, free, free + length // 4)
        return hashed + kernel.jhash((free, length), word, modulus, seed, offset)

    scratch = length // 4
    return Jhash("jhash", Type.INTEGER, 4, Order.HOST, load, b"", scratch, sources, modulus, seed or 0, offset)


def _check_range(words: Scanner, modulus: int, offset: int) -> None:
    if not 1 <= modulus <= 0xFFFFFFFF - offset:
        words.fail_before("a modulus is at least 1, and with the offset at most 4294967295")


def load_fields(fields: tuple[Field, ...], word: int, free: int, *, ordered: bool = False) -> bytes:
    """Load fields one after the other from `word` on.

    `ordered`: into the key of an interval set, whose values must sort as bytes. nft swaps whatever is not in network
    order, a single byte too.
    """
    parts: list[bytes] = []
    for field in fields:
        parts.append(field.load(word, free))
        if ordered and field.order is not Order.NETWORK:
            parts.append(kernel.host_to_network(word, field.size, 4 if field.size == 4 else 2))
        word += field.words
    return b"".join(parts)
