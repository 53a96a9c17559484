import pytest

from vipwire.model.net import (
    Address,
    Family,
    Prefix,
    Protocol,
    family_of,
    format_address,
    format_endpoint,
    is_loopback,
    parse_address,
)


@pytest.mark.parametrize(
    ("text", "packed"),
    [
        ("10.0.0.1", bytes((10, 0, 0, 1))),
        ("010.000.000.001", bytes((10, 0, 0, 1))),
        ("192.168.0.077", bytes((192, 168, 0, 77))),
        ("0.0.0.0", bytes(4)),
        ("255.255.255.255", b"\xff" * 4),
        ("::", bytes(16)),
        ("::1", bytes(15) + b"\1"),
        ("2001:DB8:0:0::1", bytes.fromhex("20010db8000000000000000000000001")),
        ("::ffff:10.0.0.1", bytes((10, 0, 0, 1))),
        ("::FFFF:a00:1", bytes((10, 0, 0, 1))),
        ("::10.0.0.1", bytes(12) + bytes((10, 0, 0, 1))),
    ],
)
def test_an_address_is_read_as_kubernetes_reads_it(text: str, packed: bytes) -> None:
    assert parse_address(text) == packed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10.0.0",
        "10.0.0.0.1",
        "10.0.0.256",
        "10.0.0.-1",
        "10.0.0.+1",
        "10.0.0. 1",
        " 10.0.0.1",
        "10.0.0.1 ",
        "10.0.0.1/32",
        "10.0.0.0x1",
        "10..0.1",
        "10.0.0.¹",
        "10.0.0.\u0661",
        "167772161",
        "localhost",
        ":",
        ":::",
        "1::2::3",
        "12345::",
        "::g",
        "::1/64",
        "[::1]",
        "10.0.0.000000001",
    ],
)
def test_what_is_no_address_is_refused_by_its_text(text: str) -> None:
    with pytest.raises(ValueError, match="is not an IP address") as caught:
        parse_address(text)
    assert repr(text) in str(caught.value)


def test_an_address_with_a_zone_is_refused_as_such() -> None:
    with pytest.raises(ValueError, match=r"'fe80::1%eth0' has a zone"):
        parse_address("fe80::1%eth0")


@pytest.mark.parametrize(
    "text", ["10.0.0.1", "0.0.0.0", "::", "::1", "2001:db8::1", "2001:db8:0:1:1:1:1:1", "fe80::1:0:0:1"]
)
def test_an_address_is_printed_in_its_canonical_form(text: str) -> None:
    assert format_address(parse_address(text)) == text


def test_an_endpoint_of_ipv6_has_brackets() -> None:
    assert format_endpoint(parse_address("10.0.0.1"), 80) == "10.0.0.1:80"
    assert format_endpoint(parse_address("fd00::1"), 80) == "[fd00::1]:80"


def test_an_address_tells_its_family_and_the_family_its_width() -> None:
    assert family_of(Address(bytes(4))) is Family.IPV4
    assert family_of(Address(bytes(16))) is Family.IPV6
    assert [family.bits for family in Family] == [32, 128]


def test_loopback_is_a_whole_prefix_of_ipv4_and_one_address_of_ipv6() -> None:
    inside, outside = (
        ("127.0.0.1", "127.255.255.255", "::1"),
        ("126.255.255.255", "128.0.0.1", "::", "::2", "7f00::1"),
    )
    assert all(is_loopback(parse_address(text)) for text in inside)
    assert not any(is_loopback(parse_address(text)) for text in outside)


def test_protocols_are_their_numbers_and_print_in_lower_case() -> None:
    assert [(protocol.value, protocol.label) for protocol in Protocol] == [(6, "tcp"), (17, "udp"), (132, "sctp")]


@pytest.mark.parametrize(
    ("text", "printed", "last"),
    [
        ("10.1.2.3/8", "10.0.0.0/8", "10.255.255.255"),
        ("10.1.2.3/32", "10.1.2.3/32", "10.1.2.3"),
        ("10.1.2.3/0", "0.0.0.0/0", "255.255.255.255"),
        ("10.1.2.3/31", "10.1.2.2/31", "10.1.2.3"),
        ("010.1.2.3/08", "10.0.0.0/8", "10.255.255.255"),
        ("2001:db8:1:2:3::/64", "2001:db8:1:2::/64", "2001:db8:1:2:ffff:ffff:ffff:ffff"),
        ("::1/0", "::/0", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
        ("::ffff:10.1.2.3/104", "10.0.0.0/8", "10.255.255.255"),
        ("::ffff:10.1.2.3/128", "10.1.2.3/32", "10.1.2.3"),
    ],
)
def test_a_prefix_loses_its_host_bits(text: str, printed: str, last: str) -> None:
    prefix = Prefix.parse(text)
    assert str(prefix) == printed
    assert format_address(prefix.last) == last


@pytest.mark.parametrize("text", ["10.0.0.0", "10.0.0.0/", "10.0.0.0/x", "10.0.0.0/-1", "10.0.0.0/+8", "10.0.0.0/²"])
def test_what_is_no_prefix_is_refused_by_its_text(text: str) -> None:
    with pytest.raises(ValueError, match="is not a CIDR") as caught:
        Prefix.parse(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("10.0.0.0/33", "at least 0 and at most 32"),
        ("::/129", "at least 0 and at most 128"),
        ("::ffff:10.0.0.0/95", "at least 96 and at most 128"),
        ("::ffff:10.0.0.0/129", "at least 96 and at most 128"),
    ],
)
def test_a_prefix_of_impossible_length_is_refused_with_what_is_allowed(text: str, allowed: str) -> None:
    with pytest.raises(ValueError, match=allowed):
        Prefix.parse(text)


def test_a_prefix_holds_the_addresses_of_its_family_from_first_to_last() -> None:
    prefix = Prefix.parse("10.0.4.0/22")
    held = ["10.0.4.0", "10.0.7.255"]
    assert all(parse_address(text) in prefix for text in held)
    assert not any(parse_address(text) in prefix for text in ["10.0.3.255", "10.0.8.0", "::a00:400"])
    assert parse_address("10.0.0.1") not in Prefix.parse("::/0")


def test_a_host_prefix_holds_one_address() -> None:
    for text in ("10.0.0.1", "fd00::1"):
        prefix = Prefix.host(parse_address(text))
        assert prefix.network == prefix.last == parse_address(text)
        assert prefix.family is family_of(parse_address(text))
