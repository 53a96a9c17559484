"""The address that masquerading chooses, case by case as the kernel does."""

import pytest

from vipwire.inspect.explain.routes import choose_masquerade_source
from vipwire.linux.netlink.links import SCOPE_GLOBAL, SCOPE_HOST, SCOPE_LINK, InterfaceAddress
from vipwire.model.net import format_address, parse_address

SECONDARY, DEPRECATED = 0x01, 0x20
LOOPBACK, UPLINK, POD = 1, 2, 7


def held(link: int, text: str, scope: int = SCOPE_GLOBAL, flags: int = 0) -> InterfaceAddress:
    address, _, length = text.partition("/")
    return InterfaceAddress(link, parse_address(address), int(length), scope, flags)


FOUR = (
    held(LOOPBACK, "127.0.0.1/8", SCOPE_HOST),
    held(UPLINK, "192.168.0.1/24"),
    held(UPLINK, "192.168.0.9/24", flags=SECONDARY),
    held(UPLINK, "10.9.0.1/16"),
)
SIX = (
    held(LOOPBACK, "::1/128", SCOPE_HOST),
    held(UPLINK, "fd00:192:168::1/64"),
    held(UPLINK, "2001:db8:113::1/64"),
    held(UPLINK, "fe80::1/64", SCOPE_LINK),
    held(POD, "fe80::2/64", SCOPE_LINK),
)


@pytest.mark.parametrize(
    ("link", "next_hop", "destination", "expected"),
    [
        (UPLINK, "192.168.0.254", "203.0.113.2", "192.168.0.1"),
        (UPLINK, "10.9.0.254", "203.0.113.2", "10.9.0.1"),
        (UPLINK, "172.16.0.1", "172.16.0.1", "192.168.0.1"),
        (POD, "10.244.1.11", "10.244.1.11", "192.168.0.1"),
        (UPLINK, "fe80::99", "fd00:10:244::5", "fd00:192:168::1"),
        (UPLINK, "fe80::99", "2001:db8:1::5", "2001:db8:113::1"),
        (POD, "fd00:10:244::11", "fd00:10:244::11", "fd00:192:168::1"),
        (POD, "fe80::99", "fe80::99", "fe80::2"),
    ],
)
def test_the_kernels_choice(link: int, next_hop: str, destination: str, expected: str) -> None:
    found = choose_masquerade_source(link, parse_address(next_hop), parse_address(destination), (*FOUR, *SIX))
    assert found is not None
    assert format_address(found) == expected


@pytest.mark.parametrize(
    ("alias", "destination"), [("192.168.1.77/32", "10.244.1.11"), ("fd00:192:168:1::77/128", "fd00:10:244::11")]
)
def test_an_address_of_loopback_comes_first_where_the_interface_has_none(alias: str, destination: str) -> None:
    target = parse_address(destination)
    ours = (held(LOOPBACK, alias), *FOUR[1:], *SIX[1:])
    assert choose_masquerade_source(POD, target, target, ours) == parse_address(alias.partition("/")[0])


def test_deprecated_addresses_come_last() -> None:
    target = parse_address("2001:db8:1::5")
    ours = (held(UPLINK, "2001:db8:113::1/64", flags=DEPRECATED), held(UPLINK, "fd00:192:168::1/64"))
    assert choose_masquerade_source(UPLINK, target, target, ours) == parse_address("fd00:192:168::1")


def test_without_an_address_there_is_none() -> None:
    target = parse_address("203.0.113.2")
    assert choose_masquerade_source(UPLINK, target, target, SIX) is None
