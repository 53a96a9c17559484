import struct

import pytest

from vipwire.errors import DecodeError
from vipwire.linux.netlink.message import encode_attribute, encode_nested, encode_string
from vipwire.linux.netlink.nftables import wire
from vipwire.linux.netlink.nftables.elements import (
    Element,
    decode_elements,
    encode_element,
    encode_element_attributes,
)

KEY, DATA = bytes(range(16)), b"\x0a\x80\0\1\x1f\x90\0\0"


def listed(*blobs: bytes) -> memoryview:
    """Wrap elements as a dump's message does."""
    head = encode_string(wire.ELEMENTS_TABLE, "vipwire") + encode_string(wire.ELEMENTS_SET, "endpoints")
    return memoryview(wire.encode_header(2) + head + encode_nested(wire.ELEMENTS_LIST, *blobs))


def as_the_kernel_lists(blob: bytes) -> bytes:
    """Take the nesting flags out of a plain element: the kernel sets none."""
    return blob.replace(b"\1\x80", b"\1\0").replace(b"\2\x80", b"\2\0")


def test_elements_are_decoded_as_the_kernel_lists_them() -> None:
    members = [Element(struct.pack(">I", number) * 4, DATA) for number in range(50)]
    blobs = [as_the_kernel_lists(encode_element(member)) for member in members]
    for shape in ((16, 8), (16, 0), (4, 0)):
        assert list(decode_elements(listed(*blobs), *shape)) == members


def test_an_unpadded_key_length_is_that_of_one_part() -> None:
    blob = as_the_kernel_lists(encode_element_attributes(b"\0\x50\0\0"))
    assert list(decode_elements(listed(blob), 2)) == [Element(b"\0\x50\0\0")]


def test_what_a_later_kernel_adds_to_an_element_is_ignored() -> None:
    blob = encode_element_attributes(KEY, DATA)
    blob = struct.pack("=H", len(blob) + 8) + blob[2:] + encode_attribute(99, b"new!")
    assert list(decode_elements(listed(blob), 16, 8)) == [Element(KEY, DATA)]


def test_a_comment_that_another_tool_wrote_in_its_own_way_does_not_hurt() -> None:
    odd = encode_attribute(wire.ELEMENT_USERDATA, b"\0\xff")
    blob = encode_element_attributes(KEY)
    blob = struct.pack("=H", len(blob) + len(odd)) + blob[2:] + odd
    assert list(decode_elements(listed(blob), 16)) == [Element(KEY)]


def test_a_long_comment_is_cut_between_characters() -> None:
    (found,) = decode_elements(listed(encode_element_attributes(KEY, comment="é" * 100)), 16)
    assert found.comment == "é" * 64


def test_an_empty_list_has_no_elements() -> None:
    assert list(decode_elements(listed(), 16, 8)) == []
    assert list(decode_elements(memoryview(wire.encode_header(2)), 16, 8)) == []


def test_an_element_without_a_key_is_no_element() -> None:
    with pytest.raises(DecodeError, match="no key"):
        list(decode_elements(listed(encode_nested(wire.LIST_ELEMENT)), 16, 8))
