"""An API server as a source of events: drives one `ResourceWatch` for each kind over HTTP.

All decisions are in `watch`; this module only does input and output. `KeptSource` restarts a failed source, so no
object or file can end the reader.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, Protocol

from vipwire import __version__
from vipwire.http_client.client import reason_of
from vipwire.http_client.wire import Response
from vipwire.kube.access.access import Access
from vipwire.kube.access.connection import ANSWER_TIMEOUT, TRANSPORT_ERRORS, Connection, Witness, ignore_result
from vipwire.kube.contact import Health
from vipwire.kube.resource import Resource
from vipwire.kube.watch import LONGEST_PAGE, ResourceWatch, Sleep, WatchRequest
from vipwire.logging import log
from vipwire.model.net import AddressPort
from vipwire.process_lifecycle.supervision import Supervisor
from vipwire.watched_objects.event import EventOf, K, T

USER_AGENT = f"vipwire/{__version__} (linux)"


def draw_random_fraction() -> float:
    """A random number in [0, 1), without importing `random`, which takes long."""
    return (int.from_bytes(os.urandom(7)) >> 3) / (1 << 53)


class ApiSource(Generic[K, T]):
    """Lists and watches resources of an API server.

    `clock` returns monotonic seconds, `chance` random numbers in [0, 1). An answer must begin within `answer_timeout`
    seconds. `places` receives the API server's addresses.
    """

    def __init__(
        self,
        access: Access,
        resources: Iterable[Resource[K, T]],
        *,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = draw_random_fraction,
        answer_timeout: float = ANSWER_TIMEOUT,
        witness: Witness = ignore_result,
        places: Callable[[frozenset[AddressPort]], None] | None = None,
    ) -> None:
        self._access, self._answer_timeout, self._witness, self._places = access, answer_timeout, witness, places
        self._clock, self._chance = clock, chance
        self._alone = asyncio.Lock()
        self._watches = tuple(ResourceWatch(resource) for resource in resources)

    def health(self) -> tuple[Health, ...]:
        return tuple(watch.health(self._clock()) for watch in self._watches)

    async def run(self, emit: Callable[[EventOf[K, T]], None]) -> None:
        """Watch until cancelled. `emit` must be quick and must not raise."""
        connection = Connection(
            self._access, USER_AGENT, answer_timeout=self._answer_timeout, witness=self._witness, places=self._places
        )
        async with connection, asyncio.TaskGroup() as group:
            for watch in self._watches:
                group.create_task(
                    self._watch_resource(connection, watch, emit), name=f"watch {watch.resource.plural}"
                )

    async def _watch_resource(
        self, connection: Connection, watch: ResourceWatch[K, T], emit: Callable[[EventOf[K, T]], None]
    ) -> None:
        while True:
            match watch.next_action(self._chance()):
                case Sleep(seconds):
                    await asyncio.sleep(seconds)
                case WatchRequest() as request:
                    await self._send_request(connection, watch, request, emit)

    async def _send_request(
        self,
        connection: Connection,
        watch: ResourceWatch[K, T],
        request: WatchRequest,
        emit: Callable[[EventOf[K, T]], None],
    ) -> None:
        try:
            async with connection.request("GET", request.path, request.query, timeout=request.timeout) as response:
                if response.status != 200:
                    await self._handle_refusal(watch, response, emit)
                elif request.watch:
                    await self._read_stream(watch, response, emit)
                else:
                    _emit_all(watch.handle_page(await response.read(LONGEST_PAGE, self._alone), self._clock()), emit)
        except TRANSPORT_ERRORS as error:
            watch.handle_failure(reason_of(error), self._clock())

    async def _handle_refusal(
        self, watch: ResourceWatch[K, T], response: Response, emit: Callable[[EventOf[K, T]], None]
    ) -> None:
        body = await response.read_at_most(1 << 16)
        wait = parse_retry_after(response.headers.get("retry-after", ""), time.time())
        _emit_all(watch.handle_refusal(response.status, body, self._clock(), wait), emit)

    async def _read_stream(
        self, watch: ResourceWatch[K, T], response: Response, emit: Callable[[EventOf[K, T]], None]
    ) -> None:
        def take(data: bytes) -> bool:
            for event in watch.handle_bytes(data, clock()):
                emit(event)
            return not watch.broken

        clock = self._clock

        watch.handle_open(self._clock())
        await response.feed(take)
        watch.handle_end(self._clock())


def parse_retry_after(text: str, now: float) -> float:
    """Read the header Retry-After (RFC 9110 10.2.3) as seconds from `now` (since the epoch); 0 if unusable."""
    if text.isascii() and text.isdigit():
        return float(text[:9])
    from email.utils import parsedate_to_datetime  # noqa: PLC0415  # heavy, and few servers send a date

    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, OverflowError):
        return 0.0


def _emit_all(events: list[EventOf[K, T]], emit: Callable[[EventOf[K, T]], None]) -> None:
    for event in events:
        emit(event)


class _Source(Protocol[K, T]):  # type: ignore[misc]  # mypy wants covariance for an argument's argument
    def health(self) -> tuple[Health, ...]: ...

    def run(self, emit: Callable[[EventOf[K, T]], None]) -> Awaitable[None]: ...


def log_failures(states: Iterable[Health], told: dict[str, str], failure: str = "cannot read objects") -> None:
    """Log each new failure to read a kind, and its end; `told` has the failures so far."""
    for health in states:
        if not health.logged and health.error != told.get(health.resource, ""):
            told[health.resource] = health.error
            if health.error:
                log.warning(failure, resource=health.resource, error=health.error)
            else:
                log.info("reading objects works again", resource=health.resource)


class KeptSource(Generic[K, T]):
    """Restarts a failing source, and reports the failure in its health."""

    def __init__(self, source: _Source[K, T]) -> None:
        self._source, self._supervisor = source, Supervisor()

    def health(self) -> tuple[Health, ...]:
        """Return the source's health, and the failure of its run if there was one."""
        failures = self._supervisor.failures["source"]
        own = Health("source", error=self._supervisor.troubles().get("source", ""), total=failures)
        return (*self._source.health(), *([own] if failures else []))

    async def run(self, emit: Callable[[EventOf[K, T]], None]) -> None:
        await self._supervisor.keep("source", lambda _begun: self._source.run(emit))
