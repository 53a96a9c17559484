"""Counters that the kernel keeps (nfacct objects) as metrics: read at the moment when somebody asks."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector


class KernelCounter(Collector):
    """A counter that the kernel keeps (nfacct) and that is read when the metrics are asked for.

    Set `read` to what reads it; while it gives None the metric is absent, as it is on a kernel without nfacct.
    """

    def __init__(self, name: str, text: str) -> None:
        self.read: Callable[[], float | None] = lambda: None
        self._name = name
        self._text = text

    def collect(self) -> Iterator[Metric]:
        """Read the counter now."""
        value = self.read()
        if value is not None:
            yield CounterMetricFamily(self._name, self._text, value=value)

    def describe(self) -> Iterator[Metric]:
        """Name the counter without reading it."""
        yield CounterMetricFamily(self._name, self._text)
