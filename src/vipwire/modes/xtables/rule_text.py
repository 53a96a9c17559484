"""Parses an iptables rule as iptables-save prints it. Pure.

The parser stops at the first option that `match` and `traversal` do not know, and stores it in `unknown`: the effect
of such a rule is unknown.
"""

import shlex
from functools import lru_cache
from typing import Final, NamedTuple

from vipwire.errors import DecodeError

_RECENT: Final = {"--name": 1, "--mask": 1, "--rsource": 0}
_PORTED: Final = frozenset({"", "tcp", "udp", "sctp"})


class _Option(NamedTuple):
    """An option of a match: its number of words, the matches that have it, and the options that refine it."""

    words: int
    modules: frozenset[str] = frozenset()
    details: dict[str, int] = {}  # noqa: RUF012 - never changed


def _declare_option(module: str, words: int = 1, details: dict[str, int] | None = None) -> _Option:
    return _Option(words, frozenset({module}), details or {})


_OPTIONS: Final = {
    **dict.fromkeys(("-s", "-d", "-i", "-p"), _Option(1)),
    "--dport": _Option(1, _PORTED),
    "--dports": _declare_option("multiport"),
    "--ctorigdst": _declare_option("conntrack"),
    "--ctorigdstport": _declare_option("conntrack"),
    "--ctdir": _declare_option("conntrack"),
    "--ctstate": _declare_option("conntrack"),
    "--mark": _declare_option("mark"),
    "--src-type": _declare_option("addrtype"),
    "--dst-type": _declare_option("addrtype"),
    "--tcp-flags": _declare_option("tcp", 2),
    "--match-set": _declare_option("set", 2),
    "--mode": _declare_option("statistic", 1, {"--probability": 1, "--every": 1, "--packet": 1}),
    "--rcheck": _declare_option("recent", 0, {"--seconds": 1, "--reap": 0, **_RECENT}),
    "--set": _declare_option("recent", 0, _RECENT),
    "--bytecode": _declare_option("bpf"),
}
"""The options that decide about a packet."""
_JUDGES_NOTHING: Final = frozenset({"--comment", "--nfacct-name"})
"""Options for readers or counters only; one word follows."""


class Condition(NamedTuple):
    """One match: its option with the following words, and its further options, words joined by spaces.

    `wanted` False: inverted.
    """

    option: str
    words: tuple[str, ...]
    wanted: bool = True
    details: tuple[tuple[str, str], ...] = ()

    def find_option(self, name: str) -> str:
        """Return the words of a further option; raise ValueError if missing."""
        for option, text in self.details:
            if option == name:
                return text
        raise ValueError(f"{self.option} without {name}")


class ParsedRule(NamedTuple):
    """The conditions of a rule, its target's name and the target's options; a rule without target only counts.

    `goto`: the packet does not return from the target chain. `unknown` is the first unknown word.
    """

    conditions: tuple[Condition, ...]
    target: str = ""
    options: tuple[str, ...] = ()
    goto: bool = False
    unknown: str = ""

    def find_option(self, name: str) -> str:
        """Return the word behind one of the target's options; raise ValueError if missing."""
        try:
            return self.options[self.options.index(name) + 1]
        except (ValueError, IndexError):
            raise ValueError(f"-j {self.target} without {name}") from None


@lru_cache(maxsize=4096)
def parse_rule(text: str) -> ParsedRule:
    """Parse a rule without its `-A CHAIN`; raise DecodeError for an open quote."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise DecodeError(f"iptables-save: {error} in the rule {text!r}") from error
    return _Reader(words).read_rule()


class _Reader:
    """The words of a rule in order. `_module` is the current match, whose options follow."""

    def __init__(self, words: list[str]) -> None:
        self._words, self._at, self._module = words, 0, ""

    def read_rule(self) -> ParsedRule:
        """Parse up to the first unknown word."""
        conditions: list[Condition] = []
        while self._at < len(self._words):
            word, first = self._words[self._at], self._at
            if word in ("-j", "-g"):
                return self._read_target(tuple(conditions))
            if word == "-m" and (module := self._consume(1)) is not None:
                self._module = module[0]
                continue
            if word in _JUDGES_NOTHING and self._consume(1) is not None:
                continue
            condition = self._read_condition()
            if condition is None:
                return ParsedRule(tuple(conditions), unknown=self._words[first])
            conditions.append(condition)
        return ParsedRule(tuple(conditions))

    def _read_target(self, conditions: tuple[Condition, ...]) -> ParsedRule:
        word, *rest = self._words[self._at :]
        if not rest:
            return ParsedRule(conditions, unknown=word)
        return ParsedRule(conditions, rest[0], tuple(rest[1:]), word == "-g")

    def _read_condition(self) -> Condition | None:
        wanted = self._words[self._at] != "!"
        self._at += not wanted
        name = self._words[self._at] if self._at < len(self._words) else ""
        option = _OPTIONS.get(name)
        if option is None or (option.modules and self._module not in option.modules):
            return None
        words = self._consume(option.words)
        details: list[tuple[str, str]] = []
        while words is not None and self._at < len(self._words):
            detail = self._words[self._at]
            if detail not in option.details:
                break
            said = self._consume(option.details[detail])
            if said is None:
                return None
            details.append((detail, " ".join(said)))
        return None if words is None else Condition(name, words, wanted, tuple(details))

    def _consume(self, count: int) -> tuple[str, ...] | None:
        """Consume an option and `count` words; None, without consuming any, if too few follow."""
        end = self._at + 1 + count
        if end > len(self._words):
            return None
        words = tuple(self._words[self._at + 1 : end])
        self._at = end
        return words
