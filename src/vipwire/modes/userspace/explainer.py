"""userspace mode for people: differences as lines to read, and a packet's way through rules to a listener. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Final

from vipwire.model.net import Address, Family, Prefix, Protocol, format_endpoint
from vipwire.modes.userspace.explain_rules import FrontRules, PortOf
from vipwire.modes.userspace.names import FILTER, NAT, Front, Key, Value
from vipwire.modes.userspace.script import script
from vipwire.modes.xtables.match import Header, goes_here
from vipwire.modes.xtables.traversal import Traversal
from vipwire.modes.xtables.words import RESTORE
from vipwire.plan.resolve import Packet
from vipwire.reconcile.delta import Delta
from vipwire.reconcile.explainer import (
    BY_ADDRESS,
    BY_ADDRESS_AND_PORT,
    BY_CHANCE,
    IN_TURN,
    End,
    ObjectState,
    Step,
    Walk,
)
from vipwire.relay.messages import Listener, Place

_UNKNOWN_PORT: Final = 65535
_REFUSALS: Final = {"DROP": End.DROPPED, "REJECT": End.REJECTED}
_CHOICES: Final = {
    "round-robin": IN_TURN,
    "random": BY_CHANCE,
    "least-connections": "each new connection goes to the one with the fewest open connections for its weight",
    "source-hash": f"{BY_ADDRESS}, the same on every node",
    "maglev": f"{BY_ADDRESS_AND_PORT} (Maglev), the same on every node",
}


class UserspaceExplainer:
    """Explains this mode's objects of one family. `port_of` tells at which port a front is, 0 if that is unknown."""

    def __init__(self, family: Family, port_of: PortOf = lambda _: 0) -> None:
        self.family, self._port_of = family, port_of

    def script(self, delta: Delta[Key, Value], *, anew: bool = False) -> Iterable[str]:
        """Write a difference: listeners as comments, rules as input of iptables-restore.

        Ports that only a relay will choose stand there as the name of their listener.
        """
        del anew
        for sign, objects in (("-", delta.removed), ("+", delta.added)):
            yield from (f"# {sign} {_listening(value)}" for value in objects.values() if isinstance(value, Listener))
        yield from (f"# ~ {_listening(new)}" for _, new in delta.changed.values() if isinstance(new, Listener))
        named: dict[str, str] = {}

        def number(front: str) -> int:
            return self._port_of(front) or int(named.setdefault(front, str(_UNKNOWN_PORT + 1 + len(named))))

        text = script(delta, number, number)
        for front, stand_in in named.items():
            text = text.replace(f":{stand_in}\n", f":<port of {front}>\n").replace(
                f"--to-ports {stand_in}\n", f"--to-ports <port of {front}>\n"
            )
        yield from text.splitlines()

    def script_taker(self) -> str:
        """Name iptables-restore, of the family."""
        return RESTORE[self.family]

    def remains(self) -> str:
        """Return "": everything with our names is read."""
        return ""

    def walk(
        self,
        observed: Mapping[Key, Value],
        wanted: Mapping[Key, Value],
        packet: Packet,
        own: frozenset[Address] = frozenset(),
    ) -> Walk:
        """Follow a packet through the observed rules to a listener."""
        if not observed:
            return Walk(End.UNTOUCHED, (Step("relay", "", "nothing of userspace mode is here", ObjectState.MISSING),))
        return _Way(FrontRules(observed, wanted, own, self._port_of), packet).follow()


class _Way:
    """The way of one packet."""

    def __init__(self, rules: FrontRules, packet: Packet) -> None:
        self._rules, self._packet, self._header = rules, packet, Header.of(packet)
        self._tables = Traversal(rules, rules, self._header)

    def follow(self) -> Walk:
        """Follow the packet through translation, the filter and the listener."""
        walk = self._walk()
        return replace(walk, end=End.UNKNOWN) if self._tables.uncertain else walk

    def _walk(self) -> Walk:
        tables, packet = self._tables, self._packet
        verdict = tables.hook(NAT, "OUTPUT" if packet.from_node else "PREROUTING")
        if verdict in ("DNAT", "REDIRECT"):
            front = tables.ended.detail if tables.ended is not None else ""
            here = verdict == "REDIRECT" or goes_here(self._header, self._rules)
            return self._served(Front(front)) if front or here else self._sent_away()
        hooks = ["OUTPUT"] if packet.from_node else []
        hooks.append("INPUT" if packet.to_node else "FORWARD")
        while verdict not in _REFUSALS and hooks:
            verdict = tables.hook(FILTER, hooks.pop(0))
        if verdict in _REFUSALS:
            return self._ended(_REFUSALS[verdict])
        listening = self._listening_at()
        return self._served(listening) if listening is not None else self._ended(End.UNTOUCHED)

    def _sent_away(self) -> Walk:
        """Follow a packet that somebody else's rule has translated."""
        target = self._header.destination, self._header.port
        return Walk(End.ANSWERED, tuple(self._tables.steps), {target: Fraction(1)})

    def _ended(self, end: End) -> Walk:
        return Walk(end, tuple(self._tables.steps))

    def _state(self, front: Front) -> ObjectState:
        if front not in self._rules.wanted:
            return ObjectState.FOREIGN
        same = self._rules.wanted[front] == self._rules.observed.get(front)
        return ObjectState.PLANNED if same else ObjectState.DIFFERENT

    def _listening_at(self) -> Front | None:
        packet = self._packet
        for key, value in self._rules.observed.items():
            if not isinstance(key, Front) or not isinstance(value, Listener) or value.protocol != packet.protocol:
                continue
            if any(place == (packet.destination, packet.port) for place in _places(value)):
                return key
        return None

    def _served(self, front: Front) -> Walk:
        listener, note = self._rules.observed.get(front), self._tables.note
        if not isinstance(listener, Listener):
            note(f"listener {front.front}".rstrip(), "", "nobody listens there", ObjectState.MISSING)
            return self._ended(End.REJECTED)
        effect = f"is relayed to one of {len(listener.shares)}, {listener.algorithm}"
        note(f"listener {front.front}", _listening(listener), effect, self._state(front))
        if listener.sources is not None and not _admits(listener.sources, self._packet.source):
            return self._ended(End.REJECTED)
        total = sum(share.weight for share in listener.shares)
        shares: dict[tuple[Address, int] | None, Fraction] = {
            (Address(share.place.address), share.place.port or self._packet.port): Fraction(share.weight, total)
            for share in listener.shares
        }
        masqueraded = frozenset(Address(share.place.address) for share in listener.shares)
        choice = _CHOICES.get(listener.algorithm, "")
        return Walk(End.ANSWERED, tuple(self._tables.steps), shares, masqueraded, relayed=True, choice=choice)


def _admits(sources: Iterable[tuple[bytes, int]], source: Address) -> bool:
    return any(source in Prefix(Address(network), length) for network, length in sources)


def _places(listener: Listener) -> Iterator[tuple[bytes, int]]:
    return ((place.address, place.port) for place in listener.binds)


def _listening(listener: Listener) -> str:
    """Describe what a listener does."""
    binds = ", ".join(
        format_endpoint(Address(place.address), place.port) if place.port else f"{_host(place.address)} (any port)"
        for place in listener.binds
    )
    to = ", ".join(_endpoint(share.place) for share in listener.shares)
    return f"listen for {listener.name} at {binds}/{Protocol(listener.protocol).label}, {listener.algorithm}: {to}"


def _endpoint(place: Place) -> str:
    return (
        format_endpoint(Address(place.address), place.port)
        if place.port
        else f"{_host(place.address)} (the client's port)"
    )


def _host(address: bytes) -> str:
    return format_endpoint(Address(address), 0).rpartition(":")[0].strip("[]")
