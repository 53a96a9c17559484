"""Decides from conntrack's events what became of new connections: answered, reset, or not answered in time. Pure.

Only connections by way of a Service count, for a probe of the Pod itself says nothing about its clients. Of one
endpoint a few at a time are followed from their beginning: they are enough to judge it, and a flood of connections
costs no memory. Whether one was answered is looked up in the kernel's table, when its time is over and when another
one was reset. So nobody fails because an event was lost. `now` is seconds of one monotonic clock.
"""

from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from msgspec import Struct, field

from vipwire.linux.netlink.conntrack import Flow, FlowChange, FlowEvent
from vipwire.model.net import Address
from vipwire.plan.ejection import EndpointKey, Failure, Tally

PATIENCE: Final = 3.0
"""Seconds in which a first packet is to be answered. A client that repeats its SYN does so after one second."""
FOLLOWED: Final = 8
"""Connections of one endpoint that are followed at a time."""

Look = Callable[[Flow], bool | None]
"""Looks a flow up: whether it has been answered, None if it is gone."""


class _Begun(NamedTuple):
    since: float
    flow: Flow


class Attempts(Struct):
    """The connections to watched endpoints that are followed, by endpoint, the oldest first.

    `direct`: sockets name the endpoint themselves, so that a connection past the Service cannot be told from others.
    """

    direct: bool = False
    _watched: dict[tuple[int, Address, int], EndpointKey] = field(default_factory=dict)
    _followed: dict[EndpointKey, dict[int, _Begun]] = field(default_factory=dict)
    _reset: dict[EndpointKey, list[float]] = field(default_factory=dict)

    def watch(self, endpoints: Collection[EndpointKey]) -> None:
        """Judge these endpoints from now on. What was begun to others is forgotten."""
        self._watched = {(key.protocol, key.address, key.port): key for key in endpoints}
        for known in (self._followed, self._reset):
            for gone in known.keys() - set(endpoints):
                del known[gone]

    def see(self, event: FlowEvent, now: float) -> None:
        """Take in an event that `beginnings_and_ends` lets pass."""
        change, flow = event
        key = self._watched.get((flow.protocol, flow.reply_source, flow.reply_source_port))
        if key is None or flow.zone or (key[1:] == flow[3:5] and not self.direct):
            return
        if change is FlowChange.NEW:
            begun = self._followed.setdefault(key, {})
            if len(begun) < FOLLOWED:
                begun[flow.identifier] = _Begun(now, flow)
        elif (known := self._followed.get(key, {}).pop(flow.identifier, None)) is not None:
            self._reset.setdefault(key, []).append(known.since)

    def due(self) -> float | None:
        """Return when the next connection is looked up; None if none is followed."""
        oldest = (next(iter(begun.values())).since for begun in self._followed.values() if begun)
        return min((since + PATIENCE for since in oldest), default=None)

    def settle(self, now: float, look: Look) -> dict[EndpointKey, Tally]:
        """Look up what is due; return what became of connections since the last call."""
        found: dict[EndpointKey, Tally] = {}
        for key in [key for key, begun in self._followed.items() if begun or key in self._reset]:
            tally = self._settle(key, now, look)
            if tally.answered or tally.failures:
                found[key] = tally
            if not self._followed[key]:
                del self._followed[key]
        return found

    def _settle(self, key: EndpointKey, now: float, look: Look) -> Tally:
        """Judge one endpoint: in the order in which its connections began."""
        begun, reset = self._followed[key], self._reset.pop(key, [])
        verdicts = [(since, Failure.RESET) for since in reset]
        answered = float("-inf")
        for identifier, (since, flow) in list(begun.items()):
            late = since + PATIENCE <= now
            if not (late or reset):
                break
            replied = look(flow)
            if replied:
                answered = max(answered, since)
            elif replied is False and late:
                verdicts.append((since, Failure.SILENT))
            if replied is not False or late:
                del begun[identifier]
        failures = [each for each in sorted(verdicts, key=lambda each: each[0]) if each[0] > answered]
        last = failures[-1][1] if failures else Failure.SILENT
        return Tally(answered > float("-inf"), len(failures), last)
