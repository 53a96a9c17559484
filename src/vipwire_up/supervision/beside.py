"""The proxy beside a machine's other parts, and the end of all, for which SIGTERM or SIGINT asks."""

import asyncio
import signal

from vipwire.config.configuration import Config
from vipwire.process.supervision import Begun, Supervisor
from vipwire.proxy.loop import Source
from vipwire.proxy.proxy import Proxy
from vipwire.proxy.run import run_beside
from vipwire_up.supervision.part_metrics import PartFailures


class Ending:
    """Whether a signal has asked for the end of a command. While the proxy runs, it is the one that hears signals."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._asked = asyncio.Event()
        self._proxy: Proxy | None = None

    def serves(self) -> bool:
        """Report whether the proxy has programmed the rules of all Services, once."""
        return self._proxy is not None and self._proxy.ready()

    def hear_signals(self) -> None:
        """Hear SIGTERM and SIGINT from now on."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked.set)

    async def wait(self) -> None:
        """Wait for a signal."""
        await self._asked.wait()

    async def run_proxy(self, config: Config, source: Source, supervisor: Supervisor, begun: Begun) -> None:
        """Run the proxy until a signal or cancelled, and hear signals again."""

        def started(proxy: Proxy) -> None:
            self._proxy = proxy
            begun()

        try:
            await run_beside(self._command, config, source, started, PartFailures(supervisor))
            self._asked.set()  # a signal has ended it
        finally:
            self.hear_signals()
