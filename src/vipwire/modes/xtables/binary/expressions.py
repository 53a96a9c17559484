"""Encodes a rule like iptables-nft: native nf_tables expressions if these exist, else xtables' structs. Pure.

    [-p: meta l4proto] [-i: meta iifname] [-s, -d: payload] matches… counter target

The order is that of nft_ipv4_add and nft_ipv6_add (iptables/nft-ipv4.c, version 1.8.9). Marks and the ports of TCP
and UDP are native; expressions `match` and `target` hold the structs of all others.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

from vipwire.linux.netlink.message import encode_attribute, encode_string, encode_u32be
from vipwire.linux.netlink.nftables import expressions as nft
from vipwire.linux.netlink.nftables.elements import VerdictData
from vipwire.linux.netlink.nftables.wire import Code
from vipwire.model.net import Family
from vipwire.modes.xtables.binary.matches import encode_match, parse_mark, parse_ports
from vipwire.modes.xtables.binary.targets import TARGETS, encode_dnat, encode_target
from vipwire.modes.xtables.binary.words import Extension, Range, RuleHead, UnknownRuleError, address_of, parse_head

COUNTER: Final = nft.counter()
_WORD: Final = 0
SOURCE: Final = {Family.IPV4: 12, Family.IPV6: 8}
DESTINATION: Final = {Family.IPV4: 16, Family.IPV6: 24}
_PORT_AT: Final = 2
VERDICTS: Final = {
    word: nft.verdict(VerdictData(code))
    for word, code in (("DROP", Code.DROP), ("ACCEPT", Code.ACCEPT), ("RETURN", Code.RETURN))
}
_NATIVE_PORTS: Final = frozenset({"tcp", "udp"})
_CHAIN: Final = re.compile(r"KUBE-[A-Z0-9-]{1,23}")
_KEPT: Final = 1 << 12
_TO_ENDPOINT: Final = "KUBE-SEP-"
_DNAT: Final = "DNAT "
_ALL_BITS: Final = 0xFFFFFFFF


COUNTER_DATA: Final = COUNTER[: len(COUNTER) - 28]
COUNTER_NUMBERS: Final = COUNTER[len(COUNTER) - 28 :]


def reset_counter(expressions: bytes) -> bytes:
    """Return a rule's expressions with its counter at 0."""
    at = expressions.rfind(COUNTER_DATA)
    if at < 0:
        return expressions
    at += len(COUNTER_DATA)
    return b"".join((expressions[:at], COUNTER_NUMBERS, expressions[at + len(COUNTER_NUMBERS) :]))


class Encoded(NamedTuple):
    """A rule's expressions, and the protocol for xtables' matches (NFTA_RULE_COMPAT); 0 for any."""

    expressions: bytes
    protocol: int


class Halves(NamedTuple):
    """A rule's expressions before and behind the counter's values, and its protocol as in `Encoded`."""

    before: bytes
    after: bytes
    protocol: int


class Encoder:
    """Encodes the rules of one family; caches their common parts.

    100,000 rules have few shapes, which the first words of a rule tell.
    """

    def __init__(self, family: Family) -> None:
        self._family = family
        self._one = f"/{family.bits}"
        self._to_one = re.compile(rf"(?<!!) -d ([^ /]+){self._one}(?= |$)")
        self._source = compare_header(SOURCE[family], family.bits // 8, nft.CMP_EQ)
        self._destination = compare_header(DESTINATION[family], family.bits // 8, nft.CMP_EQ)
        self._dnat = open_expression("target", "DNAT", TARGETS["DNAT"].revision, TARGETS["DNAT"].size)
        self._common: Callable[[str], tuple[bytes, int]] = lru_cache(_KEPT)(self._encode_matches)
        self._head: Callable[[str], tuple[bytes, int]] = lru_cache(_KEPT)(self._encode_head)
        self._match: Callable[[str], bytes] = lru_cache(_KEPT)(self._encode_match)
        self._target: Callable[[str], bytes] = lru_cache(_KEPT)(self._encode_target)

    def __call__(self, rule: str) -> Encoded:
        """Encode a rule. Raise UnknownRuleError for a rule that vipwire does not write."""
        before, after, protocol = self.split_rule(rule)
        return Encoded(b"".join((before, COUNTER_NUMBERS, after)), protocol)

    def split_rule(self, rule: str) -> Halves:
        """Encode a rule in two halves. Raise UnknownRuleError for a rule that vipwire does not write."""
        matches, verb, target = f" {rule}".rpartition(" -j ")
        if verb:
            after = self._encode_endpoint_target(target) or self._target(target)
        else:
            matches, verb, target = f" {rule}".rpartition(" -g ")
            matches, after = (matches, encode_jump(Code.GOTO, target)) if verb else (target, b"")
        before, protocol = self._encode_endpoint_match(matches) or self._common(matches)
        return Halves(before, after, protocol)

    def _encode_endpoint_target(self, target: str) -> bytes:
        """Encode a target that differs for each endpoint: the jump to its chain, or its DNAT."""
        if target.startswith(_TO_ENDPOINT):
            return encode_jump(Code.JUMP, target)
        if target.startswith(_DNAT):
            return self._dnat + encode_dnat(self._family, target[len(_DNAT) :])
        return b""

    def _encode_endpoint_match(self, matches: str) -> tuple[bytes, int] | None:
        if not matches.startswith(" -s ") or not matches.endswith(self._one) or matches.find(" ", 4) > 0:
            return None
        return self._source + address_of(self._family, matches[4 : -len(self._one)]) + COUNTER_DATA, 0

    def _encode_matches(self, words: str) -> tuple[bytes, int]:
        before, *matches = words.split(" -m ")
        first, protocol = self._encode_addresses(before)
        return b"".join((first, *map(self._match, matches), COUNTER_DATA)), protocol

    def _encode_addresses(self, words: str) -> tuple[bytes, int]:
        """Encode the words before the matches. A single destination comes last, behind a common part."""
        found = self._to_one.search(words)
        if not found or words.count(" -d ") > 1:
            return self._head(words)
        first, protocol = self._head(words[: found.start()] + words[found.end() :])
        return first + self._destination + address_of(self._family, found[1]), protocol

    def _encode_head(self, words: str) -> tuple[bytes, int]:
        found = parse_head(self._family, words)
        return b"".join(_encode_head(self._family, found)), found.protocol

    def _encode_match(self, words: str) -> bytes:
        name, _, options = words.partition(" ")
        if name in _NATIVE_PORTS and options:
            return _encode_port(*parse_ports(options))
        if name == "mark":
            return _encode_mark(*parse_mark(options))
        return _encode_extension("match", encode_match(self._family, words))

    def _encode_target(self, words: str) -> bytes:
        if words.startswith("KUBE-"):
            return encode_jump(Code.JUMP, words)
        if words in VERDICTS:
            return VERDICTS[words]
        return _encode_extension("target", encode_target(self._family, words))


def _encode_head(family: Family, found: RuleHead) -> list[bytes]:
    parts: list[bytes] = []
    if name := found.interface.encode():
        value = name[:-1] if name.endswith(b"+") else name + b"\0"
        operation = nft.CMP_NEQ if found.interface_inverted else nft.CMP_EQ
        parts += [nft.meta(_WORD, nft.META_IIFNAME), nft.cmp(_WORD, operation, value)]
    if found.protocol:
        parts += [nft.meta(_WORD, nft.META_L4PROTO), nft.cmp(_WORD, nft.CMP_EQ, bytes([found.protocol]))]
    for each, offset in ((found.source, SOURCE[family]), (found.destination, DESTINATION[family])):
        if each is not None:
            parts += _encode_address(each, offset)
    return parts


def _encode_address(each: Range, offset: int) -> list[bytes]:
    """Compare whole bytes only, if the mask consists of whole bytes."""
    operation = nft.CMP_NEQ if each.inverted else nft.CMP_EQ
    whole = each.mask.rstrip(b"\0")
    if whole == b"\xff" * len(whole):
        size = len(whole)
        return [compare_header(offset, size, operation), each.address[:size], bytes(-size % 4)]
    return [
        nft.payload(_WORD, nft.NETWORK_HEADER, offset, len(each.mask)),
        nft.bitwise(_WORD, each.mask, bytes(len(each.mask))),
        nft.cmp(_WORD, operation, each.address),
    ]


@lru_cache
def compare_header(offset: int, size: int, operation: int) -> bytes:
    """Return the expressions that compare bytes of the network header, without the value."""
    whole = nft.payload(_WORD, nft.NETWORK_HEADER, offset, size) + nft.cmp(_WORD, operation, bytes(size))
    return whole[: -(size + 3 & ~3)]


def _encode_port(first: int, last: int) -> bytes:
    load = nft.payload(_WORD, nft.TRANSPORT_HEADER, _PORT_AT, 2)
    if first == last:
        return load + nft.cmp(_WORD, nft.CMP_EQ, first.to_bytes(2))
    return load + nft.in_range(_WORD, first.to_bytes(2), last.to_bytes(2))


def _encode_mark(value: int, mask: int, inverted: bool) -> bytes:  # noqa: FBT001 - a field of a tuple
    masked = b"" if mask == _ALL_BITS else nft.bitwise(_WORD, nft.host_order(mask), bytes(4))
    operation = nft.CMP_NEQ if inverted else nft.CMP_EQ
    return nft.meta(_WORD, nft.META_MARK) + masked + nft.cmp(_WORD, operation, nft.host_order(value))


def encode_jump(code: Code, chain: str) -> bytes:
    if not _CHAIN.fullmatch(chain):
        raise UnknownRuleError(f"not a chain: {chain!r}")
    name = chain.encode() + b"\0"
    return _bytes_before_name(code, len(name)) + name + bytes(-len(name) % 4)


@lru_cache
def _bytes_before_name(code: Code, size: int) -> bytes:
    """Return the bytes before a chain's name; `size` is the name's length with its NUL."""
    whole = nft.verdict(VerdictData(code, "x" * (size - 1)))
    return whole[: -(size + 3 & ~3)]


def _encode_extension(kind: str, found: Extension) -> bytes:
    return open_expression(kind, found.name, found.revision, len(found.data)) + found.data


@lru_cache
def open_expression(kind: str, name: str, revision: int, size: int) -> bytes:
    """Return an xtables expression up to its struct."""
    return nft.expression(kind, encode_string(1, name), encode_u32be(2, revision), encode_attribute(3, bytes(size)))[
        :-size
    ]
