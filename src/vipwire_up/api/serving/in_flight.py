"""Requests that are being answered: how many there may be at a time, of all and of one user.

As kube-apiserver does with --max-requests-inflight: reads and writes are counted apart, watches are not among them,
and who is too many is told 429 and to come again in a second. Members of system:masters are never refused. Beyond
that, one user alone does not get all, watches have a bound, and so have the bodies that are in memory at a time: who
begins them and does not end them keeps nobody else from writing.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator
from enum import Enum

from vipwire.kube.errors import ApiError
from vipwire_up.api.serving.bounds import Bounds
from vipwire_up.api.serving.guard import Role, User


class Sort(Enum):
    """The kind of a request."""

    READ = "read"
    WRITE = "write"
    WATCH = "watch"


class InFlight:
    """Counts requests, and the bytes of their bodies."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._all = Counter[Sort]()
        self._of = Counter[tuple[Sort, str, str]]()
        self._bytes = 0
        self._bytes_of = Counter[str]()

    @contextlib.contextmanager
    def request(self, sort: Sort, user: User, host: str) -> Iterator[None]:
        """Count a request while it lasts. Raise ApiError 429."""
        who = (sort, user.name, host if sort is Sort.WATCH else "")
        most, most_of_one = self._most(sort)
        if not _exempt(user) and (self._all[sort] >= most or self._of[who] >= most_of_one):
            raise too_many()
        self._all[sort] += 1
        self._of[who] += 1
        try:
            yield
        finally:
            self._all[sort] -= 1
            self._of[who] -= 1
            if not self._of[who]:
                del self._of[who]

    @contextlib.contextmanager
    def body(self, size: int, user: User) -> Iterator[None]:
        """Count the bytes of a body while it is in memory. Raise ApiError 429. One alone is never too much."""
        most = self._bounds.all_bodies
        too_much = self._bytes and self._bytes + size > most
        too_much_of_one = self._bytes_of[user.name] and self._bytes_of[user.name] + size > most * self._bounds.of_one
        if (too_much or too_much_of_one) and not _exempt(user):
            raise too_many()
        self._bytes += size
        self._bytes_of[user.name] += size
        try:
            yield
        finally:
            self._bytes -= size
            self._bytes_of[user.name] -= size
            if not self._bytes_of[user.name]:
                del self._bytes_of[user.name]

    def count(self, sort: Sort) -> int:
        """Count the requests of a sort."""
        return self._all[sort]

    def _most(self, sort: Sort) -> tuple[int, int]:
        bounds = self._bounds
        if sort is Sort.WATCH:
            return bounds.watches, bounds.one_watcher
        most = bounds.reads if sort is Sort.READ else bounds.writes
        return most, max(1, int(most * bounds.of_one))


def _exempt(user: User) -> bool:
    return Role.ADMIN.value in user.groups


def too_many() -> ApiError:
    """Build the 429 that tells a client to try again later."""
    message = "Too many requests, please try again later."
    return ApiError(429, "TooManyRequests", message, {"retryAfterSeconds": 1})
