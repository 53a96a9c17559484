"""From what iptables-save prints to chains, piece by piece, where it is known what most chains should hold. Pure.

A table of 5,000 Services with ten endpoints is 180,000 lines. Those of a chain that holds what it should are one
comparison, and its rules are the very objects that were known: neither the text nor a second copy of the rules is
ever in memory as a whole. Whatever differs is read line by line (`read_table`).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from vipwire.modes.xtables.save import Chains, rule_of, undeclared, unknown_line

_AHEAD: Final = 1 << 16
"""So much text is looked at from a line on; a chain whose known rules are longer is read line by line."""
_NO_RULES: Final[tuple[str, ...]] = ()


def read_stream(pieces: Iterable[str], known: Mapping[str, tuple[str, ...]]) -> Chains:
    """Read one table, printed without counters. Raise DecodeError."""
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
            at = _passed(chains, known, text, at) or _added(chains, text, at, end)
            continue
        if text.startswith(":", at) and inside:
            chains[text[at + 1 : end].partition(" ")[0]] = _NO_RULES
        elif not _is_beside(text[at:end]):
            raise unknown_line(text[at:end])
        inside = inside or text.startswith("*", at)
        at = min(end + 1, len(text))


def _is_beside(line: str) -> bool:
    """Report whether a line is none of a chain or a rule, and may be there."""
    return not line or line.startswith(("#", "*")) or line == "COMMIT"


def _passed(chains: dict[str, Sequence[str]], known: Mapping[str, tuple[str, ...]], text: str, at: int) -> int:
    """Take a chain's rules if they begin here and are those that are known; return where they end, or 0."""
    chain = text[at + 3 : text.find(" ", at + 3)]
    rules = known.get(chain)
    if not rules or chains.get(chain) is not _NO_RULES:
        return 0
    lines = f"-A {chain} " + f"\n-A {chain} ".join(rules) + "\n"
    if not text.startswith(lines, at):
        return 0
    chains[chain] = rules
    return at + len(lines)


def _added(chains: dict[str, Sequence[str]], text: str, at: int, end: int) -> int:
    """Read one rule; return where the next line begins."""
    line = text[at:end]
    _, chain, rule = (*line.split(" ", 2), "")[:3]
    if chain not in chains:
        raise undeclared(chain, line)
    rules = chains[chain]
    if not isinstance(rules, list):
        rules = chains[chain] = [*rules]
    rules.append(rule_of(rule))
    return min(end + 1, len(text))
