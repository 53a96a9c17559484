"""Which stretches of an array are free. Pure: the time is told.

Those of one length are kept together, for most pools are alike. A stretch that was given back is left alone for a
second: a program that has just read where it lies may be there still.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

COOLING_SECONDS: Final = 1.0


class FullError(Exception):
    """There is no stretch so long: a larger array is needed."""


class Stretches:
    """The free stretches of an array of so many places; `taken` are (first, length)."""

    def __init__(self, size: int, taken: Iterable[tuple[int, int]] = ()) -> None:
        self.size, self.end = size, 0
        self._free: dict[int, list[int]] = {}
        self._cooling: deque[tuple[float, int, int]] = deque()
        for first, length in sorted(taken):
            if first > self.end:
                self._free.setdefault(first - self.end, []).append(self.end)
            self.end = max(self.end, first + length)

    def take(self, length: int, now: float) -> int:
        """Take a stretch; return where it begins. Raise FullError if there is none."""
        while self._cooling and self._cooling[0][0] <= now:
            _, first, free = self._cooling.popleft()
            self._free.setdefault(free, []).append(first)
        if self._free.get(length):
            return self._free[length].pop()
        if self.end + length <= self.size:
            self.end += length
            return self.end - length
        for longer in sorted(each for each, firsts in self._free.items() if each > length and firsts):
            first = self._free[longer].pop()
            self._free.setdefault(longer - length, []).append(first + length)
            return first
        raise FullError(length)

    def give(self, first: int, length: int, now: float) -> None:
        """Give a stretch back."""
        if length:
            self._cooling.append((now + COOLING_SECONDS, first, length))
