"""Reads the counts of the running modes for the metrics, in a thread of its own, so that a scrape delays no sync."""

import asyncio
from collections.abc import Iterable, Sequence

from vipwire.errors import CommitError
from vipwire.modes.spec import Mode
from vipwire.plan.plan import ServicePlan
from vipwire.process import log
from vipwire.proxy.sync.engine import Engine
from vipwire.reconcile.counts import Counts


class CountReader:
    """Reads the counters of every family.

    If the kernel cannot be read, the last counts stay. Each new reason is logged once.
    """

    def __init__(self, engine: Engine, *, endpoints: bool) -> None:
        self._engine, self._endpoints = engine, endpoints
        self._last = Counts()
        self._error = ""

    async def read(self) -> Counts:
        """Read them now."""
        found = [(line.backend, tuple(line.plans.values())) for line in self._engine.lines]
        try:
            self._last = await asyncio.to_thread(self._read, found)
            self._error = ""
        except (OSError, CommitError) as error:
            if str(error) != self._error:
                log.warning("cannot read the counters", error=error)
            self._error = str(error)
        return self._last

    def _read(self, found: Iterable[tuple[Mode, Sequence[ServicePlan]]]) -> Counts:
        total = Counts()
        for mode, plans in found:
            total.add_all(mode.read_counts(plans, endpoints=self._endpoints))
        return total
