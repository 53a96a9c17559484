"""Serves the kernel's counts as metrics of Services and endpoints: read at each request, limited in number.

`Series` selects the granularity. At most `limit` Service ports, endpoints and refusals together get series: first
those that already have one, so that series continue, then those with the highest counts. `vipwire_counters_left_out`
is the number of the others.
"""

from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping
from typing import Final, TypeVar

from msgspec import Struct, field
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from vipwire.config.sections import Series
from vipwire.model.names import ServicePortName
from vipwire.model.net import format_endpoint
from vipwire.reconcile.counts import Counts, EndpointName, Measure, Owner, Refusal

_COUNTERS: Final = {
    Measure.CONNECTIONS: ("connections", "Connections with an endpoint"),
    Measure.PACKETS: ("packets", "Packets from clients"),
    Measure.BYTES: ("bytes", "Bytes of IP packets from clients"),
    Measure.REPLY_PACKETS: ("reply_packets", "Packets to clients"),
    Measure.REPLY_BYTES: ("reply_bytes", "Bytes of IP packets to clients"),
}
"""Name of each counter (without `vipwire_service_` or `vipwire_endpoint_`) and its help."""
_PORT: Final = ("namespace", "service", "port", "protocol")
_ENDPOINT: Final = (*_PORT, "endpoint")
_REFUSED: Final = ("reason", "action", *_PORT)
_Key = TypeVar("_Key", bound=Hashable)
_Labels = Mapping[ServicePortName, tuple[str, ...]] | Mapping[EndpointName, tuple[str, ...]]
Read = Callable[[], Awaitable[Counts]]
"""Reads the counts of all families."""


async def _count_nothing() -> Counts:
    return Counts()


class _Room(Struct):
    """Limits how many keys get their own series. `known` are the existing keys that already have one."""

    limit: int
    known: set[Hashable] = field(default_factory=set)
    chosen: set[Hashable] = field(default_factory=set)
    left_out: int = 0

    def choose_within_limit(self, found: Iterable[_Key], weight: Callable[[_Key], int]) -> list[_Key]:
        """Choose the keys for which the limit leaves room, and remember them."""
        order = sorted(found, key=lambda key: (key not in self.known, -weight(key)))
        chosen = order[: self.limit]
        self.limit -= len(chosen)
        self.left_out += len(order) - len(chosen)
        self.chosen.update(chosen)
        return chosen


class ServiceMetrics(Collector):
    """The collector: `refresh` reads the counts, a collection serves the last counts read."""

    def __init__(self, series: Series = Series.NONE, limit: int = 0, read: Read = _count_nothing) -> None:
        self._series, self._limit, self._read = series, limit, read
        self._counts = Counts()
        self._known: set[Hashable] = set()

    async def refresh(self) -> None:
        """Read the counts, if series are enabled."""
        if self._series is not Series.NONE:
            self._counts = await self._read()

    def collect(self) -> Iterator[Metric]:
        if self._series is Series.NONE:
            return
        room, counts = _Room(self._limit, self._known), self._counts
        owners = dict.fromkeys(owner for measure in _COUNTERS for owner in counts.get(measure, ()))
        connections, packets = counts.get(Measure.CONNECTIONS, {}), counts.get(Measure.PACKETS, {})

        def weight(owner: ServicePortName | EndpointName) -> int:
            return connections.get(owner) or packets.get(owner) or 0

        refusals = counts.refusals()
        yield _build_refused_metric(
            {key: refusals[key] for key in room.choose_within_limit(refusals, refusals.__getitem__)}
        )
        ports = room.choose_within_limit((each for each in owners if isinstance(each, ServicePortName)), weight)
        yield from _build_counters(
            "vipwire_service", _PORT, {name: _build_service_labels(name) for name in ports}, counts
        )
        if self._series is Series.ENDPOINTS:
            chosen = room.choose_within_limit((each for each in owners if isinstance(each, EndpointName)), weight)
            endpoints = {name: _endpoint_labels(name) for name in chosen}
            yield from _build_counters("vipwire_endpoint", _ENDPOINT, endpoints, counts)
            yield _build_open_metric(endpoints, counts)
        self._known = room.chosen
        yield GaugeMetricFamily(
            "vipwire_counters_left_out",
            "[ALPHA] Service ports, endpoints and refusals without a series, because of the limit",
            value=room.left_out,
        )

    def describe(self) -> Iterator[Metric]:
        yield CounterMetricFamily("vipwire_refused_packets", "")
        yield GaugeMetricFamily("vipwire_counters_left_out", "")
        for prefix in ("vipwire_service", "vipwire_endpoint"):
            yield from (CounterMetricFamily(f"{prefix}_{name}", "") for name, _ in _COUNTERS.values())
        yield GaugeMetricFamily("vipwire_endpoint_open_connections", "")


def _build_service_labels(name: ServicePortName) -> tuple[str, ...]:
    return (*name.service, name.port, name.protocol.label)


def _endpoint_labels(name: EndpointName) -> tuple[str, ...]:
    return (*_build_service_labels(name.port_name), format_endpoint(name.address, name.port))


def _build_counters(prefix: str, labels: tuple[str, ...], owners: _Labels, counts: Counts) -> Iterator[Metric]:
    for measure, (name, text) in _COUNTERS.items():
        family = CounterMetricFamily(f"{prefix}_{name}", f"[ALPHA] {text}", labels=labels)
        numbers = counts.get(measure, {})
        for owner, values in owners.items():
            if owner in numbers:
                family.add_metric(values, numbers[owner])
        yield family


def _build_refused_metric(found: Mapping[tuple[Refusal, Owner], int]) -> Metric:
    family = CounterMetricFamily(
        "vipwire_refused_packets", "[ALPHA] Packets that the kernel dropped or rejected, by reason", labels=_REFUSED
    )
    for (reason, port), number in found.items():
        action = "drop" if reason.is_drop else "reject"
        labels = _build_service_labels(port) if isinstance(port, ServicePortName) else ("",) * len(_PORT)
        family.add_metric((reason.value, action, *labels), number)
    return family


def _build_open_metric(endpoints: Mapping[EndpointName, tuple[str, ...]], counts: Counts) -> Metric:
    family = GaugeMetricFamily(
        "vipwire_endpoint_open_connections",
        "[ALPHA] Open connections, in modes whose kernel objects count them",
        labels=(*_ENDPOINT, "state"),
    )
    for name, labels in endpoints.items():
        for measure in (Measure.ACTIVE, Measure.INACTIVE):
            if name in counts.get(measure, {}):
                family.add_metric((*labels, measure.value), counts[measure][name])
    return family
