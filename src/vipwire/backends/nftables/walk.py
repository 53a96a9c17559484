"""A packet's way through the table: what the kernel would do with its first packet, rule by rule. Pure.

This interprets the text of the rules that the table was observed to hold, in the part of nft's language in which they
are written. Chance is a parameter: `choice` is what `numgen` draws, so that every slot of a pool can be tried.

A rule that somebody changed is no text of ours: it is noted, passed over, and what comes out is not certain.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from vipwire.backends.nftables import text as texts
from vipwire.backends.nftables.language import RuleSyntaxError
from vipwire.backends.nftables.language.scan import Scanner
from vipwire.backends.nftables.names import CHAIN, Chain, Noted, Object, ObjectKey, Until, Verdict
from vipwire.model.net import Address, Family, Prefix, Protocol
from vipwire.plan.resolve import Packet
from vipwire.reconcile.explainer import ObjectState, Step

_HOST = struct.Struct("=I")
_WIDE_PREFIXES = ("#",)
_PRIORITY_NONE = bytes(4)


class Ended(NamedTuple):
    """How a walk through chains ended: "drop", "reject", "accept" (the rest of this hook), or "" for no verdict."""

    verdict: str = ""


@dataclass(slots=True)
class Run:
    """One walk. `target` is where DNAT sent the packet, `modulus` from how many `numgen` drew."""

    verdict: str = ""
    target: tuple[Address, int] | None = None
    masqueraded: bool = False
    modulus: int = 1
    uncertain: bool = False
    steps: list[Step] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Table:
    """What was observed, what should be, and the memory of session affinity: (client, frontend) to identity."""

    family: Family
    observed: Mapping[ObjectKey, Object]
    wanted: Mapping[ObjectKey, Object]
    memory: Mapping[bytes, bytes] = field(default_factory=dict)
    own: frozenset[Address] = frozenset()

    def state(self, key: ObjectKey) -> ObjectState:
        """Compare an observed object with the plan."""
        if key not in self.wanted:
            return ObjectState.FOREIGN
        return ObjectState.PLANNED if self.wanted[key] == self.observed.get(key) else ObjectState.DIFFERENT

    def hooked(self, hook: str) -> list[tuple[str, Chain]]:
        """Name the base chains of a hook, observed or wanted, in the order in which the kernel calls them."""
        both: dict[str, Chain] = {}
        for objects in (self.wanted, self.observed):
            for key, value in objects.items():
                if isinstance(value, Chain) and value.hook is not None and value.hook.hook == hook:
                    both[key[1].decode()] = value
        return sorted(both.items(), key=lambda item: item[1].hook.priority if item[1].hook else 0)


def run(table: Table, packet: Packet, choice: int = 0) -> Run:
    """Follow the first packet of a connection through the hooks that it meets."""
    walker = _Walker(table, packet, choice)
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


class _Walker:
    """The packet, and where it is."""

    def __init__(self, table: Table, packet: Packet, choice: int) -> None:
        self.table, self.packet, self.choice = table, packet, choice
        self.run = Run()
        self.destination, self.port = packet.destination, packet.port
        self.priority = _PRIORITY_NONE
        self.mark = 0
        self._hook = ""
        self._depth = 0

    @property
    def to_own(self) -> bool:
        """Whether the packet is now for this node itself."""
        if self.run.target is None:
            return self.packet.to_node
        return self.destination in self.table.own

    def hook(self, name: str, *, nat: bool) -> bool:
        """Call the chains of one hook; tell whether the packet ended there."""
        self._hook = name
        for chain_name, chain in self.table.hooked(name):
            if chain.hook is not None and chain.hook.type == "nat" and not nat:
                continue
            if self.chain(chain_name) in ("drop", "reject"):
                return True
        return False

    def chain(self, name: str) -> str:
        """Go through a chain; return the verdict that ended all, or "" to go on behind the jump."""
        key: ObjectKey = (CHAIN, name.encode())
        chain, wanted = self.table.observed.get(key), self.table.wanted.get(key)
        planned = wanted.rules if isinstance(wanted, Chain) else ()
        if not isinstance(chain, Chain):
            self._note(f"chain {name}", "", "does not exist", ObjectState.MISSING)
            self.run.uncertain = True
            return ""
        self._depth += 1
        if self._depth > 16:  # the kernel's own limit for jumps
            raise RuleSyntaxError("chains jump in a circle", name, 0)
        for index, rule in enumerate(chain.rules):
            verdict = self.rule(name, rule, planned=index < len(planned) and planned[index] == rule)
            if verdict is not None:
                self._depth -= 1
                return verdict
        for rule in planned[len(chain.rules) :]:
            self._note(f"chain {name}", rule, "is missing here", ObjectState.MISSING)
            self.run.uncertain = True
        self._depth -= 1
        return ""

    def rule(self, chain: str, rule: str, *, planned: bool) -> str | None:
        """Try a rule; None to go on with the next one, otherwise what the chain returns."""
        state = ObjectState.PLANNED if planned else ObjectState.DIFFERENT
        if rule.startswith("#"):
            self._note(f"chain {chain}", rule, "somebody changed this rule; passed over", ObjectState.DIFFERENT)
            self.run.uncertain = True
            return None
        try:
            return _Rule(self, chain, rule, state).execute()
        except RuleSyntaxError:
            self._note(f"chain {chain}", rule, "what this does cannot be told; passed over", state)
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
        if name == "affinity":
            found = table.memory.get(key)
            return None if found is None else found
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

    @staticmethod
    def _find(objects: Mapping[ObjectKey, Object], name: str, key: bytes) -> ObjectKey | None:
        if (name, key) in objects and not isinstance(objects[name, key], Until):
            return name, key
        if name != "firewall-allowed":  # the one set with ranges
            return None
        for (owner, first), value in objects.items():
            if owner == name and isinstance(value, Until) and first <= key <= value.last:
                return owner, first
        return None


class _Rule:
    """One rule at work on the walker's packet."""

    def __init__(self, walker: _Walker, chain: str, rule: str, state: ObjectState) -> None:
        self._walker, self._chain, self._rule, self._state = walker, chain, rule, state
        self._words = Scanner(rule)
        self._effects: list[str] = []
        self._at = len(walker.run.steps)

    def execute(self) -> str | None:
        """Do what the rule says, as long as it matches."""
        words = self._words
        while words:
            statement = _STATEMENTS.get(words.peek())
            if statement is not None:
                words.take()
                going, verdict = statement(self)
            else:
                going, verdict = self._part()
            if verdict is not None:
                return verdict
            if not going:
                return None
        self._done()
        return None

    def _done(self, effect: str = "") -> None:
        effects = [*self._effects, effect] if effect else self._effects
        if effects:
            self._walker.note_rule(self._chain, self._rule, effects, self._state, self._at)

    def _part(self) -> tuple[bool, str | None]:
        words = self._words
        if words.skip("meta", "priority", "set"):
            return self._set_priority(), None
        if words.skip("meta", "mark", "set"):
            return self._set_mark(), None
        return self._match()

    # matches

    def _match(self) -> tuple[bool, str | None]:
        words = self._words
        if words.skip("ct", "state"):
            return words.take() == "new", None
        if words.skip("ct", "status"):
            words.expect("dnat")
            return self._walker.run.target is not None, None
        if words.skip("fib"):
            return self._fib(), None
        if words.skip("iifname"):
            return self._interface(), None
        if words.skip("meta", "mark", "and"):
            mask = words.number()
            words.expect("!=")
            return (self._walker.mark & mask) != words.number(), None
        key, single = self._key()
        if words.skip("vmap"):
            return self._verdict_map(words.reference(), key)
        inverted = words.skip("!=")
        if words.peek().startswith("@"):
            return (self._walker.look_up(words.reference(), key) is not None) is not inverted, None
        return self._equals(single) is not inverted, None

    def _equals(self, single: str) -> bool:
        words, packet = self._words, self._walker.packet
        if single == "l4proto":
            return Protocol[words.take("a protocol").upper()] is packet.protocol
        address = self._walker.destination if single == "daddr" else packet.source
        if single not in ("daddr", "saddr"):
            words.fail("a comparison that is not understood")
        word = words.take("an address")
        prefix = Prefix.parse(word if "/" in word else f"{word}/{len(address) * 8}")
        return address in prefix

    def _fib(self) -> bool:
        walker = self._walker
        side = self._words.take("saddr or daddr")
        self._words.expect("type", "local")
        if side == "saddr":
            return walker.packet.source in walker.table.own or walker.packet.from_node
        return walker.to_own

    def _interface(self) -> bool:
        inverted = self._words.skip("!=")
        name = self._words.quoted()
        interface = self._walker.packet.interface
        same = interface.startswith(name[:-1]) if name.endswith("*") else interface == name
        return same is not inverted

    # keys

    def _key(self) -> tuple[bytes, str]:
        """Read a concatenation; return its registers, and the field's name if it is only one."""
        parts = [self._field()]
        while self._words.skip("."):
            parts.append(self._field())
        return b"".join(data for _, data in parts), parts[0][0] if len(parts) == 1 else ""

    def _field(self) -> tuple[str, bytes]:
        words, walker = self._words, self._walker
        first = words.take("a field")
        if first == "numgen":
            return "numgen", self._draw()
        name = words.take("a field")
        match first, name:
            case (("ip" | "ip6"), "daddr"):
                return name, walker.destination
            case (("ip" | "ip6"), "saddr"):
                return name, walker.packet.source
            case "meta", "l4proto":
                return name, bytes((walker.packet.protocol, 0, 0, 0))
            case "th", "dport":
                return name, walker.port.to_bytes(2) + bytes(2)
            case "meta", "priority":
                return name, walker.priority
        words.fail_before(f"{first} {name} is not understood")

    def _draw(self) -> bytes:
        words, run = self._words, self._walker.run
        words.expect("random", "mod")
        run.modulus = words.number()
        offset = words.number() if words.skip("offset") else 0
        self._effects.append(f"draws one of {run.modulus}")
        return _HOST.pack(offset + self._walker.choice % run.modulus)

    # statements

    def _set_priority(self) -> bool:
        words, walker = self._words, self._walker
        if words.skip("none"):
            walker.priority = _PRIORITY_NONE
            return True
        key, _ = self._key()
        if not words.skip("map"):
            walker.priority = key
            return True
        found = walker.look_up(words.reference(), key)
        data = found.data if isinstance(found, Noted) else found
        if not isinstance(data, bytes) or not data:
            return False
        walker.priority = data
        return True

    def _set_mark(self) -> bool:
        words, walker = self._words, self._walker
        words.expect("meta", "mark")
        operator = words.take("or, and or xor")
        number = words.number()
        if operator == "or":
            walker.mark |= number
            self._effects.append("marks it for masquerading")
        elif operator == "xor":
            walker.mark ^= number
        else:
            words.fail_before(f"{operator} is not understood")
        return True

    def _verdict_map(self, name: str, key: bytes) -> tuple[bool, str | None]:
        found = self._walker.look_up(name, key)
        if not isinstance(found, Verdict):
            return False, None
        self._done(f"goes to {found.chain}")
        return True, self._walker.chain(found.chain)

    def _jump(self) -> tuple[bool, str | None]:
        chain = self._words.take("a chain")
        before = len(self._walker.run.steps)
        verdict = self._walker.chain(chain)
        if verdict or len(self._walker.run.steps) > before:  # where nothing was met there is nothing to tell
            self._done(f"goes through {chain}")
        return True, verdict or None

    def _goto(self) -> tuple[bool, str | None]:
        chain = self._words.take("a chain")
        self._done(f"goes to {chain}")
        return True, self._walker.chain(chain)

    def _drop(self) -> tuple[bool, str | None]:
        self._done("drops it")
        self._walker.run.verdict = "drop"
        return True, "drop"

    def _reject(self) -> tuple[bool, str | None]:
        self._done(
            "answers with a TCP reset" if self._words.skip("with", "tcp", "reset") else "answers that nobody is there"
        )
        self._walker.run.verdict = "reject"
        return True, "reject"

    def _accept(self) -> tuple[bool, str | None]:
        self._done("lets it pass")
        return True, "accept"

    def _return(self) -> tuple[bool, str | None]:
        return True, ""

    def _counter(self) -> tuple[bool, str | None]:
        if self._words.skip("packets"):
            self._words.number(0xFFFFFFFFFFFFFFFF)
            self._words.expect("bytes")
            self._words.number(0xFFFFFFFFFFFFFFFF)
        return True, None

    def _dnat(self) -> tuple[bool, str | None]:
        words, walker = self._words, self._walker
        words.take("a family")
        words.expect("to")
        key, _ = self._key()
        words.expect("map")
        found = walker.look_up(words.reference(), key)
        data = found.data if isinstance(found, Noted) else found
        length = 4 if walker.table.family is Family.IPV4 else 16
        if not isinstance(data, bytes) or len(data) < length + 2:
            return False, None
        self._done("sends it to this endpoint")
        walker.destination = Address(data[:length])
        walker.port = int.from_bytes(data[length : length + 2])
        walker.run.target = walker.destination, walker.port
        return True, "accept"

    def _masquerade(self) -> tuple[bool, str | None]:
        self._words.skip("fully-random")
        self._done("replaces the client's address by the node's")
        self._walker.run.masqueraded = True
        return True, "accept"

    def _update(self) -> tuple[bool, str | None]:
        while self._words and self._words.take() != "}":
            pass
        self._effects.append("remembers the client")
        return True, None

    def _delete(self) -> tuple[bool, str | None]:
        while self._words and self._words.take() != "}":
            pass
        return True, None


_STATEMENTS: dict[str, Callable[[_Rule], tuple[bool, str | None]]] = {
    "jump": _Rule._jump,
    "goto": _Rule._goto,
    "drop": _Rule._drop,
    "reject": _Rule._reject,
    "accept": _Rule._accept,
    "return": _Rule._return,
    "counter": _Rule._counter,
    "dnat": _Rule._dnat,
    "masquerade": _Rule._masquerade,
    "update": _Rule._update,
    "add": _Rule._update,
    "delete": _Rule._delete,
}
