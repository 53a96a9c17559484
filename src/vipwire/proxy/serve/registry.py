"""Makes metrics: with kube-proxy's prefix or ours, a level of stability, and the modes that expose them."""

from bisect import bisect_left
from collections import Counter as Counts
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, Generic, TypeVar

from prometheus_client.metrics import Counter, Gauge, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from vipwire.config.modes import MetricGroup, registered

FAMILY: Final = ("ip_family",)
SYNC_BUCKETS: Final = tuple(0.001 * 2**exponent for exponent in range(15))

M = TypeVar("M", Gauge, Counter)


class BatchHistogram(Histogram):
    """A histogram that takes many observations at a time, for the price of a few."""

    def observe_all(self, amounts: Sequence[float]) -> None:
        """Observe each of these."""
        self._sum.inc(sum(amounts))
        for bucket, count in Counts([bisect_left(self._upper_bounds, amount) for amount in amounts]).items():
            self._buckets[bucket].inc(count)


S = TypeVar("S", Gauge, Counter, BatchHistogram)


@lru_cache(maxsize=256)
def of_family(metric: S, family: str) -> S:
    """Find a family's series of a metric that has no other label. Every sync sets a dozen of them."""
    return metric.labels(ip_family=family)


class _Maker(Generic[M]):
    """Makes metrics of one type."""

    def __init__(self, kind: type[M], registry_of: Callable[[MetricGroup | None], CollectorRegistry | None]) -> None:
        self._kind: type[M] = kind
        self._registry_of = registry_of

    def __call__(
        self,
        name: str,
        text: str,
        labels: tuple[str, ...] = (),
        group: MetricGroup | None = None,
        prefix: str = "kubeproxy",
    ) -> M:
        """Build a metric that modes with its group expose; all modes if it has none."""
        return self._kind(f"{prefix}_{name}", f"[ALPHA] {text}", labels, registry=self._registry_of(group))


class BeforeReading(Collector):
    """Exposes nothing; what has metrics to bring up to date before they are read sets `due`."""

    def __init__(self) -> None:
        self.due: Callable[[], None] = lambda: None

    def collect(self) -> Iterator[Metric]:
        """Bring them up to date."""
        self.due()
        return iter(())

    def describe(self) -> Iterator[Metric]:
        """Name none."""
        return iter(())


class KernelCounter(Collector):
    """A counter that the kernel keeps (nfacct), read at each request; absent while `read` returns None."""

    def __init__(self, name: str, text: str, read: Callable[[], float | None]) -> None:
        self._name, self._text, self._read = name, text, read

    def collect(self) -> Iterator[Metric]:
        """Read the counter now."""
        value = self._read()
        if value is not None:
            yield CounterMetricFamily(self._name, self._text, value=value)

    def describe(self) -> Iterator[Metric]:
        """Name the counter without reading it."""
        yield CounterMetricFamily(self._name, self._text)


class ModeRegistry:
    """A registry, and metrics of a mode that are in it, or in none where other modes alone expose them.

    `kernel_counters` read the counters that the kernel keeps for the mode, by the name of the metric.
    """

    def __init__(self, mode: str, kernel_counters: Mapping[str, Callable[[], float | None]]) -> None:
        self._groups, self._kernel_counters = registered(mode).metrics, kernel_counters
        self.registry = CollectorRegistry()
        self.before_reading = BeforeReading()
        self.registry.register(self.before_reading)  # the first, so that it is asked before all others
        self.gauge, self.counter = _Maker(Gauge, self.registry_of), _Maker(Counter, self.registry_of)

    def registry_of(self, group: MetricGroup | None) -> CollectorRegistry | None:
        """Choose the registry of a metric that modes with its group expose; all modes if it has none."""
        return self.registry if group is None or group in self._groups else None

    def sync_histogram(self, name: str, text: str, group: MetricGroup | None = None) -> BatchHistogram:
        """Build a histogram of the seconds that a kind of sync takes."""
        return BatchHistogram(
            f"kubeproxy_{name}_proxy_rules_duration_seconds",
            f"[ALPHA] {text}, in seconds",
            FAMILY,
            buckets=SYNC_BUCKETS,
            registry=self.registry_of(group),
        )

    def kernel_counter(self, name: str, text: str) -> KernelCounter:
        """Build a counter that the kernel keeps for rules of iptables."""
        read = self._kernel_counters.get(name, lambda: None)
        counter = KernelCounter(f"kubeproxy_{name}", f"[ALPHA] {text}", read)
        if self.registry_of(MetricGroup.IPTABLES_RULES) is not None:
            self.registry.register(counter)
        return counter
