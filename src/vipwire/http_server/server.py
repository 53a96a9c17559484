"""Small HTTP/1.1 servers for pages that a process shows of itself: health, metrics, debugging.

    pages = Pages()
    pages.add("GET", "/healthz", healthz)      # async def healthz(request: Request) -> Reply
    serving = await serve(listener, pages)
    ...
    await serving.close(grace=1.0)

A request has at most `LONGEST_REQUEST` bytes, `MOST_FIELDS` header fields, as many of a query, and `REQUEST_SECONDS`
to arrive. A server reads the next request of a connection once the kernel has taken all of the answer before, and
closes a connection whose client does not read it within `STALLED_SECONDS`, or longer for a long one. What bounds all
connections together is in `vipwire.http_server.room`.

A handler that raises is answered with 500 and logged. A site may also answer with a `Stream`, whose end nobody knows
yet: each of its pieces has that time.
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, Protocol, TypeAlias, cast
from urllib.parse import parse_qsl, unquote

import httptools
from msgspec import field

from vipwire.http_server.encoding import encode_answer, encode_head
from vipwire.http_server.room import TURNS, Room
from vipwire.model.value import Value

LONGEST_REQUEST: Final = 32 << 10
"""Bytes of a request: target, header fields and body."""
REQUEST_SECONDS: Final = 30.0
"""Seconds for a request to arrive, and for a connection to bring its next one."""
LINGER_SECONDS: Final = 2.0
STALLED_SECONDS: Final = 20.0
MOST_FIELDS: Final = 100
_SLOWEST: Final = 32 << 10  # bytes a second, for a long answer
_SHORT: Final = 15  # bytes; the shortest request has 16: GET / HTTP/1.1 and two line ends
_BUFFER: Final = memoryview(bytearray(4 << 10))  # every connection reads into it, and copies
_KERNEL_BUFFER: Final = 64 << 10
_BACKLOG: Final = 128
TEXT: Final = {"Content-Type": "text/plain; charset=utf-8"}
_log = logging.getLogger(__name__)


class Request(Value, frozen=True):
    """What a client asks. `path` is decoded; `headers` has the names in small letters; of double ones, the last."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = b""
    arrived: float = field(default_factory=time.monotonic)  # when it was complete

    @property
    def text(self) -> str:
        """The body as text; what is no UTF-8 is replaced."""
        return self.body.decode("utf-8", "replace")


class Reply(Value, frozen=True):
    """What it is told. Text goes out as UTF-8."""

    body: bytes | str = b""
    status: int = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=lambda: TEXT)


class Stream(Value, frozen=True):
    """An answer that goes on: pieces as they come, until there are no more or the client leaves."""

    pieces: AsyncGenerator[bytes, None]
    headers: Mapping[str, str] = field(default_factory=lambda: TEXT)


Handler: TypeAlias = Callable[[Request], Awaitable[Reply]]


class Site(Protocol):
    """Whatever answers requests. May raise, which the client is told as 500."""

    async def __call__(self, request: Request, /) -> Reply | Stream:
        """Answer one."""


class Pages:
    """Handlers by path and method: 404 for another path, 405 for another method, HEAD where there is GET."""

    def __init__(self, **get: Handler) -> None:
        self.handlers: dict[str, dict[str, Handler]] = {}
        for name, handler in get.items():
            self.add("GET", f"/{name}", handler)

    def add(self, method: str, path: str, handler: Handler) -> None:
        """Add a page."""
        self.handlers.setdefault(path, {})[method] = handler

    async def __call__(self, request: Request) -> Reply:
        """Answer with the page, or tell that there is none."""
        found = self.handlers.get(request.path)
        if found is None:
            return refusal(HTTPStatus.NOT_FOUND)
        handler = found.get("GET" if request.method == "HEAD" else request.method)
        if handler is None:
            allowed = sorted({*found, *(["HEAD"] if "GET" in found else [])})
            return refusal(HTTPStatus.METHOD_NOT_ALLOWED, {"Allow": ",".join(allowed)})
        return await handler(request)


def refusal(status: HTTPStatus, headers: Mapping[str, str] = TEXT) -> Reply:
    """Tell in words what a status says."""
    return Reply(f"{status.value}: {status.phrase}", status, {**TEXT, **headers})


class Serving:
    """A listening socket and its connections."""

    def __init__(self, site: Site, room: Room) -> None:
        self.site, self.room = site, room
        self.connections: set[_Connection] = set()
        self.server: asyncio.Server | None = None

    async def close(self, grace: float = 0.0) -> None:
        """Listen no more, and close what is open; what is being answered has `grace` seconds."""
        if self.server is not None:
            self.server.close()
        busy = {task for connection in self.connections if (task := connection.end())}
        if busy:
            await asyncio.wait(busy, timeout=grace)
        for connection in tuple(self.connections):
            connection.abort()
        await asyncio.sleep(0)  # so that the transports are closed before the loop


async def serve(listener: socket.socket, site: Site, room: Room | None = None) -> Serving:
    """Serve a site at a listening socket, which is closed with it. Servers with the same room share its bounds."""
    serving = Serving(site, room or Room())
    for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):  # the kernel's memory counts as this process's, in a cgroup
        listener.setsockopt(socket.SOL_SOCKET, buffer, _KERNEL_BUFFER)
    loop = asyncio.get_running_loop()
    serving.server = await loop.create_server(lambda: _Connection(serving), sock=listener, backlog=TURNS)
    listener.listen(_BACKLOG)  # asyncio has set the number that it accepts in one round of the loop
    return serving


class _Connection(asyncio.BufferedProtocol):
    """Reads a request, writes its answer until the kernel has all of it, then reads the next request.

    What the client sends meanwhile stays in the kernel's buffer, except for two reads.
    """

    def __init__(self, serving: Serving) -> None:
        self._serving, self._room = serving, serving.room
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._parser: Any = httptools.HttpRequestParser(self)
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._target, self._headers, self._body = b"", dict[str, str](), bytearray()
        self._unparsed = bytearray()
        self._asked: Request | HTTPStatus | None = None
        self._received = 0  # bytes of the request that has yet to be complete; in the end, bytes that are ignored
        self._ending, self._half_closed, self._streaming, self._address = False, False, False, ""
        self._written = asyncio.Event()
        self._written.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)  # so that `_written` means that the kernel has all
        self._address = (transport.get_extra_info("peername") or ("",))[0]
        if not self._room.admit(self):
            self.abort()
            return
        self._serving.connections.add(self)
        self._await_client(REQUEST_SECONDS)

    def connection_lost(self, _error: Exception | None) -> None:
        self._serving.connections.discard(self)
        self._room.leave(self)
        self._stop_timer()
        if self._task is not None:
            self._task.cancel()

    def get_buffer(self, _hint: int) -> memoryview:
        return _BUFFER

    def buffer_updated(self, size: int) -> None:
        if self._ending:  # read, so that what we have said is not lost to a reset
            self._received += size
            if self._received > LONGEST_REQUEST:
                self.abort()
            return
        self._unparsed += _BUFFER[:size]
        if self._task is None:
            self._parse()
        elif len(self._unparsed) >= len(_BUFFER):
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """Answer what came before the end, if a page takes no longer than a moment: most such clients have gone."""
        if self._task is None or self._streaming:
            return False
        self._half_closed = True
        if self._written.is_set():
            self._start_timer(LINGER_SECONDS)
        return True

    def pause_writing(self) -> None:
        self._written.clear()

    def resume_writing(self) -> None:
        self._written.set()

    def unread(self) -> int:
        """Return how many bytes of its answer the kernel has yet to take."""
        return self._transport.get_write_buffer_size()

    def end(self) -> "asyncio.Task[None] | None":
        """Take no more requests; return what still answers, or close at once."""
        self._ending = True
        if self._task is None or self._streaming or self in self._room.waiting:
            self.abort()
        return self._task

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def _parse(self) -> None:
        """Parse until a request is complete, in pieces that cannot hold the end of one and the whole next one.

        A piece ends with the first line after `_SHORT` bytes. The next request would need two line ends behind these.
        """
        at = 0
        try:
            while at < len(self._unparsed) and self._asked is None:
                end = self._unparsed.find(b"\n", at + _SHORT) + 1
                piece = self._unparsed[at : end or len(self._unparsed)]
                at += len(piece)
                self._received += len(piece)
                self._parser.feed_data(piece)
                if self._asked is None and self._received > LONGEST_REQUEST:
                    self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        except httptools.HttpParserUpgrade as upgrade:  # is answered as if it had not been asked for (RFC 9110 7.8)
            at += upgrade.args[0] - len(piece)
        except httptools.HttpParserError:
            self._refuse(HTTPStatus.BAD_REQUEST)
        del self._unparsed[:at]
        if self._asked is not None:
            self._stop_timer()
            self._received = 0
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._answer())

    def _refuse(self, status: HTTPStatus) -> None:
        """Let this be the last request; its status is this one, unless the request was complete."""
        self._ending = True
        self._asked = self._asked or status

    # What httptools calls while it parses.

    def on_message_begin(self) -> None:
        self._target, self._headers, self._body = b"", {}, bytearray()

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")
        if len(self._headers) > MOST_FIELDS:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def on_headers_complete(self) -> None:
        waits = self._headers.get("expect", "").lower() == "100-continue"
        if waits and self._asked is None and self._parser.get_http_version() != "1.0":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, piece: bytes) -> None:
        self._body += piece

    def on_message_complete(self) -> None:
        if self._asked is not None:
            return
        path, _, query = self._target.decode("latin-1").partition("?")
        try:
            asked = dict(parse_qsl(query, keep_blank_values=True, max_num_fields=MOST_FIELDS))
        except ValueError:
            self._refuse(HTTPStatus.BAD_REQUEST)
            return
        method = self._parser.get_method().decode("ascii")
        self._asked = Request(method, unquote(path), asked, self._headers, bytes(self._body))
        self._ending = not self._parser.should_keep_alive()

    async def _answer(self) -> None:
        """Answer the request that has come, then those that the client sent behind it."""
        pipelined = False
        try:
            while self._asked is not None:
                self._room.wait(self, self._address)
                await self._room.turn(pipelined=pipelined)
                self._room.waiting.pop(self, None)
                request, self._asked = self._asked, None
                reply = await self._reply(request)
                bodiless = isinstance(request, Request) and request.method == "HEAD"
                if isinstance(reply, Stream):
                    await self._stream(reply, bodiless=bodiless)
                else:
                    await self._write(
                        encode_answer(
                            reply.status, reply.headers, reply.body, stays=not self._ending, bodiless=bodiless
                        )
                    )
                if self._ending:
                    break
                pipelined = bool(self._unparsed)
                self._parse()
        except TimeoutError:  # the client does not read
            self.abort()
            return
        finally:
            self._task = None
        if self._ending or self._half_closed:
            self._end_orderly()
        else:
            self._transport.resume_reading()
            self._await_client(REQUEST_SECONDS)

    async def _write(self, piece: bytes) -> None:
        """Write until the kernel has all of it. Raise TimeoutError where the client reads too slowly."""
        self._transport.write(piece)
        if self._transport.is_closing():
            await asyncio.sleep(0)  # until `connection_lost` cancels this task
        if self._written.is_set():
            return
        self._stop_timer()
        self._room.wait(self, self._address)
        self._room.bound_unread()
        async with asyncio.timeout(STALLED_SECONDS + len(piece) / _SLOWEST):
            await self._written.wait()
        self._room.waiting.pop(self, None)

    async def _stream(self, stream: Stream, *, bodiless: bool) -> None:
        """Write pieces as they come, no faster than the client takes them; it ends with its connection."""
        self._ending = self._streaming = True
        self._transport.resume_reading()  # else the kernel would not tell that the client has gone
        head = encode_head(HTTPStatus.OK, {**stream.headers, "Connection": "close"})
        async with contextlib.aclosing(stream.pieces) as pieces:
            if bodiless or self._half_closed:
                await self._write(head)
                return
            self._transport.write(head)
            try:
                async for piece in pieces:
                    await self._write(piece)
            except TimeoutError:
                raise
            except Exception:  # noqa: BLE001  # the status has gone: only a cut connection can tell the client
                _log.exception("a stream ended early")
                self.abort()

    async def _reply(self, request: Request | HTTPStatus) -> Reply | Stream:
        if isinstance(request, HTTPStatus):
            return refusal(request)
        try:
            return await self._serving.site(request)
        except Exception:  # noqa: BLE001 - whatever it is, the client is told and the server goes on
            _log.exception("a page could not be made", extra={"path": request.path})
            return refusal(HTTPStatus.INTERNAL_SERVER_ERROR)

    def _end_orderly(self) -> None:
        """Say that nothing more comes, and give the client a moment to close: a reset could take away our answer."""
        if self._half_closed:
            self._transport.close()
            return
        try:
            self._transport.write_eof()
        except OSError:  # the client has reset the connection, which asyncio has yet to read
            self.abort()
            return
        self._transport.resume_reading()
        self._await_client(LINGER_SECONDS)

    def _await_client(self, seconds: float) -> None:
        self._room.wait(self, self._address)
        self._start_timer(seconds)

    def _start_timer(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
