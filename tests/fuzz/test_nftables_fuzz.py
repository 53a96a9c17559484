"""Whatever the bytes, the decoders of nf_tables return or raise DecodeError; the compiler RuleSyntaxError."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from vipwire.errors import DecodeError
from vipwire.linux.netlink.nftables import decode, encode
from vipwire.linux.netlink.nftables.elements import (
    Element,
    VerdictData,
    decode_answers,
    decode_elements,
    encode_element,
    encode_element_attributes,
)
from vipwire.linux.netlink.nftables.flowtables import decode_flowtable
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

KEY = bytes(range(16))
RULE = compile_rule("meta priority set ip daddr . meta l4proto . th dport map @a counter goto b", Family.IPV4)
DECLARATION = compile_set(
    SetSpec("a", ("ip daddr", "ip saddr"), ("meta priority",), frozenset({"interval"}), 5, 9, counter=True),
    Family.IPV4,
)
MEMBERS = [
    encode_element_attributes(KEY, KEY[:8]),
    encode_element_attributes(KEY, comment="default/web:http"),
    encode_element(Element(KEY, verdict=VerdictData(-4, "b"), timeout=5, key_end=KEY, flags=1, open_end=True)),
]
READERS = (
    decode.decode_table,
    decode.decode_chain,
    decode.decode_rule,
    decode.decode_set_declaration,
    decode.decode_generation,
    decode_flowtable,
)
SEEDS = [
    encode.new_table(Family.IPV4, "t", "x").payload,
    encode.new_chain(Family.IPV6, "t", "c", encode.NetfilterHook("nat", 0, -100)).payload,
    encode.new_rule(Family.IPV4, "t", "c", RULE).payload,
    encode.new_set(Family.IPV4, "t", "a", DECLARATION).payload,
    *(encode.new_elements(Family.IPV4, "t", "a", [member] * 2)[0].payload for member in MEMBERS),
    encode.new_elements(Family.IPV4, "t", "a", MEMBERS)[0].payload,
    encode.new_elements(Family.IPV4, "t", "a", [blob.replace(b"\1\x80", b"\1\0") for blob in MEMBERS])[0].payload,
]


@st.composite
def damaged(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """Draw a real message with some bytes changed, and perhaps cut."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for at, value in draw(st.lists(st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)), max_size=6)):
        data[at] = value
    return bytes(data[: draw(st.integers(0, len(data)))]) if draw(st.booleans()) else bytes(data)


@given(st.lists(st.binary(max_size=80) | damaged([bytes(16) + SEEDS[4]]), max_size=3))
def test_answers_with_single_elements(datagrams: list[bytes]) -> None:
    with contextlib.suppress(DecodeError):
        assert len(decode_answers(datagrams, 16, 8).keys) == len(datagrams)


@given(st.binary(max_size=200) | damaged(SEEDS))
def test_dumps_of_objects(data: bytes) -> None:
    for read in READERS:
        with contextlib.suppress(DecodeError):
            assert read(memoryview(data)) is not None


@given(st.binary(max_size=200) | damaged(SEEDS), st.integers(0, 64), st.integers(0, 64))
def test_dumps_of_elements(data: bytes, key: int, value: int) -> None:
    with contextlib.suppress(DecodeError):
        for member in decode_elements(memoryview(data), key, value):
            assert isinstance(member.key, bytes)


@given(damaged([RULE]), damaged([DECLARATION]))
def test_comparing_and_describing(expressions: bytes, declaration: bytes) -> None:
    assert isinstance(describe_expressions(expressions), str)
    if not is_same_rule(RULE, expressions):
        assert expressions != RULE
    if not is_same_set(DECLARATION, declaration):
        assert declaration != DECLARATION


WORDS = """
    ip ip6 saddr daddr . meta l4proto th dport sport @a vmap map set priority mark { } : , != == and or xor 0x4000
    numgen random inc mod 3 offset jhash seed ct state new,related status dnat direction original fib type local
    iifname "lo" "cali*" counter packets bytes drop accept return reject with tcp reset icmp jump goto a masquerade
    fully-random to update add delete timeout 5s comment none 1:a 10.0.0.1 10.0.0.0/8 10.0.0.1:80 [fd00::1]:80
"""
SAID = st.lists(st.sampled_from(WORDS.split()), max_size=12).map(" ".join)


@given(st.text(max_size=60) | SAID, st.sampled_from(Family))
def test_texts(text: str, family: Family) -> None:
    with contextlib.suppress(RuleSyntaxError):
        compiled = compile_rule(text, family, {"a"})
        assert is_same_rule(compiled, compiled)
        assert describe_expressions(compiled) != "undecodable"
