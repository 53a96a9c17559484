"""Compiles a rule to the expressions that nft 1.0.6 sends; compares them with the kernel's. Pure.

An attribute that vipwire sent must come back with the same value, except counts. An attribute that a newer kernel
adds may only be zero: any other value is a different rule.
"""

import struct
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import assert_never

from vipwire.errors import DecodeError
from vipwire.linux.netlink.message import (
    collect_attributes,
    decode_number,
    decode_text,
    encode_attribute,
    walk_attributes,
)
from vipwire.linux.netlink.nftables import expressions as kernel
from vipwire.linux.netlink.nftables import wire
from vipwire.linux.netlink.nftables.elements import VerdictData
from vipwire.model.net import Family
from vipwire.modes.nftables.language import grammar
from vipwire.modes.nftables.language.fields import Field, HeaderField, load_fields
from vipwire.modes.nftables.language.grammar import GROUP, Part, count_words, find_data_word, parse_rule

_COUNT = 8
_PORT_UNREACHABLE = {Family.IPV4: 3, Family.IPV6: 4}


def compile_rule(
    text: str, family: Family, intervals: Collection[str] = (), addresses: Collection[str] = ()
) -> bytes:
    """Compile one rule; raise RuleSyntaxError for syntax outside of the subset.

    `intervals` names the interval sets, whose keys are loaded in network order. `addresses` names the maps to an
    address without a port: their `dnat` keeps the port.
    """
    emitter = _Emitter(family, intervals, addresses)
    return b"".join(each for part in parse_rule(text, family) for each in emitter.emit(part))


class _Emitter:
    def __init__(self, family: Family, intervals: Collection[str], addresses: Collection[str]) -> None:
        self._family, self._intervals, self._addresses = family, intervals, addresses

    def emit(self, part: Part) -> Iterator[bytes]:
        return self._emit_match(part) if isinstance(part, grammar.Match) else self._emit_statement(part)

    def _emit_match(self, part: grammar.Match) -> Iterator[bytes]:
        match part:
            case grammar.Compare(field, constant, mask, negated):
                yield _load_start(field, len(constant))
                if mask:
                    yield kernel.bitwise(0, mask, bytes(len(mask)))
                yield kernel.cmp(0, kernel.CMP_NEQ if negated else kernel.CMP_EQ, constant)
            case grammar.Bits(field, bits):
                yield field.load(0)
                yield kernel.bitwise(0, bits, bytes(len(bits)))
                yield kernel.cmp(0, kernel.CMP_NEQ, bytes(len(bits)))
            case grammar.Exceeds(field, limit):  # the kernel compares bytes, so the highest byte must come first
                yield field.load(0)
                yield kernel.host_to_network(0, _COUNT, _COUNT)
                yield kernel.cmp(0, kernel.CMP_GT, limit.to_bytes(_COUNT))
            case grammar.Member(key, name, negated):
                yield self._load_key(key, name)
                yield kernel.lookup(0, name, flags=kernel.LOOKUP_INVERTED if negated else 0)
            case grammar.VerdictMap(key, name):
                yield self._load_key(key, name)
                yield kernel.lookup_verdict(0, name)
            case _:
                assert_never(part)

    def _emit_statement(self, part: grammar.Statement) -> Iterator[bytes]:  # noqa: C901  # a case for each shape
        match part:
            case VerdictData():
                yield kernel.verdict(part)
            case grammar.Counter():
                yield kernel.counter()
            case grammar.RejectWith(reset):
                code = None if reset else _PORT_UNREACHABLE[self._family]
                yield kernel.reject(kernel.REJECT_TCP_RESET if reset else kernel.REJECT_ICMP, code)
            case grammar.SourceNat():
                yield kernel.masquerade(kernel.NAT_FULLY_RANDOM)
            case grammar.DnatTo(address):
                yield kernel.immediate(0, address)
                yield kernel.dnat(wire.NFPROTO[self._family], 0, None)
            case grammar.DnatMap(key, name):
                port_word = None if name in self._addresses else self._family.bits // 32
                yield self._load_key(key, name)
                yield kernel.lookup(0, name, 0)
                yield kernel.dnat(wire.NFPROTO[self._family], 0, port_word)
            case grammar.SetMeta(meta, value):
                yield self._load_value(value)
                yield kernel.set_meta(0, meta)
            case grammar.UpdateSet(name, operation, key, seconds, value):
                # nft 1.0.6 lists this but cannot load it (it aborts) for a map with a key longer than 16 bytes.
                free = find_data_word(key)
                yield load_fields(key, 0)
                if value is not None:
                    yield value.load(free)
                yield kernel.dynset(name, operation, 0, None if value is None else free, seconds * 1000)
            case grammar.AddFlow(table):
                yield kernel.flow_offload(table)
            case _:
                assert_never(part)

    def _load_key(self, key: tuple[Field, ...], name: str) -> bytes:
        return load_fields(key, 0, ordered=name in self._intervals)

    def _load_value(self, value: bytes | grammar.Computed | grammar.Mapped | grammar.Numgen | grammar.Jhash) -> bytes:
        match value:
            case grammar.Mapped(key, name):
                return self._load_key(key, name) + kernel.lookup(0, name, 0)
            case grammar.Computed(field, operator, number):
                return field.load(0) + _encode_bitwise(operator, number)
            case grammar.Numgen(in_turn, modulus, offset):
                kind = kernel.NUMGEN_INCREMENTAL if in_turn else kernel.NUMGEN_RANDOM
                return kernel.numgen(0, kind, modulus, offset)
            case grammar.Jhash(sources, modulus, seed, offset):
                source = GROUP, 4 * count_words(sources)
                return load_fields(sources, GROUP) + kernel.jhash(source, 0, modulus, seed, offset)
            case _:
                return kernel.immediate(0, value)


def _load_start(field: Field, length: int) -> bytes:
    """Load `length` bytes from the start of a header field, or all bytes of another field."""
    if isinstance(field, HeaderField):
        return kernel.payload(0, field.base, field.offset, length)
    return field.load(0)


def _encode_bitwise(operator: str, number: int) -> bytes:
    mask = 0xFFFFFFFF & ~number if operator == "or" else 0xFFFFFFFF
    return kernel.bitwise(0, struct.pack("=I", mask), struct.pack("=I", number))


_NAME, _DATA = 1, 2
_OPERATION, _OPERAND = 2, 3  # NFTA_CMP_OP, NFTA_CMP_DATA
_COUNTER = "counter"


def is_same_rule(sent: bytes, dumped: bytes) -> bool:
    if sent == dumped:
        return True
    try:
        ours, theirs = list(_split_expressions(sent)), list(_split_expressions(dumped))
    except DecodeError:
        return False
    return len(ours) == len(theirs) and all(map(_is_same_expression, ours, theirs))


def _split_expressions(data: bytes) -> Iterator[tuple[str, dict[int, memoryview]]]:
    for _, value in walk_attributes(data):
        found = collect_attributes(value)
        if _NAME not in found:
            raise DecodeError("an expression has no name")
        yield decode_text(found[_NAME]), collect_attributes(found.get(_DATA, memoryview(b"")))


def _is_same_expression(ours: tuple[str, dict[int, memoryview]], theirs: tuple[str, dict[int, memoryview]]) -> bool:
    if ours[0] != theirs[0]:
        return False
    return ours[0] == _COUNTER or _is_covered(ours[1], theirs[1])


def _is_covered(sent: dict[int, memoryview], dumped: dict[int, memoryview]) -> bool:
    return all(kind in dumped and dumped[kind] == value for kind, value in sent.items()) and not any(
        any(value) for kind, value in dumped.items() if kind not in sent
    )


_DECISIVE = (wire.SET_FLAGS, wire.SET_DATA_TYPE, wire.SET_TIMEOUT, wire.SET_EXPRESSION)
"""Attributes that make a set a different one if the kernel has them and vipwire did not send them."""


def is_same_set(sent: bytes, dumped: bytes) -> bool:
    """Report whether a dumped set (`SetDeclaration.attributes`) equals the output of `compile_set`, userdata too."""
    try:
        ours, theirs = collect_attributes(sent), collect_attributes(dumped)
        return all(
            _is_same_part(kind, value, theirs.get(kind, memoryview(b"")))
            for kind, value in ours.items()
            if kind != wire.SET_ID  # the kernel does not list it
        ) and not any(any(theirs.get(kind, b"")) for kind in _DECISIVE if kind not in ours)
    except DecodeError:
        return False


def _is_same_part(kind: int, sent: memoryview, dumped: memoryview) -> bool:
    match kind:
        case wire.SET_EXPRESSION:  # ignore the counter's values
            ours, theirs = (
                _split_expressions(encode_attribute(wire.LIST_ELEMENT, bytes(each))) for each in (sent, dumped)
            )
            return [name for name, _ in ours] == [name for name, _ in theirs]
        case wire.SET_DATA_LENGTH if not any(sent):  # of verdicts; the kernel returns the size of its own struct
            return True
    # The kernel does not list flags of 0.
    return sent == dumped or (not dumped and not any(sent))


def find_limit(expressions: bytes) -> int:
    """Return the number behind a rule's `>`; 0 if the rule has none or cannot be decoded."""
    with suppress(DecodeError, KeyError):
        for name, found in _split_expressions(expressions):
            if name == "cmp" and decode_number(found[_OPERATION]) == kernel.CMP_GT:
                return decode_number(collect_attributes(found[_OPERAND])[wire.DATA_VALUE])
    return 0


def describe_expressions(expressions: bytes) -> str:
    """Describe a foreign rule for a message: the names of its expressions."""
    try:
        return " ".join(name for name, _ in _split_expressions(expressions)) or "empty"
    except DecodeError:
        return "undecodable"
