"""Parses the output of iptables-save into chains and rules. Pure; a line that does not parse raises DecodeError."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from vipwire.errors import DecodeError

Chains: TypeAlias = Mapping[str, Sequence[str]]
"""The chains of a table, each with its rules in order, without `-A CHAIN`."""


class ChainName(NamedTuple):
    """A chain of a table."""

    table: str
    chain: str


BUILT_IN: Final = frozenset({"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"})
"""The built-in chains of all tables."""

_TARGET: Final = re.compile(r"(?:^| )-[jg] (\S+)")
_COMMENT: Final = re.compile(r'--comment (?:"(?:[^"\\]|\\.)*"|\S+)')


def read_tables(text: str) -> dict[str, dict[str, list[str]]]:
    """Parse one or several tables, without counters."""
    tables: dict[str, dict[str, list[str]]] = {}
    chains: dict[str, list[str]] = {}
    rules: list[str] = []
    current = None
    for line in text.splitlines():
        if line.startswith("-A "):
            _, chain, rule = (*line.split(" ", 2), "")[:3]
            if chain != current:
                if chain not in chains:
                    raise undeclared_error(chain, line)
                current, rules = chain, chains[chain]
            rules.append(rule_of(rule))
        elif line.startswith(":") and tables:
            chains[line[1:].partition(" ")[0]] = []
        elif line.startswith("*"):
            chains = tables.setdefault(line[1:].strip(), {})
            current = None
        elif line and not line.startswith("#") and line != "COMMIT":
            raise unknown_line(line)
    return tables


def rule_of(printed: str) -> str:
    """Return a rule as the tool reads it: libxt_nfacct.c prints two spaces in one place, and reads one."""
    return printed.replace("--nfacct-name  ", "--nfacct-name ") if "nfacct" in printed else printed


def undeclared_error(chain: str, line: str) -> DecodeError:
    return DecodeError(f"iptables-save: a rule of the undeclared chain {chain!r}: {line!r}")


def unknown_line(line: str) -> DecodeError:
    return DecodeError(f"iptables-save: neither a chain nor a rule of a table: {line!r}")


def read_table(text: str) -> dict[str, list[str]]:
    return next(iter(read_tables(text).values()), {})


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


def target(rule: str) -> str:
    """Return the target of a jump or goto; "" if the rule only counts."""
    found = _TARGET.search(_COMMENT.sub("", rule) if "--comment" in rule else rule)
    return found[1] if found else ""


_AHEAD: Final = 1 << 16
"""Characters of text kept ahead of a line; a chain with longer known rules is read line by line."""
_NO_RULES: Final[tuple[str, ...]] = ()


def read_stream(pieces: Iterable[str], known: Mapping[str, tuple[str, ...]]) -> Chains:
    """Parse one table without counters, given the expected rules of most chains. Raise DecodeError.

    A table of 5,000 Services with ten endpoints has 180,000 lines. A chain with its expected rules costs one
    comparison and reuses the known rule objects, so memory never holds the whole text or a second copy. Other chains
    are read line by line.
    """
    chains: dict[str, Sequence[str]] = {}
    source, more, text, at, inside = iter(pieces), True, "", 0, False
    while True:
        end = text.find("\n", at)
        if more and (end < 0 or len(text) - at < _AHEAD):
            piece = next(source, None)
            more, text, at = piece is not None, text[at:] + (piece or ""), 0
            continue
        if end < 0:
            if at == len(text):
                return chains
            end = len(text)
        if text.startswith("-A ", at):
            at = _take_known(chains, known, text, at) or _add_rule(chains, text, at, end)
            continue
        if text.startswith(":", at) and inside:
            chains[text[at + 1 : end].partition(" ")[0]] = _NO_RULES
        elif not _is_beside(text[at:end]):
            raise unknown_line(text[at:end])
        inside = inside or text.startswith("*", at)
        at = min(end + 1, len(text))


def _is_beside(line: str) -> bool:
    """Report whether a line holds neither a chain nor a rule, but belongs to the format."""
    return not line or line.startswith(("#", "*")) or line == "COMMIT"


def _take_known(chains: dict[str, Sequence[str]], known: Mapping[str, tuple[str, ...]], text: str, at: int) -> int:
    """Take a chain's rules if the expected ones begin here; return the position behind them, or 0."""
    chain = text[at + 3 : text.find(" ", at + 3)]
    rules = known.get(chain)
    if not rules or chains.get(chain) is not _NO_RULES:
        return 0
    lines = f"-A {chain} " + f"\n-A {chain} ".join(rules) + "\n"
    if not text.startswith(lines, at):
        return 0
    chains[chain] = rules
    return at + len(lines)


def _add_rule(chains: dict[str, Sequence[str]], text: str, at: int, end: int) -> int:
    line = text[at:end]
    _, chain, rule = (*line.split(" ", 2), "")[:3]
    if chain not in chains:
        raise undeclared_error(chain, line)
    rules = chains[chain]
    if not isinstance(rules, list):
        rules = chains[chain] = [*rules]
    rules.append(rule_of(rule))
    return min(end + 1, len(text))
