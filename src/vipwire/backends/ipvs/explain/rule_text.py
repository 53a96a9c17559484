"""A rule of iptables as data, from the text that iptables-save prints, in the part of the language we use. Pure.

Of what a rule does not say in that part nobody can tell what it does: it is a ValueError.
"""

import shlex
from functools import lru_cache
from typing import Final, NamedTuple

OPTIONS: Final = {
    "-p": 1,
    "-s": 1,
    "-d": 1,
    "-i": 1,
    "--match-set": 2,
    "--src-type": 1,
    "--dst-type": 1,
    "--ctstate": 1,
    "--mark": 1,
    "--tcp-flags": 2,
}
"""The options by which a packet is judged, and how many words follow each."""

_SAID = {"-m": 1, "--comment": 1}
"""Options that judge nothing: the module of others, and words for people."""


class Condition(NamedTuple):
    """One condition: an option of iptables with its words. `wanted` False: it must not hold."""

    option: str
    words: tuple[str, ...]
    wanted: bool = True


class Rule(NamedTuple):
    """What must hold, and what happens then: the target's name and its own options."""

    tests: tuple[Condition, ...]
    target: str
    options: tuple[str, ...] = ()

    def option(self, name: str) -> str:
        """Find the word that follows one of the target's options."""
        try:
            return self.options[self.options.index(name) + 1]
        except (ValueError, IndexError):
            raise ValueError(f"-j {self.target} without {name}") from None


@lru_cache(maxsize=1024)
def parse_rule(text: str) -> Rule:
    """Read a rule without its `-A CHAIN`; raise ValueError for what is not understood."""
    words = shlex.split(text)
    tests: list[Condition] = []
    wanted = True
    at = 0
    while at < len(words):
        word = words[at]
        if word == "!":
            wanted = False
            at += 1
            continue
        if word == "-j":
            return Rule(tuple(tests), words[at + 1], tuple(words[at + 2 :]))
        count = OPTIONS.get(word, _SAID.get(word))
        if count is None or at + count >= len(words):
            raise ValueError(f"{word} in {text!r} is not understood")
        if word in OPTIONS:
            tests.append(Condition(word, tuple(words[at + 1 : at + 1 + count]), wanted))
        wanted = True
        at += 1 + count
    raise ValueError(f"{text!r} does nothing")
