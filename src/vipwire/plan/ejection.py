"""Outlier ejection: an endpoint that does not answer new connections gets none for a while.

    in use ── so many failures in a row ──▶ ejected ── its time is over ──▶ on trial ── an answer ──▶ in use
                                               ▲                               │
                                               └── a failure: for twice as long ┘

A failure is a connection whose first packet was not answered in time, or by a reset alone. An answer ends a row. The
time doubles with each ejection, up to a maximum. An endpoint that has been in use for a while begins anew.

Some always stay: of a Service port's endpoints at most a share is ejected at a time, and never the last one. What is
ejected is what this process has seen: a restart knows of nothing.

Pure: `now` is seconds of one monotonic clock, given by the caller, and `due` says when to ask again.
"""

import enum
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from msgspec import Struct, field

from vipwire.model.names import ObjectName, ServicePortName
from vipwire.model.net import Address, Protocol, format_endpoint
from vipwire.model.value import Value

LONGEST_SECONDS: Final = 300.0
"""An ejection is not doubled beyond this."""
FORGET_SECONDS: Final = 300.0
"""A row of failures, and how often an endpoint was ejected before, count so long."""


class EndpointKey(NamedTuple):
    """What connections are made to: an endpoint's protocol, address and port."""

    protocol: Protocol
    address: Address
    port: int

    def __str__(self) -> str:
        return f"{format_endpoint(self.address, self.port)}/{self.protocol.label}"


class Failure(enum.Enum):
    """How a new connection failed; the value is what operators read."""

    SILENT = "no answer"
    RESET = "reset"


class Tally(Struct):
    """What became of new connections to one endpoint: whether any was answered, and the failures since."""

    answered: bool = False
    failures: int = 0
    last: Failure = Failure.SILENT

    def answer(self) -> None:
        """Count an answer."""
        self.answered, self.failures = True, 0

    def fail(self, how: Failure) -> None:
        """Count a failure."""
        self.failures += 1
        self.last = how


Tallies = Mapping[EndpointKey, Tally]


class EjectionPolicy(Value, frozen=True):
    """After how many failures in a row, for how many seconds at first, and how many percent at most."""

    after: int
    seconds: float = 30.0
    percent: int = 50

    def most(self, endpoints: int) -> int:
        """Return how many of so many endpoints may be ejected at a time."""
        return min(max(1, endpoints * self.percent // 100), endpoints - 1)

    def time(self, earlier: int) -> float:
        """Return how long an endpoint is ejected that was so often before."""
        longest = max(self.seconds, LONGEST_SECONDS)
        return min(self.seconds * 2.0 ** min(earlier, 30), longest)


class EjectionNote(NamedTuple):
    """An endpoint of a Service port was ejected for so many seconds, or (0) has come back."""

    port: ServicePortName
    endpoint: EndpointKey
    seconds: float = 0.0
    failures: int = 0
    how: Failure = Failure.SILENT


class _Record(Struct):
    """What is known of an endpoint that has failed. `ejections` in a row, `since` the last failure or return."""

    failures: int = 0
    ejections: int = 0
    since: float = 0.0
    until: float | None = None
    trial: bool = False


class Outliers(Struct):
    """The endpoints of one Service port, and which of them are ejected."""

    policy: EjectionPolicy
    endpoints: frozenset[EndpointKey] = frozenset()
    _records: dict[EndpointKey, _Record] = field(default_factory=dict)

    def ejected(self) -> Mapping[EndpointKey, float]:
        """Name the ejected endpoints, each with the time at which it comes back."""
        return {key: record.until for key, record in self._records.items() if record.until is not None}

    def keep(self, endpoints: Iterable[EndpointKey], now: float) -> list[EndpointKey]:
        """Take what the Service port has now. Return what comes back, for otherwise nobody would be left."""
        self.endpoints = frozenset(endpoints)
        for gone in self._records.keys() - self.endpoints:
            del self._records[gone]
        out = sorted(self.ejected().items(), key=lambda item: item[1])
        back = [key for key, _ in out[: max(0, len(out) - max(0, len(self.endpoints) - 1))]]
        for key in back:
            self._return(key, now)
        return back

    def take(self, key: EndpointKey, tally: Tally, now: float) -> float | None:
        """Take in what became of connections to an endpoint; return for how long it is ejected now, or None."""
        record = self._records.get(key)
        if record is None:
            if not tally.failures:
                return None
            record = self._records[key] = _Record(since=now)
        if record.until is not None:
            return None  # connections that it was given before
        if now - record.since > FORGET_SECONDS:
            record.failures, record.ejections, record.trial = 0, 0, False
        if tally.answered:
            record.failures, record.trial = 0, False
        if not tally.failures:
            if not record.ejections and tally.answered:
                del self._records[key]
            return None
        record.failures += tally.failures
        record.since = now
        if not self._fails(record):
            return None
        seconds = self.policy.time(record.ejections)
        record.until, record.ejections, record.trial = now + seconds, record.ejections + 1, False
        return seconds

    def _fails(self, record: _Record) -> bool:
        enough = record.failures >= (1 if record.trial else self.policy.after)
        return enough and len(self.ejected()) < self.policy.most(len(self.endpoints))

    def failures(self, key: EndpointKey) -> int:
        """Return how many connections in a row an endpoint has not answered."""
        record = self._records.get(key)
        return record.failures if record is not None else 0

    def ripe(self, now: float) -> list[EndpointKey]:
        """Bring back the endpoints whose time is over, each on trial."""
        back = [key for key, until in self.ejected().items() if until <= now]
        for key in back:
            self._return(key, now)
        return back

    def _return(self, key: EndpointKey, now: float) -> None:
        record = self._records[key]
        record.until, record.failures, record.trial, record.since = None, 0, True, now


class Ejections:
    """The outliers of every Service that wants ejection. Who does not want it costs nothing here.

    `watched` are the endpoints of which somebody wants to know; `version` changes with it. `notes` is what there is
    to report, for the caller to take away.
    """

    def __init__(self) -> None:
        self._services: dict[ObjectName, dict[ServicePortName, Outliers]] = {}
        self._out: dict[tuple[ServicePortName, EndpointKey], float] = {}
        self.watched: dict[EndpointKey, set[ServicePortName]] = {}
        self.version = 0
        self.notes: list[EjectionNote] = []

    def due(self) -> float | None:
        """Return when the next endpoint comes back; None if none is ejected."""
        return min(self._out.values()) if self._out else None

    def ripe(self, now: float) -> set[ObjectName]:
        """Bring back what is due; name the Services that are to be planned."""
        ports = {port for (port, _), until in self._out.items() if until <= now}
        for port in ports:
            self._came_back(port, self._services[port.service][port].ripe(now))
        return {port.service for port in ports}

    def _came_back(self, port: ServicePortName, keys: Iterable[EndpointKey]) -> None:
        for key in keys:
            del self._out[port, key]
            self.notes.append(EjectionNote(port, key))

    def take(self, tallies: Tallies, now: float) -> set[ObjectName]:
        """Take in what became of connections; name the Services that are to be planned."""
        changed = set()
        for key, tally in tallies.items():
            for port in self.watched.get(key, ()):
                outliers = self._services[port.service][port]
                if (seconds := outliers.take(key, tally, now)) is not None:
                    self._out[port, key] = now + seconds
                    self.notes.append(EjectionNote(port, key, seconds, outliers.failures(key), tally.last))
                    changed.add(port.service)
        return changed

    def keep(
        self,
        name: ObjectName,
        policy: EjectionPolicy | None,
        ports: Mapping[ServicePortName, frozenset[EndpointKey]],
        now: float,
    ) -> frozenset[EndpointKey]:
        """Take a Service's endpoints by port, where it wants ejection (`policy`); return which are ejected."""
        if policy is None and name not in self._services:
            return frozenset()
        known = self._services.pop(name, {})
        before = {port: outliers.endpoints for port, outliers in known.items()}
        held = {} if policy is None else {port: _held(known.get(port), policy) for port in ports}
        for port, outliers in held.items():
            self._came_back(port, outliers.keep(ports[port], now))
        if held:
            self._services[name] = held
        self._watch(before, {port: outliers.endpoints for port, outliers in held.items()})
        self._forget(before, held)
        return frozenset(key for outliers in held.values() for key in outliers.ejected())

    def until(self) -> Mapping[tuple[ServicePortName, EndpointKey], float]:
        """Return what is ejected, and until when."""
        return MappingProxyType(self._out)

    def _forget(self, ports: Iterable[ServicePortName], held: Mapping[ServicePortName, Outliers]) -> None:
        for port, key in [each for each in self._out if each[0] in set(ports)]:
            if port not in held or key not in held[port].ejected():
                del self._out[port, key]

    def _watch(
        self,
        before: Mapping[ServicePortName, frozenset[EndpointKey]],
        after: Mapping[ServicePortName, frozenset[EndpointKey]],
    ) -> None:
        if before == after:
            return
        self.version += 1
        for port, keys in before.items():
            for key in keys:
                self.watched[key].discard(port)
        for port, keys in after.items():
            for key in keys:
                self.watched.setdefault(key, set()).add(port)
        for key in {key for keys in before.values() for key in keys if not self.watched[key]}:
            del self.watched[key]


def _held(known: Outliers | None, policy: EjectionPolicy) -> Outliers:
    if known is None:
        return Outliers(policy)
    known.policy = policy
    return known
