"""Prints userspace mode's differences, and follows a packet through the rules to a listener. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from vipwire.model.net import Address, Family, Prefix, Protocol, format_address, format_endpoint
from vipwire.modes.inspection import Inspection
from vipwire.modes.userspace.names import PORT, Front, Key, Rule, Value
from vipwire.modes.userspace.script import write_script
from vipwire.modes.xtables.match import ListedRule, PacketHeader, Surroundings, compare_rules, is_destined_here
from vipwire.modes.xtables.save import BUILT_IN, ChainName
from vipwire.modes.xtables.traversal import Traversal
from vipwire.modes.xtables.words import RESTORE
from vipwire.plan.resolve import Packet
from vipwire.reconcile.delta import Delta
from vipwire.reconcile.explainer import (
    BY_CHANCE,
    BY_HASH,
    BY_MAGLEV,
    IN_TURN,
    Endpoint,
    Explainer,
    Path,
    Walk,
    merge,
)
from vipwire.reconcile.steps import Effect, End, ObjectState, Step, Verdict, compare_object
from vipwire.relay.messages import Listener, SocketAddress

PortOf = Callable[[str], int]
"""Returns the port of a front; 0 if unknown."""
_NO_PORT: Final = "0"


@dataclass
class FrontRules(Surroundings):
    """The observed rules beside the planned ones; `own` are this node's addresses."""

    observed: Mapping[Key, Value]
    wanted: Mapping[Key, Value]
    own: frozenset[Address]
    port_of: PortOf
    _members: dict[ChainName, list[Rule]] = field(default_factory=dict)
    _planned: dict[ChainName, list[Rule]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for objects, found in ((self.observed, self._members), (self.wanted, self._planned)):
            for key in objects:
                if isinstance(key, Rule):
                    found.setdefault(ChainName(key.table, key.chain), []).append(key)

    def owns_address(self, address: Address) -> bool:
        return address in self.own

    def list_rules(self, table: str, chain: str, header: PacketHeader) -> Iterable[ListedRule] | None:
        """List the rules of a chain, `first` rules first; None if the kernel and the plan both lack the chain."""
        del header
        key = ChainName(table, chain)
        if chain not in BUILT_IN and key not in self.observed and key not in self.wanted:
            return None
        seen, planned = self.observed.get(key), self.wanted.get(key)
        if isinstance(seen, tuple) or isinstance(planned, tuple):  # a chain of constant rules
            there, meant = (each if isinstance(each, tuple) else () for each in (seen, planned))
            strange = ObjectState.DIFFERENT if key in self.wanted else ObjectState.FOREIGN
            return compare_rules(there if key in self.observed else None, meant, strange)
        return self._list_rules(key)

    def _list_rules(self, key: ChainName) -> Iterator[ListedRule]:
        if key in self.wanted and key not in self.observed:
            yield ListedRule("", ObjectState.MISSING)
        missing = (rule for rule in self._planned.get(key, ()) if rule not in self.observed)
        for rule in (*sorted(self._members.get(key, ()), key=lambda rule: not rule.first), *missing):
            yield self._resolve_rule(rule, compare_object(rule, self.observed, self.wanted))

    def _resolve_rule(self, rule: Rule, state: ObjectState) -> ListedRule:
        if not rule.front:
            return ListedRule(rule.words, state)
        port = self.port_of(rule.front)
        words = rule.words.replace(PORT, str(port) if port else _NO_PORT)
        shown = words if port else rule.words.replace(PORT, f"<port of {rule.front}>")
        return ListedRule(words, state, shown, rule.front)


_UNKNOWN_PORT: Final = 65535
_CHOICES: Final = {
    "round-robin": IN_TURN,
    "random": BY_CHANCE,
    "least-connections": "each new connection goes to the endpoint with the fewest open connections for its weight",
    "source-hash": BY_HASH,
    "maglev": BY_MAGLEV,
}


class UserspaceExplainer(Explainer[Key, Value, FrontRules]):
    """Explains userspace mode's objects of one family. `port_of` returns the port of a front, 0 if unknown."""

    def __init__(self, family: Family, port_of: PortOf = lambda _: 0) -> None:
        super().__init__(RESTORE[family])
        self._port_of = port_of

    def write_script(self, delta: Delta[Key, Value]) -> Iterable[str]:
        """Write a difference: listeners as comments, rules as input of iptables-restore.

        A listener's name replaces a port that only a relay will choose.
        """
        for sign, objects in (("-", delta.removed), ("+", delta.added)):
            yield from (
                f"# {sign} {_describe_listener(value)}" for value in objects.values() if isinstance(value, Listener)
            )
        yield from (
            f"# ~ {_describe_listener(new)}" for _, new in delta.changed.values() if isinstance(new, Listener)
        )
        named: dict[str, str] = {}

        def number(front: str) -> int:
            return self._port_of(front) or int(named.setdefault(front, str(_UNKNOWN_PORT + 1 + len(named))))

        text = write_script(delta, number, number)
        for front, stand_in in named.items():
            text = text.replace(f":{stand_in}\n", f":<port of {front}>\n").replace(
                f"--to-ports {stand_in}\n", f"--to-ports <port of {front}>\n"
            )
        yield from text.splitlines()

    def arrange(
        self, observed: Mapping[Key, Value], wanted: Mapping[Key, Value], own: frozenset[Address]
    ) -> FrontRules:
        return FrontRules(observed, wanted, own, self._port_of)

    def trace(self, objects: FrontRules, packet: Packet) -> Walk:
        if not objects.observed:
            return Walk(End.UNTOUCHED, (Step("", "relay", state=ObjectState.MISSING),))
        way = _Way(objects, packet)
        paths = list(way.list_paths())
        return merge(paths, relayed=way.relayed)


class _Way:
    """The way of one packet through translation, the filter and the listener. `relayed`: a listener took it."""

    def __init__(self, rules: FrontRules, packet: Packet) -> None:
        self._rules, self._packet, self._header = rules, packet, PacketHeader.of(packet)
        self._tables = Traversal(rules, self._header)
        self.relayed = False

    def list_paths(self) -> Iterator[Path]:
        """Follow the packet; yield a path for each endpoint that may get it."""
        tables = self._tables
        for verdict in tables.pass_hooks():
            if verdict in (Verdict.DNAT, Verdict.REDIRECT):
                front = tables.ended.detail if tables.ended is not None else ""
                here = verdict is Verdict.REDIRECT or is_destined_here(self._header, self._rules)
                if front or here:
                    yield from self._follow_relay(Front(front))
                else:  # a foreign rule has translated it
                    yield self._build_path(target=(self._header.destination, self._header.port))
                return
            if verdict is not None and verdict.end is not None:
                yield self._build_path(end=verdict.end)
                return
        listening = self._find_listening_front()
        yield from [self._build_path()] if listening is None else self._follow_relay(listening)

    def _build_path(
        self,
        end: End = End.UNTOUCHED,
        target: Endpoint | None = None,
        share: Fraction = Fraction(1),
        choice: str = "",
    ) -> Path:
        tables = self._tables
        return Path(tables.steps, share, end, target, self.relayed, tables.uncertain, choice)

    def _find_listening_front(self) -> Front | None:
        packet = self._packet
        for key, value in self._rules.observed.items():
            if not isinstance(key, Front) or not isinstance(value, Listener) or value.protocol != packet.protocol:
                continue
            if any((place.address, place.port) == (packet.destination, packet.port) for place in value.binds):
                return key
        return None

    def _follow_relay(self, front: Front) -> Iterator[Path]:
        listener, note = self._rules.observed.get(front), self._tables.note
        if not isinstance(listener, Listener):
            note(f"listener {front.front}".rstrip())
            yield self._build_path(End.REJECTED)
            return
        effect = Effect(Verdict.RELAY, f"{len(listener.shares)}, {listener.algorithm}")
        state = compare_object(front, self._rules.observed, self._rules.wanted)
        note(f"listener {front.front}", _describe_listener(listener), state, effect)
        if listener.sources is not None and not _is_admitted(listener.sources, self._packet.source):
            yield self._build_path(End.REJECTED)
            return
        self.relayed, choice = True, _CHOICES.get(listener.algorithm, "")
        total = sum(share.weight for share in listener.shares)
        for share in listener.shares:
            target = Address(share.place.address), share.place.port or self._packet.port
            yield self._build_path(target=target, share=Fraction(share.weight, total), choice=choice)


def _is_admitted(sources: Iterable[tuple[bytes, int]], source: Address) -> bool:
    return any(source in Prefix(Address(network), length) for network, length in sources)


def _describe_listener(listener: Listener) -> str:
    binds = ", ".join(_format_place(each, "any port") for each in listener.binds)
    to = ", ".join(_format_place(share.place, "the client's port") for share in listener.shares)
    return f"listen for {listener.name} at {binds}/{Protocol(listener.protocol).label}, {listener.algorithm}: {to}"


def _format_place(place: SocketAddress, any_port: str) -> str:
    address = Address(place.address)
    return format_endpoint(address, place.port) if place.port else f"{format_address(address)} ({any_port})"


INSPECTION: Final = Inspection(lambda family, mode: UserspaceExplainer(family, mode.port_of))
