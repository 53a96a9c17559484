"""Evaluates the table's rules for the first packet of a connection, as the kernel would. Pure.

`language.grammar` parses the observed rules. The parameter `choice` replaces the random number of `numgen`, so that a
caller can try each slot. Some facts are unknown, such as the client's port and the output interface; the walk notes
and skips a rule that needs one, or that it cannot parse, and the result is uncertain.
"""

import struct
from collections.abc import Callable
from operator import and_, or_, xor
from types import MappingProxyType
from typing import Final, assert_never

from vipwire.linux.netlink.nftables import expressions as kernel
from vipwire.linux.netlink.nftables.elements import VerdictData as Ruling
from vipwire.linux.netlink.nftables.wire import Code
from vipwire.model.net import Address, Family
from vipwire.modes.nftables.explain.jhash import choose_slot
from vipwire.modes.nftables.explain.table import Memory, Run, Table
from vipwire.modes.nftables.language import RuleSyntaxError, grammar
from vipwire.modes.nftables.language.fields import ADDRESS_TYPES, CT_STATES, CT_STATUSES, Field
from vipwire.modes.nftables.language.grammar import Jhash, Part, parse_rule
from vipwire.modes.nftables.table import text as texts
from vipwire.modes.nftables.table.counts import COUNTING
from vipwire.modes.nftables.table.names import (
    CHAIN,
    Chain,
    CommentedElement,
    IntervalElement,
    Object,
    ObjectKey,
    is_memory,
)
from vipwire.modes.nftables.table.names import Goto as ChainElement
from vipwire.plan.resolve import Packet
from vipwire.reconcile.explainer import BY_CHANCE, BY_HASH, BY_MAGLEV, IN_TURN
from vipwire.reconcile.steps import Effect, ObjectState, Step, Verdict, compare_object

_DEEPEST: Final = 16
"""The kernel's limit of nested jumps."""
_HOST: Final = struct.Struct("=I")
_OPERATORS: Final = {"or": or_, "xor": xor}
_CHOICES: Final = {
    BY_CHANCE: "by chance",
    IN_TURN: "in turn",
    BY_HASH: "by the client's address",
    BY_MAGLEV: "by the client's address and port",
}
_NOTHING: Final[Memory] = MappingProxyType({})
Going = bool | Verdict
"""Whether the rule continues with its next part, or the verdict that ends its chain.

RETURN continues behind the jump.
"""


class UnknownFactError(Exception):
    """A rule needs a fact that is unknown about the packet."""


def run_packet(table: Table, packet: Packet, choice: int = 0, memory: Memory = _NOTHING) -> Run:
    walker = _Walker(table, packet, choice, memory)
    if packet.from_node:
        hooks = ["output", "postrouting"]
        later = ["prerouting", "input"]  # over loopback; the output hook has decided NAT
    else:
        hooks, later = ["prerouting"], []
    for hook in hooks:
        if walker.run_hook(hook, nat=True):
            return walker.run
    local = walker.to_own
    if not packet.from_node:
        later = ["input"] if local else ["forward", "postrouting"]
    elif not local:
        later = []
    for hook in later:
        if walker.run_hook(hook, nat=hook != "prerouting"):
            break
    return walker.run


class _Walker:
    """The packet and its current position."""

    def __init__(self, table: Table, packet: Packet, choice: int, memory: Memory) -> None:
        self.table, self.packet, self.choice, self._memory = table, packet, choice, memory
        self.run = Run()
        self.destination, self.port = packet.destination, packet.port
        self.priority = bytes(4)
        self.mark = 0
        self._hook = ""
        self._depth = 0

    @property
    def to_own(self) -> bool:
        return self.packet.to_node if self.run.target is None else self.destination in self.table.own

    def run_hook(self, name: str, *, nat: bool) -> bool:
        """Evaluate the chains of one hook; report whether one of them ended the packet."""
        self._hook = name
        for chain_name, chain in self.table.hooked.get(name, []):
            if chain.hook is not None and chain.hook.type == "nat" and (not nat or self._is_nat_decided(name)):
                continue
            verdict = self.run_chain(chain_name)
            if verdict is not None and verdict.end is not None:
                self.run.end = verdict.end
                return True
        return False

    def _is_nat_decided(self, hook: str) -> bool:
        """Report whether NAT is decided at a hook: the kernel calls no further nat chains then."""
        return self.run.target is not None if hook in ("prerouting", "output") else self.run.masqueraded

    def run_chain(self, name: str) -> Verdict | None:
        """Evaluate a chain; return the verdict that ends the walk, None to continue behind the jump."""
        key: ObjectKey = (CHAIN, name.encode())
        chain, wanted = self.table.observed.get(key), self.table.wanted.get(key)
        planned = wanted.rules if isinstance(wanted, Chain) else ()
        if not isinstance(chain, Chain):
            self._add_step(f"chain {name}", "", ObjectState.MISSING)
            return None
        self._depth += 1
        if self._depth > _DEEPEST:
            raise RuleSyntaxError("chains jump in a circle", name, 0)
        found: Verdict | None = None
        for index, rule in enumerate(chain.rules):
            same = planned[index : index + 1] == (rule,)
            found = self._execute_rule(name, rule, ObjectState.PLANNED if same else ObjectState.DIFFERENT)
            if found is not None:
                break
        else:
            self.run.steps += (self.step(name, rule, ObjectState.MISSING) for rule in planned[len(chain.rules) :])
        self._depth -= 1
        return None if found is Verdict.RETURN else found

    def _execute_rule(self, chain: str, text: str, state: ObjectState) -> Verdict | None:
        try:
            return _Evaluation(self, chain, text, state).execute(parse_rule(text, self.table.family))
        except (RuleSyntaxError, UnknownFactError):
            self.run.steps.append(self.step(chain, text, state, Effect(Verdict.UNREADABLE)))
            self.run.uncertain = True
            return None

    def step(self, chain: str, text: str, state: ObjectState, *effects: Effect) -> Step:
        return Step(self._hook, f"chain {chain}", text, state, effects)

    def _add_step(self, name: str, text: str, state: ObjectState, *effects: Effect) -> None:
        self.run.steps.append(Step("", name, text, state, effects))

    def look_up_element(self, name: str, key: bytes) -> Object | None:
        """Find an element and note it; note a planned one that is missing."""
        table, run = self.table, self.run
        spec = table.spec(name)
        single = spec is None or "interval" not in spec.flags  # the caller tries the slots of ranges one by one
        if run.modulus > 1 and run.slot is None and single and key.endswith(self.priority):
            run.slot = name, key[: -len(self.priority)]
        if is_memory(name):
            run.asked.append(name)
        if (name, key) in self._memory:
            run.met = name, key
            return self._memory[name, key]
        if (where := table.find(table.observed, name, key)) is not None:
            value, state = table.observed[where], compare_object(where, table.observed, table.wanted)
            text = texts.write_element(table.family, where, value)
            self._add_step(f"element of {name}", text, state, Effect(Verdict.MEET))
            return value
        if (where := table.find(table.wanted, name, key)) is not None:
            text = texts.write_element(table.family, where, table.wanted[where])
            self._add_step(f"element of {name}", text, ObjectState.MISSING)
        return None


class _Evaluation:
    """The evaluation of one rule for the walker's packet."""

    def __init__(self, walker: _Walker, chain: str, text: str, state: ObjectState) -> None:
        self._walker, self._chain, self._text, self._state = walker, chain, text, state
        self._effects: list[Effect] = []
        self._at = len(walker.run.steps)

    def execute(self, rule: tuple[Part, ...]) -> Verdict | None:
        """Evaluate the rule's parts while it matches; return the verdict that ends its chain, None to continue."""
        for part in rule:
            going = self._evaluate(part)
            if isinstance(going, Verdict):
                return going
            if not going:
                return None
        self._record_effects()
        return None

    def _record_effects(self, *effects: Effect) -> None:
        """Note the effect of the rule, before the elements that it looked up."""
        if effects := (*self._effects, *effects):
            self._effects = []
            step = self._walker.step(self._chain, self._text, self._state, *effects)
            self._walker.run.steps.insert(self._at, step)

    def _record_end(self, verdict: Verdict) -> Verdict:
        self._record_effects(Effect(verdict))
        return verdict

    def _evaluate(self, part: Part) -> Going:
        return self._match(part) if isinstance(part, grammar.Match) else self._execute(part)

    def _match(self, part: grammar.Match) -> Going:
        match part:
            case grammar.Compare(field, constant, mask, negated):
                data = self._read_field(field)[: len(constant)]
                if mask:
                    data = bytes(map(and_, data, mask))
                return (data == constant) is not negated
            case grammar.Bits(field, bits):
                return any(map(and_, self._read_field(field), bits))
            case grammar.Exceeds(field, limit):
                return int.from_bytes(self._read_field(field), kernel.HOST_ORDER) > limit
            case grammar.Member(key, name, negated):
                return (self._walker.look_up_element(name, self._read_key(key)) is not None) is not negated
            case grammar.VerdictMap(key, name):
                return self._look_up_verdict(name, self._read_key(key))
            case _:
                assert_never(part)

    def _execute(self, part: grammar.Statement) -> Going:  # noqa: C901, PLR0911  # a case for each shape
        walker = self._walker
        match part:
            case Ruling(code, chain):
                return self._execute_code(Code(code), chain)
            case grammar.Counter() | grammar.AddFlow():
                return True
            case grammar.RejectWith(reset):
                return self._record_end(Verdict.RESET if reset else Verdict.REJECT)
            case grammar.SourceNat():
                walker.run.masqueraded = True
                return self._record_end(Verdict.MASQUERADE)
            case grammar.DnatTo(address):
                return self._translate(address, None)
            case grammar.DnatMap(key, name):
                length = 4 if walker.table.family is Family.IPV4 else 16
                data = _extract_data(walker.look_up_element(name, self._read_key(key)))
                if len(data) < length:
                    return False
                port = int.from_bytes(data[length : length + 2]) if len(data) > length else None
                return self._translate(data[:length], port)
            case grammar.SetMeta(meta, value):
                return self._set_meta(meta, value)
            case grammar.UpdateSet(name, operation):
                if operation != kernel.DYNSET_DELETE and name not in COUNTING:
                    self._effects.append(Effect(Verdict.REMEMBER, "the client"))
                return True
            case _:
                assert_never(part)

    def _execute_code(self, code: Code, chain: str) -> Going:
        walker = self._walker
        match code:
            case Code.JUMP:
                before = len(walker.run.steps)
                verdict = walker.run_chain(chain)
                if verdict or len(walker.run.steps) > before:  # omit a chain without any effect
                    self._record_effects(Effect(Verdict.JUMP, chain))
                return verdict or True
            case Code.GOTO:
                return self._go_to_chain(chain)
            case Code.DROP:
                return self._record_end(Verdict.DROP)
            case Code.ACCEPT:
                return self._record_end(Verdict.ACCEPT)
            case _:
                return Verdict.RETURN

    def _go_to_chain(self, chain: str) -> Verdict:
        self._record_effects(Effect(Verdict.GOTO, chain))
        return self._walker.run_chain(chain) or Verdict.RETURN

    def _look_up_verdict(self, name: str, key: bytes) -> Going:
        found = self._walker.look_up_element(name, key)
        if not isinstance(found, ChainElement | IntervalElement) or not found.chain:
            return False
        return self._go_to_chain(found.chain)

    def _translate(self, address: bytes, port: int | None) -> Going:
        walker = self._walker
        self._record_effects(Effect(Verdict.DNAT, "this endpoint"))
        walker.destination = Address(address)
        if port is not None:
            walker.port = port
        walker.run.target = walker.destination, walker.port
        return Verdict.DNAT

    def _set_meta(
        self, meta: int, value: bytes | grammar.Computed | grammar.Mapped | grammar.Numgen | grammar.Jhash
    ) -> bool:
        walker = self._walker
        match value:
            case grammar.Mapped(key, name):
                made = _extract_data(walker.look_up_element(name, self._read_key(key)))
                if not made:
                    return False
            case grammar.Computed(field, operator, number):
                made = _HOST.pack(_OPERATORS[operator](_HOST.unpack(self._read_register(field))[0], number))
            case grammar.Numgen(in_turn, modulus, offset):
                made = self._choose_number(modulus, offset, IN_TURN if in_turn else BY_CHANCE)
            case grammar.Jhash():
                made = self._choose_slot_by_hash(value)
            case _:
                made = value
        if meta == kernel.META_PRIORITY:
            walker.priority = made
        else:
            raised = _HOST.unpack(made)[0] & ~walker.mark
            walker.mark = _HOST.unpack(made)[0]
            if raised:
                self._effects.append(Effect(Verdict.MARK_MASQUERADE))
        return True

    # fields

    def _read_key(self, key: tuple[Field, ...]) -> bytes:
        return b"".join(map(self._read_register, key))

    def _read_register(self, field: Field) -> bytes:
        value = self._read_field(field)
        return value.ljust(4 * field.words, b"\0")

    def _read_field(self, field: Field) -> bytes:
        if field.name not in _FACTS:
            raise UnknownFactError(field.name)
        return _FACTS[field.name](self._walker)

    def _choose_number(self, modulus: int, offset: int, choice: str) -> bytes:
        """Return the slot of this walk, `choice`."""
        run = self._walker.run
        self._record_choice(modulus, choice)
        run.modulus, run.offset = modulus, offset
        return _HOST.pack(offset + self._walker.choice % modulus)

    def _choose_slot_by_hash(self, asked: Jhash) -> bytes:
        """Compute the slot from the client; a hash of the client's unknown port yields `choice` instead."""
        try:
            key = self._read_key(asked.sources)
        except UnknownFactError:
            return self._choose_number(asked.modulus, asked.offset, BY_MAGLEV)
        self._record_choice(asked.modulus, BY_HASH)
        return _HOST.pack(asked.offset + choose_slot(key, asked.seed, asked.modulus))

    def _record_choice(self, modulus: int, choice: str) -> None:
        self._effects.append(Effect(Verdict.DRAW, f"{modulus} slots {_CHOICES[choice]}"))
        self._walker.run.choice = choice
        self._walker.run.met = None  # the pool lacks the remembered endpoint


def _extract_data(found: Object | None) -> bytes:
    if isinstance(found, CommentedElement | IntervalElement):
        return found.data
    return found if isinstance(found, bytes) else b""


def _encode_address_type(*, own: bool) -> bytes:
    return _HOST.pack(ADDRESS_TYPES["local" if own else "unicast"])


_FACTS: Final[dict[str, Callable[[_Walker], bytes]]] = {
    "meta l4proto": lambda walker: bytes((walker.packet.protocol,)),
    "meta priority": lambda walker: walker.priority,
    "meta mark": lambda walker: _HOST.pack(walker.mark),
    "iifname": lambda walker: walker.packet.interface.encode().ljust(16, b"\0"),
    "fib saddr type": lambda walker: _encode_address_type(
        own=walker.packet.source in walker.table.own or walker.packet.from_node
    ),
    "fib daddr type": lambda walker: _encode_address_type(own=walker.to_own),
    "ct state": lambda _: _HOST.pack(CT_STATES["new"]),
    "ct status": lambda walker: _HOST.pack(CT_STATUSES["dnat"] if walker.run.target is not None else 0),
    "ct direction": lambda _: bytes(1),
    "ct packets": lambda _: (1).to_bytes(8, kernel.HOST_ORDER),
    "ct original proto-dst": lambda walker: walker.packet.port.to_bytes(2),
    "ct reply proto-src": lambda walker: walker.port.to_bytes(2),
    "th dport": lambda walker: walker.port.to_bytes(2),
}
"""The known facts about the first packet of a connection, by nft's words."""
for _ip in ("ip", "ip6"):
    _FACTS[f"{_ip} saddr"] = lambda walker: walker.packet.source
    _FACTS[f"{_ip} daddr"] = _FACTS[f"ct reply {_ip} saddr"] = lambda walker: walker.destination
    _FACTS[f"ct original {_ip} daddr"] = lambda walker: walker.packet.destination
