"""A packet's way through the table: what the kernel would do with its first packet, rule by rule. Pure.

This interprets the text of the rules that the table was observed to hold, in the part of nft's language in which they
are written. Chance is a parameter: `choice` is what `numgen` draws, so that every slot of a pool can be tried.

A rule that somebody changed is no text of ours: it is noted, passed over, and what comes out is not certain.
"""

import sys
from collections.abc import Mapping

from vipwire.modes.nftables.explain.evaluate import Evaluation, UnknownFactError
from vipwire.modes.nftables.explain.table import Run, Table
from vipwire.modes.nftables.language import RuleSyntaxError
from vipwire.modes.nftables.language.grammar import parse_rule
from vipwire.modes.nftables.table import text as texts
from vipwire.modes.nftables.table.names import CHAIN, Chain, IntervalElement, Object, ObjectKey, is_memory
from vipwire.plan.resolve import Packet
from vipwire.reconcile.explainer import ObjectState, Step

_DEEPEST = 16
"""So many jumps the kernel allows."""


def run(table: Table, packet: Packet, choice: int = 0) -> Run:
    """Follow the first packet of a connection through the hooks that it meets."""
    walker = Walker(table, packet, choice)
    if packet.from_node:
        hooks = ["output", "postrouting"]
        later = ["prerouting", "input"]  # over loopback; NAT was decided on the way out
    else:
        hooks, later = ["prerouting"], []
    for hook in hooks:
        if walker.hook(hook, nat=True):
            return walker.run
    local = walker.to_own
    if not packet.from_node:
        later = ["input"] if local else ["forward", "postrouting"]
    elif not local:
        later = []
    for hook in later:
        if walker.hook(hook, nat=hook != "prerouting"):
            break
    return walker.run


class Walker:
    """The packet, and where it is."""

    def __init__(self, table: Table, packet: Packet, choice: int) -> None:
        self.table, self.packet, self.choice = table, packet, choice
        self.run = Run()
        self.destination, self.port = packet.destination, packet.port
        self.priority = bytes(4)
        self.mark = 0
        self._hook = ""
        self._depth = 0

    @property
    def to_own(self) -> bool:
        """Whether the packet now goes to this node itself."""
        if self.run.target is None:
            return self.packet.to_node
        return self.destination in self.table.own

    def hook(self, name: str, *, nat: bool) -> bool:
        """Evaluate the chains of one hook; report whether the packet ended there."""
        self._hook = name
        for chain_name, chain in self.table.hooked.get(name, []):
            if chain.hook is not None and chain.hook.type == "nat" and (not nat or self._settled(name)):
                continue
            if self.chain(chain_name) in ("drop", "reject"):
                return True
        return False

    def _settled(self, hook: str) -> bool:
        """Report whether NAT is decided: what has its new address at a hook meets no further chain for that."""
        return self.run.target is not None if hook in ("prerouting", "output") else self.run.masqueraded

    def chain(self, name: str) -> str:
        """Evaluate a chain; return the verdict that ends the walk, or "" to continue behind the jump."""
        key: ObjectKey = (CHAIN, name.encode())
        chain, wanted = self.table.observed.get(key), self.table.wanted.get(key)
        planned = wanted.rules if isinstance(wanted, Chain) else ()
        if not isinstance(chain, Chain):
            self._note(f"chain {name}", "", "does not exist", ObjectState.MISSING)
            return ""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise RuleSyntaxError("chains jump in a circle", name, 0)
        for index, rule in enumerate(chain.rules):
            verdict = self.rule(name, rule, planned=index < len(planned) and planned[index] == rule)
            if verdict is not None:
                self._depth -= 1
                return verdict
        for rule in planned[len(chain.rules) :]:
            self._note(f"{self._hook}: chain {name}", rule, "is missing here", ObjectState.MISSING)
        self._depth -= 1
        return ""

    def rule(self, chain: str, rule: str, *, planned: bool) -> str | None:
        """Try a rule; None to go on with the next one, otherwise what the chain returns."""
        state = ObjectState.PLANNED if planned else ObjectState.DIFFERENT
        if rule.startswith("#"):
            effect = "is not as we wrote it; passed over"
            self._note(f"{self._hook}: chain {chain}", rule, effect, ObjectState.DIFFERENT)
            self.run.uncertain = True
            return None
        try:
            return Evaluation(self, chain, rule, state).execute(parse_rule(rule, self.table.family))
        except (RuleSyntaxError, UnknownFactError):
            effect = "what this does cannot be told; passed over"
            self._note(f"{self._hook}: chain {chain}", rule, effect, state)
            self.run.uncertain = True
            return None

    def _note(self, name: str, text: str, effect: str, state: ObjectState) -> None:
        self.run.steps.append(Step(name, text, effect, state))

    def note_rule(self, chain: str, rule: str, effects: list[str], state: ObjectState, at: int) -> None:
        """Note a rule that took effect, before the elements that it met."""
        self.run.steps.insert(at, Step(f"{self._hook}: chain {chain}", rule, ", ".join(effects), state))

    def look_up(self, name: str, key: bytes) -> Object | None:
        """Find an element, and note it; note a planned one that is not there."""
        table = self.table
        spec = table.spec(name)
        single = spec is None or "interval" not in spec.flags  # slots of ranges are tried one by one
        if self.run.modulus > 1 and self.run.slot is None and single and key.endswith(self.priority):
            self.run.slot = name, key[: -len(self.priority)]
        if is_memory(name):
            self.run.asked.append(name)
        if (name, key) in table.memory:
            self.run.met = name, key
            return table.memory[name, key]
        where = self._find(table.observed, name, key)
        if where is not None:
            value = table.observed[where]
            state = table.state(where)
            effect = "is met" if state is ObjectState.PLANNED else "is met, and no plan has it so"
            self._note(f"element of {name}", texts.element_text(table.family, where, value), effect, state)
            return value
        planned = self._find(table.wanted, name, key)
        if planned is not None:
            text = texts.element_text(table.family, planned, table.wanted[planned])
            self._note(f"element of {name}", text, "is missing, so the packet does not meet it", ObjectState.MISSING)
        return None

    def _find(self, objects: Mapping[ObjectKey, Object], name: str, key: bytes) -> ObjectKey | None:
        if (name, key) in objects and not isinstance(objects[name, key], IntervalElement):
            return name, key
        if name not in self.table.ranges:
            return None
        key = self._ordered(name, key)
        for (owner, first), value in objects.items():
            if owner == name and isinstance(value, IntervalElement) and self._within(first, key, value.last):
                return owner, first
        return None

    def _ordered(self, name: str, key: bytes) -> bytes:
        """Turn a slot at the end of a key of intervals into network order, as the rule does."""
        spec = self.table.spec(name)
        if spec is None or spec.key[-1] != "meta priority":
            return key
        return key[:-4] + int.from_bytes(key[-4:], sys.byteorder).to_bytes(4)

    def _within(self, first: bytes, key: bytes, last: bytes) -> bool:
        """Compare part by part: addresses as a whole, everything else word by word."""
        width, at = self.table.family.bits // 8, 0
        if not len(first) == len(key) == len(last):
            return False
        while at < len(key):
            end = at + (width if at == 0 or len(key) - at == width else 4)
            if not first[at:end] <= key[at:end] <= last[at:end]:
                return False
            at = end
        return True
