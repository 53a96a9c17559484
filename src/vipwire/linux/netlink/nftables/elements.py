"""Encodes and decodes the members of sets and maps, 100,000 of them at a start.

Keys and data are register contents: each part of a concatenation is padded to four bytes.

    LIST_ELEM { [FLAGS] [TIMEOUT] KEY { VALUE } [KEY_END { VALUE }] [DATA { VALUE | VERDICT {…} }] [USERDATA] }
    LIST_ELEM { KEY { VALUE } EXPR { NAME "counter" DATA { BYTES PACKETS } } [TIMEOUT] [EXPIRATION] … }

In a message of plain or counted elements, all have constant bytes at the same places: these messages are decoded at
once, all others attribute by attribute.
"""

import functools
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from vipwire.errors import DecodeError
from vipwire.linux.netlink.message import (
    collect_attributes,
    decode_number,
    decode_text,
    encode_attribute,
    encode_nested,
    encode_string,
    encode_u32be,
    walk_attributes,
)
from vipwire.linux.netlink.nftables import userdata, wire

_NESTED = 0x8000


class VerdictData(NamedTuple):
    """The data of a verdict map. `code` is one of `wire.Code`; `chain` is the target of a jump or goto."""

    code: int
    chain: str = ""


class Element(NamedTuple):
    """One member. `key_end` closes a range of a concatenation; times are in milliseconds, 0 when not set.

    In sets of single-field intervals, an element with ELEMENT_INTERVAL_END in `flags` has the first `key` after the
    interval. `open_end` is nft's note that no such element follows.
    """

    key: bytes
    data: bytes | None = None
    verdict: VerdictData | None = None
    comment: str = ""
    key_end: bytes | None = None
    flags: int = 0
    timeout: int = 0
    expiration: int = 0
    open_end: bool = False


@functools.cache
def _build_frame(key: int, data: int, nesting: int = _NESTED) -> tuple[bytes, bytes]:
    """Return the constant bytes before the key and between key and data, for their sizes (data 0: none).

    The kernel's own listings do not flag nesting.
    """
    size = key + 12 + (data + 8 if data else 0)
    outer = (size, wire.LIST_ELEMENT | nesting, key + 8, wire.ELEMENT_KEY | nesting)
    head = struct.pack("=6H", *outer, key + 4, wire.DATA_VALUE)
    if not data:
        return head, b""
    return head, struct.pack("=4H", data + 8, wire.ELEMENT_DATA | nesting, data + 4, wire.DATA_VALUE)


@functools.lru_cache(maxsize=1 << 14)
def _encode_verdict(verdict: VerdictData) -> bytes:
    code, chain = verdict
    parts = encode_u32be(wire.VERDICT_CODE, code & 0xFFFFFFFF) + (
        encode_string(wire.VERDICT_CHAIN, chain) if chain else b""
    )
    return encode_nested(wire.ELEMENT_DATA, encode_nested(wire.DATA_VERDICT_ATTRIBUTE, parts))


def encode_element_attributes(
    key: bytes,
    data: bytes | None = None,
    *,
    verdict: tuple[int, str] | None = None,
    comment: str = "",
    key_end: bytes | None = None,
) -> bytes:
    """Encode one element as NFTA_LIST_ELEM. Sizes of `key` and `data` are multiples of four."""
    if not (verdict or key_end):
        data = data or b""
        head, middle = _build_frame(len(key), len(data))
        plain = head + key + middle + data
        return _add_comment(plain, comment) if comment else plain
    known = None if verdict is None else VerdictData(*verdict)
    return encode_element(Element(key, data, known, comment, key_end))


def _add_comment(plain: bytes, comment: str) -> bytes:
    note = userdata.encode_comment(comment)
    size = len(plain) + 4 + len(note)
    padding = -size % 4
    head = _LIST_ELEMENT(size + padding, wire.LIST_ELEMENT | _NESTED)
    return b"".join((head, plain[4:], _LIST_ELEMENT(4 + len(note), wire.ELEMENT_USERDATA), note, bytes(padding)))


_LIST_ELEMENT = struct.Struct("=2H").pack


def plain_elements(keys: Sequence[bytes], data: Sequence[bytes]) -> list[bytes]:
    """Encode elements of a key and data (empty in a set), all of the first one's sizes."""
    head, middle = _build_frame(len(keys[0]), len(data[0]))
    return [head + key + middle + value for key, value in zip(keys, data, strict=True)]


def encode_run(key: bytes, ends: Sequence[bytes], data: bytes) -> list[bytes]:
    """Encode elements whose keys begin with `key`, by the ends of their keys; `data` are all of theirs."""
    width = len(data) // len(ends)
    head, middle = _build_frame(len(key) + len(ends[0]), width)
    head += key
    starts = range(0, len(data), width)
    return [head + end + middle + data[at : at + width] for end, at in zip(ends, starts, strict=True)]


def encode_element(member: Element) -> bytes:
    """Encode any element as NFTA_LIST_ELEM, without its expiration."""
    parts = [encode_u32be(wire.ELEMENT_FLAGS, member.flags)] if member.flags else []
    if member.timeout:
        parts.append(encode_attribute(wire.ELEMENT_TIMEOUT, member.timeout.to_bytes(8, "big")))
    parts.append(_encode_value(wire.ELEMENT_KEY, member.key))
    if member.key_end:
        parts.append(_encode_value(wire.ELEMENT_KEY_END, member.key_end))
    if member.verdict:
        parts.append(_encode_verdict(member.verdict))
    elif member.data:
        parts.append(_encode_value(wire.ELEMENT_DATA, member.data))
    note = (userdata.encode_comment(member.comment) if member.comment else b"") + (
        _OPEN_END if member.open_end else b""
    )
    if note:
        parts.append(encode_attribute(wire.ELEMENT_USERDATA, note))
    return encode_nested(wire.LIST_ELEMENT, *parts)


_OPEN_END = userdata.encode_number(userdata.ELEMENT_FLAGS, userdata.ELEMENT_OPEN_INTERVAL)


def _encode_value(kind: int, value: bytes) -> bytes:
    size = len(value) + 4
    return struct.pack("=4H", size + 4, kind | _NESTED, size, wire.DATA_VALUE) + value + bytes(-size % 4)


def decode_elements(payload: memoryview, key: int, data: int = 0) -> Iterable[Element]:
    """Decode one message of a dump of elements. Raise DecodeError.

    `key` and `data` are the set's sizes in bytes (data 0 for a set and a verdict map). They only make decoding fast:
    elements of other sizes are decoded, too.
    """
    members = collect_attributes(payload, 4).get(wire.ELEMENTS_LIST)
    if members is None:
        return ()
    shape = _compute_shape(key, data)
    plain = _decode_uniform(members, shape)
    if plain is not None:
        return map(Element, *plain) if data else map(Element, plain.keys)
    found = (value for kind, value in walk_attributes(members) if kind == wire.LIST_ELEMENT)
    return [_decode_plain_or_commented(bytes(value), shape) or _decode_element(value) for value in found]


class _Shape(NamedTuple):
    key: int
    data: int


class Columns(NamedTuple):
    """The keys of some elements, and their data in the same order."""

    keys: tuple[bytes, ...]
    data: tuple[bytes, ...]


def _compute_shape(key: int, data: int) -> _Shape:
    """Round sizes up to multiples of four: set declarations do not pad a key of one part."""
    return _Shape(-(-key // 4) * 4, -(-data // 4) * 4)


def decode_plain(payload: memoryview, key: int, data: int) -> Columns | None:
    """Decode one message of a dump whose elements are a key and data (empty in a set).

    None if an element has another form: use `decode_elements`. Sizes are as there.
    """
    members = collect_attributes(payload, 4).get(wire.ELEMENTS_LIST)
    return None if members is None else _decode_uniform(members, _compute_shape(key, data))


def _decode_uniform(members: memoryview, shape: _Shape) -> Columns | None:
    head, middle = _build_frame(*shape, 0)
    layout = _row_layout(len(head), shape.key, len(middle), shape.data)
    if not members or len(members) % layout.size:
        return None
    heads, keys, middles, found = zip(*layout.iter_unpack(members), strict=True)
    if heads.count(head) != len(heads) or middles.count(middle) != len(middles):
        return None
    return Columns(keys, found)


def decode_answers(datagrams: Sequence[bytes], key: int, data: int) -> Columns:
    """Decode answers to a request for elements by their keys: each datagram is one message of one plain element.

    Raise DecodeError on other datagrams. Sizes are as in `decode_elements`.
    """
    if not datagrams:
        return Columns((), ())
    shape = _compute_shape(key, data)
    head, middle = _build_frame(*shape, 0)
    before = len(datagrams[0]) - len(head) - shape.key - len(middle) - shape.data
    joined = b"".join(datagrams)
    layout = struct.Struct(f"={before + len(head)}s{shape.key}s{len(middle)}s{shape.data}s") if before > 0 else None
    if layout is None or len(joined) != layout.size * len(datagrams) or not datagrams[0][before:].startswith(head):
        raise DecodeError("an answer with an element has another size than was asked for")
    heads, keys, middles, found = zip(*layout.iter_unpack(joined), strict=True)
    if heads.count(heads[0]) != len(heads) or middles.count(middle) != len(middles):
        raise DecodeError("an answer is no plain element")
    return Columns(keys, found)


@functools.cache
def _row_layout(head: int, key: int, middle: int, data: int) -> struct.Struct:
    return struct.Struct(f"={head}s{key}s{middle}s{data}s")


def _decode_plain_or_commented(member: bytes, shape: _Shape) -> Element | None:
    """Decode an element of the plain shape, perhaps with a comment; None if it has another shape."""
    head, middle = _build_frame(*shape, 0)
    between = 8 + shape.key
    after = between + len(middle) + shape.data
    if member[:8] != head[4:] or member[between : between + len(middle)] != middle:
        return None
    key = member[8:between]
    data = member[after - shape.data : after] if shape.data else None
    if len(member) == after:
        return Element(key, data)
    if len(member) < after + 7 or member[after + 2 : after + 5] != _COMMENT:
        return None
    end = after + 6 + member[after + 5]
    if end != after + int.from_bytes(member[after : after + 2], sys.byteorder):
        return None
    return Element(key, data, comment=member[after + 6 : end].rstrip(b"\0").decode(errors="replace"))


_COMMENT = struct.pack("=HB", wire.ELEMENT_USERDATA, userdata.COMMENT)


def _decode_element(member: memoryview) -> Element:
    found = collect_attributes(member)
    if wire.ELEMENT_KEY not in found:
        raise DecodeError("an element of a set has no key")  # a catch-all element, which vipwire never creates
    data = collect_attributes(found[wire.ELEMENT_DATA]) if wire.ELEMENT_DATA in found else {}
    note = bytes(found.get(wire.ELEMENT_USERDATA, b""))
    value, verdict = data.get(wire.DATA_VALUE), data.get(wire.DATA_VERDICT_ATTRIBUTE)
    key_end = found.get(wire.ELEMENT_KEY_END)
    return Element(
        key=_decode_value(found[wire.ELEMENT_KEY]),
        data=None if value is None else bytes(value),
        verdict=None if verdict is None else decode_verdict(verdict),
        comment=userdata.decode_comment(note),
        key_end=None if key_end is None else _decode_value(key_end),
        flags=decode_number(found.get(wire.ELEMENT_FLAGS, _NOTHING)),
        timeout=decode_number(found.get(wire.ELEMENT_TIMEOUT, _NOTHING)),
        expiration=decode_number(found.get(wire.ELEMENT_EXPIRATION, _NOTHING)),
        open_end=_OPEN_END in note,
    )


def _decode_value(data: memoryview) -> bytes:
    value = collect_attributes(data).get(wire.DATA_VALUE)
    if value is None:
        raise DecodeError("the key of an element has no value")
    return bytes(value)


def decode_verdict(data: memoryview) -> VerdictData:
    found = collect_attributes(data)
    code = decode_number(found.get(wire.VERDICT_CODE, _NOTHING))
    return VerdictData(code - (1 << 32) if code >> 31 else code, decode_text(found.get(wire.VERDICT_CHAIN, _NOTHING)))


_EXPRESSION_NAME, _EXPRESSION_DATA = 1, 2
_COUNTER_BYTES, _COUNTER_PACKETS = 1, 2
_NOTHING = memoryview(b"")


class ElementCounter(NamedTuple):
    """One element: its key in register format, and its counter's value."""

    key: bytes
    packets: int
    bytes: int


def decode_counters(payload: memoryview) -> Iterable[ElementCounter]:
    """Decode one message of a dump of elements; those without a counter count 0. Raise DecodeError."""
    members = collect_attributes(payload, 4).get(wire.ELEMENTS_LIST)
    if not members:
        return ()
    quick = _decode_uniform_counters(members)
    if quick is not None:
        return quick
    return [_decode_counter(value) for kind, value in walk_attributes(members) if kind == wire.LIST_ELEMENT]


def _decode_uniform_counters(members: memoryview) -> Iterator[ElementCounter] | None:
    """Decode elements of the same layout; None if one differs, or has no plain counter."""
    if len(members) < _COUNTER_HEAD:
        return None
    size, _, key = _FIRST_LENGTHS.unpack_from(members)
    if key < 8 or key % 4:
        return None
    layout, middle = _counter_layout(key - 8)
    if size < layout.size or len(members) % size:
        return None
    head = bytes(members[:_COUNTER_HEAD])
    rows = struct.Struct(f"{layout.format}{size - layout.size}x")
    heads, keys, middles, counted, between, packets = zip(*rows.iter_unpack(members), strict=True)
    same = (heads.count(head), middles.count(middle), between.count(_BETWEEN_NUMBERS))
    if same != (len(keys),) * 3:
        return None
    return map(ElementCounter, keys, packets, counted)


_COUNTER_HEAD = 12  # LIST_ELEM, KEY, VALUE
_FIRST_LENGTHS = struct.Struct("=HHH")
_BETWEEN_NUMBERS = struct.pack("=HH", 12, _COUNTER_PACKETS)


@functools.cache
def _counter_layout(key: int) -> tuple[struct.Struct, bytes]:
    """Return the layout of an element up to its counter, and the constant bytes between key and counter."""
    numbers = struct.pack("=HH", 28, _EXPRESSION_DATA) + struct.pack("=HH", 12, _COUNTER_BYTES)
    name = encode_string(_EXPRESSION_NAME, "counter")
    middle = struct.pack("=HH", 4 + len(name) + 28, wire.ELEMENT_EXPRESSION) + name + numbers
    return struct.Struct(f">{_COUNTER_HEAD}s{key}s{len(middle)}sQ4sQ"), middle


def _decode_counter(member: memoryview) -> ElementCounter:
    found = collect_attributes(member)
    key = collect_attributes(found.get(wire.ELEMENT_KEY, _NOTHING)).get(wire.DATA_VALUE)
    if key is None:
        raise DecodeError("an element of a set has no key")
    expression = collect_attributes(found.get(wire.ELEMENT_EXPRESSION, _NOTHING))
    if decode_text(expression.get(_EXPRESSION_NAME, _NOTHING)) != "counter":
        return ElementCounter(bytes(key), 0, 0)
    numbers = collect_attributes(expression.get(_EXPRESSION_DATA, _NOTHING))
    return ElementCounter(
        bytes(key),
        decode_number(numbers.get(_COUNTER_PACKETS, _NOTHING)),
        decode_number(numbers.get(_COUNTER_BYTES, _NOTHING)),
    )
