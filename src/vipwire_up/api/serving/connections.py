"""Connections: who has one, who may have another, and who is cut off because nothing comes.

    accepted ─▶ stranger ─▶ first request of a known user ─▶ known
                   │ nothing complete in ten seconds, or too many others       │ no request in 90 seconds
                   ▼                                                           ▼
                  cut off                                                   cut off

A stranger that comes when there are too many takes the place of the oldest one of its own address, or of all. So
somebody who opens connections and says nothing only cuts off himself: a client needs a stranger's place for the time
of one handshake and one request. aiohttp itself has no bound of the time in which headers come.
"""

import asyncio
import logging
import socket
import struct
from collections import Counter
from typing import Any, Final

from aiohttp import web
from aiohttp.web_request import BaseRequest

from vipwire_up.api.objects.errors import bad_request
from vipwire_up.api.objects.object import encode
from vipwire_up.api.serving.limits import Bounds

LONGEST_LINE: Final = 64 << 10  # selectors stand in the request line
_LONGEST_FIELD: Final = 8 << 10
_MOST_FIELDS: Final = 40
_BUFFERED: Final = 64 << 10  # bytes that wait for a client to read
_AT_ONCE: Final = struct.pack("ii", 1, 0)
_LOG: Final = logging.getLogger("vipwire.api")


class Connection(web.RequestHandler):
    """One connection. It has a deadline whenever no request is being answered."""

    def __init__(self, server: "Connections", loop: asyncio.AbstractEventLoop, host: str, **settings: Any) -> None:
        super().__init__(server, loop=loop, **settings)
        self.host, self.known = host, False
        self._here, self._clock = server, loop
        self._deadline: asyncio.TimerHandle | None = None
        self._opening: socket.socket | None = None

    def opening(self, opened: socket.socket) -> None:
        """Note the socket, by which it can be cut off while TLS is still being agreed on."""
        self._opening = opened
        self.expect(self._here.bounds.first_seconds)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin: the first request has to come soon."""
        if isinstance(transport, asyncio.WriteTransport):
            transport.set_write_buffer_limits(_BUFFERED)
        self._opening = None
        super().connection_made(transport)
        self.expect(self._here.bounds.first_seconds)

    def connection_lost(self, exc: BaseException | None) -> None:
        """End."""
        self.busy()
        self._here.forget(self)
        super().connection_lost(exc)

    def expect(self, seconds: float) -> None:
        """Cut it off if nothing happens for so long."""
        self.busy()
        self._deadline = self._clock.call_later(seconds, self.cut)

    def busy(self) -> None:
        """Remove the deadline: a request is being answered, which has limits of its own."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def answered(self) -> None:
        """Wait for another request."""
        if self.transport is not None:
            bounds = self._here.bounds
            self.expect(bounds.idle_seconds if self.known else bounds.first_seconds)

    def recognized(self) -> None:
        """Note that a known user has sent a request."""
        self.known = True
        self._here.recognized(self)

    def cut(self) -> None:
        """End it at once, with what waits to be written, here and in the kernel."""
        if self.transport is not None:
            if (opened := self.transport.get_extra_info("socket")) is not None:
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            self.transport.abort()
        elif self._opening is not None:
            try:
                self._opening.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # it has ended by itself

    def handle_error(
        self,
        request: BaseRequest,  # noqa: ARG002  # aiohttp's signature
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is no HTTP, in the API's form and without a traceback: anybody can send it."""
        if status >= 500:
            _LOG.error("request failed", exc_info=exc)
        error = bad_request(f"the request is not HTTP: {str(message or 'it cannot be read').splitlines()[0]:.200}")
        body = encode(error.status() | {"code": status})
        response = web.Response(body=body, status=status, content_type="application/json")
        response.force_close()
        return response


class Connections(web.Server):
    """All connections of a server, and their limits."""

    def __init__(self, answer: Any, bounds: Bounds) -> None:
        super().__init__(answer, handler_cancellation=True)  # a watch ends when its client goes
        self.bounds = bounds
        self._strangers: dict[Connection, None] = {}
        self._all: dict[Connection, None] = {}
        self._of = Counter[str]()
        self._strangers_of = Counter[str]()

    def __len__(self) -> int:
        return len(self._all)

    def admit(self, host: str) -> Connection | None:
        """Register a connection from an address, closing another if there are too many; None if it is refused."""
        if self._of[host] >= self.bounds.one_address and not self._cut_oldest(host):
            return None
        if self._strangers_of[host] >= self.bounds.strangers_of_one:
            self._cut_oldest(host)
        elif len(self._strangers) >= self.bounds.strangers:
            self._cut_oldest("")
        if len(self._all) >= self.bounds.connections and not self._cut_oldest(""):
            return None
        connection = self._make(host)
        self._all[connection] = self._strangers[connection] = None
        self._of[host] += 1
        self._strangers_of[host] += 1
        return connection

    def _make(self, host: str) -> Connection:
        return Connection(
            self,
            asyncio.get_running_loop(),
            host,
            access_log=None,
            keepalive_timeout=self.bounds.idle_seconds,
            lingering_time=5.0,
            auto_decompress=False,
            max_line_size=LONGEST_LINE,
            max_field_size=_LONGEST_FIELD,
            max_headers=_MOST_FIELDS,
        )

    def _cut_oldest(self, host: str) -> bool:
        """Cut off the stranger that has been here longest, of an address or of all; tell whether there is one."""
        oldest = next((c for c in self._strangers if not host or c.host == host), None)
        if oldest is not None:
            self.recognized(oldest)  # no stranger any more: its place is free at once
            oldest.cut()
        return oldest is not None

    def recognized(self, connection: Connection) -> None:
        """Count a connection among the strangers no more."""
        if connection in self._strangers:
            del self._strangers[connection]
            self._strangers_of = _less(self._strangers_of, connection.host)

    def forget(self, connection: Connection) -> None:
        """Note that a connection has ended, or never came to be."""
        self.recognized(connection)
        if connection in self._all:
            del self._all[connection]
            self._of = _less(self._of, connection.host)


def _less(counts: Counter[str], host: str) -> Counter[str]:
    counts[host] -= 1
    if not counts[host]:
        del counts[host]
    return counts
