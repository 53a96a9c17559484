"""One connection of a server: reads requests, passes them to a site, writes the answers (RFC 9112).

    head ─▶ site(exchange) ─▶ exchange.read(most), if the site wants the body ─▶ exchange.send(answer) ─▶ next head

A site may refuse before it reads the body. The connection reads the next request once the kernel has accepted the
previous answer; until then bytes of the client stay in the kernel's buffer, except for two reads. vipwire closes a
connection whose client does not read. If the site did not read a short body, the connection reads it after the
answer; a long one ends the connection.
"""

import asyncio
import contextlib
import logging
import math
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final, cast

from vipwire.http_server.exchange import BodyError, ClientGoneError, Exchange, Reply, Responder, Stream, encode_head
from vipwire.http_server.request_reader import READ_AHEAD, RequestReader
from vipwire.http_server.room import Room

LINGER_SECONDS: Final = 2.0
_SLOWEST: Final = 32 << 10  # bytes a second, for a long answer
_PIECE: Final = 64 << 10  # bytes of an answer that are written at once
_SHORT_BODY: Final = 64 << 10
_BUFFER: Final = memoryview(bytearray(_PIECE))  # all connections read into this buffer, and copy
_SMALL_BUFFER: Final = _BUFFER[:READ_AHEAD]
_RESET: Final = struct.pack("ii", 1, 0)
_BODILESS: Final = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
_log = logging.getLogger(__name__)


class ServerConnection(asyncio.BufferedProtocol):
    """Reads a request, writes its answer, then reads the next request."""

    def __init__(
        self, site: Responder, room: Room, address: str, on_end: Callable[["ServerConnection"], None]
    ) -> None:
        self.address, self._site, self._room, self._on_end = address, site, room, on_end
        self._accepted: socket.socket | None = None
        self._transport: asyncio.Transport | None = None
        self._reader = RequestReader(self, room)
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = math.inf
        self._ignored = 0  # bytes after the last request
        self._known, self._half_closed, self._endless = False, False, False
        self._written = asyncio.Event()
        self._written.set()

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        return None if self._transport is None else self._transport.get_extra_info("peercert")

    def recognize(self) -> None:
        """Mark the client as a known user."""
        if not self._known:
            self._known = True
            self._room.recognize(self)

    def accept(self, accepted: socket.socket) -> None:
        """Keep the socket, so that the connection can be closed during the TLS handshake."""
        self._accepted = accepted
        self._set_deadline(self._room.limits.first_seconds)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(self._room.limits.buffered)
        self._await_client(self._room.limits.first_seconds)

    def connection_lost(self, _error: Exception | None) -> None:
        self._room.leave(self)
        self._on_end(self)
        self._transport = None  # a reference cycle, which would keep the TLS state
        self._reader.close()
        self._deadline = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            self._task.cancel()

    def get_buffer(self, _hint: int) -> memoryview:
        """Return the buffer: a larger one while the site reads a body."""
        return _BUFFER if self._reader.is_reading else _SMALL_BUFFER

    def buffer_updated(self, size: int) -> None:
        exchange = self._reader.exchange
        if self._reader.is_last and (self._task is None or exchange is None or exchange.complete):
            self._ignored += size  # read, because a reset would discard our answer
            if self._ignored > self._room.limits.ignored:
                self.abort()
            return
        self._reader.feed(_BUFFER[:size])
        if self._reader.unparsed >= READ_AHEAD:
            self._open_transport().pause_reading()
        if self._task is None and (self._reader.exchange is not None or self._reader.refused is not None):
            self._clear_deadline()
            self._task = asyncio.get_running_loop().create_task(self._answer_requests())

    def eof_received(self) -> bool:
        """Answer the requests before the end of file, if that takes only a moment: most such clients have gone."""
        if self._task is None or self._endless or not self._open_transport().can_write_eof():
            return False
        self._half_closed = True
        self._reader.break_off()
        if self._written.is_set():
            self._set_deadline(LINGER_SECONDS)
        return True

    def pause_writing(self) -> None:
        self._written.clear()

    def resume_writing(self) -> None:
        self._written.set()

    def unread(self) -> int:
        """Return the bytes of answers that the kernel has not accepted yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def end_after_answer(self) -> "asyncio.Task[None] | None":
        """Accept no more requests; return the task of the current answer, or close at once."""
        self._reader.end()
        if self._task is None or self._endless or self._room.is_waiting(self):
            self.abort()
        return self._task

    def abort(self) -> None:
        """Reset the connection, and discard unsent bytes here and in the kernel."""
        opened = self._accepted if self._transport is None else self._transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # the client has already gone
            if self._transport is None and opened is not None:
                opened.shutdown(socket.SHUT_RDWR)  # before the TLS handshake
            elif opened is not None:
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        if self._transport is not None:
            self._transport.abort()

    def _open_transport(self) -> asyncio.Transport:
        return cast(asyncio.Transport, self._transport)

    async def receive_body(self, exchange: Exchange, most: int) -> None:
        """Wait until the body is complete. Raise BodyError if it is late, breaks off, or exceeds `most` bytes."""
        if exchange.invite():
            self._open_transport().write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._room.wait(self)
        try:
            async with asyncio.timeout(self._room.limits.body_seconds):
                await self._reader.receive(exchange, most, self._open_transport().resume_reading)
        except TimeoutError:
            exchange.break_off()
            raise BodyError(HTTPStatus.REQUEST_TIMEOUT) from None
        finally:
            self._room.stop_waiting(self)

    async def _answer_requests(self) -> None:
        reader, pipelined = self._reader, False
        try:
            while reader.exchange is not None or reader.refused is not None:
                await self._room.wait_for_turn(self, pipelined=pipelined)
                if reader.refused is not None:
                    exchange = reader.exchange or Exchange(self, "GET", "", [], {}, "1.1")
                    await self.send(exchange, self._site.refuse(reader.refused))
                elif reader.exchange is not None:
                    await self._answer_one(reader.exchange)
                if reader.is_last:
                    break
                pipelined = reader.unparsed > 0
                reader.advance()
        except ClientGoneError:
            self.abort()
            return
        finally:
            self._task = None
        if reader.is_last or self._half_closed:
            self._end_orderly()
        else:
            self._open_transport().resume_reading()
            limits = self._room.limits
            self._await_client(limits.idle_seconds if self._known else limits.first_seconds)

    async def _answer_one(self, exchange: Exchange) -> None:
        try:
            answer = await self._site(exchange)
            if answer is not None:
                await self.send(exchange, answer)
        except ClientGoneError:
            raise
        except Exception:  # noqa: BLE001  # an error in one request must not stop the server
            _log.exception("cannot answer a request", extra={"path": exchange.path})
            await self.send(exchange, self._site.refuse(HTTPStatus.INTERNAL_SERVER_ERROR))
        if not exchange.complete and not self._reader.is_last:
            try:
                await exchange.read(_SHORT_BODY)
            except BodyError:
                self._reader.end()

    async def send(self, exchange: Exchange, answer: Reply | Stream) -> int:
        """Write an answer at the client's speed; return its status. Raise ClientGoneError."""
        if not exchange.begin():  # the status is sent: only an aborted connection signals an error
            raise ClientGoneError
        is_short = exchange.length is not None and exchange.length <= _SHORT_BODY
        if not exchange.complete and (not is_short or exchange.awaits_continue or exchange.broken):
            self._reader.end()
        if isinstance(answer, Stream):
            await self._send_stream(exchange, answer)
            return HTTPStatus.OK
        body = answer.body.encode() if isinstance(answer.body, str) else answer.body
        length = {} if answer.status in _BODILESS else {"Content-Length": str(len(body))}
        head = encode_head(answer.status, {**answer.headers, **length, **self._build_connection_field()})
        if exchange.method == "HEAD" or len(body) <= _PIECE:
            await self._write(head if exchange.method == "HEAD" else head + body)
            return answer.status
        try:
            async with asyncio.timeout(self._room.limits.stall_seconds + len(body) / _SLOWEST):
                await self._write(head)
                for part in _split_body(body):
                    await self._write(part)
                    await asyncio.sleep(0)  # yield to other tasks
        except TimeoutError:
            raise ClientGoneError from None
        return answer.status

    async def _send_stream(self, exchange: Exchange, stream: Stream) -> None:
        chunked = stream.chunked and exchange.version != "1.0"
        self._endless = stream.endless
        if not chunked:
            self._reader.end()
        transport = self._open_transport()
        transport.set_write_buffer_limits(stream.buffered or self._room.limits.buffered)
        transport.resume_reading()  # otherwise asyncio does not notice that the client has gone
        encoding = {"Transfer-Encoding": "chunked"} if chunked else {}
        async with contextlib.aclosing(stream.pieces) as pieces:
            await self._write(
                encode_head(HTTPStatus.OK, {**stream.headers, **encoding, **self._build_connection_field()})
            )
            if exchange.method != "HEAD" and not (self._half_closed and stream.endless):
                async for piece in pieces:
                    for part in _split_body(piece, stream.buffered or _PIECE):
                        await self._write(b"".join((b"%x\r\n" % len(part), part, b"\r\n")) if chunked else part)
                        await asyncio.sleep(0)  # yield to other tasks
                if chunked:
                    await self._write(b"0\r\n\r\n")
        transport.set_write_buffer_limits(self._room.limits.buffered)
        self._endless = False

    def _build_connection_field(self) -> dict[str, str]:
        return {"Connection": "close" if self._reader.is_last else "keep-alive"}

    async def _write(self, piece: bytes | memoryview) -> None:
        """Write, and wait until the client has read. Raise ClientGoneError if it reads too slowly."""
        transport = self._open_transport()
        if not transport.is_closing():
            transport.write(piece)
        if transport.is_closing():
            raise ClientGoneError
        if self._written.is_set():
            return
        self._clear_deadline()
        self._room.wait(self)
        self._room.bound_unread()
        try:
            async with asyncio.timeout(self._room.limits.stall_seconds + len(piece) / _SLOWEST):
                await self._written.wait()
        except TimeoutError:
            raise ClientGoneError from None
        self._room.stop_waiting(self)

    def _end_orderly(self) -> None:
        """Shut down, and wait a moment for the client to close: a reset could discard our answer."""
        transport, exchange = self._open_transport(), self._reader.exchange
        if self._half_closed:
            transport.close()
            return
        if transport.can_write_eof():
            try:
                transport.write_eof()
            except OSError:  # the client has reset the connection, which asyncio has not noticed yet
                self.abort()
                return
        elif exchange is not None and exchange.complete:  # TLS; while a body arrives, the client has to close first
            transport.close()
            return
        transport.resume_reading()
        self._await_client(LINGER_SECONDS)

    # Time.

    def _await_client(self, seconds: float) -> None:
        self._room.wait(self)
        self._set_deadline(seconds)

    def _set_deadline(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._deadline = loop.time() + seconds
        if self._timer is not None and self._timer.when() > self._deadline:
            self._timer.cancel()
            self._timer = None
        self._timer = self._timer or loop.call_at(self._deadline, self._check_deadline)

    def _clear_deadline(self) -> None:
        self._deadline = math.inf  # keep the timer: a connection with many requests needs few

    def _check_deadline(self) -> None:
        self._timer, loop = None, asyncio.get_running_loop()
        if loop.time() < self._deadline < math.inf:
            self._timer = loop.call_at(self._deadline, self._check_deadline)
        elif self._deadline < math.inf:
            if self._transport is None or not self._reader.is_last:
                self.abort()
            else:
                self._transport.abort()  # the kernel still sends our last answer


def _split_body(body: bytes, size: int = _PIECE) -> Iterator[bytes | memoryview]:
    """Split bytes into pieces for one write each, without a copy."""
    whole = memoryview(body)
    for at in range(0, len(body), size):  # yield none for b"", which would end a chunked answer
        yield whole[at : at + size] if len(body) > size else body
