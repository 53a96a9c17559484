"""Tracks the contact to the API server for one kind, and the wait before a retry. Pure.

The wait doubles from 0.8 s up to 30 s with each failure in a row (client-go's bounds), with up to half of it added at
random, so that a cluster's nodes do not return in step. A watch that lived ends a row, not an answered request:
otherwise a server that lists well and breaks every watch would be asked without pause.
"""

from collections.abc import Iterable
from dataclasses import replace

from vipwire.model.value import Value

LEAST_WAIT, MOST_WAIT = 0.8, 30.0
"""Bounds of the doubling wait after failures, in seconds."""
MOST_RETRY_AFTER = 120.0
"""The longest Retry-After that vipwire follows, in seconds."""
QUICK_LOOK, CALM_LOOK = 1.0, 10.0
"""Seconds between two reads of a source's health: while it fails or has not listed, and otherwise."""
ABSENT_WAIT = 300.0
"""Least wait in seconds for a kind that the server lacks; up to twice that, at random."""


class Health(Value, frozen=True):
    """The contact to the server, for one kind.

    `synced`: a complete list was received once. `error` is "" when all is well, `since` its start (in the caller's
    clock). `failures` counts failures in a row, `total` all. `note` says why a kind counts as empty. `logged`: the
    error is in the log already, because it is not about reading objects.
    """

    resource: str
    synced: bool = False
    error: str = ""
    since: float = 0.0
    failures: int = 0
    total: int = 0
    note: str = ""
    logged: bool = False


def seconds_to_next_look(states: Iterable[Health]) -> float:
    """Return how long a reader of health waits before it reads again: rarely while all is well."""
    return QUICK_LOOK if any(each.error or not each.synced for each in states) else CALM_LOOK


class Contact:
    """Keeps the `Health` of one kind and the wait that is due."""

    def __init__(self, resource: str) -> None:
        self.health = Health(resource)
        self._due: float | None = None

    def record_answer(self) -> None:
        """Record a good answer; the row of failures continues."""
        if self.health.error:
            self.health = replace(self.health, error="", since=0.0)

    def record_list(self) -> None:
        """Record a complete list. Errors of a watch end when a watch lives, not before."""
        self.health = replace(self.health, synced=True, note="")

    def record_progress(self) -> None:
        """Record progress of a watch: ends the row of failures."""
        self.health = replace(self.health, error="", since=0.0, failures=0)

    def record_missing_kind(self, reason: str) -> None:
        """Record that the server lacks this kind: it counts as a complete, empty list, and is tried later."""
        self.health = Health(self.health.resource, synced=True, total=self.health.total, note=reason)
        self._due = 0.0

    def record_failure(self, reason: str, now: float, retry_after: float = 0.0) -> None:
        """Record a failure; `retry_after` is the server's wish in seconds."""
        health = self.health
        since = health.since if health.error else now
        self.health = replace(health, error=reason, since=since, failures=health.failures + 1, total=health.total + 1)
        self._due = min(retry_after, MOST_RETRY_AFTER)

    def take_wait(self, chance: float) -> float | None:
        """Return the due wait in seconds and clear it; None without one."""
        least, self._due = self._due, None
        if least is None:
            return None
        if not self.health.failures:
            return ABSENT_WAIT * (1 + chance)
        doublings = min(self.health.failures - 1, 10)
        return max(min(LEAST_WAIT * 2.0**doublings * (1 + chance / 2), MOST_WAIT), least)
