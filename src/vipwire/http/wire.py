"""One client connection: writes requests, one after the other, and reads their answers as they come (RFC 9112).

httptools (llhttp) does the parsing. What is read here is bounded where a server could make it grow: the head of an
answer in bytes, and the body by not reading on while more than `_READ_AHEAD` bytes wait to be taken.
"""

import asyncio
import zlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from typing import Any, Final, cast

import httptools

from vipwire.errors import VipwireError

LONGEST_HEAD: Final = 64 << 10
"""Bytes until the head of an answer is complete."""
_READ_AHEAD: Final = 4 << 20
_WITHOUT_BODY: Final = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
_GZIP: Final = zlib.MAX_WBITS | 16


class HttpError(VipwireError):
    """No usable answer: the connection broke, or what came is not HTTP. Names no URL, which may hold a password."""


class Wire(asyncio.Protocol):
    """A connection to a server. `on_idle_end` is called when it ends, or says something, while nobody asks."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.used = 0
        """How many requests it has carried."""
        self.on_idle_end: Callable[[Wire], None] = _ignored
        self._answer: Answer | None = None
        self._parser: Any = None
        self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Read a piece of an answer."""
        if self._answer is None:  # nobody has asked
            self.close()
            self.on_idle_end(self)
            return
        answer = self._answer
        answer.begun = True
        try:
            self._parser.feed_data(data)
            answer.taken_in(len(data))
        except httptools.HttpParserUpgrade:
            answer.fail(HttpError("the server changes to another protocol"))
        except (httptools.HttpParserError, ValueError) as error:
            answer.fail(HttpError(f"the answer is not HTTP: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        """End the answer that is being read: for good where its end is the connection's, else as a failure."""
        self._ended = True
        if self._answer is None:
            self.on_idle_end(self)
        elif self._answer.until_close and error is None:
            self._answer.on_message_complete()
        else:
            reason = f": {error}" if error else ""
            self._answer.fail(HttpError(f"the server closed the connection before the answer was complete{reason}"))

    def send(self, request: bytes) -> "Answer":
        """Send a request and return its answer, which is still to come. The one before must have been released."""
        self.used += 1
        self._answer = Answer(self)
        self._parser = httptools.HttpResponseParser(self._answer)
        if self._ended:
            self._answer.fail(HttpError("the server closed the connection before the answer was complete"))
        else:
            self.transport.write(request)
        return self._answer

    def release(self) -> bool:
        """Say that the answer is done with; report whether the connection can carry another request."""
        answer, self._answer, self._parser = self._answer, None, None
        reusable = answer is not None and answer.reusable and not self._ended and not self.transport.is_closing()
        if not reusable:
            self.close()
        return reusable

    def keeps_open(self) -> bool:
        """Report whether the server said that the connection stays."""
        return bool(self._parser.should_keep_alive())

    def status(self) -> int:
        """Return the status of the answer that is being read."""
        return int(self._parser.get_status_code())

    def close(self) -> None:
        """Close at once, dropping what is under way."""
        if self.transport is not None:
            self.transport.abort()


class Answer:
    """The answer to one request: `head()` waits for status and header fields, then the body is read once.

    `headers` has the names in small letters; of a name that comes twice, the last value. Everything that waits raises
    HttpError where the connection breaks, and what was given to `fail`.
    """

    def __init__(self, wire: Wire) -> None:
        self.status = 0
        self.reason = ""
        self.headers: dict[str, str] = {}
        self.begun = False
        """Whether anything has come."""
        self.until_close = False
        """Whether the end of the body is the end of the connection."""
        self.reusable = False
        """Whether the answer is complete and the connection stays."""
        self._wire = wire
        self._pieces: deque[bytes] = deque()
        self._waiting = 0  # bytes
        self._paused = False
        self._headed = self._complete = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._head_bytes = 0
        self._decoder: Any = None
        self._take: Callable[[bytes], bool] | None = None
        self._enough = False

    async def head(self) -> None:
        """Wait until status and header fields have come."""
        while not self._headed:
            await self._more()

    async def read(self) -> bytes:
        """Read the body, or what is left of it."""
        return b"".join([piece async for piece in self.pieces()])

    async def read_at_most(self, size: int) -> bytes:
        """Read the body's beginning, at most `size` bytes of it."""
        read = b""
        async for piece in self.pieces():
            read += piece
            if len(read) >= size:
                break
        return read[:size]

    async def text(self) -> str:
        """Read the body as text; what is no UTF-8 is replaced."""
        return (await self.read()).decode("utf-8", "replace")

    async def pieces(self) -> AsyncIterator[bytes]:
        """Give the body piece by piece, as it comes."""
        while True:
            while self._pieces:
                if read := self._next():
                    yield read
            if self._ended():
                return
            await self._more()

    async def feed(self, take: Callable[[bytes], bool]) -> None:
        """Give the body to `take` piece by piece until it returns False. No task is woken for a piece."""
        while True:
            while self._pieces:
                if (read := self._next()) and not take(read):
                    return
            if self._ended():
                return
            self._take = take
            try:
                await self._more()
            finally:
                self._take = None
            if self._enough:
                return

    def _next(self) -> bytes:
        piece = self._pieces.popleft()
        self._waiting -= len(piece)
        if self._paused and self._waiting < _READ_AHEAD:
            self._paused = False
            self._wire.transport.resume_reading()
        return self._decoded(piece)

    def _ended(self) -> bool:
        if self._complete and self._decoder is not None and not self._decoder.eof:
            raise HttpError("the answer is shorter than its Content-Encoding says")
        return self._complete

    def _hand_over(self, piece: bytes, take: Callable[[bytes], bool]) -> None:
        try:
            read = piece if self._decoder is None else self._decoded(piece)
            self._enough = bool(read) and not take(read)
        except Exception as error:  # noqa: BLE001  # raised where `feed` waits
            self.fail(error)
            self._take = None
        if self._enough:
            self._take = None
            self._wake()

    def taken_in(self, size: int) -> None:
        """Count bytes that have been parsed; raise ValueError when they are too many for a head."""
        self._head_bytes += size
        if not self._headed and self._head_bytes > LONGEST_HEAD:
            raise ValueError(f"its head is longer than {LONGEST_HEAD >> 10} KiB")

    def fail(self, error: Exception) -> None:
        """Let whoever waits for the answer raise this."""
        if not self._complete:
            self._error = self._error or error
            self._wake()

    async def _more(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _decoded(self, piece: bytes) -> bytes:
        if self._decoder is None:
            return piece
        try:
            return cast(bytes, self._decoder.decompress(piece))
        except zlib.error as error:
            raise HttpError(f"the answer is not what its Content-Encoding says: {error}") from error

    # What httptools calls while it parses.

    def on_status(self, reason: bytes) -> None:
        """Take the words beside the status."""
        self.reason += reason.decode("ascii", "replace")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header field."""
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Tell that the head is there, if it is the one of the final answer."""
        self.status = self._wire.status()
        if self.status < HTTPStatus.OK:
            return
        self.until_close = self.status not in _WITHOUT_BODY and not (
            "content-length" in self.headers or "chunked" in self.headers.get("transfer-encoding", "").lower()
        )
        if self.headers.get("content-encoding", "").lower() in ("gzip", "x-gzip"):
            self._decoder = zlib.decompressobj(_GZIP)
        self._headed = True
        self._wake()

    def on_body(self, piece: bytes) -> None:
        """Take a piece of the body; read no further while too much waits."""
        if self._take is not None:
            self._hand_over(piece, self._take)
            return
        self._pieces.append(piece)
        self._waiting += len(piece)
        if self._waiting > _READ_AHEAD and not self._paused:
            self._paused = True
            self._wire.transport.pause_reading()
        self._wake()

    def on_message_complete(self) -> None:
        """Tell that the answer is whole; an interim one (RFC 9110 15.2) is forgotten."""
        if not self._headed:
            self.reason, self.headers = "", {}
            return
        self._complete = True
        self.reusable = not self.until_close and self._error is None and self._wire.keeps_open()
        self._wake()


def _ignored(_wire: Wire) -> None:
    """Tell nobody."""
