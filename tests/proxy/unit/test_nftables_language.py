"""The compiler without a kernel. That its bytes are those of nft is shown in tests/proxy/kernel."""

import pytest

from vipwire.linux.netlink.message import encode_attribute
from vipwire.linux.netlink.nftables import expressions as kernel
from vipwire.linux.netlink.nftables import wire
from vipwire.model.net import Family
from vipwire.modes.nftables.language import (
    RuleSyntaxError,
    SetSpec,
    compile_rule,
    compile_set,
    describe_expressions,
    is_same_rule,
    is_same_set,
)

KEY = ("ip daddr", "meta l4proto", "th dport")


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        ("", 0, "empty"),
        ("log", 0, "'log' begins nothing"),
        ("ip6 daddr fd00::1", 0, "'ip6' begins nothing"),
        ("ip daddr", 8, "expected an address"),
        ("tcp dport 80", 0, "'tcp' begins nothing"),
        ("ip daddr fd00::1", 9, "other family"),
        ("ip daddr 10.0.0.256", 9, "not an IP address"),
        ("ip daddr 10.0.0.0/33", 9, "at most 32"),
        ("ip daddr 0.0.0.0/0 drop", 9, "matches everything"),
        ("ip daddr . th dport 80", 20, "only be looked up"),
        ("ip daddr @", 9, "set's name"),
        ("ip daddr { 10.0.0.1 }", 9, "not an IP address"),
        ("meta l4proto tcp,udp", 13, "'tcp,udp' is none of"),
        ("meta l4proto icmp", 13, "'icmp' is none of tcp, udp, sctp"),
        ("meta priority set ip daddr", 21, "another type"),
        ("meta priority set meta mark", 23, "another type"),
        ("meta priority 1:a", 14, "'1:a' is none of none"),
        ("meta mark and 0x4000", 20, "expected"),
        ("ip daddr and 1 != 0", 9, "four bytes"),
        ("meta mark and 0x1ffffffff", 14, "between 0 and 4294967295"),
        ("meta mark set many", 14, "begins nothing"),
        ("meta mark set meta mark and 1", 24, "expected or, or xor"),
        ("th dport 80", 9, "expected a set or a map"),
        ("ct state != new", 9, "'!=' is none of invalid"),
        ("iifname lo", 8, "in quotes"),
        ('iifname "abcdefghijklmnop"', 8, "1 to 15 bytes"),
        ('iifname "*"', 8, "1 to 15 bytes"),
        ('iifname "lo', 8, "quote is not closed"),
        ("drop accept", 5, "nothing can follow"),
        ("dnat to 10.0.0.1", 5, "expected 'ip to'"),
        ("dnat ip to 10.0.0.1:80", 11, "not an IP address"),
        ("dnat ip to fd00::1", 11, "other family"),
        ("reject with icmp", 7, "nothing can follow"),
        ("masquerade", 10, "expected 'fully-random'"),
        ("update @a { ip saddr timeout soon }", 29, "not a time"),
        ("update @a { ip saddr timeout 3h }", 29, "not a time"),
        ("update @a { ip saddr", 20, "expected '}'"),
        ("meta priority set numgen random mod 0", 36, "at least 1"),
        ("meta priority set numgen seldom mod 1", 25, "inc or random"),
        ("meta priority set jhash ip saddr mod 2", 38, "expected 'seed'"),
        ("jump", 4, "chain's name"),
    ],
)
def test_what_cannot_be_compiled_says_where_and_why(text: str, position: int, message: str) -> None:
    with pytest.raises(RuleSyntaxError, match=message) as caught:
        compile_rule(text, Family.IPV4)
    assert caught.value.position == position


def test_keys_that_do_not_fit_into_the_registers_are_refused() -> None:
    long = " . ".join(["ip6 saddr", "ip6 daddr"] * 2)
    assert compile_rule(f"{long} @a", Family.IPV6)
    with pytest.raises(RuleSyntaxError, match="68 bytes"):
        compile_rule(f"{long} . th dport @a", Family.IPV6)
    with pytest.raises(RuleSyntaxError, match="64 bytes do not fit"):
        compile_rule(f"meta priority set jhash {long} mod 2 seed 0x1", Family.IPV6)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("meta mark set meta mark or 0x4000", "meta mark set meta mark | 0x00004000"),
        ("meta mark set meta mark xor 0x4000", "meta mark set meta mark ^ 16384"),
        ("meta mark and 0x4000 != 0", "meta mark & 0x00004000 != 0x00000000"),
        ("ip daddr 10.0.0.0/32", "ip daddr 10.0.0.0"),
        ("ip daddr 10.1.2.3/8", "ip daddr 10.0.0.0/8"),
    ],
)
def test_two_ways_to_write_the_same(one: str, other: str) -> None:
    assert compile_rule(one, Family.IPV4) == compile_rule(other, Family.IPV4)


def test_the_keys_of_interval_sets_are_loaded_in_network_order() -> None:
    text = "meta priority . ip saddr @wide"
    plain, ordered = compile_rule(text, Family.IPV4), compile_rule(text, Family.IPV4, {"wide"})
    assert describe_expressions(plain) == "meta payload lookup"
    assert describe_expressions(ordered) == "meta byteorder payload lookup"


def test_rules_of_others_are_described_by_their_expressions() -> None:
    assert describe_expressions(b"") == "empty"
    assert describe_expressions(b"\xff\xff\xff") == "empty"
    assert describe_expressions(b"\xff\0\1\0") == "undecodable"
    assert describe_expressions(encode_attribute(1, encode_attribute(9, b""))) == "undecodable"


def one(name: str, *parts: bytes) -> bytes:
    return kernel.expression(name, *parts)


def test_counts_do_not_make_another_rule() -> None:
    sent = compile_rule("counter drop", Family.IPV4)
    counted = one("counter", encode_attribute(1, b"\0\0\0\0\0\0\0\7"), encode_attribute(2, b"\0\0\0\0\0\0\0\1"))
    rest = sent[len(kernel.counter()) :]
    assert is_same_rule(sent, counted + rest)
    assert not is_same_rule(sent, rest + counted)
    assert not is_same_rule(sent, counted)


def test_what_a_later_kernel_adds_does_not_make_another_rule_unless_it_says_something() -> None:
    sent = compile_rule("flow add @f", Family.IPV4)
    name = encode_attribute(1, b"f\0")
    assert is_same_rule(sent, one("flow_offload", name, encode_attribute(77, bytes(4))))
    assert not is_same_rule(sent, one("flow_offload", name, encode_attribute(77, b"\0\0\0\1")))
    assert not is_same_rule(sent, one("redir", name))
    assert not is_same_rule(sent, one("flow_offload"))
    assert not is_same_rule(sent, b"\xff\0\1\0")


def test_what_a_later_kernel_adds_does_not_make_another_set_unless_it_decides() -> None:
    sent = compile_set(SetSpec("s", KEY), Family.IPV4)
    assert is_same_set(sent, sent + encode_attribute(wire.SET_HANDLE, bytes(8)) + encode_attribute(99, b"new!"))
    assert not is_same_set(sent, sent + encode_attribute(wire.SET_TIMEOUT, b"\0\0\0\0\0\0\0\1"))
    assert not is_same_set(sent, sent + encode_attribute(wire.SET_FLAGS, b"\0\0\0\4"))
    assert not is_same_set(sent, b"\xff\0\1\0")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (SetSpec("s", ()), "at least one part"),
        (SetSpec("s", KEY, flags=frozenset({"often"})), "'often' is none of"),
        (SetSpec("s", ("ip daddr", "inet_service")), "cannot be mixed"),
        (SetSpec("s", ("ip daddr",), flags=frozenset({"dynamic"})), "needs a size"),
        (SetSpec("s", ("ip daddr . th dport",)), "one field"),
        (SetSpec("s", ("ct state",)), "nft cannot declare"),
        (SetSpec("s", ("ip6 daddr",)), "begins nothing"),
        (SetSpec("s", ("ip saddr",) * 6), "at most 5 parts"),
    ],
)
def test_declarations_that_cannot_be_are_refused(spec: SetSpec, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compile_set(spec, Family.IPV4)


def test_a_key_that_does_not_fit_into_the_registers_cannot_be_declared() -> None:
    with pytest.raises(ValueError, match="80 bytes"):
        compile_set(SetSpec("s", ("ip6 saddr",) * 5), Family.IPV6)
