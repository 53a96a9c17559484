"""Numbers for frontends; a tree of chains branches on their base-4 digits.

    digit 0              0: at an address   1: at a node port of any address of the node
    the next 16 (64)     the address, its lowest digit first
    one                  the protocol
    the last 8           the port, its highest digit first

Addresses differ in their low bits, because Kubernetes allocates VIPs from a few ranges, so these come first. Rules
match ports only by ranges, so a tree branches on ports from the highest digit.
"""

import hashlib
from base64 import b32encode
from functools import lru_cache
from typing import Final

from vipwire.model.net import Address, Family, Protocol
from vipwire.modes.iptables.rules.names import LARGEST_NAME
from vipwire.modes.iptables.rules.words import match_masked
from vipwire.modes.xtables.words import LOCAL_DESTINATION
from vipwire.plan.plan import FrontendKey

_PROTOCOLS: Final = (Protocol.TCP, Protocol.UDP, Protocol.SCTP)
ANY_PORT: Final = (Protocol.TCP, 0)
"""The protocol and port of a chain that matches addresses only."""

_READABLE: Final = 32
"""Limit of address bits in a chain's name."""


def encode_frontend(family: Family, key: FrontendKey) -> int:
    """Return a frontend's code, unique in its family."""
    width = family.bits
    address = 0 if key.address is None else int.from_bytes(key.address)
    behind = _PROTOCOLS.index(key.protocol) | _reverse_bits(key.port) << 2
    return (key.address is None) | address << 2 | behind << (2 + width)


def decode_frontend(family: Family, code: int) -> FrontendKey:
    width = family.bits
    address = Address((code >> 2 & (1 << width) - 1).to_bytes(width // 8))
    behind = code >> (2 + width)
    return FrontendKey(None if code & 1 else address, _PROTOCOLS[behind & 3], _reverse_bits(behind >> 2))


@lru_cache(maxsize=1 << 12)
def _reverse_bits(port: int) -> int:
    return sum((port >> (14 - 2 * place) & 3) << 2 * place for place in range(8))


def find_first_difference(codes: "list[int] | tuple[int, ...]") -> int:
    """Return the first digit in which at least two codes differ."""
    first, differences = codes[0], 0
    for code in codes:
        differences |= code ^ first
    return ((differences & -differences).bit_length() - 1) // 2


def select_low_digits(code: int, count: int) -> int:
    return code & ((1 << 2 * count) - 1)


def extract_digit(code: int, at: int) -> int:
    return code >> 2 * at & 3


class Zone:
    """The digits of one family's codes, as matches and as names."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self._protocol_at = 1 + family.bits // 2
        self.ports_at = self._protocol_at + 1

    def write_match(self, at: int, known: int) -> str:
        """Match frontends whose digit `at` equals that of `known`; `known` holds the digits up to `at`."""
        value = extract_digit(known, at)
        if at == 0:
            return LOCAL_DESTINATION if value else ""
        if at < self._protocol_at:
            shift = 2 * (at - 1)
            return match_masked(self.family, value << shift, 3 << shift)
        protocol = self._decode_protocol(known)
        if at == self._protocol_at:
            return f"-p {protocol.label}"
        low, high = self._compute_port_bounds(at, known)
        return f"-p {protocol.label} -m {protocol.label} --dport {low}:{high}"

    def write_chain_name(self, prefix: str, at: int, known: int) -> str:
        name = prefix + self._write_suffix(at, known)
        if len(name) > LARGEST_NAME:
            raise ValueError(f"{name!r} is too long for a chain")
        return name

    def _write_suffix(self, at: int, known: int) -> str:
        if at == 0:
            return "LOCAL" if known & 1 else "ADDR"
        if at < self._protocol_at and 2 * at <= _READABLE:
            return f"{2 * at}-{select_low_digits(known, at + 1) >> 2:X}"
        if known & 1 and at >= self._protocol_at:
            label = self._decode_protocol(known).name
            return (
                label
                if at == self._protocol_at
                else f"{label}-{self._compute_port_bounds(at, known)[0]}-{self._compute_known_length(at)}"
            )
        text = f"{at}-{select_low_digits(known, at + 1):x}"
        return b32encode(hashlib.sha256(text.encode()).digest()[:10]).decode()

    def _decode_protocol(self, known: int) -> Protocol:
        return _PROTOCOLS[extract_digit(known, self._protocol_at)]

    def _compute_known_length(self, at: int) -> int:
        return 2 * (at - self._protocol_at)

    def _compute_port_bounds(self, at: int, known: int) -> tuple[int, int]:
        """Return the lowest and highest port that begin with the digits up to `at`."""
        first = self._protocol_at + 1
        low = sum(extract_digit(known, place) << 14 - 2 * (place - first) for place in range(first, at + 1))
        return low, low + (1 << 16 - self._compute_known_length(at)) - 1
