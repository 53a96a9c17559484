"""Outlier ejection: an endpoint that does not answer new connections gets none for a while. Pure.

    in use ── so many failures in a row ──▶ ejected ── its time is over ──▶ on trial ── an answer ──▶ in use
                                               ▲                               │
                                               └── a failure: for twice as long ┘

A failure is a connection whose first packet got no answer in time, or only a reset. An answer resets the count. The
time doubles with each ejection up to a maximum, and starts anew after `FORGET_SECONDS` in use. At most a configured
share of a Service port's endpoints is ejected at a time, and never the last one. A restart forgets all ejections.
`now` is the caller's monotonic clock in seconds; `due` says when to ask again.
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
"""Longest ejection in seconds."""
FORGET_SECONDS: Final = 300.0
"""Seconds for which failures and earlier ejections count."""


class EndpointKey(NamedTuple):
    """The protocol, address and port of an endpoint."""

    protocol: Protocol
    address: Address
    port: int

    def __str__(self) -> str:
        return f"{format_endpoint(self.address, self.port)}/{self.protocol.label}"


class Failure(enum.Enum):
    """How a new connection failed; the value is for operators."""

    SILENT = "no answer"
    RESET = "reset"


class Tally(Struct):
    """The results of new connections to one endpoint: whether any was answered, and the failures since."""

    answered: bool = False
    failures: int = 0
    last: Failure = Failure.SILENT

    def answer(self) -> None:
        self.answered, self.failures = True, 0

    def fail(self, how: Failure) -> None:
        self.failures += 1
        self.last = how


Tallies = Mapping[EndpointKey, Tally]


class EjectionPolicy(Value, frozen=True):
    """Failures in a row until an ejection, seconds of the first one, and the largest percentage ejected at a time."""

    after: int
    seconds: float = 30.0
    percent: int = 50

    def compute_most_ejected(self, endpoints: int) -> int:
        return min(max(1, endpoints * self.percent // 100), endpoints - 1)

    def compute_duration(self, earlier: int) -> float:
        """Return the seconds of an ejection after `earlier` ones."""
        longest = max(self.seconds, LONGEST_SECONDS)
        return min(self.seconds * 2.0 ** min(earlier, 30), longest)


class EjectionNote(NamedTuple):
    """An endpoint of a Service port was ejected for so many seconds, or (0) returned."""

    port: ServicePortName
    endpoint: EndpointKey
    seconds: float = 0.0
    failures: int = 0
    how: Failure = Failure.SILENT


class _Record(Struct):
    """An endpoint that has failed: `ejections` in a row, `since` is the last failure or return."""

    failures: int = 0
    ejections: int = 0
    since: float = 0.0
    until: float | None = None
    trial: bool = False


class Outliers(Struct):
    """The endpoints of one Service port, and the ejected ones."""

    policy: EjectionPolicy
    endpoints: frozenset[EndpointKey] = frozenset()
    _records: dict[EndpointKey, _Record] = field(default_factory=dict)

    def list_ejected(self) -> Mapping[EndpointKey, float]:
        """Return the ejected endpoints, each with the time of its return."""
        return {key: record.until for key, record in self._records.items() if record.until is not None}

    def keep_endpoints(self, endpoints: Iterable[EndpointKey], now: float) -> list[EndpointKey]:
        """Set the Service port's endpoints. Return those that come back because no other would remain."""
        self.endpoints = frozenset(endpoints)
        for gone in self._records.keys() - self.endpoints:
            del self._records[gone]
        out = sorted(self.list_ejected().items(), key=lambda item: item[1])
        back = [key for key, _ in out[: max(0, len(out) - max(0, len(self.endpoints) - 1))]]
        for key in back:
            self._readmit(key, now)
        return back

    def take_tally(self, key: EndpointKey, tally: Tally, now: float) -> float | None:
        """Count the results of connections to an endpoint; return the seconds of its new ejection, or None."""
        record = self._records.get(key)
        if record is None:
            if not tally.failures:
                return None
            record = self._records[key] = _Record(since=now)
        if record.until is not None:
            return None  # connections from before the ejection
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
        if not self._is_outlier(record):
            return None
        seconds = self.policy.compute_duration(record.ejections)
        record.until, record.ejections, record.trial = now + seconds, record.ejections + 1, False
        return seconds

    def _is_outlier(self, record: _Record) -> bool:
        enough = record.failures >= (1 if record.trial else self.policy.after)
        return enough and len(self.list_ejected()) < self.policy.compute_most_ejected(len(self.endpoints))

    def count_failures(self, key: EndpointKey) -> int:
        record = self._records.get(key)
        return record.failures if record is not None else 0

    def bring_back(self, now: float) -> list[EndpointKey]:
        """Bring back endpoints whose ejection is over, each on trial; return them."""
        back = [key for key, until in self.list_ejected().items() if until <= now]
        for key in back:
            self._readmit(key, now)
        return back

    def _readmit(self, key: EndpointKey, now: float) -> None:
        record = self._records[key]
        record.until, record.failures, record.trial, record.since = None, 0, True, now


class Ejections:
    """The outliers of all Services that ask for ejection; other Services cost nothing here.

    `watched` are the endpoints to watch; `version` changes with it. The caller reports and clears `notes`.
    """

    def __init__(self) -> None:
        self._services: dict[ObjectName, dict[ServicePortName, Outliers]] = {}
        self._out: dict[tuple[ServicePortName, EndpointKey], float] = {}
        self.watched: dict[EndpointKey, set[ServicePortName]] = {}
        self.version = 0
        self.notes: list[EjectionNote] = []

    def due(self) -> float | None:
        """Return when the next endpoint returns; None if none is ejected."""
        return min(self._out.values()) if self._out else None

    def bring_back(self, now: float) -> set[ObjectName]:
        """Bring back endpoints whose time is over; return the Services to plan."""
        ports = {port for (port, _), until in self._out.items() if until <= now}
        for port in ports:
            self._record_returned(port, self._services[port.service][port].bring_back(now))
        return {port.service for port in ports}

    def _record_returned(self, port: ServicePortName, keys: Iterable[EndpointKey]) -> None:
        for key in keys:
            del self._out[port, key]
            self.notes.append(EjectionNote(port, key))

    def take_tallies(self, tallies: Tallies, now: float) -> set[ObjectName]:
        """Count the results of connections; return the Services to plan."""
        changed = set()
        for key, tally in tallies.items():
            for port in self.watched.get(key, ()):
                outliers = self._services[port.service][port]
                if (seconds := outliers.take_tally(key, tally, now)) is not None:
                    self._out[port, key] = now + seconds
                    self.notes.append(EjectionNote(port, key, seconds, outliers.count_failures(key), tally.last))
                    changed.add(port.service)
        return changed

    def keep_service(
        self,
        name: ObjectName,
        policy: EjectionPolicy | None,
        ports: Mapping[ServicePortName, frozenset[EndpointKey]],
        now: float,
    ) -> frozenset[EndpointKey]:
        """Set a Service's endpoints by port if it asks for ejection (`policy`); return the ejected ones."""
        if policy is None and name not in self._services:
            return frozenset()
        known = self._services.pop(name, {})
        before = {port: outliers.endpoints for port, outliers in known.items()}
        held = {} if policy is None else {port: _keep_outliers(known.get(port), policy) for port in ports}
        for port, outliers in held.items():
            self._record_returned(port, outliers.keep_endpoints(ports[port], now))
        if held:
            self._services[name] = held
        self._watch_endpoints(before, {port: outliers.endpoints for port, outliers in held.items()})
        self._forget_ports(before, held)
        return frozenset(key for outliers in held.values() for key in outliers.list_ejected())

    def list_ejections(self) -> Mapping[tuple[ServicePortName, EndpointKey], float]:
        """Return the ejected endpoints and the end of each ejection."""
        return MappingProxyType(self._out)

    def _forget_ports(self, ports: Iterable[ServicePortName], held: Mapping[ServicePortName, Outliers]) -> None:
        for port, key in [each for each in self._out if each[0] in set(ports)]:
            if port not in held or key not in held[port].list_ejected():
                del self._out[port, key]

    def _watch_endpoints(
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


def _keep_outliers(known: Outliers | None, policy: EjectionPolicy) -> Outliers:
    if known is None:
        return Outliers(policy)
    known.policy = policy
    return known
