"""Compiles a rule to the expressions that nft 1.0.6 sends for it. Pure."""

import struct
from collections.abc import Collection, Iterator
from typing import assert_never

from vipwire.linux.netlink.nftables import expressions as kernel
from vipwire.linux.netlink.nftables import wire
from vipwire.linux.netlink.nftables.elements import Verdict
from vipwire.model.net import Family
from vipwire.model.value import Value
from vipwire.modes.nftables.language import grammar
from vipwire.modes.nftables.language.fields import Field, Header, load_fields
from vipwire.modes.nftables.language.grammar import GROUP, Part, data_word, key_scratch, parse_rule

_COUNT = 8


class CompiledRule(Value, frozen=True):
    """A rule as the kernel takes it, and the comment that nft keeps beside it."""

    expressions: bytes
    comment: str = ""


def compile_rule(
    text: str, family: Family, intervals: Collection[str] = (), addresses: Collection[str] = ()
) -> CompiledRule:
    """Compile one rule; raise RuleSyntaxError on anything outside of the subset.

    `intervals` names the sets with the flag `interval` that it may look into: their keys are loaded in network order.
    `addresses` names the maps to addresses without a port, which `dnat` may use: the port is kept then.
    """
    rule = parse_rule(text, family)
    emitter = _Emitter(family, intervals, addresses)
    return CompiledRule(b"".join(each for part in rule.parts for each in emitter.emit(part)), rule.comment)


class _Emitter:
    def __init__(self, family: Family, intervals: Collection[str], addresses: Collection[str]) -> None:
        self._family, self._intervals, self._addresses = family, intervals, addresses

    def emit(self, part: Part) -> Iterator[bytes]:
        return self._match(part) if isinstance(part, grammar.Match) else self._statement(part)

    def _match(self, part: grammar.Match) -> Iterator[bytes]:
        match part:
            case grammar.Compare(field, constant, mask, negated):
                yield _load_start(field, len(constant))
                if mask:
                    yield kernel.bitwise(0, mask, bytes(len(mask)))
                yield kernel.cmp(0, kernel.CMP_NEQ if negated else kernel.CMP_EQ, constant)
            case grammar.Bits(field, bits, exactly, negated):
                yield field.load(0, GROUP)
                if exactly:
                    yield kernel.cmp(0, kernel.CMP_NEQ if negated else kernel.CMP_EQ, bits)
                else:
                    yield kernel.bitwise(0, bits, bytes(len(bits)))
                    yield kernel.cmp(0, kernel.CMP_NEQ, bytes(len(bits)))
            case grammar.Exceeds(field, limit):  # the kernel compares bytes: the highest has to come first
                yield field.load(0, GROUP)
                yield kernel.host_to_network(0, _COUNT, _COUNT)
                yield kernel.cmp(0, kernel.CMP_GT, limit.to_bytes(_COUNT))
            case grammar.Member(key, name, negated):
                yield self._key(key, name)
                yield kernel.lookup(0, name, flags=kernel.LOOKUP_INVERTED if negated else 0)
            case grammar.VerdictMap(key, name):
                yield self._key(key, name)
                yield kernel.lookup_verdict(0, name)
            case _:
                assert_never(part)

    def _statement(self, part: grammar.Statement) -> Iterator[bytes]:  # noqa: C901  # a case for each shape
        match part:
            case Verdict():
                yield kernel.verdict(part)
            case grammar.Counter():
                yield kernel.counter()
            case grammar.Reject(code):
                yield kernel.reject(kernel.REJECT_TCP_RESET if code is None else kernel.REJECT_ICMP, code)
            case grammar.Masquerade(flags):
                yield kernel.masquerade(flags)
            case grammar.DnatTo(address, port):
                yield kernel.immediate(0, address)
                if port is not None:
                    yield kernel.immediate(GROUP, port.to_bytes(2))
                yield kernel.dnat(wire.NFPROTO[self._family], 0, None if port is None else GROUP)
            case grammar.DnatMap(key, name):
                port_word = None if name in self._addresses else self._family.bits // 32
                yield self._key(key, name)
                yield kernel.lookup(0, name, 0)
                yield kernel.dnat(wire.NFPROTO[self._family], 0, port_word)
            case grammar.SetMeta(meta, value):
                yield self._value(value)
                yield kernel.set_meta(0, meta)
            case grammar.UpdateSet(name, operation, key, timeout, data):
                # nft 1.0.6 cannot load this for a map whose key has more than 16 bytes (it aborts), but lists it.
                free = data_word(key)
                yield load_fields(key, 0, free)
                if data is not None:
                    yield data.load(free, free + GROUP)
                yield kernel.dynset(name, operation, 0, None if data is None else free, timeout)
            case grammar.AddFlow(table):
                yield kernel.flow_offload(table)
            case _:
                assert_never(part)

    def _key(self, key: tuple[Field, ...], name: str) -> bytes:
        return load_fields(key, 0, key_scratch(key), ordered=name in self._intervals)

    def _value(self, value: bytes | grammar.Computed | grammar.Mapped) -> bytes:
        match value:
            case grammar.Mapped(key, name):
                return self._key(key, name) + kernel.lookup(0, name, 0)
            case grammar.Computed(field, operator, number):
                loaded = field.load(0, GROUP)
                return loaded + _bitwise(operator, number) if operator else loaded
            case _:
                return kernel.immediate(0, value)


def _load_start(field: Field, length: int) -> bytes:
    """Load as much of a header's field as is compared; everything else is loaded whole."""
    if isinstance(field, Header):
        return kernel.payload(0, field.base, field.offset, length)
    return field.load(0, GROUP)


def _bitwise(operator: str, number: int) -> bytes:
    everything = 0xFFFFFFFF
    mask, xor = {
        "and": (number, 0),
        "or": (everything & ~number, number),
        "xor": (everything, number),
    }[operator]
    return kernel.bitwise(0, struct.pack("=I", mask), struct.pack("=I", xor))
