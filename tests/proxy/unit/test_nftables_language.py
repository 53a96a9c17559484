"""The compiler without a kernel. That its bytes are those of nft is shown in tests/proxy/kernel."""

import pytest

from vipwire.linux.netlink.attributes import attribute
from vipwire.linux.netlink.nftables import expressions as kernel
from vipwire.linux.netlink.nftables import wire
from vipwire.linux.netlink.nftables.elements import Element
from vipwire.model.net import Family, Prefix, parse_address
from vipwire.modes.nftables.language import (
    CompiledRule,
    RuleSyntaxError,
    SetSpec,
    compile_rule,
    compile_set,
    describe,
    interval_elements,
    same_rule,
    same_set,
)

KEY = ("ip daddr", "meta l4proto", "th dport")


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        ("", 0, "empty"),
        ("log", 0, "'log' begins nothing"),
        ("ip6 daddr fd00::1", 0, "'ip6' begins nothing"),
        ("ip daddr", 8, "expected an address"),
        ("ip daddr fd00::1", 9, "other family"),
        ("ip daddr 10.0.0.256", 9, "not an IP address"),
        ("ip daddr 10.0.0.0/33", 9, "at most 32"),
        ("ip daddr 0.0.0.0/0 drop", 9, "matches everything"),
        ("ip daddr . th dport 80", 20, "only be looked up"),
        ("ip daddr @", 9, "set's name"),
        ("ip daddr { 10.0.0.1 }", 9, "named set"),
        ("meta l4proto tcp,udp", 13, "named set"),
        ("meta l4proto icmp", 13, "'icmp' is none of tcp, udp, sctp"),
        ("meta priority set ip daddr", 21, "another type"),
        ("meta priority set meta mark", 23, "another type"),
        ("meta priority 1:10000", 14, "no class handle"),
        ("meta mark and 0x4000", 20, "expected"),
        ("ip daddr and 1 != 0", 9, "four bytes"),
        ("meta mark set 0x1ffffffff", 14, "between 0 and 4294967295"),
        ("th dport 65536", 9, "between 0 and 65535"),
        ("th dport http", 9, "not a number"),
        ("ct state != new,related", 12, "one name"),
        ("iifname lo", 8, "in quotes"),
        ('iifname "abcdefghijklmnop"', 8, "1 to 15 bytes"),
        ('iifname "*"', 8, "1 to 15 bytes"),
        ('iifname "lo', 8, "quote is not closed"),
        ("drop accept", 5, "nothing but a comment"),
        ("drop comment", 12, "a quoted word"),
        ('drop comment "x" counter', 17, "last thing"),
        ("dnat to 10.0.0.1:80", 8, "after `meta l4proto`"),
        ("meta l4proto tcp dnat to 10.0.0.1:0", 25, "not a port"),
        ("dnat to fd00::1", 8, "not an IP address"),
        ("reject with icmp mood", 17, "'mood' is none of"),
        ("update @a { ip saddr timeout soon }", 29, "not a duration"),
        ("update @a { ip saddr timeout s }", 29, "not a duration"),
        ("update @a { ip saddr", 20, "expected '}'"),
        ("numgen random mod 0 vmap @a", 18, "at least 1"),
        ("numgen seldom mod 1 vmap @a", 7, "inc or random"),
        ("jump", 4, "chain's name"),
    ],
)
def test_what_cannot_be_compiled_says_where_and_why(text: str, position: int, message: str) -> None:
    with pytest.raises(RuleSyntaxError, match=message) as caught:
        compile_rule(text, Family.IPV4)
    assert caught.value.position == position


def test_keys_that_do_not_fit_into_the_registers_are_refused() -> None:
    long = " . ".join(["ip6 saddr", "ip6 daddr"] * 2)
    assert compile_rule(f"{long} @a", Family.IPV6).expressions
    with pytest.raises(RuleSyntaxError, match="68 bytes"):
        compile_rule(f"{long} . th dport @a", Family.IPV6)
    with pytest.raises(RuleSyntaxError, match="hashed does not fit"):
        compile_rule("ip6 saddr . ip6 daddr . jhash ip6 saddr mod 2 vmap @a", Family.IPV6)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("meta mark set meta mark or 0x4000", "meta mark set meta mark | 0x00004000"),
        ("meta mark set meta mark xor 0x4000", "meta mark set meta mark ^ 16384"),
        ("meta mark and 0x4000 != 0", "meta mark & 0x00004000 != 0x00000000"),
        ("meta priority set 0", "meta priority set none"),
        ("dnat to ip daddr . th dport map @a", "dnat ip to ip daddr . th dport map @a"),
        ("update @a { ip saddr timeout 10800s }", "update @a { ip saddr timeout 3h }"),
        ("add @a { ip saddr timeout 1d1h1m1s }", "add @a { ip saddr timeout 90061s }"),
        ("counter", "counter packets 12 bytes 3456"),
        ("reject", "reject with icmp type port-unreachable"),
        ("ip daddr 10.0.0.0/32", "ip daddr 10.0.0.0"),
        ("ip daddr 10.1.2.3/8", "ip daddr 10.0.0.0/8"),
        ("tcp dport 80", "meta l4proto tcp th dport 80"),
        ("meta l4proto tcp reject with tcp reset", "reject with tcp reset"),
    ],
)
def test_two_ways_to_write_the_same(one: str, other: str) -> None:
    assert compile_rule(one, Family.IPV4) == compile_rule(other, Family.IPV4)


def test_a_comment_is_no_expression() -> None:
    assert compile_rule('drop comment "as it {is}"', Family.IPV4) == CompiledRule(
        compile_rule("drop", Family.IPV4).expressions, "as it {is}"
    )


def test_the_keys_of_interval_sets_are_loaded_in_network_order() -> None:
    text = "meta priority . ip saddr @wide"
    plain, ordered = compile_rule(text, Family.IPV4), compile_rule(text, Family.IPV4, {"wide"})
    assert describe(plain.expressions) == "meta payload lookup"
    assert describe(ordered.expressions) == "meta byteorder payload lookup"


def test_rules_of_others_are_described_by_their_expressions() -> None:
    assert describe(b"") == "empty"
    assert describe(b"\xff\xff\xff") == "empty"
    assert describe(b"\xff\0\1\0") == "undecodable"
    assert describe(attribute(1, attribute(9, b""))) == "undecodable"


def one(name: str, *parts: bytes) -> bytes:
    return kernel.expression(name, *parts)


def test_counts_do_not_make_another_rule() -> None:
    sent = compile_rule("counter drop", Family.IPV4)
    counted = one("counter", attribute(1, b"\0\0\0\0\0\0\0\7"), attribute(2, b"\0\0\0\0\0\0\0\1"))
    rest = sent.expressions[len(kernel.counter()) :]
    assert same_rule(sent, counted + rest)
    assert not same_rule(sent, rest + counted)
    assert not same_rule(sent, counted)


def test_what_a_later_kernel_adds_does_not_make_another_rule_unless_it_says_something() -> None:
    sent = compile_rule("masquerade", Family.IPV4)
    assert same_rule(sent, one("masq", attribute(77, bytes(4))))
    assert not same_rule(sent, one("masq", attribute(77, b"\0\0\0\1")))
    assert not same_rule(sent, one("redir"))
    assert not same_rule(sent, b"\xff\0\1\0")
    assert not same_rule(compile_rule("masquerade random", Family.IPV4), sent.expressions)


def test_what_a_later_kernel_adds_does_not_make_another_set_unless_it_decides() -> None:
    sent = compile_set(SetSpec("s", KEY), Family.IPV4)
    assert same_set(sent, sent + attribute(wire.SET_HANDLE, bytes(8)) + attribute(99, b"new!"))
    assert not same_set(sent, sent + attribute(wire.SET_TIMEOUT, b"\0\0\0\0\0\0\0\1"))
    assert not same_set(sent, sent + attribute(wire.SET_FLAGS, b"\0\0\0\4"))
    assert not same_set(sent, b"\xff\0\1\0")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (SetSpec("s", ()), "at least one part"),
        (SetSpec("s", KEY, flags=frozenset({"often"})), "'often' is none of"),
        (SetSpec("s", ("ip daddr", "inet_service")), "cannot be mixed"),
        (SetSpec("s", ("ip daddr",), flags=frozenset({"dynamic"})), "needs a size"),
        (SetSpec("s", ("ip daddr . th dport",)), "one field"),
        (SetSpec("s", ("jhash ip saddr mod 3",)), "declare numgen"),
        (SetSpec("s", ("ct state",)), "no set can be declared"),
        (SetSpec("s", ("ip6 daddr",)), "begins nothing"),
        (SetSpec("s", ("ip saddr",) * 6), "at most 5 parts"),
        (SetSpec("s", ("numgen inc mod 2",) * 5, comment="x" * 128), "more than the 256"),
    ],
)
def test_declarations_that_cannot_be_are_refused(spec: SetSpec, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compile_set(spec, Family.IPV4)


def test_a_key_that_does_not_fit_into_the_registers_cannot_be_declared() -> None:
    with pytest.raises(ValueError, match="80 bytes"):
        compile_set(SetSpec("s", ("ip6 saddr",) * 5), Family.IPV6)


def test_a_range_of_addresses_ends_with_the_first_address_after_it() -> None:
    ten, last = Prefix.parse("10.0.0.0/8"), Prefix.parse("255.0.0.0/8")
    made = list(interval_elements([(ten.network, ten.last, "ten"), (last.network, last.last, "")]))
    assert made == [
        Element(parse_address("10.0.0.0"), comment="ten"),
        Element(parse_address("11.0.0.0"), flags=wire.ELEMENT_INTERVAL_END),
        Element(parse_address("255.0.0.0"), open_end=True),
    ]
