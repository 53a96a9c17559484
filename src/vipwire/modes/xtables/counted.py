"""Reads the rules of `iptables-save -c` with their packets. Pure."""

from collections.abc import Iterator
from typing import NamedTuple


class CountedRule(NamedTuple):
    """A rule of a chain, and its number of packets."""

    packets: int
    chain: str
    rule: str


def counted_rules(text: str) -> Iterator[CountedRule]:
    """Yield the rules of `iptables-save -c` output; skip other lines."""
    for line in text.splitlines():
        counters, said, rest = line.partition("] -A ")
        packets = counters[1:].partition(":")[0]
        if said and line.startswith("[") and packets.isdecimal():
            chain, _, rule = rest.partition(" ")
            yield CountedRule(int(packets), chain, rule)
