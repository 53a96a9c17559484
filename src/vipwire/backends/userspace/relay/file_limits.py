"""How many files this process may have open, and whether there is room for one more connection.

At the limit new connections are refused with a reset, and said so; nobody else notices. One listener may not have all
the room: one that is flooded leaves some to the others.
"""

import resource
from contextlib import suppress
from pathlib import Path
from typing import Final

WANTED: Final = 1 << 20
RESERVE: Final = 64
"""Descriptors that connections never get: for new listeners, pipes and questions of the control process."""
_EACH: Final = 2
_SHARE: Final = 0.75
"""The part of all connections that one listener may have."""


def raise_limit(wanted: int = WANTED) -> int:
    """Raise RLIMIT_NOFILE as far as this user may, at most to `wanted`; return what it is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted
    with suppress(OSError, ValueError):
        most = min(wanted, int(Path("/proc/sys/fs/nr_open").read_text(encoding="ascii")))
    for limits in ((most, max(most, hard)), (min(most, hard), hard)):
        if limits[0] <= soft:
            break
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            return limits[0]
    return soft


class DescriptorBudget:
    """Counts connections. `others` are the descriptors of everything else: listeners, UDP clients."""

    __slots__ = ("limit", "links", "others")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.links = self.others = 0

    @property
    def most(self) -> int:
        """How many connections there may be."""
        return max(0, (self.limit - RESERVE - self.others) // _EACH)

    @property
    def most_each(self) -> int:
        """How many of them may be of one listener."""
        return int(self.most * _SHARE)
