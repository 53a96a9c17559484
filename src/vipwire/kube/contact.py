"""Keeps the state of the contact to the API server for one kind, and says how long to wait before a retry. Pure.

The wait doubles from 0.8 s up to 30 s with every failure in a row (client-go's bounds), with up to half of it added
by chance so that a cluster's nodes do not come back in step. What ends a row is not that a request was answered but
that a watch lived: a server that lists well and breaks every watch would otherwise be asked without end.
"""

from dataclasses import replace

from vipwire.model.value import Value

LEAST_WAIT, MOST_WAIT = 0.8, 30.0
"""Bounds of the wait after failures, in seconds; it doubles between them."""
MOST_RETRY_AFTER = 120.0
"""A server may ask for a longer wait, up to this, in seconds."""
ABSENT_WAIT = 300.0
"""How long a kind that the server does not have is left alone, in seconds; up to twice that, by chance."""


class Health(Value, frozen=True):
    """The state of the contact to the server, for one kind.

    `synced`: a complete list was seen once. `error` is empty when all is well, else it says what is wrong, `since`
    the time when that began (in the caller's clock). `failures` in a row, `total` all of them. `note` says why a kind
    counts as empty. `logged`: the error has a line in the log already, for it is not about reading objects.
    """

    resource: str
    synced: bool = False
    error: str = ""
    since: float = 0.0
    failures: int = 0
    total: int = 0
    note: str = ""
    logged: bool = False


class Contact:
    """Keeps the `Health` of one kind and the wait that is due."""

    def __init__(self, resource: str) -> None:
        self.health = Health(resource)
        self._due: float | None = None

    def answered(self) -> None:
        """Note a good answer; the row of failures does not end with it."""
        if self.health.error:
            self.health = replace(self.health, error="", since=0.0)

    def synced(self) -> None:
        """Note a complete list. What a watch suffered from is over when a watch lives, not before."""
        self.health = replace(self.health, synced=True, note="")

    def lived(self) -> None:
        """Note that a watch made progress, which ends the row of failures."""
        self.health = replace(self.health, error="", since=0.0, failures=0)

    def absent(self, reason: str) -> None:
        """Note that the server does not have this kind: it counts as a complete, empty list, to be tried later."""
        self.health = Health(self.health.resource, synced=True, total=self.health.total, note=reason)
        self._due = 0.0

    def failed(self, reason: str, now: float, retry_after: float = 0.0) -> None:
        """Note a failure; `retry_after` seconds is what the server asked for."""
        health = self.health
        since = health.since if health.error else now
        self.health = replace(health, error=reason, since=since, failures=health.failures + 1, total=health.total + 1)
        self._due = min(retry_after, MOST_RETRY_AFTER)

    def take_wait(self, chance: float) -> float | None:
        """Return the wait that is due, in seconds, and clear it; None when there is none."""
        least, self._due = self._due, None
        if least is None:
            return None
        if not self.health.failures:
            return ABSENT_WAIT * (1 + chance)
        doublings = min(self.health.failures - 1, 10)
        return max(min(LEAST_WAIT * 2.0**doublings * (1 + chance / 2), MOST_WAIT), least)
