"""Follows the file of drained endpoints: tells the proxy when the file changes and when a drain's time is over."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from vipwire.errors import ConfigError
from vipwire.model.drain import Drain
from vipwire.process import log
from vipwire.process.file_watch import contents
from vipwire.proxy.drain_orders import DrainOrder, in_force, next_end, parse_orders, read_orders
from vipwire.proxy.serve.metrics import Metrics


class DrainFollower:
    """Knows what is drained now, from the start on: no first sync may send a connection to a drained endpoint."""

    def __init__(self, path: Path, metrics: Metrics) -> None:
        self._path, self._metrics = path, metrics
        self._orders: tuple[DrainOrder, ...] = ()
        self._came = asyncio.Event()
        self.drained: frozenset[Drain] = frozenset()
        try:
            self._orders = read_orders(path)
        except ConfigError as error:
            log.error("cannot read which endpoints are drained; none is drained", reason=error)
        self._settle()

    async def run(self, changed: Callable[[], None]) -> None:
        """Follow the file until cancelled; `changed` is called when something else is drained than before."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch(), name="drained endpoints")
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(next_end(self._orders, time.time())):
                        await self._came.wait()
                self._came.clear()
                if self._settle():
                    changed()

    async def _watch(self) -> None:
        async for content in contents(self._path):
            try:
                self._orders = () if content is None else parse_orders(content, self._path)
            except ConfigError as error:
                log.error("cannot read which endpoints are drained; keeping the earlier ones", reason=error)
                continue
            self._came.set()

    def _settle(self) -> bool:
        """Adopt what is drained now; report whether it has changed."""
        before, self.drained = self.drained, in_force(self._orders, time.time())
        self._metrics.drained_endpoints.set(len(self.drained))
        for drain in sorted(self.drained - before, key=str):
            log.info("endpoint drained: it gets no new connections", endpoint=drain)
        for drain in sorted(before - self.drained, key=str):
            log.info("endpoint is no longer drained", endpoint=drain)
        return before != self.drained
