"""One rule of the table, tried on one packet: matches in their order, then what the rule does. Pure.

It understands the part of nft's language in which our rules are written, and complains (RuleSyntaxError) about
anything else, so that nothing is ever explained that was not understood.
"""

import struct
from collections.abc import Callable
from typing import ClassVar
from typing import Protocol as Structural

from vipwire.model import jhash
from vipwire.model.net import Address, Family, Prefix, Protocol
from vipwire.modes.nftables.explain.table import Run, Table
from vipwire.modes.nftables.language.scan import Scanner
from vipwire.modes.nftables.table.counts import COUNTING
from vipwire.modes.nftables.table.names import CommentedElement, IntervalElement, Object, Verdict
from vipwire.plan.resolve import Packet
from vipwire.reconcile.explainer import BY_ADDRESS, BY_ADDRESS_AND_PORT, BY_CHANCE, IN_TURN, ObjectState

_HOST = struct.Struct("=I")
_CHOICES = {
    "by chance": BY_CHANCE,
    "in turn": IN_TURN,
    "by the client's address": f"{BY_ADDRESS}, the same on every node",
    "by the client's address and port": f"{BY_ADDRESS_AND_PORT} (Maglev), the same on every node",
}

Going = tuple[bool, str | None]
"""Whether the rule goes on to its next part, and what its chain returns if the rule has ended the chain."""


def _data(found: Object | None) -> bytes:
    """Return the data of an element, or nothing."""
    if isinstance(found, CommentedElement | IntervalElement):
        return found.data
    return found if isinstance(found, bytes) else b""


class Walking(Structural):
    """The packet on its way, as a rule sees and changes it; `choice` is what `numgen` draws."""

    table: Table
    packet: Packet
    choice: int
    run: Run
    destination: Address
    port: int
    priority: bytes
    mark: int

    @property
    def to_own(self) -> bool:
        """Whether the packet now goes to this node itself."""
        ...

    def chain(self, name: str) -> str:
        """Evaluate a chain; return the verdict that ends the walk, or "" to continue behind the jump."""
        ...

    def look_up(self, name: str, key: bytes) -> Object | None:
        """Find an element of a set or map."""
        ...

    def note_rule(self, chain: str, rule: str, effects: list[str], state: ObjectState, at: int) -> None:
        """Note a rule that took effect."""
        ...


class Trial:
    """One rule at work on the walker's packet."""

    def __init__(self, walker: Walking, chain: str, rule: str, state: ObjectState) -> None:
        self._walker, self._chain, self._rule, self._state = walker, chain, rule, state
        self._words = Scanner(rule)
        self._effects: list[str] = []
        self._at = len(walker.run.steps)

    def execute(self) -> str | None:
        """Execute the rule's statements as long as it matches."""
        words = self._words
        while words:
            statement = self._STATEMENTS.get(words.peek())
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

    def _part(self) -> Going:
        words = self._words
        if words.skip("meta", "priority", "set"):
            return self._set_priority(), None
        if words.skip("meta", "mark", "set"):
            return self._set_mark(), None
        return self._match()

    # matches

    def _match(self) -> Going:
        words = self._words
        for first, special in self._SPECIAL.items():
            if words.skip(*first):
                return special(self), None
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

    def _connection_state(self) -> bool:
        return self._words.take("a state") == "new"

    def _translated(self) -> bool:
        self._words.expect("dnat")
        return self._walker.run.target is not None

    def _first_way(self) -> bool:
        return self._words.take("a direction") == "original"

    def _marked(self) -> bool:
        mask = self._words.number()
        self._words.expect("!=")
        return (self._walker.mark & mask) != self._words.number()

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

    _SPECIAL: ClassVar[dict[tuple[str, ...], Callable[["Trial"], bool]]] = {
        ("ct", "state"): _connection_state,
        ("ct", "status"): _translated,
        ("ct", "direction"): _first_way,
        ("fib",): _fib,
        ("iifname",): _interface,
        ("meta", "mark", "and"): _marked,
    }

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
        if first in ("numgen", "jhash"):
            return first, self._draw(first)
        name = words.take("a field")
        registers = {
            "ip daddr": walker.destination,
            "ip saddr": walker.packet.source,
            "meta l4proto": bytes((walker.packet.protocol, 0, 0, 0)),
            "th dport": walker.port.to_bytes(2) + bytes(2),
            "meta priority": walker.priority,
        }
        if (known := registers.get(f"{first.replace('ip6', 'ip')} {name}")) is None:
            words.fail_before(f"{first} {name} is not understood")
        return name, known

    def _draw(self, how: str) -> bytes:
        """Choose a slot: the parameter's, or where the client's address alone decides, the one that it decides."""
        words, run = self._words, self._walker.run
        key, why = b"", "by chance"
        if how == "numgen":
            why = {"random": why, "inc": "in turn"}.get(words.take("random or inc"), why)
        else:
            key, single = self._hash_key()
            why = "by the client's address" if single else "by the client's address and port"
        words.expect("mod")
        modulus = words.number()
        seed = words.number() if words.skip("seed") else 0
        offset = words.number() if words.skip("offset") else 0
        self._effects.append(f"chooses one of {modulus} slots {why}")
        run.choice = _CHOICES.get(why, "")
        if key:
            return _HOST.pack(offset + jhash.slot(key, seed, modulus))
        run.modulus, run.offset = modulus, offset
        return _HOST.pack(offset + self._walker.choice % modulus)

    def _hash_key(self) -> tuple[bytes, bool]:
        """Read what is hashed; no bytes where the client's port is part of it, which nobody knows beforehand."""
        key, alone = self._field()[1], True
        while self._words.skip("."):
            self._words.expect("th", "sport")
            key, alone = b"", False
        return key, alone

    # statements

    def _set_priority(self) -> bool:
        words, walker = self._words, self._walker
        if words.skip("none"):
            walker.priority = bytes(4)
            return True
        key, _ = self._key()
        if not words.skip("map"):
            walker.priority = key
            return True
        data = _data(walker.look_up(words.reference(), key))
        if not data:
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

    def _verdict_map(self, name: str, key: bytes) -> Going:
        found = self._walker.look_up(name, key)
        if not isinstance(found, Verdict | IntervalElement) or not found.chain:
            return False, None
        self._done(f"goes to {found.chain}")
        return True, self._walker.chain(found.chain)

    def _jump(self) -> Going:
        chain = self._words.take("a chain")
        before = len(self._walker.run.steps)
        verdict = self._walker.chain(chain)
        if verdict or len(self._walker.run.steps) > before:  # where nothing was met there is nothing to tell
            self._done(f"goes through {chain}")
        return True, verdict or None

    def _goto(self) -> Going:
        chain = self._words.take("a chain")
        self._done(f"goes to {chain}")
        return True, self._walker.chain(chain)

    def _drop(self) -> Going:
        self._done("drops it")
        self._walker.run.verdict = "drop"
        return True, "drop"

    def _reject(self) -> Going:
        self._done(
            "answers with a TCP reset" if self._words.skip("with", "tcp", "reset") else "answers that nobody is there"
        )
        self._walker.run.verdict = "reject"
        return True, "reject"

    def _accept(self) -> Going:
        self._done("lets it pass")
        return True, "accept"

    def _return(self) -> Going:
        return True, ""

    def _counter(self) -> Going:
        if self._words.skip("packets"):
            self._words.number(0xFFFFFFFFFFFFFFFF)
            self._words.expect("bytes")
            self._words.number(0xFFFFFFFFFFFFFFFF)
        return True, None

    def _dnat(self) -> Going:
        words, walker = self._words, self._walker
        words.take("a family")
        words.expect("to")
        key, _ = self._key()
        words.expect("map")
        data = _data(walker.look_up(words.reference(), key))
        length = 4 if walker.table.family is Family.IPV4 else 16
        if len(data) < length:
            return False, None
        self._done("sends it to this endpoint")
        walker.destination = Address(data[:length])
        if len(data) > length:  # otherwise the packet's port is kept
            walker.port = int.from_bytes(data[length : length + 2])
        walker.run.target = walker.destination, walker.port
        return True, "accept"

    def _masquerade(self) -> Going:
        self._words.skip("fully-random")
        self._done("replaces the client's address by the node's")
        self._walker.run.masqueraded = True
        return True, "accept"

    def _update(self) -> Going:
        name = self._words.reference()
        while self._words and self._words.take() != "}":
            pass
        if name not in COUNTING:
            self._effects.append("remembers the client")
        return True, None

    def _delete(self) -> Going:
        while self._words and self._words.take() != "}":
            pass
        return True, None

    _STATEMENTS: ClassVar[dict[str, Callable[["Trial"], Going]]] = {
        "jump": _jump,
        "goto": _goto,
        "drop": _drop,
        "reject": _reject,
        "accept": _accept,
        "return": _return,
        "counter": _counter,
        "dnat": _dnat,
        "masquerade": _masquerade,
        "update": _update,
        "add": _update,
        "delete": _delete,
    }
