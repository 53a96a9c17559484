"""Reads the counts of the running modes for the metrics, in a thread of its own, so that a scrape delays no sync."""

import asyncio
from collections.abc import Iterable, Sequence

from vipwire.config.configuration import Config
from vipwire.config.sections import Series
from vipwire.errors import CommitError
from vipwire.plan.plan import ServicePlan
from vipwire.process import log
from vipwire.proxy.serve.metrics import Metrics
from vipwire.proxy.sync.engine import Engine
from vipwire.reconcile.counts import CountingBackend, Counts


def export_counts(engine: Engine, config: Config, metrics: Metrics) -> None:
    """Connect the metrics to the counts of the modes, as finely as the configuration says."""
    told = metrics.counted
    told.series, told.limit = Series(config.counters.series), config.counters.limit
    told.read = CountReader(engine, endpoints=told.series is Series.ENDPOINTS).read


class CountReader:
    """Reads the counters of every family whose mode has any.

    What cannot be read is said once, and then again when the reason is another one; the last counts are kept.
    """

    def __init__(self, engine: Engine, *, endpoints: bool) -> None:
        self._engine, self._endpoints = engine, endpoints
        self._last: tuple[Counts, ...] = ()
        self._error = ""

    async def read(self) -> tuple[Counts, ...]:
        """Read them now."""
        found = [
            (line.backend, tuple(line.plans.values()))
            for line in self._engine.lines
            if isinstance(line.backend, CountingBackend)
        ]
        try:
            self._last = await asyncio.to_thread(self._read, found)
            self._error = ""
        except (OSError, CommitError) as error:
            if str(error) != self._error:
                log.warning("cannot read the counters", error=error)
            self._error = str(error)
        return self._last

    def _read(self, found: Iterable[tuple[CountingBackend, Sequence[ServicePlan]]]) -> tuple[Counts, ...]:
        return tuple(mode.counts(plans, endpoints=self._endpoints) for mode, plans in found)
