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

    __slots__ = ("_limit", "_others", "links", "most", "most_each")
    most: int
    """The most connections at once."""
    most_each: int
    """The most connections of one listener."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.links = self.others = 0

    @property
    def others(self) -> int:
        """The number of descriptors that are no connection's."""
        return self._others

    @others.setter
    def others(self, number: int) -> None:
        # Every connection asks for the limits, so they are worked out here and not there.
        self._others = number
        self.most = max(0, (self._limit - RESERVE - number) // _EACH)
        self.most_each = int(self.most * _SHARE)
