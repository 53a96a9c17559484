"""Decides whether the limit of open files allows one more connection.

At the limit new connections are refused with a reset, and said so; nobody else notices. One listener may not have all
the room: one that is flooded leaves some to the others.
"""

from typing import Final

RESERVE: Final = 64
"""Descriptors that connections never get: for new listeners, pipes and questions of the control process."""
_EACH: Final = 2
_SHARE: Final = 0.75
"""The part of all connections that one listener may have."""


class DescriptorBudget:
    """Counts connections. `others` are the descriptors of everything else: listeners, UDP clients."""

    __slots__ = ("limit", "links", "others")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.links = self.others = 0

    @property
    def most(self) -> int:
        """The most connections at once."""
        return max(0, (self.limit - RESERVE - self.others) // _EACH)

    @property
    def most_each(self) -> int:
        """The most connections of one listener."""
        return int(self.most * _SHARE)
