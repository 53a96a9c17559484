"""Elements with counters, as the kernel lists them: a key, and how many packets and bytes have met it.

    LIST_ELEM { KEY { VALUE } EXPR { NAME "counter" DATA { BYTES PACKETS } } [TIMEOUT] [EXPIRATION] … }

A scrape of the metrics may read 100,000 of them. They all look alike but for key and numbers, so that a message is
taken apart at once where its constant bytes are the expected ones; whatever looks different takes the general walk.
"""

import functools
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from vipwire.errors import DecodeError
from vipwire.linux.netlink.attributes import attributes, number_of, string, text_of, walk
from vipwire.linux.netlink.nftables import wire

_NAME, _DATA = 1, 2
_BYTES, _PACKETS = 1, 2
_NOTHING = memoryview(b"")


class ElementCounter(NamedTuple):
    """One element: its key as it lies in registers, and its counter's value."""

    key: bytes
    packets: int
    bytes: int


def decode_counters(payload: memoryview) -> Iterable[ElementCounter]:
    """Decode one message of a dump of elements; those without a counter have counted nothing.

    Raise DecodeError on bytes that are no elements.
    """
    members = attributes(payload, 4).get(wire.ELEMENTS_LIST)
    if not members:
        return ()
    quick = _uniform(members)
    if quick is not None:
        return quick
    return [_decode(value) for kind, value in walk(members) if kind == wire.LIST_ELEMENT]


def _uniform(members: memoryview) -> Iterator[ElementCounter] | None:
    """Decode elements that all look like the first one; None if one does not, or if that is no plain counter."""
    if len(members) < _HEAD:
        return None
    size, _, key = _FIRST.unpack_from(members)
    if key < 8 or key % 4:
        return None
    layout, middle = _layout(key - 8)
    if size < layout.size or len(members) % size:
        return None
    head = bytes(members[:_HEAD])
    rows = struct.Struct(f"{layout.format}{size - layout.size}x")
    heads, keys, middles, counted, between, packets = zip(*rows.iter_unpack(members), strict=True)
    same = (heads.count(head), middles.count(middle), between.count(_BETWEEN))
    if same != (len(keys),) * 3:
        return None
    return map(ElementCounter, keys, packets, counted)


_HEAD = 12  # LIST_ELEM, KEY, VALUE
_FIRST = struct.Struct("=HHH")
_BETWEEN = struct.pack("=HH", 12, _PACKETS)


@functools.cache
def _layout(key: int) -> tuple[struct.Struct, bytes]:
    """Compute the layout of an element up to its counter, and what must stand between key and counter."""
    numbers = struct.pack("=HH", 28, _DATA) + struct.pack("=HH", 12, _BYTES)
    name = string(_NAME, "counter")
    middle = struct.pack("=HH", 4 + len(name) + 28, wire.ELEMENT_EXPRESSION) + name + numbers
    return struct.Struct(f">{_HEAD}s{key}s{len(middle)}sQ4sQ"), middle


def _decode(member: memoryview) -> ElementCounter:
    found = attributes(member)
    key = attributes(found.get(wire.ELEMENT_KEY, _NOTHING)).get(wire.DATA_VALUE)
    if key is None:
        raise DecodeError("an element of a set has no key")
    expression = attributes(found.get(wire.ELEMENT_EXPRESSION, _NOTHING))
    if text_of(expression.get(_NAME, _NOTHING)) != "counter":
        return ElementCounter(bytes(key), 0, 0)
    numbers = attributes(expression.get(_DATA, _NOTHING))
    return ElementCounter(
        bytes(key), number_of(numbers.get(_PACKETS, _NOTHING)), number_of(numbers.get(_BYTES, _NOTHING))
    )
