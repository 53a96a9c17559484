"""Decides from conntrack's events what became of new connections: answered, reset, or not answered in time. Pure.

Only connections by way of a Service count, for a probe of the Pod itself says nothing about its clients. Only a flow
whose beginning was seen can fail; an answer counts in any case. Of one endpoint a few flows at a time are followed:
their failures are enough to judge it, and a flood of connections costs no memory.
`now` is seconds of one monotonic clock, given by the caller.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from vipwire.model.net import Address
from vipwire.netlink.conntrack import FlowChange, FlowEvent
from vipwire.plan.ejection import EndpointKey, Failure, Tally

PATIENCE: Final = 3.0
"""Seconds in which a first packet is to be answered. A client that repeats its SYN does so after one second."""
FOLLOWED: Final = 128
"""Flows of one endpoint that are followed at a time."""


@dataclass(slots=True)
class Attempts:
    """The connections to watched endpoints that nobody has answered yet, the oldest first."""

    _watched: dict[tuple[int, Address, int], EndpointKey] = field(default_factory=dict)
    _waiting: dict[int, tuple[float, EndpointKey]] = field(default_factory=dict)
    _followed: Counter[EndpointKey] = field(default_factory=Counter)
    _tallies: dict[EndpointKey, Tally] = field(default_factory=dict)

    def watch(self, endpoints: Collection[EndpointKey]) -> None:
        """Judge these endpoints from now on. What was begun to others is forgotten: who left may come back."""
        self._watched = {(key.protocol, key.address, key.port): key for key in endpoints}
        self._waiting = {flow: each for flow, each in self._waiting.items() if each[1] in endpoints}
        self._followed = Counter(key for _, key in self._waiting.values())

    def see(self, event: FlowEvent, now: float) -> None:
        """Take in an event that `first_answers` lets pass."""
        change, flow = event
        key = self._watched.get((flow.protocol, flow.reply_source, flow.reply_source_port))
        if key is None or flow.zone or key[1:] == flow[3:5]:
            return
        if change is FlowChange.NEW:
            if flow.identifier not in self._waiting and self._followed[key] < FOLLOWED:
                self._waiting[flow.identifier] = (now, key)
                self._followed[key] += 1
            return
        known = self._waiting.pop(flow.identifier, None)
        if known is not None:
            self._unfollow(known[1])
        if change is FlowChange.UPDATED:
            self._tally(key).answer()
        elif known is not None:
            self._tally(key).fail(Failure.RESET)

    def lost(self) -> None:
        """Forget what was begun: events were lost, and answers may be among them."""
        self._waiting.clear()
        self._followed.clear()

    def due(self) -> float | None:
        """Return when the next connection is given up; None if none waits."""
        return next((since + PATIENCE for since, _ in self._waiting.values()), None)

    def settle(self, now: float) -> dict[EndpointKey, Tally]:
        """Give up connections that wait too long; return what became of all since the last call."""
        late = []
        for identifier, (since, _) in self._waiting.items():
            if since + PATIENCE > now:
                break
            late.append(identifier)
        for identifier in late:
            _, key = self._waiting.pop(identifier)
            self._unfollow(key)
            self._tally(key).fail(Failure.SILENT)
        found, self._tallies = self._tallies, {}
        return found

    def _tally(self, key: EndpointKey) -> Tally:
        return self._tallies.setdefault(key, Tally())

    def _unfollow(self, key: EndpointKey) -> None:
        self._followed[key] -= 1
        if not self._followed[key]:
            del self._followed[key]
