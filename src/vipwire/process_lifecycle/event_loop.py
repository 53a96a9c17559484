"""An event loop with short rounds, however many clients send at once; waits for the first end, and for signals.

asyncio handles all ready sockets in one round. With a thousand clients that takes a tenth of a second, in which the
loop handles no timer, no signal and no other callback.
"""

import asyncio
import selectors
import signal
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from vipwire.process_lifecycle.early_signals import EarlySighup

_SOCKETS: Final = 64
"""The most sockets handled in one round."""
_T = TypeVar("_T")


class _Selector(selectors.DefaultSelector):
    """Returns ready sockets in batches. Asks the kernel again after the last batch."""

    def __init__(self) -> None:
        super().__init__()
        self._found = deque[tuple[selectors.SelectorKey, int]]()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if not self._found:
            self._found.extend(super().select(timeout))
        part = [self._found.popleft() for _ in range(min(_SOCKETS, len(self._found)))]
        known = self.get_map()  # if a key has changed, the kernel reports the socket again
        return [each for each in part if known.get(each[0].fd) is each[0]]


async def run_until_first_ends(*works: Coroutine[Any, Any, object]) -> int:
    """Run coroutines until one ends, then cancel the others. Return the index of the one that ended."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work) for work in works]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        ended = next(index for index, task in enumerate(tasks) if task.done())
        for task in tasks:
            task.cancel()
    return ended


def run_in_loop(main: Coroutine[Any, Any, _T]) -> _T:
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(_Selector())) as runner:
        return runner.run(main)


class Stop:
    """Waits for the end: SIGTERM and SIGINT end the process, SIGHUP makes it read its configuration again.

    Make it inside the event loop, before any slow work.
    """

    def __init__(self, hung_up: Callable[[], None]) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self._reason: asyncio.Future[str] = loop.create_future()
        self.succeeded = False
        """Whether a successor takes over."""
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.end, number.name)
        early = signal.getsignal(signal.SIGHUP)
        loop.add_signal_handler(signal.SIGHUP, hung_up)
        if isinstance(early, EarlySighup) and early.came:
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
