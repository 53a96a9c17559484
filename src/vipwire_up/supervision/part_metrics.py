"""Counts the failures of each part of `vipwire up`: a metric of the proxy's page and of the API server's."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from vipwire.process.supervision import Supervisor


class PartFailures(Collector):
    """Reads a supervisor when somebody scrapes."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def collect(self) -> Iterator[Metric]:
        """Return `vipwire_up_part_failures_total`."""
        text = "Failures of each part of vipwire up, and of what objects make it raise"
        family = CounterMetricFamily("vipwire_up_part_failures", text, labels=["part"])
        for part, count in sorted(self._supervisor.failures.items()):
            family.add_metric([part], count)
        yield family
