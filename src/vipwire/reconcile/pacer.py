"""Decides when to sync: at once, but not more often than asked; again after a failure; and regularly, to check.

The minimum period counts from the end of one sync to the start of the next (as kube-proxy's runner counts it). All
times are seconds of one monotonic clock, given by the caller.
"""

from msgspec import Struct, field


class Pacer(Struct):
    """Decides when the next sync is due.

    `minimum` is the least time between syncs, 0 for none. `period` is the time between checks of the kernel. After a
    failure the next try comes after 0.1 s, twice as long each time, at most `period`. A check that has to observe all
    and takes long is made rarer, so that observing never takes more than a twentieth of the time. What a mode does to
    tell whether it must is not counted: where IPVS is read for that, it is in every period, as promised.
    """

    minimum: float
    period: float
    _ended: float = float("-inf")
    _check_at: float = float("-inf")
    _retry_at: float | None = None
    _blocked: bool = False
    _failures: int = field(default=0)

    def due(self, now: float, *, pending: bool) -> float:
        """Return how many seconds remain until the next sync or check is due; 0 when it is due now."""
        times = [self._check_at] if not self._blocked else []
        if self._retry_at is not None:
            times.append(self._retry_at)
        if pending and not self._blocked:
            times.append(now)
        return max(min(times), self._ended + self.minimum, now) - now

    def become(self, minimum: float, period: float, now: float) -> None:
        """Change the pace. The next check is due within the new period, and no later than it was."""
        self.minimum, self.period = minimum, period
        self._check_at = min(self._check_at, now + period)

    def check_due(self, now: float) -> bool:
        """Report whether it is time to check the kernel."""
        return not self._blocked and now >= self._check_at

    def checked(self, now: float, took: float) -> None:
        """Note a check that ended now and took so many seconds."""
        self._check_at = now + max(self.period, 20 * took)

    def succeeded(self, now: float) -> None:
        """Note a sync that did all that was to be done."""
        self._ended = now
        self._retry_at = None
        self._blocked = False
        self._failures = 0

    def retry_due(self, now: float) -> bool:
        """Report whether it is time to try again what failed."""
        return self._retry_at is not None and now >= self._retry_at

    def failed(self, now: float, *, blocked: bool) -> None:
        """Note a sync that left something undone; `blocked` if it was everything, so that new work waits too."""
        self._ended = now
        self._blocked = blocked
        self._retry_at = now + min(0.1 * 2 ** min(self._failures, 20), self.period)
        self._failures += 1
