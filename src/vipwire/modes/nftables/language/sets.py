"""Compiles declarations of sets and maps, with the userdata that nft needs to list them as `typeof …`.

nft 1.0.6 stores the expressions of `typeof` in the set's userdata; without them a listing shows bare types. The
kernel itself stores only lengths.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Literal

from vipwire.linux.netlink.message import encode_attribute, encode_string, encode_u32be
from vipwire.linux.netlink.nftables import expressions as kernel
from vipwire.linux.netlink.nftables import userdata, wire
from vipwire.linux.netlink.nftables.wire import SetFlag
from vipwire.model.net import Family
from vipwire.model.value import Value
from vipwire.modes.nftables.language.fields import (
    EMPTY_TYPEOF,
    VERDICT_TYPEOF,
    Field,
    Order,
    Type,
    encode_concatenation_typeof,
    parse_field,
)
from vipwire.modes.nftables.language.scan import Scanner

_FLAGS = {"interval": SetFlag.INTERVAL, "dynamic": SetFlag.EVAL, "timeout": SetFlag.TIMEOUT}
_TYPES = {
    "ipv4_addr": (Type.IPV4_ADDRESS, 4, Order.NETWORK),
    "ipv6_addr": (Type.IPV6_ADDRESS, 16, Order.NETWORK),
    "inet_proto": (Type.PROTOCOL, 1, Order.HOST),
    "inet_service": (Type.SERVICE, 2, Order.NETWORK),
}
_TYPE_BITS = 6
_MOST_PARTS = 5  # parts in the 32 bits of a type
_SET_ID = 1  # the kernel requires one; rules refer to sets by name, so uniqueness is not needed


class SetSpec(Value, frozen=True):
    """A set, or a map if it has `data`.

    `key` and `data` are fields of rules, `("ip daddr", "th dport")`, or all of them types (`ipv4_addr`,
    `inet_service`), which nft lists as `type`; a verdict map has `data` "verdict". `flags` are nft's words interval,
    dynamic, timeout. `timeout_seconds` is the default life of an element (0: unlimited), `gc_seconds` the interval of
    the kernel's clean-up (0: every second), `size` the maximum number of elements (0: unlimited; a dynamic set needs
    a size). `counter` gives each element a counter.
    """

    name: str
    key: tuple[str, ...]
    data: tuple[str, ...] | Literal["verdict"] | None = None
    flags: frozenset[str] = frozenset()
    timeout_seconds: int = 0
    size: int = 0
    counter: bool = False
    gc_seconds: int = 0


@lru_cache(maxsize=256)  # a start tries them, compares the kernel's with them, and writes them
def compile_set(spec: SetSpec, family: Family) -> bytes:
    """Compile a declaration to the attributes of NEWSET after table and name.

    Raise RuleSyntaxError for a part that is no field, ValueError for parts or flags that exclude each other.
    """
    key = tuple(_parse_part(text, family) for text in spec.key)
    data = (
        () if spec.data is None or spec.data == "verdict" else tuple(_parse_part(text, family) for text in spec.data)
    )
    _check_spec(spec, key, data)
    parts = [encode_u32be(wire.SET_FLAGS, flags)] if (flags := _set_flags(spec)) else []
    parts += (
        encode_u32be(wire.SET_KEY_TYPE, _compute_type(key)),
        encode_u32be(wire.SET_KEY_LENGTH, _compute_length(key)),
    )
    if spec.data == "verdict":
        parts += encode_u32be(wire.SET_DATA_TYPE, wire.DATA_VERDICT), encode_u32be(wire.SET_DATA_LENGTH, 0)
    elif data:
        parts += (
            encode_u32be(wire.SET_DATA_TYPE, _compute_type(data)),
            encode_u32be(wire.SET_DATA_LENGTH, _compute_length(data)),
        )
    parts.append(encode_u32be(wire.SET_ID, _SET_ID))
    if spec.timeout_seconds:
        parts.append(encode_attribute(wire.SET_TIMEOUT, (spec.timeout_seconds * 1000).to_bytes(8, "big")))
    if spec.gc_seconds:
        parts.append(encode_u32be(wire.SET_GC_INTERVAL, spec.gc_seconds * 1000))
    parts.append(encode_attribute(wire.SET_USERDATA, _encode_userdata(spec, key, data)))
    parts.append(_encode_group(wire.SET_DESCRIPTION, *_encode_description(spec, key)))
    if spec.counter:
        parts.append(_encode_group(wire.SET_EXPRESSION, encode_string(1, "counter"), _encode_group(2)))
    return b"".join(parts)


def is_type(part: str) -> bool:
    """Report whether a part of a declaration is a type (`ipv4_addr`), not a field (`ip daddr`)."""
    return part in _TYPES


def _encode_group(kind: int, *parts: bytes) -> bytes:
    """Nest attributes without NLA_F_NESTED, as the kernel lists them."""
    return encode_attribute(kind, b"".join(parts))


@lru_cache(maxsize=128)  # the keys of a table's sets consist of the same few parts
def _parse_part(text: str, family: Family) -> Field:
    if text in _TYPES:
        type_, size, order = _TYPES[text]
        return Field(text, type_, size, order, lambda _: b"")  # no rule loads a type
    words = Scanner(text)
    field = parse_field(words, family)
    if words:
        words.fail("expected the end: a part of a set's key is one field")
    if not field.typeof:
        words.fail_before("nft cannot declare a set with this field")
    return field


def _check_spec(spec: SetSpec, key: tuple[Field, ...], data: tuple[Field, ...]) -> None:
    if not key:
        raise ValueError(f"set {spec.name}: a key has at least one part")
    unknown = spec.flags - set(_FLAGS)
    if unknown:
        raise ValueError(f"set {spec.name}: flag {min(unknown)!r} is none of {', '.join(_FLAGS)}")
    for fields in (key, data):
        if len(fields) > _MOST_PARTS:
            raise ValueError(f"set {spec.name}: a concatenation has at most {_MOST_PARTS} parts")
        if len({bool(field.typeof) for field in fields}) > 1:
            raise ValueError(f"set {spec.name}: types and fields cannot be mixed")
    if _compute_length(key) > 4 * kernel.REGISTER_WORDS:
        raise ValueError(
            f"set {spec.name}: a key of {_compute_length(key)} bytes does not fit into the 64 of the registers"
        )
    if "dynamic" in spec.flags and not spec.size:
        raise ValueError(f"set {spec.name}: a dynamic set needs a size")  # nft and the kernel would default to 65535


def _set_flags(spec: SetSpec) -> int:
    flags = SetFlag(0)
    for word in spec.flags:
        flags |= _FLAGS[word]
    if spec.data is not None:
        flags |= SetFlag.MAP
    if "interval" in spec.flags:
        flags |= SetFlag.CONCAT
    return flags


def _compute_type(fields: tuple[Field, ...]) -> int:
    number = 0
    for field in fields:
        number = number << _TYPE_BITS | field.type
    return number


def _compute_length(fields: tuple[Field, ...]) -> int:
    if len(fields) == 1:
        return fields[0].size
    return sum(4 * field.words for field in fields)


def _choose_byte_order(fields: tuple[Field, ...]) -> Order:
    return fields[0].order if len(fields) == 1 else Order.NONE


def _encode_userdata(spec: SetSpec, key: tuple[Field, ...], data: tuple[Field, ...]) -> bytes:
    parts = [userdata.encode_number(userdata.SET_KEY_BYTEORDER, _choose_byte_order(key))]
    if spec.data is not None:
        parts.append(userdata.encode_number(userdata.SET_DATA_BYTEORDER, _choose_byte_order(data)))
    if key[0].typeof:
        parts.append(userdata.encode_entry(userdata.SET_KEY_TYPEOF, encode_concatenation_typeof(key)))
        if spec.data is not None:
            note = VERDICT_TYPEOF if spec.data == "verdict" else encode_concatenation_typeof(data)
            parts.append(userdata.encode_entry(userdata.SET_DATA_TYPEOF, note))
    elif spec.data is None and len(key) > 1:
        parts.append(userdata.encode_entry(userdata.SET_KEY_TYPEOF, EMPTY_TYPEOF))
    if spec.data is not None:
        parts.append(userdata.encode_number(userdata.SET_DATA_INTERVAL, 0))
    whole = b"".join(parts)
    if len(whole) > userdata.MAXIMUM:
        raise ValueError(
            f"set {spec.name}: nft's notes take {len(whole)} bytes, more than the {userdata.MAXIMUM} allowed"
        )
    return whole


def _encode_description(spec: SetSpec, key: tuple[Field, ...]) -> Iterator[bytes]:
    if spec.size:
        yield encode_u32be(wire.DESCRIPTION_SIZE, spec.size)
    if "interval" in spec.flags:
        yield _encode_group(
            wire.DESCRIPTION_CONCAT, *(_encode_group(1, encode_u32be(1, field.size)) for field in key)
        )
