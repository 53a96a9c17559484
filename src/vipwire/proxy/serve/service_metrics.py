"""Serves the kernel's counts as metrics of Services and endpoints: read at each request, and bounded in number.

A cluster can have more endpoints than a metrics store wants series. `Series` chooses how fine it is; and at most
`limit` Service ports, endpoints and refusals together are told apart, those first that were told before, so that a
series once begun goes on, then those with the most. `vipwire_counters_left_out` says how many are missing.
"""

from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeVar

from msgspec import Struct, field
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from vipwire.config.sections import Series
from vipwire.model.names import ServicePortName
from vipwire.model.net import format_endpoint
from vipwire.reconcile.counts import Count, Counts, EndpointName, Refusal


class Measured(NamedTuple):
    """One metric of a count: its name without `vipwire_service_` or `vipwire_endpoint_`, its help, the field."""

    name: str
    text: str
    pick: Callable[[Count], int | None]


_MEASURED: Final = (
    Measured("connections", "Connections that were given an endpoint", lambda count: count.connections),
    Measured("packets", "Packets from clients", lambda count: count.packets),
    Measured("bytes", "Bytes of IP from clients", lambda count: count.bytes),
    Measured("reply_packets", "Packets to clients", lambda count: count.reply_packets),
    Measured("reply_bytes", "Bytes of IP to clients", lambda count: count.reply_bytes),
)
_PORT: Final = ("namespace", "service", "port", "protocol")
_ENDPOINT: Final = (*_PORT, "endpoint")
_REFUSED: Final = ("reason", "action", *_PORT)
_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")
Read = Callable[[], Awaitable[Iterable[Counts]]]
"""Reads the counts of all families now."""


async def _nothing() -> Iterable[Counts]:
    return ()


class _Room(Struct):
    """Limits how many keys get series of their own. `known` are those that have, while they exist."""

    limit: int
    known: set[Hashable] = field(default_factory=set)
    left_out: int = 0

    def choose(self, found: Mapping[_Key, _Value], weight: Callable[[_Value], int]) -> Iterator[tuple[_Key, _Value]]:
        """Choose what there is room for, and take the room."""
        order = sorted(found, key=lambda key: (key not in self.known, -weight(found[key])))
        chosen = order[: self.limit]
        self.limit -= len(chosen)
        self.left_out += len(order) - len(chosen)
        for key in chosen:
            yield key, found[key]


class ServiceMetrics(Collector):
    """The collector. `refresh` reads the counts; what is collected then is what it has read."""

    def __init__(self, series: Series = Series.NONE, limit: int = 0) -> None:
        self.series, self.limit = series, limit
        self.read: Read = _nothing
        self._counts: tuple[Counts, ...] = ()
        self._known: set[Hashable] = set()

    async def refresh(self) -> None:
        """Read the counts, if they are to be told."""
        if self.series is not Series.NONE:
            self._counts = tuple(await self.read())

    def collect(self) -> Iterator[Metric]:
        """Yield what was read last."""
        if self.series is Series.NONE:
            return
        room = _Room(self.limit, self._known)
        told: set[Hashable] = set()
        refusals = dict(room.choose(_summed(counts.refusals for counts in self._counts), int))
        ports = dict(room.choose(_added(counts.ports for counts in self._counts), _weight))
        told.update(refusals, ports)
        yield _refused(refusals)
        yield from _measures("vipwire_service", _PORT, {_labels(name): count for name, count in ports.items()})
        if self.series is Series.ENDPOINTS:
            endpoints = dict(room.choose(_added(counts.endpoints for counts in self._counts), _weight))
            told.update(endpoints)
            named = {_endpoint_labels(name): count for name, count in endpoints.items()}
            yield from _measures("vipwire_endpoint", _ENDPOINT, named)
            yield _open(self._counts, endpoints.keys())
        self._known = told
        yield GaugeMetricFamily(
            "vipwire_counters_left_out",
            "[ALPHA] Service ports, endpoints and refusals without a series: there are more than the limit",
            value=room.left_out,
        )

    def describe(self) -> Iterator[Metric]:
        """Name the metrics without reading anything."""
        yield CounterMetricFamily("vipwire_refused_packets", "")
        yield GaugeMetricFamily("vipwire_counters_left_out", "")
        for prefix in ("vipwire_service", "vipwire_endpoint"):
            yield from (CounterMetricFamily(f"{prefix}_{each.name}", "") for each in _MEASURED)
        yield GaugeMetricFamily("vipwire_endpoint_open_connections", "")


def _added(parts: Iterable[Mapping[_Key, Count]]) -> dict[_Key, Count]:
    """Add the families' counts: a Service port is one thing, whatever the family."""
    found: dict[_Key, Count] = {}
    for part in parts:
        for key, count in part.items():
            found[key] = found[key].plus(count) if key in found else count
    return found


def _summed(parts: Iterable[Mapping[_Key, int]]) -> dict[_Key, int]:
    found: dict[_Key, int] = {}
    for part in parts:
        for key, number in part.items():
            found[key] = found.get(key, 0) + number
    return found


def _weight(count: Count) -> int:
    """Return the size of a count: connections, or packets where the mode counts only these."""
    return count.connections or count.packets or 0


def _labels(name: ServicePortName) -> tuple[str, ...]:
    return (*name.service, name.port, name.protocol.label)


def _endpoint_labels(name: EndpointName) -> tuple[str, ...]:
    return (*_labels(name.port_name), format_endpoint(name.address, name.port))


def _measures(prefix: str, labels: tuple[str, ...], found: Mapping[tuple[str, ...], Count]) -> Iterator[Metric]:
    for name, text, pick in _MEASURED:
        family = CounterMetricFamily(f"{prefix}_{name}", f"[ALPHA] {text}", labels=labels)
        for values, count in found.items():
            number = pick(count)
            if number is not None:
                family.add_metric(values, number)
        yield family


def _refused(found: Mapping[tuple[Refusal, ServicePortName | None], int]) -> Metric:
    family = CounterMetricFamily(
        "vipwire_refused_packets", "[ALPHA] Packets that were dropped or rejected, by reason", labels=_REFUSED
    )
    for (reason, name), number in found.items():
        action = "drop" if reason.is_drop else "reject"
        whose = _labels(name) if name is not None else ("",) * len(_PORT)
        family.add_metric((reason.value, action, *whose), number)
    return family


def _open(counts: Iterable[Counts], told: Iterable[EndpointName]) -> Metric:
    family = GaugeMetricFamily(
        "vipwire_endpoint_open_connections",
        "[ALPHA] Connections that exist now, where the mode's kernel objects keep count of them",
        labels=(*_ENDPOINT, "state"),
    )
    chosen = set(told)
    for part in counts:
        for name, now in part.open.items():
            if name in chosen:
                family.add_metric((*_endpoint_labels(name), "active"), now.active)
                family.add_metric((*_endpoint_labels(name), "inactive"), now.inactive)
    return family
