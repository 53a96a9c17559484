"""Sends Kubernetes Events about Nodes and Services; counts repetitions and never delays the caller.

`record` only fills a bounded queue; a task sends. The same Event about the same object within ten minutes raises the
existing Event's count (a PATCH). The rate follows `clientConnection.qps` and `burst`; Events beyond the queue are
dropped and counted. While the API server is unreachable, an Event is sent again after each of `PAUSES`, then dropped.
Events are core/v1: they have a count, and kube-proxy's RBAC role (create, patch) allows them.
"""

import asyncio
import contextlib
import datetime as dt
import enum
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from vipwire.http_client.client import reason_of
from vipwire.kube.access.access import Access
from vipwire.kube.access.connection import TRANSPORT_ERRORS, Connection, Payload, Witness, ignore_result
from vipwire.model.text import escape_invisible
from vipwire.model.times import format_time
from vipwire.model.value import Value

COMPONENT = "vipwire"
QUEUE = 1000
REMEMBERED = 4096
FORGET_AFTER = 600.0
"""Seconds after which a repetition is a new Event (client-go's aggregation window)."""
PAUSES = (0.5, 1.0, 2.0, 5.0, 10.0, 10.0)  # seconds; client-go makes twelve attempts, ten seconds apart
TIMEOUT = 10.0
LONGEST_MESSAGE = 1024
"""The API server's limit."""

_log = logging.getLogger(__name__)


class EventType(enum.Enum):
    """An Event's `type`."""

    NORMAL = "Normal"
    WARNING = "Warning"


class Subject(Value, frozen=True):
    """The object of an Event (`involvedObject`)."""

    kind: str
    name: str
    namespace: str = ""
    uid: str = ""
    api_version: str = "v1"


class EventNote(Value, frozen=True):
    """One Event to send about an object."""

    about: Subject
    type: EventType
    reason: str
    message: str


class _Sent(Struct):
    name: str
    count: int
    first: float
    last: float


class TokenBucket:
    """A rate limit with a burst; pure. A `qps` of 0 or less is no limit, as client-go's negative ones."""

    def __init__(self, qps: float, burst: int) -> None:
        self._qps, self._burst = qps, max(1, burst)
        self._tokens, self._at = float(self._burst), 0.0

    def take_token(self, now: float) -> float:
        """Take a token; return the seconds to wait before using it."""
        if self._qps <= 0:
            return 0.0
        self._tokens = min(float(self._burst), self._tokens + max(0.0, now - self._at) * self._qps)
        self._at = now
        self._tokens -= 1
        return max(0.0, -self._tokens / self._qps)


class EventRecorder:
    """Sends Events to an API server while `run` runs. `record` never fails."""

    def __init__(
        self,
        access: Access,
        host: str,
        *,
        qps: float = 5.0,
        burst: int = 10,
        wall: Callable[[], float] = time.time,
        pauses: Sequence[float] = PAUSES,
        witness: Witness = ignore_result,
    ) -> None:
        self._access, self._host, self._wall, self._witness = access, host, wall, witness
        self._pauses = pauses
        self._bucket = TokenBucket(qps, burst)
        self._queue: asyncio.Queue[EventNote] = asyncio.Queue(QUEUE)
        self._sent: OrderedDict[EventNote, _Sent] = OrderedDict()
        self.dropped = 0
        """Dropped Events: the queue was full or the server refused them."""

    def record(self, about: Subject, reason: str, message: str, kind: EventType = EventType.NORMAL) -> None:
        """Queue an Event. Call from the event loop's thread; returns at once."""
        try:
            self._queue.put_nowait(make_note(about, kind, reason, message))
        except asyncio.QueueFull:
            self.dropped += 1

    async def run(self) -> None:
        async with Connection(self._access, COMPONENT, witness=self._witness) as connection:
            while True:
                note = await self._queue.get()
                try:
                    await self._send_until_answered(connection, note)
                except TRANSPORT_ERRORS as error:
                    self._drop_event(note, reason_of(error))
                finally:
                    self._queue.task_done()

    async def wait_until_sent(self) -> None:
        await self._queue.join()

    async def _send_until_answered(self, connection: Connection, note: EventNote) -> None:
        for pause in self._pauses:
            with contextlib.suppress(*TRANSPORT_ERRORS):
                await self._send_event(connection, note)
                return
            await asyncio.sleep(pause)
        await self._send_event(connection, note)

    async def _send_event(self, connection: Connection, note: EventNote) -> None:
        await asyncio.sleep(self._bucket.take_token(self._wall()))
        now = self._wall()
        sent = self._sent.get(note)
        path = f"/api/v1/namespaces/{note.about.namespace or 'default'}/events"
        if sent is not None and now - sent.last < FORGET_AFTER:
            body = {"count": sent.count + 1, "lastTimestamp": format_time(_convert_to_utc(now))}
            payload = Payload(msgspec.json.encode(body), "application/merge-patch+json")
            status = await self._send_request(connection, "PATCH", f"{path}/{sent.name}", payload)
            if status != 404:
                self._remember_sent(note, _Sent(sent.name, sent.count + 1, sent.first, now), status)
                return
        sent = _Sent(f"{note.about.name[:200]}.{int(now * 1e9):x}", 1, now, now)
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": sent.name, "namespace": note.about.namespace or "default"},
            **build_event_fields(
                note, sent.count, _convert_to_utc(sent.first), _convert_to_utc(sent.last), self._host
            ),
        }
        payload = Payload(msgspec.json.encode(event))
        self._remember_sent(note, sent, await self._send_request(connection, "POST", path, payload))

    async def _send_request(self, connection: Connection, method: str, path: str, payload: Payload) -> int:
        async with connection.request(method, path, timeout=TIMEOUT, payload=payload) as response:
            return response.status

    def _remember_sent(self, note: EventNote, sent: _Sent, status: int) -> None:
        if status >= 300:
            self._drop_event(note, f"the server answered {status}")
            return
        self._sent[note] = sent
        self._sent.move_to_end(note)
        if len(self._sent) > REMEMBERED:
            self._sent.popitem(last=False)

    def _drop_event(self, note: EventNote, reason: str) -> None:
        self.dropped += 1
        _log.debug("event not sent: %s %s: %s", note.about.kind, note.about.name, reason)


def make_note(about: Subject, kind: EventType, reason: str, message: str) -> EventNote:
    """Build a note with a message that is safe for terminals and short enough for the API server."""
    return EventNote(about, kind, reason, escape_invisible(message)[:LONGEST_MESSAGE])


def build_event_fields(
    note: EventNote, count: int, first: dt.datetime, last: dt.datetime, host: str = ""
) -> dict[str, Any]:
    """Build an Event without its metadata. `host` is the reporting machine."""
    about = note.about
    return {
        "involvedObject": {
            "apiVersion": about.api_version,
            "kind": about.kind,
            "name": about.name,
            **({"namespace": about.namespace} if about.namespace else {}),
            **({"uid": about.uid} if about.uid else {}),
        },
        "type": note.type.value,
        "reason": note.reason,
        "message": note.message,
        "count": count,
        "firstTimestamp": format_time(first),
        "lastTimestamp": format_time(last),
        "source": {"component": COMPONENT} | ({"host": host} if host else {}),
        "reportingComponent": COMPONENT,
        "reportingInstance": host,
    }


def _convert_to_utc(seconds: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(seconds, dt.UTC)
