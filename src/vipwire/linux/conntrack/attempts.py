"""Decides from conntrack events whether endpoints answered, reset, or ignored new connections. Pure.

Counts only connections through a Service, because a probe of the Pod itself says nothing about its clients. Follows
at most `FOLLOWED` connections of one endpoint: enough to judge, and a flood costs no memory. Looks each up in the
kernel's table when its time is over and when another one was reset, so that a lost event is no failure. `now` is
seconds of one monotonic clock.
"""

from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from msgspec import Struct, field

from vipwire.linux.netlink.conntrack import Flow, FlowChange, FlowEvent
from vipwire.model.net import Address
from vipwire.plan.ejection import EndpointKey, Failure, Tally

PATIENCE: Final = 3.0
"""Seconds to answer a first packet. Clients repeat a SYN after one second."""
FOLLOWED: Final = 8
"""The most connections of one endpoint followed at a time."""

Look = Callable[[Flow], bool | None]
"""Looks a flow up: True if answered, None if the flow is gone."""


class _Begun(NamedTuple):
    since: float
    flow: Flow


class Attempts(Struct):
    """The followed connections by endpoint, oldest first.

    `direct`: client sockets connect to the endpoint itself, so connections through the Service look like all others.
    """

    direct: bool = False
    _watched: dict[tuple[int, Address, int], EndpointKey] = field(default_factory=dict)
    _followed: dict[EndpointKey, dict[int, _Begun]] = field(default_factory=dict)
    _reset: dict[EndpointKey, list[float]] = field(default_factory=dict)

    def watch(self, endpoints: Collection[EndpointKey]) -> None:
        """Judge these endpoints from now on; forget connections to others."""
        self._watched = {(key.protocol, key.address, key.port): key for key in endpoints}
        for known in (self._followed, self._reset):
            for gone in known.keys() - set(endpoints):
                del known[gone]

    def see(self, event: FlowEvent, now: float) -> None:
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
        """Return the time of the next look-up; None if no connection is followed."""
        oldest = (next(iter(begun.values())).since for begun in self._followed.values() if begun)
        return min((since + PATIENCE for since in oldest), default=None)

    def take_outcomes(self, now: float, look: Look) -> dict[EndpointKey, Tally]:
        """Look up due connections; return the outcomes since the last call."""
        found: dict[EndpointKey, Tally] = {}
        for key in [key for key, begun in self._followed.items() if begun or key in self._reset]:
            tally = self._judge_endpoint(key, now, look)
            if tally.answered or tally.failures:
                found[key] = tally
            if not self._followed[key]:
                del self._followed[key]
        return found

    def _judge_endpoint(self, key: EndpointKey, now: float, look: Look) -> Tally:
        """Judge one endpoint's connections in the order in which they began."""
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
