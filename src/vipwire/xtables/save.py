"""From the text of iptables-save to chains and their rules. Pure; a line that does not parse raises DecodeError."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from vipwire.errors import DecodeError

Chains: TypeAlias = dict[str, list[str]]
"""The chains of a table, each with its rules in order, without `-A CHAIN`."""

BUILT_IN: Final = frozenset({"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"})
"""The chains that the kernel calls, in whichever table: nobody owns them."""

_TARGET: Final = re.compile(r"(?:^| )-[jg] (\S+)")
_COMMENT: Final = re.compile(r'--comment (?:"(?:[^"\\]|\\.)*"|\S+)')


def read_tables(text: str) -> dict[str, Chains]:
    """Read one table or several, without counters."""
    tables: dict[str, Chains] = {}
    chains: Chains = {}
    rules: list[str] = []
    current = None
    for line in text.splitlines():
        if line.startswith("-A "):
            _, chain, rule = (*line.split(" ", 2), "")[:3]
            if chain != current:
                if chain not in chains:
                    raise DecodeError(f"iptables-save: a rule of the undeclared chain {chain!r}: {line!r}")
                current, rules = chain, chains[chain]
            # The tool prints two blanks here (libxt_nfacct.c), and reads one.
            rules.append(rule.replace("--nfacct-name  ", "--nfacct-name ") if "nfacct" in rule else rule)
        elif line.startswith(":") and tables:
            chains[line[1:].partition(" ")[0]] = []
        elif line.startswith("*"):
            chains = tables.setdefault(line[1:].strip(), {})
            current = None
        elif line and not line.startswith("#") and line != "COMMIT":
            raise DecodeError(f"iptables-save: neither a chain nor a rule of a table: {line!r}")
    return tables


def read_table(text: str) -> Chains:
    """Read the part of one table: its chains, none if there is no such table."""
    return next(iter(read_tables(text).values()), {})


class CountedRule(NamedTuple):
    """A rule of a chain, and how many packets it has met."""

    packets: int
    chain: str
    rule: str


def counted_rules(text: str) -> Iterator[CountedRule]:
    """Yield the rules of what `iptables-save -c` prints; pass over all else."""
    for line in text.splitlines():
        counters, said, rest = line.partition("] -A ")
        packets = counters[1:].partition(":")[0]
        if said and line.startswith("[") and packets.isdecimal():
            chain, _, rule = rest.partition(" ")
            yield CountedRule(int(packets), chain, rule)


def target(rule: str) -> str:
    """Name what a rule jumps or goes to; "" if it only counts."""
    found = _TARGET.search(_COMMENT.sub("", rule) if "--comment" in rule else rule)
    return found[1] if found else ""
