import struct

import pytest

from vipwire.errors import DecodeError
from vipwire.linux.host.addresses import LocalAddress, select_reachable_addresses
from vipwire.linux.netlink.links import (
    Interface,
    InterfaceAddress,
    decode_address,
    decode_link,
)
from vipwire.linux.netlink.message import encode_attribute, encode_string
from vipwire.linux.netlink.route import (
    decode_route,
)
from vipwire.model.net import Family, parse_address

OWN, PEER, OWN6 = parse_address("10.0.0.1"), parse_address("10.0.0.2"), parse_address("fd00::1")


def address_message(family: int, *parts: bytes, flags: int = 0x80) -> memoryview:
    return memoryview(struct.pack("=BBBBI", family, 24, flags, 0, 3) + b"".join(parts))


def test_the_local_address_counts_and_not_the_peers() -> None:
    message = address_message(2, encode_attribute(1, PEER), encode_attribute(2, OWN), encode_string(3, "eth0"))
    assert decode_address(message) == InterfaceAddress(3, OWN, 24, 0, 0x80)


def test_an_ipv6_address_has_one_attribute_and_more_flags_than_the_header_holds() -> None:
    message = address_message(10, encode_attribute(1, OWN6), encode_attribute(8, struct.pack("=I", 0x288)))
    assert decode_address(message) == InterfaceAddress(3, OWN6, 24, 0, 0x288)


def test_an_address_of_another_family_is_passed_over() -> None:
    assert decode_address(address_message(45, encode_attribute(2, b"\7"))) is None


@pytest.mark.parametrize(
    "message",
    [
        memoryview(b"\2\0"),
        address_message(2),
        address_message(2, encode_attribute(1, OWN6)),
        address_message(10, b"\7\0\1\0"),
    ],
)
def test_a_broken_address_message_is_refused(message: memoryview) -> None:
    with pytest.raises(DecodeError):
        decode_address(message)


def test_a_link_has_a_number_and_a_name() -> None:
    header = struct.pack("=BxHiII", 0, 1, 7, 0, 0)
    assert decode_link(memoryview(header + encode_string(3, "eth0") + encode_attribute(4, b"\0" * 4))) == Interface(
        7, "eth0"
    )
    for broken in (header, header[:8]):
        with pytest.raises(DecodeError):
            decode_link(memoryview(broken))


def test_a_route_of_another_family_is_passed_over_and_a_broken_one_refused() -> None:
    assert decode_route(memoryview(b"\x2d" + bytes(11))) is None
    for broken in (
        b"\2\0",
        b"\2" + bytes(11) + encode_attribute(1, OWN6),
        b"\2" + bytes(11) + encode_attribute(4, b"\7"),
    ):
        with pytest.raises(DecodeError):
            decode_route(memoryview(broken))


def test_reachable_are_the_addresses_that_others_can_use() -> None:
    found = [
        LocalAddress(parse_address(text), 32, 0, interface)
        for text, interface in (
            ("127.0.0.1", "lo"),
            ("127.9.9.9", "eth0"),
            ("::1", "lo"),
            ("10.0.0.9", "lo"),
            ("10.0.0.1", "eth0"),
            ("fd00::1", "eth0"),
        )
    ]
    assert [item.family for item in found[:3]] == [Family.IPV4, Family.IPV4, Family.IPV6]
    assert select_reachable_addresses(found) == {parse_address(text) for text in ("10.0.0.9", "10.0.0.1", "fd00::1")}
