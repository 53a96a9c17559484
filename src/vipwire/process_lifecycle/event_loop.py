"""The event loop of a process that serves: its rounds are short, however many clients send at once.

asyncio handles all sockets that are ready in one round. With a thousand clients this takes a tenth of a second, in
which no timer and no signal is handled, and nothing that a part of the process has made ready.
"""

import asyncio
import selectors
from collections import deque
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

_SOCKETS: Final = 64
"""Sockets that are handled in one round."""
_T = TypeVar("_T")


class _Selector(selectors.DefaultSelector):
    """Gives the sockets that are ready in parts. The next part comes before the kernel is asked again."""

    def __init__(self) -> None:
        super().__init__()
        self._found = deque[tuple[selectors.SelectorKey, int]]()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if not self._found:
            self._found.extend(super().select(timeout))
        part = [self._found.popleft() for _ in range(min(_SOCKETS, len(self._found)))]
        known = self.get_map()  # where a key has changed meanwhile, the kernel tells again what is ready
        return [each for each in part if known.get(each[0].fd) is each[0]]


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine, as asyncio.run does."""
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(_Selector())) as runner:
        return runner.run(main)
