"""Counters of elements: as the kernel lists them, in both ways of reading."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vipwire.errors import DecodeError
from vipwire.linux.netlink.message import encode_attribute, encode_string
from vipwire.linux.netlink.nftables import wire
from vipwire.linux.netlink.nftables.elements import ElementCounter, decode_counters

KEYS = st.integers(1, 11).flatmap(lambda words: st.lists(st.binary(min_size=4 * words, max_size=4 * words)))
NUMBERS = st.integers(0, (1 << 64) - 1)


def group(kind: int, *parts: bytes) -> bytes:
    """Nest attributes as the kernel lists them: without the flag."""
    return encode_attribute(kind, b"".join(parts))


def listed(counted: ElementCounter, *more: bytes) -> bytes:
    numbers = group(
        2,
        encode_attribute(1, struct.pack(">Q", counted.bytes)),
        encode_attribute(2, struct.pack(">Q", counted.packets)),
    )
    expression = group(wire.ELEMENT_EXPRESSION, encode_string(1, "counter"), numbers)
    key = group(wire.ELEMENT_KEY, encode_attribute(wire.DATA_VALUE, counted.key))
    return group(wire.LIST_ELEMENT, key, expression, *more)


def message(*elements: bytes) -> memoryview:
    return memoryview(wire.encode_header(2) + group(wire.ELEMENTS_LIST, *elements))


def expiring(milliseconds: int) -> bytes:
    return encode_attribute(wire.ELEMENT_EXPIRATION, struct.pack(">Q", milliseconds))


@given(KEYS, st.data())
def test_what_the_kernel_lists_is_read(keys: list[bytes], data: st.DataObject) -> None:
    wanted = [ElementCounter(key, data.draw(NUMBERS), data.draw(NUMBERS)) for key in keys]
    assert list(decode_counters(message(*map(listed, wanted)))) == wanted
    timed = [listed(each, expiring(data.draw(NUMBERS))) for each in wanted]
    assert list(decode_counters(message(*timed))) == wanted


def test_elements_that_do_not_look_alike_are_read_all_the_same() -> None:
    plain, timed, long = (
        ElementCounter(b"abcd", 1, 60),
        ElementCounter(b"efgh", 2, 120),
        ElementCounter(b"abcdefgh", 3, 180),
    )
    found = decode_counters(message(listed(plain), listed(timed, expiring(5)), listed(long)))
    assert list(found) == [plain, timed, long]


def test_what_has_no_counter_has_counted_nothing() -> None:
    key = group(wire.ELEMENT_KEY, encode_attribute(wire.DATA_VALUE, b"abcd"))
    quota = group(wire.ELEMENT_EXPRESSION, encode_string(1, "quota"), group(2, encode_attribute(1, bytes(8))))
    elements = group(wire.LIST_ELEMENT, key), group(wire.LIST_ELEMENT, key, quota)
    assert list(decode_counters(message(*elements))) == [ElementCounter(b"abcd", 0, 0)] * 2


def test_an_empty_message_holds_nothing_and_one_without_keys_is_refused() -> None:
    assert list(decode_counters(memoryview(wire.encode_header(2)))) == []
    assert list(decode_counters(message())) == []
    with pytest.raises(DecodeError, match="no key"):
        list(decode_counters(message(group(wire.LIST_ELEMENT, encode_attribute(3, bytes(4))))))
