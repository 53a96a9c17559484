"""Decides when to sync: at once, at a limited rate, again after a failure, and to check the kernel.

The minimum period runs from the end of one sync to the start of the next, as in kube-proxy's runner. All times are
seconds of the caller's monotonic clock.
"""

from typing import Final

from msgspec import Struct, field

_FIRST_PAUSE: Final = 0.1


class Pacer(Struct):
    """Decides when the next sync is due.

    `minimum` is the least time between syncs, 0 for none. `period` is the time between checks of the kernel. After a
    failure the next try follows after 0.1 s, doubling up to `period`. Slow checks that observe all objects become
    rarer, so that observing takes at most a twentieth of the time; the mode's own cheap test whether to observe is
    not limited. `told`: the kernel tells of every change, so checks follow alarms only.

    The first alarm makes a check due at once, each further one after twice the pause, from 0.1 s up to `period`,
    until none came for a period.
    """

    minimum: float
    period: float
    _ended: float = float("-inf")
    _check_at: float = float("-inf")
    _retry_at: float | None = None
    _blocked: bool = False
    _failures: int = field(default=0)
    told: bool = False
    _pause: float = 0.0
    _alarmed_at: float = float("-inf")
    _alarmed: bool = False

    def due(self, now: float, *, pending: bool) -> float:
        """Return the seconds until the next sync or check; 0: now."""
        times = [self._check_at] if not self._blocked else []
        if self._retry_at is not None:
            times.append(self._retry_at)
        if pending and not self._blocked:
            times.append(now)
        return max(min(times), self._ended + self.minimum, now) - now

    def become(self, minimum: float, period: float, now: float) -> None:
        """Change the pace. The next check is due within the new period, and no later than before."""
        self.minimum, self.period = minimum, period
        self._check_at = min(self._check_at, now + period)

    def alarm(self, now: float) -> bool:
        """Make a check due, because another program may have changed the kernel; report whether none was."""
        if self._alarmed:
            return False
        if now - self._alarmed_at >= self.period:
            self._pause = 0.0
        self._alarmed = True
        self._check_at = min(self._check_at, max(now, self._alarmed_at + self._pause))
        return True

    def rely(self, now: float) -> None:
        """Check once now; from then on the kernel tells."""
        self.told, self._check_at = True, now

    def check_due(self, now: float) -> bool:
        return not self._blocked and now >= self._check_at

    def record_check(self, now: float, took: float) -> None:
        """Record a check that ended now and took `took` seconds."""
        self._check_at = float("inf") if self.told else now + max(self.period, 20 * took)
        if self._alarmed:
            self._alarmed, self._alarmed_at = False, now
            self._pause = min(max(2 * self._pause, _FIRST_PAUSE, 20 * took), self.period)

    def record_success(self, now: float) -> None:
        """Record a complete sync."""
        self._ended = now
        self._retry_at = None
        self._blocked = False
        self._failures = 0

    def retry_due(self, now: float) -> bool:
        return self._retry_at is not None and now >= self._retry_at

    def record_failure(self, now: float, *, blocked: bool) -> None:
        """Record an incomplete sync; `blocked`: nothing was committed, so new work waits too."""
        self._ended = now
        self._blocked = blocked
        self._retry_at = now + min(0.1 * 2 ** min(self._failures, 20), self.period)
        self._failures += 1
