"""Real servers that finish their connections: removed from a pool, kept with weight 0 until nobody needs them.

Pure bookkeeping; `now` is seconds of a monotonic clock. A look at the kernel costs a request for each virtual server
concerned, so looking is rarer the longer it takes, and never takes more than a twentieth of the time.
"""

from dataclasses import dataclass, field

from vipwire.netlink.ipvs import RealServer, VirtualServer

LOOK_SECONDS = 1.0


@dataclass(slots=True)
class Draining:
    """Which real servers drain, and until when at the latest (None: until their last connection has ended)."""

    _until: dict[RealServer, float | None] = field(default_factory=dict)
    _look_at: float = 0.0

    def __contains__(self, real: RealServer) -> bool:
        return real in self._until

    def __len__(self) -> int:
        return len(self._until)

    def begin(self, real: RealServer, now: float, seconds: int | None) -> None:
        """Let a real server drain for at most so many seconds; look at it at once, for most have no connections."""
        self._until.setdefault(real, None if seconds is None else now + seconds)
        self._look_at = now

    def end(self, real: RealServer) -> None:
        """Forget a real server: it is gone, or wanted again."""
        self._until.pop(real, None)

    def forget_servers(self, servers: set[VirtualServer]) -> None:
        """Forget the real servers of virtual servers that are gone."""
        for real in [each for each in self._until if each.server in servers]:
            del self._until[real]

    def due(self, now: float) -> float | None:
        """Return the seconds until the next look; None if nothing drains."""
        return max(0.0, self._look_at - now) if self._until else None

    def servers(self) -> dict[VirtualServer, list[RealServer]]:
        """Group what drains by its virtual server."""
        groups: dict[VirtualServer, list[RealServer]] = {}
        for real in self._until:
            groups.setdefault(real.server, []).append(real)
        return groups

    def expired(self, real: RealServer, now: float) -> bool:
        """Tell whether its time is up."""
        until = self._until.get(real)
        return until is not None and now >= until

    def looked(self, now: float, took: float) -> None:
        """Note a look that took so many seconds."""
        self._look_at = now + max(LOOK_SECONDS, 20 * took)
