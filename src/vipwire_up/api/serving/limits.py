"""The limits of one client of the API server: connections, requests, seconds and bytes; and the requests in flight.

kube-apiserver's bounds: 3 MiB of body, 400 reads and 200 writes in flight (--max-requests-inflight,
--max-mutating-requests-inflight), 60 s for a request (--request-timeout). A request over a limit gets 429 with
Retry-After: 1; members of system:masters are never refused.

vipwire's own bounds protect one process with one event loop: anonymous clients get a small part, one user never gets
all, and clients that do not end their bodies cannot block other writes.
"""

import contextlib
import dataclasses
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from enum import Enum
from http import HTTPStatus
from typing import Final

from vipwire.http_server.exchange import BodyError, Exchange
from vipwire.http_server.room import Limits
from vipwire.kube.errors import ApiError
from vipwire_up.api.objects.errors import bad_request, body_too_large
from vipwire_up.api.serving.authorization import Role, User

BODY_BYTES: Final = 3 << 20
_RESERVE: Final = 256  # files that connections never use: for the store, the kernel, DNS, probes


class Bounds(Limits, frozen=True):
    """The bounds of one server.

    `of_one` are the parts of all requests that one user may have in flight, `one_watcher` the watches of one user
    from one address.
    """

    connections: int = 10_000
    one_address: int = 5_000
    strangers_of_one: int = 128
    first_seconds: float = 10.0
    idle_seconds: float = 90.0
    stall_seconds: float = 30.0
    head_bytes: int = 96 << 10  # the request line holds selectors
    field_bytes: int = 8 << 10
    buffered: int = 64 << 10
    ignored: int = 4 << 20
    request_seconds: float = 60.0
    body_bytes: int = BODY_BYTES
    question_bytes: int = 64 << 10
    all_bodies: int = 96 << 20
    reads: int = 400
    writes: int = 200
    of_one: float = 0.5
    watches: int = 10_000
    one_watcher: int = 1_000

    def lowered_to_files(self, files: int) -> "Bounds":
        """Lower the number of connections to fit the limit of open files."""
        most = max(files - _RESERVE, 32)
        if most >= self.connections:
            return self
        strangers = min(self.strangers, most // 2)
        return dataclasses.replace(
            self,
            connections=most,
            one_address=min(self.one_address, most - most // 8),
            strangers=strangers,
            strangers_of_one=min(self.strangers_of_one, strangers // 2),
        )


class Sort(Enum):
    """The kind of a request."""

    READ = "read"
    WRITE = "write"
    WATCH = "watch"


class InFlight:
    """Counts requests in flight, and the bytes of their bodies."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._all = Counter[Sort]()
        self._of = Counter[tuple[Sort, str, str]]()
        self._bytes = 0
        self._bytes_of = Counter[str]()

    @contextlib.contextmanager
    def count_request(self, sort: Sort, user: User, host: str) -> Iterator[None]:
        who = (sort, user.name, host if sort is Sort.WATCH else "")
        most, most_of_one = self._find_limit(sort)
        if not _is_exempt(user) and (self._all[sort] >= most or self._of[who] >= most_of_one):
            raise too_many_requests()
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
    def count_body(self, size: int, user: User) -> Iterator[None]:
        """Count a body's bytes in memory. Raise ApiError 429, but never for a single body."""
        most = self._bounds.all_bodies
        too_much = self._bytes and self._bytes + size > most
        too_much_of_one = self._bytes_of[user.name] and self._bytes_of[user.name] + size > most * self._bounds.of_one
        if (too_much or too_much_of_one) and not _is_exempt(user):
            raise too_many_requests()
        self._bytes += size
        self._bytes_of[user.name] += size
        try:
            yield
        finally:
            self._bytes -= size
            self._bytes_of[user.name] -= size
            if not self._bytes_of[user.name]:
                del self._bytes_of[user.name]

    def requests_in_flight(self, sort: Sort) -> int:
        return self._all[sort]

    def _find_limit(self, sort: Sort) -> tuple[int, int]:
        bounds = self._bounds
        if sort is Sort.WATCH:
            return bounds.watches, bounds.one_watcher
        most = bounds.reads if sort is Sort.READ else bounds.writes
        return most, max(1, int(most * bounds.of_one))


def _is_exempt(user: User) -> bool:
    return Role.ADMIN.value in user.groups


def too_many_requests() -> ApiError:
    message = "Too many requests, please try again later."
    return ApiError(429, "TooManyRequests", message, {"retryAfterSeconds": 1})


@contextlib.asynccontextmanager
async def read_body(exchange: Exchange, in_flight: InFlight, most: int, user: User) -> AsyncIterator[bytes]:
    """Read a body, counted while in use; one without Content-Length counts as the largest allowed.

    Raise ApiError: 408, 413, 415, 429, or 400 if the connection breaks off.
    """
    announced = exchange.length
    if announced is not None and announced > most:
        raise body_too_large(most)
    if exchange.headers.get("content-encoding", "identity") != "identity":
        raise ApiError(
            415, "UnsupportedMediaType", "the body of the request is compressed: send it without Content-Encoding"
        )
    with in_flight.count_body(most if announced is None else announced, user):
        try:
            body = await exchange.read(most)
        except BodyError as error:
            raise _body_error_answer(error, most) from None
        yield body


def _body_error_answer(error: BodyError, most: int) -> ApiError:
    match error.status:
        case HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            return body_too_large(most)
        case HTTPStatus.REQUEST_TIMEOUT:
            return ApiError(408, "Timeout", "the body of the request did not arrive in time")
    return bad_request("the body of the request is incomplete or not HTTP")
