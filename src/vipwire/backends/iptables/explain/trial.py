"""One rule, tried on one packet: its matches in their order, then its target. Pure.

It understands the words in which our rules are written and iptables-save prints them, and complains (RuleSyntaxError)
about any other, so that nothing is ever explained that was not understood.
"""

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from vipwire.backends.iptables.rules import bpf
from vipwire.model.net import Address, Prefix, format_address, format_endpoint, parse_address

if TYPE_CHECKING:
    from vipwire.backends.iptables.explain.walk import Walker

_SCALE: Final = 1 << 31
"""The kernel keeps chances in 31 bits."""
CERTAIN: Final = Fraction(1)
NEVER: Final = Fraction(0)


class RuleSyntaxError(ValueError):
    """The rule holds a word that has no meaning here."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of the packet at a rule that matches: `word` is the target, `chain` where it goes from here."""

    word: str = ""
    chain: str = ""
    goto: bool = False
    effects: tuple[str, ...] = ()


@dataclass(slots=True)
class Trial:
    """A rule at work on the walker's packet. `chance` is how likely it matches, as far as it is left to chance."""

    walker: "Walker"
    words: list[str]
    chance: Fraction = CERTAIN
    effects: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, walker: "Walker", rule: str) -> "Trial":
        """Read a rule."""
        try:
            words = shlex.split(rule)
        except ValueError as error:
            raise RuleSyntaxError(rule) from error
        if words and words[0].startswith("#"):  # what `read` says of a dispatch chain that is not in order
            raise RuleSyntaxError(rule)
        return cls(walker, words[::-1])

    def matches(self) -> bool:
        """Try the matches up to the target; without a target, up to the end."""
        while self.words and self.words[-1] not in ("-j", "-g"):
            wanted = not self._skip("!")
            word = self.words.pop()
            if word == "-m":
                self.words.pop()
                continue
            try:
                found = _MATCHES[word](self)
            except (KeyError, IndexError, ValueError) as error:
                raise RuleSyntaxError(word) from error
            if found is not wanted:
                return False
        return True

    def target(self) -> Verdict:
        """Do what the rule does to a packet that matches."""
        if not self.words:
            return Verdict(effects=tuple(self.effects))
        goto = self.words.pop() == "-g"
        word = self.words.pop()
        chain = ""
        match word:
            case "MARK":
                self._mark(self._after("--set-xmark"))
            case "DNAT":
                self._translate(self._after("--to-destination"))
            case "MASQUERADE":
                self.walker.run.masqueraded = True
                self.effects.append("masquerades it: the endpoint sees this node")
            case "DROP":
                self.effects.append("drops it")
            case "REJECT":
                self.effects.append("refuses it")
            case "ACCEPT":
                self.effects.append("accepts it")
            case "RETURN":
                self.effects.append("goes back")
            case _ if word.isupper() and not word.startswith("KUBE-"):
                raise RuleSyntaxError(word)
            case _:
                chain = word
                self.effects.append(f"goes to {word}")
        return Verdict("" if chain else word, chain, goto, tuple(self.effects))

    def _after(self, option: str) -> str:
        if not self._skip(option):
            raise RuleSyntaxError(option)
        return self.words.pop()

    def _skip(self, word: str) -> bool:
        if self.words and self.words[-1] == word:
            self.words.pop()
            return True
        return False

    def _mark(self, text: str) -> None:
        value, _, mask = text.partition("/")
        walker = self.walker
        walker.mark = (walker.mark & ~int(mask or "0xffffffff", 16)) ^ int(value, 16)
        self.effects.append(f"the mark is {walker.mark:#x}")

    def _translate(self, text: str) -> None:
        walker = self.walker
        if text.startswith("[") or text.count(":") == 1:
            text, _, port = text.rpartition(":")
            walker.port = int(port)
        walker.destination = parse_address(text.strip("[]"))
        walker.run.target = walker.destination, walker.port
        self.effects.append(f"sends it to {format_endpoint(walker.destination, walker.port)}")

    def source(self) -> bool:
        """Match `-s`."""
        return self.walker.packet.source in Prefix.parse(self.words.pop())

    def destination(self) -> bool:
        """Match `-d`."""
        return self.walker.destination in Prefix.parse(self.words.pop())

    def interface(self) -> bool:
        """Match `-i`, where a `+` at the end stands for any further letters."""
        name, here = self.words.pop(), self.walker.packet.interface
        return here.startswith(name[:-1]) if name.endswith("+") else here == name

    def protocol(self) -> bool:
        """Match `-p`."""
        return self.words.pop() == self.walker.packet.protocol.label

    def port(self) -> bool:
        """Match `--dport`, one or a range."""
        low, _, high = self.words.pop().partition(":")
        return int(low) <= self.walker.port <= int(high or low)

    def comment(self) -> bool:
        """Pass over a comment."""
        self.words.pop()
        return True

    def local_destination(self) -> bool:
        """Match `--dst-type LOCAL`."""
        return self._local(self.words.pop(), self.walker.destination, known=self.walker.to_own)

    def local_source(self) -> bool:
        """Match `--src-type LOCAL`."""
        return self._local(self.words.pop(), self.walker.packet.source, known=self.walker.packet.from_node)

    def _local(self, kind: str, address: Address, *, known: bool) -> bool:
        if kind != "LOCAL":
            raise RuleSyntaxError(kind)
        return known or address in self.walker.table.own

    def marked(self) -> bool:
        """Match `--mark`."""
        value, _, mask = self.words.pop().partition("/")
        return self.walker.mark & int(mask or "0xffffffff", 16) == int(value, 16)

    def state(self) -> bool:
        """Match `--ctstate`: this is a connection's first packet."""
        states = self.words.pop().split(",")
        return "NEW" in states or ("DNAT" in states and self.walker.run.target is not None)

    def by_chance(self) -> bool:
        """Match `--mode random` and `--mode nth`, if the walker has drawn this rule."""
        mode = self.words.pop()
        if mode == "random":
            self.chance = Fraction(round(float(self._after("--probability")) * _SCALE), _SCALE)
        elif mode == "nth":
            self.chance = Fraction(1, int(self._after("--every")))
            self._after("--packet")
        else:
            raise RuleSyntaxError(mode)
        return self.walker.draw(self.chance)

    def hashed(self) -> bool:
        """Match `-m bpf`: our program, which hashes the client's address."""
        return bpf.matches(self.words.pop(), self.walker.packet.source)

    def recalled(self) -> bool:
        """Match `-m recent --rcheck`: the client is in a list, and was so recently."""
        seconds = int(self._after("--seconds"))
        self._skip("--reap")
        return self.walker.recall(self._list(), seconds)

    def remembered(self) -> bool:
        """Match `-m recent --set`, always."""
        self.effects.append(f"remembers {format_address(self.walker.packet.source)} in {self._list()}")
        return True

    def _list(self) -> str:
        name = self._after("--name")
        self._after("--mask")
        if not self._skip("--rsource"):
            raise RuleSyntaxError("recent")
        return name


_MATCHES: Final[dict[str, Callable[[Trial], bool]]] = {
    "-s": Trial.source,
    "-d": Trial.destination,
    "-i": Trial.interface,
    "-p": Trial.protocol,
    "--dport": Trial.port,
    "--comment": Trial.comment,
    "--nfacct-name": Trial.comment,
    "--dst-type": Trial.local_destination,
    "--src-type": Trial.local_source,
    "--mark": Trial.marked,
    "--ctstate": Trial.state,
    "--mode": Trial.by_chance,
    "--bytecode": Trial.hashed,
    "--rcheck": Trial.recalled,
    "--set": Trial.remembered,
}
