"""Log lines about errors that other machines can cause at any rate, limited so that they do not fill the disk."""

import logging
import time
from collections.abc import Callable
from typing import Final

from vipwire.logging import log

EVERY_SECONDS: Final = 60.0


class RateLimitedLog:
    """Logs a message the first time, then at most once a minute, with the number of times left out."""

    def __init__(self, every: float = EVERY_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._every, self._clock = every, clock
        self._last: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def due(self, message: str) -> bool:
        """Report whether a message may be logged now; count it if not."""
        now, last = self._clock(), self._last.get(message)
        if last is not None and now - last < self._every:
            self._left_out[message] = self._left_out.get(message, 0) + 1
            return False
        self._last[message] = now
        return True

    def warning(self, message: str, /, **fields: object) -> None:
        """Log a warning, unless the same message was logged within a minute. Messages are constants."""
        if self.due(message):
            left_out = self._left_out.pop(message, 0)
            log.event(logging.WARNING, message, **fields, **({"left_out": left_out} if left_out else {}))
