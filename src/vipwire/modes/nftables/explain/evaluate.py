"""What one rule of the table does to one packet: its parts in their order, as the kernel evaluates them. Pure.

Parts are those of `language.grammar`: what compiles is evaluated. Of the first packet of a connection a few facts are
not known here, such as the client's port and the interface that it leaves by: then UnknownFactError.
"""

import struct
from collections.abc import Callable
from operator import and_, or_, xor
from typing import Final, assert_never
from typing import Protocol as Structural

from vipwire.linux.netlink.nftables import expressions as kernel
from vipwire.linux.netlink.nftables.elements import Verdict as Ruling
from vipwire.linux.netlink.nftables.wire import Code
from vipwire.model import jhash
from vipwire.model.net import Address, Family
from vipwire.modes.nftables.explain.table import Run, Table
from vipwire.modes.nftables.language import grammar
from vipwire.modes.nftables.language.fields import PROTOCOLS, Field, Jhash, Numgen
from vipwire.modes.nftables.language.grammar import Part, Rule
from vipwire.modes.nftables.language.values import ADDRESS_TYPES, CT_STATES, CT_STATUSES
from vipwire.modes.nftables.table.counts import COUNTING
from vipwire.modes.nftables.table.names import CommentedElement, IntervalElement, Object, Verdict
from vipwire.plan.resolve import Packet
from vipwire.reconcile.explainer import BY_ADDRESS, BY_ADDRESS_AND_PORT, BY_CHANCE, IN_TURN, ObjectState

_HOST: Final = struct.Struct("=I")
_OPERATORS: Final = {"and": and_, "or": or_, "xor": xor}
_CHOICES: Final = {
    "by chance": BY_CHANCE,
    "in turn": IN_TURN,
    "by the client's address": f"{BY_ADDRESS}, the same on every node",
    "by the client's address and port": f"{BY_ADDRESS_AND_PORT} (Maglev), the same on every node",
}
Going = tuple[bool, str | None]
"""Whether the rule goes on to its next part, and what its chain returns if the rule has ended the chain."""
_ON: Final = True, None
_OFF: Final = False, None


class UnknownFactError(Exception):
    """A rule asks for something that is not known of the packet."""


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


class Evaluation:
    """One rule at work on the walker's packet."""

    def __init__(self, walker: Walking, chain: str, text: str, state: ObjectState) -> None:
        self._walker, self._chain, self._text, self._state = walker, chain, text, state
        self._effects: list[str] = []
        self._at = len(walker.run.steps)

    def execute(self, rule: Rule) -> str | None:
        """Evaluate the rule's parts as long as it matches; return what its chain returns, None to go on."""
        for part in rule.parts:
            going, verdict = self._evaluate(part)
            if verdict is not None:
                return verdict
            if not going:
                return None
        self._done()
        return None

    def _done(self, effect: str = "") -> None:
        effects = [*self._effects, effect] if effect else self._effects
        if effects:
            self._walker.note_rule(self._chain, self._text, effects, self._state, self._at)

    def _evaluate(self, part: Part) -> Going:
        return self._match(part) if isinstance(part, grammar.Match) else self._execute(part)

    def _match(self, part: grammar.Match) -> Going:
        match part:
            case grammar.Compare(field, constant, mask, negated):
                data = self._value(field)[: len(constant)]
                if mask:
                    data = bytes(map(and_, data, mask))
                return (data == constant) is not negated, None
            case grammar.Bits(field, bits, exactly, negated):
                data = self._value(field)
                met = data == bits if exactly else any(map(and_, data, bits))
                return met is not negated, None
            case grammar.Exceeds(field, limit):
                return int.from_bytes(self._value(field), kernel.HOST_ORDER) > limit, None
            case grammar.Member(key, name, negated):
                return (self._walker.look_up(name, self._key(key)) is not None) is not negated, None
            case grammar.VerdictMap(key, name):
                return self._verdict_map(name, self._key(key))
            case _:
                assert_never(part)

    def _execute(self, part: grammar.Statement) -> Going:  # noqa: C901, PLR0911  # a case for each shape
        walker = self._walker
        match part:
            case Ruling(code, chain):
                return self._rule(Code(code), chain)
            case grammar.Counter() | grammar.AddFlow():
                return _ON
            case grammar.Reject(code):
                self._done("answers with a TCP reset" if code is None else "answers that nobody is there")
                walker.run.verdict = "reject"
                return True, "reject"
            case grammar.Masquerade():
                self._done("replaces the client's address by the node's")
                walker.run.masqueraded = True
                return True, "accept"
            case grammar.DnatTo(address, port):
                return self._translate(address, port)
            case grammar.DnatMap(key, name):
                length = 4 if walker.table.family is Family.IPV4 else 16
                data = _data(walker.look_up(name, self._key(key)))
                if len(data) < length:
                    return _OFF
                port = int.from_bytes(data[length : length + 2]) if len(data) > length else None
                return self._translate(data[:length], port)
            case grammar.SetMeta(meta, value):
                return self._set(meta, value), None
            case grammar.UpdateSet(name, operation):
                if operation != kernel.DYNSET_DELETE and name not in COUNTING:
                    self._effects.append("remembers the client")
                return _ON
            case _:
                assert_never(part)

    def _rule(self, code: Code, chain: str) -> Going:
        walker = self._walker
        match code:
            case Code.JUMP:
                before = len(walker.run.steps)
                verdict = walker.chain(chain)
                if verdict or len(walker.run.steps) > before:  # a chain that met nothing is not told
                    self._done(f"goes through {chain}")
                return True, verdict or None
            case Code.GOTO:
                self._done(f"goes to {chain}")
                return True, walker.chain(chain)
            case Code.DROP:
                self._done("drops it")
                walker.run.verdict = "drop"
                return True, "drop"
            case Code.ACCEPT:
                self._done("lets it pass")
                return True, "accept"
            case _:
                return True, ""

    def _verdict_map(self, name: str, key: bytes) -> Going:
        found = self._walker.look_up(name, key)
        if not isinstance(found, Verdict | IntervalElement) or not found.chain:
            return _OFF
        self._done(f"goes to {found.chain}")
        return True, self._walker.chain(found.chain)

    def _translate(self, address: bytes, port: int | None) -> Going:
        walker = self._walker
        self._done("sends it to this endpoint")
        walker.destination = Address(address)
        if port is not None:
            walker.port = port
        walker.run.target = walker.destination, walker.port
        return True, "accept"

    def _set(self, meta: int, value: bytes | grammar.Computed | grammar.Mapped) -> bool:
        walker = self._walker
        match value:
            case grammar.Mapped(key, name):
                made = _data(walker.look_up(name, self._key(key)))
                if not made:
                    return False
            case grammar.Computed(field, operator, number):
                made = self._register(field)
                if operator:
                    made = _HOST.pack(_OPERATORS[operator](_HOST.unpack(made)[0], number))
            case _:
                made, operator = value, ""
        if meta == kernel.META_PRIORITY:
            walker.priority = made
        else:
            raised = _HOST.unpack(made)[0] & ~walker.mark
            walker.mark = _HOST.unpack(made)[0]
            if raised:
                self._effects.append("marks it for masquerading")
        return True

    # fields

    def _key(self, key: tuple[Field, ...]) -> bytes:
        return b"".join(map(self._register, key))

    def _register(self, field: Field) -> bytes:
        value = self._value(field)
        return value.ljust(4 * field.words, b"\0")

    def _value(self, field: Field) -> bytes:
        match field:
            case Numgen(modulus=modulus, offset=offset, in_turn=in_turn):
                return self._draw(modulus, offset, "in turn" if in_turn else "by chance")
            case Jhash():
                return self._hash(field)
            case _ if field.name in _FACTS:
                return _FACTS[field.name](self._walker)
        raise UnknownFactError(field.name)

    def _draw(self, modulus: int, offset: int, why: str) -> bytes:
        """Choose the slot that is this walk's parameter."""
        run = self._walker.run
        self._note_choice(modulus, why)
        run.modulus, run.offset = modulus, offset
        return _HOST.pack(offset + self._walker.choice % modulus)

    def _hash(self, field: Jhash) -> bytes:
        """Choose the slot that the client decides; with its port, which nobody knows beforehand, the parameter's."""
        try:
            key = self._key(field.sources)
        except UnknownFactError:
            return self._draw(field.modulus, field.offset, "by the client's address and port")
        self._note_choice(field.modulus, "by the client's address")
        return _HOST.pack(field.offset + jhash.slot(key, field.seed, field.modulus))

    def _note_choice(self, modulus: int, why: str) -> None:
        self._effects.append(f"chooses one of {modulus} slots {why}")
        self._walker.run.choice = _CHOICES[why]


def _type_of(*, own: bool) -> bytes:
    return _HOST.pack(ADDRESS_TYPES["local" if own else "unicast"])


def _port(walker: Walking) -> bytes:
    return walker.port.to_bytes(2)


_FACTS: Final[dict[str, Callable[[Walking], bytes]]] = {
    "meta l4proto": lambda walker: bytes((walker.packet.protocol,)),
    "meta priority": lambda walker: walker.priority,
    "meta mark": lambda walker: _HOST.pack(walker.mark),
    "iifname": lambda walker: walker.packet.interface.encode().ljust(16, b"\0"),
    "fib saddr type": lambda walker: _type_of(
        own=walker.packet.source in walker.table.own or walker.packet.from_node
    ),
    "fib daddr type": lambda walker: _type_of(own=walker.to_own),
    "ct state": lambda _: _HOST.pack(CT_STATES["new"]),
    "ct status": lambda walker: _HOST.pack(CT_STATUSES["dnat"] if walker.run.target is not None else 0),
    "ct direction": lambda _: bytes(1),
    "ct mark": lambda _: bytes(4),
    "ct packets": lambda _: (1).to_bytes(8, kernel.HOST_ORDER),
    "ct original proto-dst": lambda walker: walker.packet.port.to_bytes(2),
    "ct reply proto-src": _port,
    **dict.fromkeys((f"{protocol} dport" for protocol in ("th", *PROTOCOLS)), _port),
}
"""What is known of the first packet of a connection, by nft's words."""
for _ip in ("ip", "ip6"):
    _FACTS[f"{_ip} saddr"] = _FACTS[f"ct original {_ip} saddr"] = lambda walker: walker.packet.source
    _FACTS[f"{_ip} daddr"] = _FACTS[f"ct reply {_ip} saddr"] = lambda walker: walker.destination
    _FACTS[f"ct original {_ip} daddr"] = lambda walker: walker.packet.destination
