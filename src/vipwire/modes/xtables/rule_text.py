"""A rule of iptables as data, from the text that iptables-save prints. Pure.

Options whose meaning `match` and `traversal` know are read; the first word that is none of them is kept in `unknown`,
and nothing behind it is read: who judges a packet by such a rule cannot tell what it does.
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


def _of(module: str, words: int = 1, details: dict[str, int] | None = None) -> _Option:
    return _Option(words, frozenset({module}), details or {})


_OPTIONS: Final = {
    **dict.fromkeys(("-s", "-d", "-i", "-p"), _Option(1)),
    "--dport": _Option(1, _PORTED),
    "--dports": _of("multiport"),
    "--ctorigdst": _of("conntrack"),
    "--ctorigdstport": _of("conntrack"),
    "--ctdir": _of("conntrack"),
    "--ctstate": _of("conntrack"),
    "--mark": _of("mark"),
    "--src-type": _of("addrtype"),
    "--dst-type": _of("addrtype"),
    "--tcp-flags": _of("tcp", 2),
    "--match-set": _of("set", 2),
    "--mode": _of("statistic", 1, {"--probability": 1, "--every": 1, "--packet": 1}),
    "--rcheck": _of("recent", 0, {"--seconds": 1, "--reap": 0, **_RECENT}),
    "--set": _of("recent", 0, _RECENT),
    "--bytecode": _of("bpf"),
}
"""The options by which a packet is judged."""
_JUDGES_NOTHING: Final = frozenset({"--comment", "--nfacct-name"})
"""Words for people, and what only counts; one word follows."""


class Condition(NamedTuple):
    """One match: its option with the words that follow, and its further options, words joined by blanks.

    `wanted` False: it must not hold.
    """

    option: str
    words: tuple[str, ...]
    wanted: bool = True
    details: tuple[tuple[str, str], ...] = ()

    def detail(self, name: str) -> str:
        """Find what an option says; raise ValueError if it is not there."""
        for option, text in self.details:
            if option == name:
                return text
        raise ValueError(f"{self.option} without {name}")


class ParsedRule(NamedTuple):
    """The conditions of a rule, its target's name and the target's options; no target if it only counts.

    `goto`: the target is a chain that is not come back from. `unknown` is the first word that is not understood.
    """

    conditions: tuple[Condition, ...]
    target: str = ""
    options: tuple[str, ...] = ()
    goto: bool = False
    unknown: str = ""

    def option(self, name: str) -> str:
        """Find the word that follows one of the target's options; raise ValueError if there is none."""
        try:
            return self.options[self.options.index(name) + 1]
        except (ValueError, IndexError):
            raise ValueError(f"-j {self.target} without {name}") from None


@lru_cache(maxsize=4096)
def parse_rule(text: str) -> ParsedRule:
    """Read a rule without its `-A CHAIN`; raise DecodeError where its quotes do not end."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise DecodeError(f"iptables-save: {error} in the rule {text!r}") from error
    return _Reader(words).rule()


class _Reader:
    """The words of a rule, one after the other. `_module` is the match whose options are read."""

    def __init__(self, words: list[str]) -> None:
        self._words, self._at, self._module = words, 0, ""

    def rule(self) -> ParsedRule:
        """Read all of it, up to the first word that is not understood."""
        conditions: list[Condition] = []
        while self._at < len(self._words):
            word, first = self._words[self._at], self._at
            if word in ("-j", "-g"):
                return self._target(tuple(conditions))
            if word == "-m" and (module := self._follow(1)) is not None:
                self._module = module[0]
                continue
            if word in _JUDGES_NOTHING and self._follow(1) is not None:
                continue
            condition = self._condition()
            if condition is None:
                return ParsedRule(tuple(conditions), unknown=self._words[first])
            conditions.append(condition)
        return ParsedRule(tuple(conditions))

    def _target(self, conditions: tuple[Condition, ...]) -> ParsedRule:
        word, *rest = self._words[self._at :]
        if not rest:
            return ParsedRule(conditions, unknown=word)
        return ParsedRule(conditions, rest[0], tuple(rest[1:]), word == "-g")

    def _condition(self) -> Condition | None:
        """Read one match; None where it is not understood."""
        wanted = self._words[self._at] != "!"
        self._at += not wanted
        name = self._words[self._at] if self._at < len(self._words) else ""
        option = _OPTIONS.get(name)
        if option is None or (option.modules and self._module not in option.modules):
            return None
        words = self._follow(option.words)
        details: list[tuple[str, str]] = []
        while words is not None and self._at < len(self._words):
            detail = self._words[self._at]
            if detail not in option.details:
                break
            said = self._follow(option.details[detail])
            if said is None:
                return None
            details.append((detail, " ".join(said)))
        return None if words is None else Condition(name, words, wanted, tuple(details))

    def _follow(self, count: int) -> tuple[str, ...] | None:
        """Consume an option and the words that follow it; None, and stay, if there are too few."""
        end = self._at + 1 + count
        if end > len(self._words):
            return None
        words = tuple(self._words[self._at + 1 : end])
        self._at = end
        return words
