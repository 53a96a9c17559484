"""Graceful termination: keeps a removed real server with weight 0 until its connections have ended.

Pure bookkeeping; `now` is seconds of a monotonic clock. A look at the kernel costs a request for each virtual server
concerned. What has just begun to drain is looked at at once, for most have no connections, and without the others: an
event costs what its own Service costs. Looking at all is rarer the longer it takes, and never takes more than a
twentieth of the time.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from vipwire.linux.netlink.ipvs import RealServer, VirtualServer

LOOK_SECONDS = 1.0


@dataclass(slots=True)
class GracefulTermination:
    """Which real servers drain, and until when at the latest (None: until their last connection has ended)."""

    _until: dict[VirtualServer, dict[RealServer, float | None]] = field(default_factory=dict)
    _begun: dict[VirtualServer, None] = field(default_factory=dict)
    _look_at: float = 0.0

    def __contains__(self, real: RealServer) -> bool:
        return real in self._until.get(real.server, ())

    def __iter__(self) -> Iterator[RealServer]:
        return (real for reals in self._until.values() for real in reals)

    def begin(self, real: RealServer, now: float, seconds: int | None) -> None:
        """Start to drain a real server, for at most so many seconds."""
        self._until.setdefault(real.server, {}).setdefault(real, None if seconds is None else now + seconds)
        self._begun[real.server] = None

    def end(self, real: RealServer) -> None:
        """Forget a real server: it is gone, or wanted again."""
        if reals := self._until.get(real.server):
            reals.pop(real, None)
            if not reals:
                self.forget_servers((real.server,))

    def forget_servers(self, servers: Iterable[VirtualServer]) -> None:
        """Forget the real servers of virtual servers that are gone."""
        for server in servers:
            self._until.pop(server, None)
            self._begun.pop(server, None)

    def due(self, now: float) -> float | None:
        """Return the seconds until the next look; None if nothing drains."""
        if self._begun:
            return 0.0
        return max(0.0, self._look_at - now) if self._until else None

    def servers(self, now: float) -> Mapping[VirtualServer, tuple[RealServer, ...]]:
        """Group what is to be looked at now by its virtual server: all that drains, or what has begun meanwhile."""
        wanted = self._until if now >= self._look_at else self._begun
        return {server: tuple(self._until[server]) for server in wanted}

    def expired(self, real: RealServer, now: float) -> bool:
        """Report whether its time is up."""
        until = self._until.get(real.server, {}).get(real)
        return until is not None and now >= until

    def looked(self, began: float, now: float) -> None:
        """Note that what `servers` gave at `began` has been looked at."""
        if began >= self._look_at:
            self._look_at = now + max(LOOK_SECONDS, 20 * (now - began))
        self._begun.clear()
