"""Small HTTP/1.1 servers for pages that a process shows of itself: health, metrics, debugging.

    pages = Pages()
    pages.add("GET", "/healthz", healthz)      # async def healthz(request: Request) -> Reply
    serving = await serve(listener, pages)
    ...
    await serving.close(grace=1.0)

A request has at most `LONGEST_REQUEST` bytes and `REQUEST_SECONDS` to arrive, a server `MOST_CONNECTIONS` at a time.
For one more, another makes room that has not sent a whole request: of the address with most of these, the one that
has waited longest. So clients that say nothing keep nobody out.

A handler that raises is answered with 500 and logged. A site may also answer with a `Stream`, whose end
nobody knows yet; a client that takes nothing of it for `STALLED_SECONDS` is closed.
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, Protocol, TypeAlias, cast
from urllib.parse import parse_qsl, unquote

import httptools
from msgspec import field

from vipwire.model.value import Value

LONGEST_REQUEST: Final = 64 << 10
"""Bytes of a request: target, header fields and body."""
REQUEST_SECONDS: Final = 30.0
"""Seconds for a request to arrive, and for a connection to bring its next one."""
LINGER_SECONDS: Final = 2.0
STALLED_SECONDS: Final = 20.0
MOST_CONNECTIONS: Final = 512
_MOST_WAITING: Final = 8  # requests of one connection that came before an answer went
TEXT: Final = {"Content-Type": "text/plain; charset=utf-8"}
_log = logging.getLogger(__name__)


class Request(Value, frozen=True):
    """What a client asks. `path` is decoded; `headers` has the names in small letters; of double ones, the last."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = b""

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

    def __init__(self, site: Site) -> None:
        self.site = site
        self.connections: set[_Connection] = set()
        self.waiting: dict[_Connection, str] = {}
        """Connections that have yet to send a whole request, or to close, with the client's address: oldest first."""
        self.server: asyncio.Server | None = None

    def make_room(self) -> bool:
        """Have room for one more connection; tell whether there is."""
        if len(self.connections) < MOST_CONNECTIONS:
            return True
        if not self.waiting:
            return False
        ((address, _),) = Counter(self.waiting.values()).most_common(1)
        longest = next(each for each, its_address in self.waiting.items() if its_address == address)
        longest.abort()
        self.forget(longest)
        return True

    def forget(self, connection: "_Connection") -> None:
        """Know a connection no more."""
        self.connections.discard(connection)
        self.waiting.pop(connection, None)

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


async def serve(listener: socket.socket, site: Site) -> Serving:
    """Serve a site at a listening socket, which is closed with it."""
    serving = Serving(site)
    serving.server = await asyncio.get_running_loop().create_server(lambda: _Connection(serving), sock=listener)
    return serving


class _Connection(asyncio.Protocol):
    """Reads the requests of one connection, and answers one after the other."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._parser: Any = httptools.HttpRequestParser(self)
        self._waiting: deque[tuple[Request | HTTPStatus, bool]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._target, self._headers, self._body = b"", dict[str, str](), bytearray()
        self._received = 0  # bytes since the last request was complete
        self._ending, self._streaming, self._address = False, False, ""
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._address = (transport.get_extra_info("peername") or ("",))[0]
        if not self._serving.make_room():
            self.abort()
            return
        self._serving.connections.add(self)
        self._await_request()

    def connection_lost(self, _error: Exception | None) -> None:
        self._serving.forget(self)
        self._stop_timer()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        if self._ending:
            return  # read, so that what we have said is not lost to a reset
        self._received += len(data)
        try:
            self._parser.feed_data(data)
            if self._received > LONGEST_REQUEST:
                self._enqueue(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, stays=False)
        except httptools.HttpParserUpgrade:
            pass  # is answered as if it had not been asked for (RFC 9110 7.8)
        except httptools.HttpParserError:
            self._enqueue(HTTPStatus.BAD_REQUEST, stays=False)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def end(self) -> "asyncio.Task[None] | None":
        """Take no more requests; return what still answers, or close at once."""
        self._ending = True
        if self._task is None or self._streaming:
            self.abort()
        return self._task

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    # What httptools calls while it parses.

    def on_message_begin(self) -> None:
        self._target, self._headers, self._body = b"", {}, bytearray()

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._headers.get("expect", "").lower() == "100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, piece: bytes) -> None:
        self._body += piece

    def on_message_complete(self) -> None:
        self._stop_timer()
        self._serving.waiting.pop(self, None)
        self._received = 0
        path, _, query = self._target.decode("latin-1").partition("?")
        self._enqueue(
            Request(
                self._parser.get_method().decode("ascii"),
                unquote(path),
                dict(parse_qsl(query, keep_blank_values=True)),
                self._headers,
                bytes(self._body),
            ),
            stays=self._parser.should_keep_alive(),
        )

    def _enqueue(self, request: Request | HTTPStatus, *, stays: bool) -> None:
        self._waiting.append((request, stays))
        if len(self._waiting) >= _MOST_WAITING:
            self._transport.pause_reading()
        self._ending = self._ending or not stays
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._answer())

    async def _answer(self) -> None:
        try:
            while self._waiting:
                request, stays = self._waiting.popleft()
                bodiless = isinstance(request, Request) and request.method == "HEAD"
                reply = await self._reply(request)
                if isinstance(reply, Stream):
                    await self._stream(reply, bodiless=bodiless)
                    continue
                self._transport.write(_encoded(reply, stays=stays and not self._ending, bodiless=bodiless))
        finally:
            self._task = None
        if self._ending:
            self._end_orderly()
        else:
            self._transport.resume_reading()
            self._await_request()

    async def _stream(self, stream: Stream, *, bodiless: bool) -> None:
        """Write pieces as they come, no faster than the client takes them; it ends with its connection."""
        self._ending = self._streaming = True
        async with contextlib.aclosing(stream.pieces) as pieces:
            self._transport.write(_head(HTTPStatus.OK, {**stream.headers, "Connection": "close"}))
            if bodiless:
                return
            async for piece in pieces:
                self._transport.write(piece)
                try:
                    async with asyncio.timeout(STALLED_SECONDS):
                        await self._writable.wait()
                except TimeoutError:
                    self.abort()
                    return

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
        self._transport.resume_reading()
        self._transport.write_eof()
        self._serving.waiting[self] = self._address
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(LINGER_SECONDS, self.abort)

    def _await_request(self) -> None:
        self._stop_timer()
        self._serving.waiting[self] = self._address
        self._timer = asyncio.get_running_loop().call_later(REQUEST_SECONDS, self.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _encoded(reply: Reply, *, stays: bool, bodiless: bool) -> bytes:
    body = reply.body.encode() if isinstance(reply.body, str) else reply.body
    fields = {
        **reply.headers,
        "Content-Length": str(len(body)),
        "Connection": "keep-alive" if stays else "close",
    }
    return _head(reply.status, fields) + (b"" if bodiless else body)


def _head(status: int, fields: Mapping[str, str]) -> bytes:
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
    lines = (
        f"HTTP/1.1 {int(status)} {HTTPStatus(status).phrase}",
        *(f"{k}: {v}" for k, v in {**fields, "Date": date}.items()),
    )
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode("latin-1", "replace")
