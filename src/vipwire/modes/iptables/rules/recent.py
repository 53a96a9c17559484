"""Reads what the kernel remembers of clients (`-m recent`): /proc/net/xt_recent, a file for each list.

    src=10.244.1.13 ttl: 63 last_seen: 4339285431 oldest_pkt: 1 4339285431

Times are in jiffies, which /proc/timer_list tells for now. How many there are in a second the kernel does not say:
it is the usual number with which they agree with the time since the start (they begin 5 minutes before 2^32,
include/linux/jiffies.h).
"""

import re
import time
from pathlib import Path
from typing import Final

from vipwire.model.net import Address, parse_address

_LISTS: Final = Path("/proc/thread-self/net/xt_recent")
_CLOCK: Final = Path("/proc/timer_list")
_ENTRY: Final = re.compile(r"^src=(\S+) .*?last_seen: (\d+) ", re.MULTILINE)
_JIFFIES: Final = re.compile(r"^jiffies: (\d+)$", re.MULTILINE)
_RATES: Final = (100, 250, 300, 1000)
_EARLY: Final = 300
_WRAP: Final = 1 << 32


class Recent:
    """The lists of the calling thread's network namespace, at one moment. What cannot be read is empty."""

    def __init__(self, lists: Path = _LISTS, clock: Path = _CLOCK) -> None:
        self._lists, self._clock = lists, clock
        self._now: tuple[int, int] | None = None

    def seen(self, name: str, client: Address) -> float | None:
        """Return how many seconds ago a client was last seen; None if the list does not have it."""
        try:
            text = (self._lists / name).read_text(encoding="ascii")
            for address, last in _ENTRY.findall(text):
                if parse_address(address) == client:
                    now, rate = self._time()
                    return max(0.0, (now - int(last)) / rate)
        except (OSError, ValueError):
            pass
        return None

    def _time(self) -> tuple[int, int]:
        if self._now is None:
            found = _JIFFIES.search(self._clock.read_text(encoding="ascii"))
            if found is None:
                raise ValueError("the kernel does not tell its jiffies")
            now = int(found[1])
            self._now = now, ticks_per_second(now, time.clock_gettime(time.CLOCK_BOOTTIME))
        return self._now


def ticks_per_second(jiffies: int, uptime: float) -> int:
    """Return how many jiffies a second has, which were so many after so many seconds."""
    return min(_RATES, key=lambda rate: abs(_WRAP - _EARLY * rate + uptime * rate - jiffies))
