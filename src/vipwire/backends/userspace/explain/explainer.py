"""userspace mode for people: differences as lines to read, and a packet's way through rules to a listener. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from vipwire.backends.userspace.explain.follow import Meeting, Verdict, follow
from vipwire.backends.userspace.messages import Listener
from vipwire.backends.userspace.names import FILTER, NAT, Chain, Front, Key, Rule, Value
from vipwire.backends.userspace.script import script
from vipwire.model.net import Address, Family, Prefix, Protocol, format_endpoint
from vipwire.plan.resolve import Packet
from vipwire.reconcile.delta import Delta
from vipwire.reconcile.explainer import End, ObjectState, Step, Walk

_UNKNOWN_PORT: Final = 65535


class UserspaceExplainer:
    """Explains this mode's objects of one family."""

    def __init__(self, family: Family) -> None:
        self.family = family

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
            return int(named.setdefault(front, str(_UNKNOWN_PORT + 1 + len(named))))

        text = script(delta, number, number)
        for front, stand_in in named.items():
            text = text.replace(f":{stand_in}\n", f":<port of {front}>\n").replace(
                f"--to-ports {stand_in}\n", f"--to-ports <port of {front}>\n"
            )
        yield from text.splitlines()

    def remains(self) -> str:
        """Say nothing: whatever has our names is read."""
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
        way = _Way(observed, wanted, packet, own)
        return way.told()


@dataclass
class _Way:
    """One packet's way."""

    observed: Mapping[Key, Value]
    wanted: Mapping[Key, Value]
    packet: Packet
    own: frozenset[Address]
    steps: list[Step] = field(default_factory=list)

    def told(self) -> Walk:
        """Go it: translation first, then the filter, then whoever listens."""
        meeting = self._through(NAT, "OUTPUT" if self.packet.from_node else "PREROUTING")
        if meeting is not None and meeting.verdict is Verdict.TRANSLATED and meeting.rule is not None:
            return self._served(Front(meeting.rule.front))
        hooks = ["OUTPUT"] if self.packet.from_node else []
        hooks.append("INPUT" if self.packet.to_node else "FORWARD")
        for hook in hooks:
            meeting = self._through(FILTER, hook)
            if meeting is not None and meeting.verdict is Verdict.DROPPED:
                return Walk(End.DROPPED, tuple(self.steps))
            if meeting is not None and meeting.verdict is Verdict.REJECTED:
                return Walk(End.REJECTED, tuple(self.steps))
        front = self._listening_at()
        return self._served(front) if front is not None else Walk(End.UNTOUCHED, tuple(self.steps))

    def _through(self, table: str, chain: str) -> Meeting | None:
        meeting = follow(self.observed, table, chain, self.packet, self.own)
        for rule in meeting.passed if meeting else ():
            self.steps.append(Step(f"{table} chain {rule.chain}", rule.words, _effect(rule), self._state(rule)))
        return meeting

    def _state(self, key: Key) -> ObjectState:
        if isinstance(key, Rule):
            fixed = self.wanted.get(Chain(key.table, key.chain))
            if isinstance(fixed, tuple) and key.words in fixed:
                return ObjectState.PLANNED
        if key not in self.wanted:
            return ObjectState.FOREIGN
        return ObjectState.PLANNED if self.wanted[key] == self.observed.get(key) else ObjectState.DIFFERENT

    def _listening_at(self) -> Front | None:
        packet = self.packet
        for key, value in self.observed.items():
            if not isinstance(key, Front) or not isinstance(value, Listener) or value.protocol != packet.protocol:
                continue
            if any(place == (packet.destination, packet.port) for place in _places(value)):
                return key
        return None

    def _served(self, front: Front) -> Walk:
        listener = self.observed.get(front)
        if not isinstance(listener, Listener):
            self.steps.append(Step(f"listener {front.front}", "", "nobody listens there", ObjectState.MISSING))
            return Walk(End.REJECTED, tuple(self.steps))
        effect = f"is relayed to one of {len(listener.shares)}, {listener.algorithm}"
        self.steps.append(Step(f"listener {front.front}", _listening(listener), effect, self._state(front)))
        if listener.sources is not None and not _admits(listener.sources, self.packet.source):
            return Walk(End.REJECTED, tuple(self.steps))
        total = sum(share.weight for share in listener.shares)
        shares: dict[tuple[Address, int] | None, Fraction] = {
            (Address(share.place.address), share.place.port): Fraction(share.weight, total)
            for share in listener.shares
        }
        masqueraded = frozenset(Address(share.place.address) for share in listener.shares)
        return Walk(End.ANSWERED, tuple(self.steps), shares, masqueraded, relayed=True)


def _admits(sources: Iterable[tuple[bytes, int]], source: Address) -> bool:
    return any(source in Prefix(Address(network), length) for network, length in sources)


def _places(listener: Listener) -> Iterator[tuple[bytes, int]]:
    return ((place.address, place.port) for place in listener.binds)


def _effect(rule: Rule) -> str:
    target = rule.words.rpartition("-j ")[2].split()[0]
    return {"DNAT": "leads to the relay", "REDIRECT": "leads to the relay", "DROP": "drops it"}.get(
        target, f"goes to {target}"
    )


def _listening(listener: Listener) -> str:
    """Say what a listener does."""
    binds = ", ".join(
        format_endpoint(Address(place.address), place.port) if place.port else f"{_host(place.address)} (any port)"
        for place in listener.binds
    )
    to = ", ".join(format_endpoint(Address(share.place.address), share.place.port) for share in listener.shares)
    return f"listen for {listener.name} at {binds}/{Protocol(listener.protocol).label}, {listener.algorithm}: {to}"


def _host(address: bytes) -> str:
    return format_endpoint(Address(address), 0).rpartition(":")[0].strip("[]")
