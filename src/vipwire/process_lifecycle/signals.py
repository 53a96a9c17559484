"""Signals: SIGTERM and SIGINT end the proxy, SIGHUP makes it read its configuration again."""

import asyncio
import signal
from collections.abc import Callable

from vipwire.process_lifecycle import early_signals


class Stop:
    """Waits for the end. Make it inside the event loop, before any slow work."""

    def __init__(self, hung_up: Callable[[], None]) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self._reason: asyncio.Future[str] = loop.create_future()
        self.succeeded = False
        """Whether a successor takes over."""
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.end, number.name)
        loop.add_signal_handler(signal.SIGHUP, hung_up)
        if early_signals.take_recorded_sighup():  # a signal that arrived during the start
            hung_up()

    def make_room(self, successor: str) -> None:
        """End because a successor takes over. Any thread may call this."""
        self.succeeded = True
        self._loop.call_soon_threadsafe(self.end, f"{successor} takes over")

    async def wait(self) -> str:
        return await self._reason

    def end(self, reason: str) -> None:
        """End for a reason; the first one counts."""
        if not self._reason.done():
            self._reason.set_result(reason)
