"""Decodes a rule's nf_tables expressions to the words of iptables-nft-save. Pure.

The inverse of `expressions`, for rules of vipwire: other or additional expressions raise UnknownRuleError. Common
parts of rules are cached.
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from vipwire.linux.netlink.message import collect_attributes, decode_number, decode_text, walk_attributes
from vipwire.linux.netlink.nftables import expressions as nft
from vipwire.linux.netlink.nftables.wire import Code
from vipwire.model.net import Address, Family, format_address
from vipwire.modes.xtables.binary.expressions import (
    COUNTER,
    COUNTER_DATA,
    DESTINATION,
    SOURCE,
    VERDICTS,
    Encoder,
    compare_header,
    encode_jump,
    open_expression,
)
from vipwire.modes.xtables.binary.matches import MATCHES, decode_match, format_mark, format_ports
from vipwire.modes.xtables.binary.targets import TARGETS, decode_target, size_of
from vipwire.modes.xtables.binary.words import LABELS, Extension, Range, RuleHead, UnknownRuleError, write_head

_KEPT: Final = 1 << 12
_NAME_AT: Final = 8
_NAME_END: Final = 14
_MATCH, _TARGET, _COUNTER, _IMMEDIATE = b"match\0", b"target", b"counte", b"immedi"
_XTABLES: Final = frozenset({_MATCH, _TARGET, _COUNTER, _IMMEDIATE})
_CODE_AT, _CHAIN_AT = 44, 52
_VERDICT_WORDS: Final = {expression: word for word, expression in VERDICTS.items()}
_LEADING: Final = {Code.JUMP & 0xFFFFFFFF: ("-j", Code.JUMP), Code.GOTO & 0xFFFFFFFF: ("-g", Code.GOTO)}
_INTERFACE: Final = re.compile(r"[\w.@:-]{1,15}", re.ASCII)


class RuleReader:
    """Decodes the rules of one family."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._source = compare_header(SOURCE[family], family.bits // 8, nft.CMP_EQ)
        self._one_source = len(self._source) + family.bits // 8
        self._encode = Encoder(family)
        self._begins = _list_known_beginnings(family)
        self._match: Callable[[bytes], str] = lru_cache(_KEPT)(
            lambda element: decode_match(family, self._extension_of(element))
        )
        self._natives: Callable[[bytes, int], tuple[RuleHead, str]] = lru_cache(_KEPT)(self._read_natives)

    def __call__(self, expressions: bytes) -> str:
        """Return a rule's words, without `-A CHAIN`."""
        first, target, protocol = "", "", 0
        matches: list[str] = []
        run: list[bytes] = []
        counted = False
        for element in _split_expressions(expressions):
            kind = element[_NAME_AT:_NAME_END]
            if kind not in _XTABLES and not counted:
                run.append(element)
                continue
            if run:
                words, found, protocol = self._read_run(b"".join(run), protocol, alone=not matches)
                first, run = first or words, []
                matches += found
            if not counted and element.startswith(COUNTER_DATA) and len(element) == len(COUNTER):
                counted = True
            elif kind == _MATCH and not counted:
                matches.append(self._match(element))
            elif counted and not target:
                target = self._read_target(element, kind)
            else:
                raise UnknownRuleError("a rule with expressions in another order than ours")
        if not counted or run:
            raise UnknownRuleError("a rule without a counter")
        return " ".join(
            [*([first] if first else []), *[f"-m {each}" for each in matches], *([target] if target else [])]
        )

    def _read_run(self, run: bytes, protocol: int, *, alone: bool) -> tuple[str, list[str], int]:
        """Decode consecutive native expressions; return head, matches and protocol."""
        if alone and len(run) == self._one_source and run.startswith(self._source):
            address = Address(run[len(self._source) :])
            return f"-s {format_address(address)}/{self._family.bits}", [], 0
        head, found = self._natives(run, protocol)
        if head != RuleHead() and not alone:
            raise UnknownRuleError("an address behind a match")
        return write_head(head), [found] if found else [], head.protocol or protocol

    def _read_natives(self, run: bytes, protocol: int) -> tuple[RuleHead, str]:
        head = RuleHead()
        matches: list[str] = []
        elements = [_read_name(element) for element in _split_expressions(run)]
        while elements:
            name, fields = elements.pop(0)
            if matches:
                raise UnknownRuleError("more than one native match in a row")
            if name == "meta":
                head, found = self._read_meta(head, decode_number(fields[2]), elements)
            elif name == "payload":
                head, found = self._read_payload(head, fields, elements, head.protocol or protocol)
            else:
                raise UnknownRuleError(f"vipwire writes no such expression: {name!r}")
            matches += [found] if found else []
        self._check_reencoded("".join([write_head(head), *(f" -m {each}" for each in matches)]), run)
        return head, "".join(matches)

    def _check_reencoded(self, words: str, run: bytes) -> None:
        whole = self._encode(words.lstrip()).expressions
        if whole != run + COUNTER:
            raise UnknownRuleError(f"more than these words say: {words!r}")

    def _read_meta(self, head: RuleHead, key: int, rest: "list[_Named]") -> tuple[RuleHead, str]:
        mask = _take_mask(rest)
        operation, value = _take_comparison(rest)
        inverted = operation == nft.CMP_NEQ
        if key == nft.META_MARK and len(value) == 4:
            return (
                head,
                f"mark {format_mark(_decode_host_order(value), _decode_host_order(mask or _ALL), inverted=inverted)}",
            )
        if mask is not None:
            raise UnknownRuleError("vipwire writes no such mask")
        if key == nft.META_L4PROTO and not inverted and not head.protocol and value[0] in LABELS:
            return head._replace(protocol=value[0]), ""
        if key == nft.META_IIFNAME and not head.interface:
            return head._replace(interface=_decode_interface(value), interface_inverted=inverted), ""
        raise UnknownRuleError(f"vipwire writes no such field of a packet: {key}")

    def _read_payload(
        self, head: RuleHead, fields: dict[int, memoryview], rest: "list[_Named]", protocol: int
    ) -> tuple[RuleHead, str]:
        base, offset, size = (decode_number(fields[kind]) for kind in (2, 3, 4))
        if base == nft.TRANSPORT_HEADER and (offset, size) == (2, 2) and LABELS.get(protocol) in {"tcp", "udp"}:
            return head, f"{LABELS[protocol]} {format_ports(*_take_ports(rest))}"
        mask = _take_mask(rest)
        operation, value = _take_comparison(rest)
        width = self._family.bits // 8
        found = Range(
            Address(value.ljust(width, b"\0")),
            Address(mask or (b"\xff" * size).ljust(width, b"\0")),
            operation == nft.CMP_NEQ,
        )
        if base == nft.NETWORK_HEADER and len(value) == size and (mask is None or size == len(mask) == width):
            if offset == SOURCE[self._family] and head.source is None:
                return head._replace(source=found), ""
            if offset == DESTINATION[self._family] and head.destination is None:
                return head._replace(destination=found), ""
        raise UnknownRuleError("vipwire writes no such field of a header")

    def _extension_of(self, element: bytes) -> Extension:
        """Decode an xtables expression; a known beginning is a dictionary look-up."""
        for name, revision, begin in self._begins.get(len(element), ()):
            if element.startswith(begin):
                return Extension(name, revision, element[len(begin) :])
        raise UnknownRuleError("vipwire writes no such match or target")

    def _read_target(self, element: bytes, kind: bytes) -> str:
        if kind == _TARGET:
            return f"-j {decode_target(self._family, self._extension_of(element))}"
        if element in _VERDICT_WORDS:
            return f"-j {_VERDICT_WORDS[element]}"
        verb, code = _LEADING.get(int.from_bytes(element[_CODE_AT : _CODE_AT + 4]), ("", Code.DROP))
        chain = element[_CHAIN_AT:].rstrip(b"\0").decode("ascii", errors="replace")
        if kind != _IMMEDIATE or not verb or encode_jump(code, chain) != element:
            raise UnknownRuleError("vipwire writes no such verdict")
        return f"{verb} {chain}"


def _list_known_beginnings(family: Family) -> dict[int, list[tuple[str, int, bytes]]]:
    """Return the first bytes of vipwire's matches and targets, by their length: name, revision, bytes."""
    known = [("match", name, codec.revision, codec.size) for name, codec in MATCHES.items()]
    known += [("target", name, codec.revision, size_of(family, name)) for name, codec in TARGETS.items()]
    found: dict[int, list[tuple[str, int, bytes]]] = {}
    for kind, name, revision, size in known:
        begin = open_expression(kind, name, revision, size)
        found.setdefault(len(begin) + size, []).append((name, revision, begin))
    return found


_Named = tuple[str, dict[int, memoryview]]
_ALL: Final = b"\xff\xff\xff\xff"


def _split_expressions(expressions: bytes) -> list[bytes]:
    found: list[bytes] = []
    at, end = 0, len(expressions)
    while at < end:
        size = int.from_bytes(expressions[at : at + 2], nft.HOST_ORDER)
        if size < _NAME_AT:
            raise UnknownRuleError("an expression without a name")
        following = at + (size + 3 & ~3)
        found.append(expressions[at:following])
        at = following
    return found


def _read_name(element: bytes) -> _Named:
    ((_, inner),) = walk_attributes(element)
    found = collect_attributes(inner)
    if 1 not in found or 2 not in found:
        raise UnknownRuleError("an expression without a name")
    return decode_text(found[1]), collect_attributes(found[2])


def _take_first(rest: list[_Named], *names: str) -> dict[int, memoryview]:
    if not rest or rest[0][0] not in names:
        raise UnknownRuleError("expressions in another order than ours")
    return rest.pop(0)[1]


def _decode_register_value(fields: dict[int, memoryview], kind: int) -> bytes:
    found = collect_attributes(fields[kind]).get(1) if kind in fields else None
    if found is None:
        raise UnknownRuleError("an expression without a value")
    return bytes(found)


def _take_mask(rest: list[_Named]) -> bytes | None:
    if not rest or rest[0][0] != "bitwise":
        return None
    fields = _take_first(rest, "bitwise")
    if any(_decode_register_value(fields, 5)):
        raise UnknownRuleError("vipwire writes no such exclusive or")
    return _decode_register_value(fields, 4)


def _take_comparison(rest: list[_Named]) -> tuple[int, bytes]:
    fields = _take_first(rest, "cmp")
    operation = decode_number(fields[2])
    if operation not in {nft.CMP_EQ, nft.CMP_NEQ}:
        raise UnknownRuleError("vipwire writes no such comparison")
    return operation, _decode_register_value(fields, 3)


def _take_ports(rest: list[_Named]) -> Sequence[int]:
    if rest and rest[0][0] == "range":
        fields = _take_first(rest, "range")
        if decode_number(fields[2]):
            raise UnknownRuleError("vipwire writes no such range of ports")
        return [int.from_bytes(_decode_register_value(fields, kind)) for kind in (3, 4)]
    operation, value = _take_comparison(rest)
    if operation != nft.CMP_EQ:
        raise UnknownRuleError("vipwire writes no such port")
    return [int.from_bytes(value)] * 2


def _decode_interface(value: bytes) -> str:
    name = value[:-1].decode("ascii", "replace") if value.endswith(b"\0") else value.decode("ascii", "replace") + "+"
    if not _INTERFACE.fullmatch(name.removesuffix("+")):
        raise UnknownRuleError(f"vipwire writes no such interface: {name!r}")
    return name


def _decode_host_order(value: bytes) -> int:
    return int.from_bytes(value, nft.HOST_ORDER)
