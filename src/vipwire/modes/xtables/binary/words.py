"""Splits a rule into the kernel's parts, and joins them. Pure.

    -s 10.0.0.1/32 -p tcp  -m comment --comment "a/b"  -m tcp --dport 80  -j DNAT --to-destination 10.1.0.1:8080
    head                   match                       match              target

Words that iptables mode does not write raise UnknownRuleError; the tools handle such rules. A match or target is a
name, a revision and a struct (include/uapi/linux/netfilter/xt_*.h, nf_nat.h), padded to 8 bytes. Only the kernel's
newest revisions, which iptables uses, are known.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

from vipwire.errors import VipwireError
from vipwire.model.net import Address, Family, Protocol, format_address, parse_address

K = TypeVar("K")
V = TypeVar("V")


class UnknownRuleError(VipwireError):
    """vipwire cannot encode or decode this rule: a tool must read or write it."""


class Range(NamedTuple):
    """Addresses that equal `address` in the bits of `mask`; `inverted`: all others."""

    address: Address
    mask: Address
    inverted: bool = False


class RuleHead(NamedTuple):
    """The words before the matches. `protocol` 0 is any protocol, an empty `interface` any interface."""

    source: Range | None = None
    destination: Range | None = None
    interface: str = ""
    interface_inverted: bool = False
    protocol: int = 0


PROTOCOLS: Final = {each.label: each.value for each in Protocol}
LABELS: Final = {number: label for label, number in PROTOCOLS.items()}


def parse_head(family: Family, words: str) -> RuleHead:
    found: dict[str, tuple[str, bool]] = {}
    inverted = False
    parts = iter(words.split())
    for word in parts:
        if word == "!":
            inverted = True
            continue
        if word not in {"-s", "-d", "-i", "-p"} or word in found:
            raise UnknownRuleError(f"unknown words of a rule: {words!r}")
        found[word], inverted = (next(parts, ""), inverted), False
    source, destination = (_parse_range(family, *found[word]) if word in found else None for word in ("-s", "-d"))
    interface, interface_inverted = found.get("-i", ("", False))
    label, protocol_inverted = found.get("-p", ("", False))
    if protocol_inverted or interface == "+" or len(interface) > 15 or (label and label not in PROTOCOLS):
        raise UnknownRuleError(f"unknown words of a rule: {words!r}")
    return RuleHead(source, destination, interface, interface_inverted, PROTOCOLS.get(label, 0))


def write_head(head: RuleHead) -> str:
    """Write the words before the matches, in the order of iptables-save."""
    words: list[str] = []
    for option, found in (("-s", head.source), ("-d", head.destination)):
        if found is not None:
            words += [*["!"] * found.inverted, option, _write_range(found)]
    if head.interface:
        words += [*["!"] * head.interface_inverted, "-i", head.interface]
    if head.protocol:
        if head.protocol not in LABELS:
            raise UnknownRuleError(f"unknown protocol {head.protocol}")
        words += ["-p", LABELS[head.protocol]]
    return " ".join(words)


def prefix_mask(family: Family, length: int) -> Address:
    bits = family.bits
    return Address(((1 << bits) - (1 << bits - length)).to_bytes(bits // 8))


@lru_cache(maxsize=1 << 10)
def _parse_address(text: str) -> Address:
    return parse_address(text)


def address_of(family: Family, text: str) -> Address:
    """Parse an address of a family; raise UnknownRuleError for any other text."""
    try:
        address = parse_address(text) if family is Family.IPV4 else _parse_address(text)
    except ValueError as error:
        raise UnknownRuleError(f"not an address: {text!r}") from error
    if len(address) != (4 if family is Family.IPV4 else 16):
        raise UnknownRuleError(f"an address of another family: {text!r}")
    return address


def _parse_range(family: Family, text: str, inverted: bool) -> Range:  # noqa: FBT001 - a pair of the caller's
    address, _, length = text.partition("/")
    first = address_of(family, address)
    if not length.isdecimal():
        return Range(first, address_of(family, length), inverted)
    if int(length) > family.bits:
        raise UnknownRuleError(f"not a prefix: {text!r}")
    return Range(first, prefix_mask(family, int(length)), inverted)


def _write_range(found: Range) -> str:
    bits = int.from_bytes(found.mask)
    length = bits.bit_count()
    width = 8 * len(found.mask)
    contiguous = bits == (1 << width) - (1 << width - length)
    return f"{format_address(found.address)}/{length if contiguous else format_address(found.mask)}"


LARGEST_PORT: Final = 0xFFFF


class Extension(NamedTuple):
    """A match or a target in the kernel's form."""

    name: str
    revision: int
    data: bytes


class Codec(NamedTuple):
    """The struct of one match or target: `read` encodes its words, `write` decodes the struct."""

    revision: int
    size: int
    read: Callable[[Family, str], bytes]
    write: Callable[[Family, bytes], str]


def look_up(table: Mapping[K, V], key: K) -> V:
    """Return the data of words, or the words of data. Raise UnknownRuleError if vipwire does not write them."""
    if key not in table:
        raise UnknownRuleError(f"vipwire writes no such match: {key!r}")
    return table[key]


def text_of(data: bytes) -> str:
    """Decode a text with NULs at its end."""
    return data.partition(b"\0")[0].decode("ascii", errors="replace")
