"""A packet's way through the rules: what the kernel would do with its first packet, rule by rule. Pure.

Chance is a parameter: `skipped` is how many of the rules that match by chance let the packet pass. Only the chain of
a pool has such rules, so that as many walks as it has of them, and one more, are all that can happen.

Of a dispatch chain only the entries of the packet's own frontend are tried: no other can match, in whatever order.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Final

from vipwire.backends.iptables import names
from vipwire.backends.iptables.explain.trial import CERTAIN, RuleSyntaxError, Trial, Verdict
from vipwire.backends.iptables.names import CHAIN, ENTRY, FILTER, NAT, ROOT, ROOTS, Key, Rules
from vipwire.backends.iptables.read import last_port
from vipwire.backends.iptables.rules.frontend_code import ANY_PORT, decode, encode
from vipwire.backends.iptables.rules.skeleton import jump_keys
from vipwire.model.net import Address, Family, Protocol
from vipwire.plan.plan import FrontendKey
from vipwire.plan.resolve import Packet
from vipwire.reconcile.explainer import ObjectState, Step

_DEEPEST: Final = 16
_JUMPS: Final = jump_keys()[::-1]
"""Each was put before all others of its chain: the last comes first."""
_ENDS: Final = frozenset({"DROP", "REJECT", "ACCEPT"})

Recall = Callable[[str], float | None]
"""Tells how many seconds ago the packet's source was last seen in a list of `-m recent`; None if it is not in it."""


@dataclass(frozen=True)
class Table:
    """What was observed, what should be, and this node's own addresses."""

    family: Family
    observed: Mapping[Key, Rules]
    wanted: Mapping[Key, Rules]
    own: frozenset[Address] = frozenset()

    @cached_property
    def ranges(self) -> Mapping[tuple[str, Address | None, Protocol], list[tuple[range, int]]]:
        """The ranges of ports by table, address and protocol, with the number of the entry."""
        found: dict[tuple[str, Address | None, Protocol], list[tuple[range, int]]] = {}
        for objects in (self.observed, self.wanted):
            for key, rules in objects.items():
                if key.kind == ENTRY and key.chain == names.RANGES and isinstance(key.detail, int):
                    front, last = decode(self.family, key.detail), max(map(last_port, rules))
                    place = (key.table, front.address, front.protocol)
                    found.setdefault(place, []).append((range(front.port, last + 1), key.detail))
        return found


@dataclass(slots=True)
class Run:
    """One walk. `target` is where DNAT sent the packet, `share` how likely this way is, `more` whether others are.

    `met` is the list that the client was found in, with the seconds that it is still remembered.
    """

    verdict: str = ""
    target: tuple[Address, int] | None = None
    masqueraded: bool = False
    share: Fraction = CERTAIN
    more: bool = False
    met: float | None = None
    uncertain: bool = False
    steps: list[Step] = field(default_factory=list)


def run(table: Table, packet: Packet, skipped: int = 0, recall: Recall = lambda _: None) -> Run:
    """Follow the first packet of a connection through the chains that it meets."""
    walker = Walker(table, packet, skipped, recall)
    first = "OUTPUT" if packet.from_node else "PREROUTING"
    walker.hook(NAT, first)
    if packet.from_node and walker.hook(FILTER, "OUTPUT"):
        return walker.run
    local = walker.to_own
    later = [(NAT, "POSTROUTING"), (FILTER, "INPUT")] if packet.from_node else [(FILTER, "INPUT")]
    if not local:
        later = [(NAT, "POSTROUTING")] if packet.from_node else [(FILTER, "FORWARD"), (NAT, "POSTROUTING")]
    for table_name, chain in later:
        if walker.hook(table_name, chain):
            break
    return walker.run


class Walker:
    """The packet, and where it is."""

    def __init__(self, table: Table, packet: Packet, skipped: int, recall: Recall) -> None:
        self.table, self.packet, self._left, self._recall = table, packet, skipped, recall
        self.run = Run()
        self.destination, self.port, self.mark = packet.destination, packet.port, 0
        self._where = ""
        self._depth = 0

    @property
    def to_own(self) -> bool:
        """Whether the packet is now for this node itself."""
        return self.packet.to_node if self.run.target is None else self.destination in self.table.own

    def draw(self, chance: Fraction) -> bool:
        """Let chance decide about one rule."""
        if self._left:
            self._left -= 1
            self.run.share *= 1 - chance
            return False
        self.run.share *= chance
        self.run.more = True
        return True

    def recall(self, name: str, seconds: int) -> bool:
        """Tell whether the client is in a list and was seen so recently."""
        ago = self._recall(name)
        if ago is None or ago > seconds:
            return False
        self.run.met = seconds - ago
        return True

    def hook(self, table: str, chain: str) -> bool:
        """Call what is ours in a built-in chain; tell whether the packet ended there."""
        self._where = f"{table} {chain}"
        for key in _JUMPS:
            if (key.table, key.chain) != (table, chain):
                continue
            if key in self.table.observed:
                word = self._rule(table, chain, str(key.detail), self._state(key, self.table.observed[key])).word
            else:
                word = ""
                if key in self.table.wanted:
                    self._note(chain, str(key.detail), "is missing here", ObjectState.MISSING)
            if word in _ENDS:
                self.run.verdict = {"DROP": "drop", "REJECT": "reject"}.get(word, "")
                return word != "ACCEPT"
        return False

    def _chain(self, table: str, name: str) -> str:
        """Go through a chain of ours; return the target that ended all, or "" to go on behind the jump."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise RuleSyntaxError("chains jump in a circle")
        for rule, state in self._rules(table, name):
            if state is ObjectState.MISSING:
                self._note(name, rule, "is missing here", state)
                continue
            verdict = self._rule(table, name, rule, state)
            if verdict.word in _ENDS or verdict.word == "DNAT":
                self._depth -= 1
                return verdict.word
            if verdict.word in ("RETURN", "GOTO"):
                break
        self._depth -= 1
        return ""

    def _rules(self, table: str, name: str) -> Iterator[tuple[str, ObjectState]]:
        """Yield the rules of a chain that may match, with what the plan says of each; those that are missing last."""
        keys = [Key(CHAIN, table, name)]
        if (table, name) in ROOTS:
            keys = [*(Key(ENTRY, table, name, code) for code in self._codes(table, name)), Key(ROOT, table, name)]
        for key in keys:
            seen, planned = self.table.observed.get(key, ()), self.table.wanted.get(key, ())
            for at, rule in enumerate(seen):
                state = ObjectState.DIFFERENT if key in self.table.wanted else ObjectState.FOREIGN
                yield rule, ObjectState.PLANNED if planned[at : at + 1] == (rule,) else state
            yield from ((rule, ObjectState.MISSING) for rule in planned[len(seen) :])

    def _codes(self, table: str, root: str) -> tuple[int, ...]:
        family, protocol = self.table.family, self.packet.protocol
        if root == names.CLUSTER_IPS:
            return (encode(family, FrontendKey(self.destination, *ANY_PORT)),)
        if root == names.RANGES:
            ranges = self.table.ranges.get((table, self.destination, protocol), ())
            return tuple(dict.fromkeys(code for ports, code in ranges if self.port in ports))
        keys = (FrontendKey(address, protocol, self.port) for address in (self.destination, None))
        return tuple(encode(family, key) for key in keys)

    def _state(self, key: Key, value: Rules) -> ObjectState:
        if key not in self.table.wanted:
            return ObjectState.FOREIGN
        return ObjectState.PLANNED if self.table.wanted[key] == value else ObjectState.DIFFERENT

    def _rule(self, table: str, chain: str, rule: str, state: ObjectState) -> Verdict:
        """Try a rule; its chain ends if the verdict has a word, GOTO where it ended in another chain."""
        try:
            trial = Trial.of(self, rule)
            if not trial.matches():
                return Verdict()
            verdict = trial.target()
        except RuleSyntaxError:
            self._note(chain, rule, "what this does cannot be told; passed over", ObjectState.DIFFERENT)
            self.run.uncertain = True
            return Verdict()
        if verdict.effects:
            self._note(chain, rule, ", ".join(verdict.effects), state)
        if not verdict.chain:
            return verdict
        word = self._chain(table, verdict.chain)
        return Verdict(word or ("GOTO" if verdict.goto else ""))

    def _note(self, chain: str, text: str, effect: str, state: ObjectState) -> None:
        place = self._where if self._where.endswith(f" {chain}") else f"{self._where}: {chain}"
        self.run.steps.append(Step(place, text, effect, state))
