import struct

import pytest

from vipwire.errors import DecodeError
from vipwire.linux.netlink.attributes import attribute, encode_nested, string
from vipwire.linux.netlink.nftables import wire
from vipwire.linux.netlink.nftables.elements import Element, VerdictData, decode_elements, element, encode_element
from vipwire.linux.netlink.nftables.wire import Code

KEY, DATA = bytes(range(16)), b"\x0a\x80\0\1\x1f\x90\0\0"


def listed(*blobs: bytes) -> memoryview:
    """Wrap elements as a dump's message does."""
    head = string(wire.ELEMENTS_TABLE, "vipwire") + string(wire.ELEMENTS_SET, "endpoints")
    return memoryview(wire.header(2) + head + encode_nested(wire.ELEMENTS_LIST, *blobs))


def as_the_kernel_lists(blob: bytes) -> bytes:
    """Take the nesting flags out of a plain element: the kernel sets none."""
    return blob.replace(b"\1\x80", b"\1\0").replace(b"\2\x80", b"\2\0")


# As `nft --debug=mnl` shows it for `10.96.0.1 . tcp . 80 : 1:a`, and the comment "x".
def test_an_element_is_encoded_as_nft_encodes_it() -> None:
    key = bytes.fromhex("0a600001 06000000 00500000")
    plain = "24000180 14000180 10000100 0a600001 06000000 00500000"
    assert element(key) == bytes.fromhex(plain.replace("2400", "1800", 1))
    with_data = "24000180 14000180 10000100 0a600001 06000000 00500000 0c000280 08000100 0a000100"
    assert element(key, b"\x0a\0\1\0") == bytes.fromhex(with_data)
    commented = with_data.replace("2400", "2c00", 1) + "08000600 00027800"
    assert element(key, b"\x0a\0\1\0", comment="x") == bytes.fromhex(commented)


def test_a_verdict_is_encoded_as_nft_encodes_it() -> None:
    expected = "28000180 0c000180 08000100 0a000100 18000280 14000280 08000100 fffffffc 06000200 7a000000"
    assert element(b"\x0a\0\1\0", verdict=(Code.GOTO, "z")) == bytes.fromhex(expected)


@pytest.mark.parametrize(
    "member",
    [
        Element(KEY),
        Element(KEY, DATA),
        Element(KEY, comment="default/web:http"),
        Element(KEY, DATA, comment="default/wéb:http"),
        Element(KEY, verdict=VerdictData(Code.DROP)),
        Element(KEY, verdict=VerdictData(Code.GOTO, "service-pick-3"), comment="why"),
        Element(KEY, key_end=KEY[::-1]),
        Element(KEY, key_end=KEY[::-1], comment="range"),
        Element(KEY[:4], flags=wire.ELEMENT_INTERVAL_END),
        Element(KEY[:4], comment="last", open_end=True),
        Element(KEY, DATA, timeout=10_800_000),
    ],
)
@pytest.mark.parametrize("shape", [(16, 8), (16, 0), (4, 4), (0, 0)])
def test_what_was_encoded_is_decoded_whatever_sizes_the_set_says(member: Element, shape: tuple[int, int]) -> None:
    assert list(decode_elements(listed(encode_element(member)), *shape)) == [member]
    mixed = listed(element(KEY, DATA), encode_element(member), element(KEY))
    assert list(decode_elements(mixed, *shape)) == [Element(KEY, DATA), member, Element(KEY)]


def test_both_ways_to_encode_agree() -> None:
    for data in (None, DATA):
        for comment in ("", "default/web:http"):
            assert element(KEY, data, comment=comment) == encode_element(Element(KEY, data, comment=comment))


def test_elements_are_decoded_as_the_kernel_lists_them() -> None:
    members = [Element(struct.pack(">I", number) * 4, DATA) for number in range(50)]
    blobs = [as_the_kernel_lists(encode_element(member)) for member in members]
    for shape in ((16, 8), (16, 0), (4, 0)):
        assert list(decode_elements(listed(*blobs), *shape)) == members


def test_an_unpadded_key_length_is_that_of_one_part() -> None:
    blob = as_the_kernel_lists(element(b"\0\x50\0\0"))
    assert list(decode_elements(listed(blob), 2)) == [Element(b"\0\x50\0\0")]


def test_what_a_later_kernel_adds_to_an_element_is_ignored() -> None:
    blob = element(KEY, DATA)
    blob = struct.pack("=H", len(blob) + 8) + blob[2:] + attribute(99, b"new!")
    assert list(decode_elements(listed(blob), 16, 8)) == [Element(KEY, DATA)]


def test_a_comment_that_another_tool_wrote_in_its_own_way_does_not_hurt() -> None:
    odd = attribute(wire.ELEMENT_USERDATA, b"\0\xff")
    blob = element(KEY)
    blob = struct.pack("=H", len(blob) + len(odd)) + blob[2:] + odd
    assert list(decode_elements(listed(blob), 16)) == [Element(KEY)]


def test_a_long_comment_is_cut_between_characters() -> None:
    (found,) = decode_elements(listed(element(KEY, comment="é" * 100)), 16)
    assert found.comment == "é" * 64


def test_an_empty_list_has_no_elements() -> None:
    assert list(decode_elements(listed(), 16, 8)) == []
    assert list(decode_elements(memoryview(wire.header(2)), 16, 8)) == []


def test_an_element_without_a_key_is_no_element() -> None:
    with pytest.raises(DecodeError, match="no key"):
        list(decode_elements(listed(encode_nested(wire.LIST_ELEMENT)), 16, 8))
