"""One client connection: writes requests, one after the other, and reads their answers (RFC 9112).

Parses with httptools (llhttp). Memory is limited: heads and trailers have `LONGEST_HEAD` bytes; reading pauses while
`_READ_AHEAD` bytes wait for the caller; `read` has a limit of the caller; gzip is unpacked in pieces of `_PIECE`
bytes and to `_MOST_PACKED` times its size.
"""

import asyncio
import contextlib
import zlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from http import HTTPStatus
from typing import Any, Final, cast

import httptools

from vipwire.errors import VipwireError

LONGEST_HEAD: Final = 64 << 10
LONGEST_OBJECT: Final = 16 << 20
"""The most bytes of one object: etcd accepts 1.5 MiB by default, at most 8 MiB by Kubernetes' documentation."""
_BESIDE: Final = 4 << 20  # bytes of each of many answers that are read at the same time
_READ_AHEAD: Final = 4 << 20
_PIECE: Final = 1 << 20  # bytes unpacked at a time
_MOST_PACKED: Final = 256  # times; lists of equal Services are packed 135 times, zeros 1,027 times
_WITHOUT_BODY: Final = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
_GZIP: Final = zlib.MAX_WBITS | 16


class HttpError(VipwireError):
    """No usable answer: the connection broke, or the answer is not HTTP. Has no URL, which may hold a password."""


class Wire(asyncio.Protocol):
    """A connection to a server."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.used = 0
        self._on_idle_end: Callable[[Wire], None] = _ignore_wire
        self._answer: Response | None = None
        self._parser: Any = None
        self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._answer is None:  # no request is waiting
            self.close()
            self._on_idle_end(self)
            return
        answer = self._answer
        answer.begun, answer.moved = True, False
        try:
            self._parser.feed_data(data)
            answer.record_consumed(len(data))
        except httptools.HttpParserUpgrade:
            answer.fail(HttpError("the server changes to another protocol"))
        except (httptools.HttpParserError, ValueError) as error:
            answer.fail(HttpError(f"the answer is not HTTP: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        """End the current answer: complete if the body lasts until the connection closes, else failed."""
        self._ended = True
        if self._answer is None:
            self._on_idle_end(self)
        elif self._answer.until_close and error is None:
            self._answer.on_message_complete()
        else:
            reason = f": {error}" if error else ""
            self._answer.fail(HttpError(f"the server closed the connection before the answer was complete{reason}"))

    def send(self, request: bytes) -> "Response":
        """Send a request and return its pending answer. Release the previous answer before."""
        self.used += 1
        self._answer = Response(self)
        self._parser = httptools.HttpResponseParser(self._answer)
        if self._ended:
            self._answer.fail(HttpError("the server closed the connection before the answer was complete"))
        else:
            self.transport.write(request)
        return self._answer

    def release(self, on_idle_end: Callable[["Wire"], None]) -> bool:
        """Finish the answer; report whether the connection can carry another request.

        The connection calls `on_idle_end` if the server closes it, or sends bytes, before the next request.
        """
        self._on_idle_end = on_idle_end
        answer, self._answer, self._parser = self._answer, None, None
        reusable = answer is not None and answer.reusable and not self._ended and not self.transport.is_closing()
        if not reusable:
            self.close()
        return reusable

    def keeps_open(self) -> bool:
        return bool(self._parser.should_keep_alive())

    def read_status(self) -> int:
        return int(self._parser.get_status_code())

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class Response:
    """The answer to one request: `head()` waits for status and header fields, then the body is read once.

    `headers` has lower-case names; the last of repeated headers counts. Methods that wait raise HttpError if the
    connection breaks, and the error given to `fail`.
    """

    def __init__(self, wire: Wire) -> None:
        self.status = 0
        self.reason = ""
        self.headers: dict[str, str] = {}
        self.begun = False
        """Whether any byte has arrived."""
        self.moved = False
        """Whether the last received data had a piece of the body."""
        self.until_close = False
        """Whether the body lasts until the connection closes."""
        self.reusable = False
        """Whether the answer is complete and the connection stays open."""
        self._wire = wire
        self._pieces: deque[bytes] = deque()
        self._waiting = 0  # bytes
        self._paused = False
        self._headed = self._complete = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._aside = 0  # bytes since the last piece of the body
        self._packed = self._unpacked = 0
        self._decoder: Any = None
        self._take: Callable[[bytes], bool] | None = None
        self._enough = False

    async def read_head(self) -> None:
        while not self._headed:
            await self._wait_for_data()

    async def read(self, most: int = LONGEST_OBJECT, alone: asyncio.Lock | None = None) -> bytearray:
        """Read the rest of the body. Raise HttpError if it exceeds `most` bytes.

        With a lock, only one answer at a time is read beyond `_BESIDE` bytes.
        """
        read = bytearray()
        async with contextlib.AsyncExitStack() as stack:
            async for piece in self.read_pieces():
                read += piece
                if len(read) > most:
                    raise HttpError(f"the answer is longer than {most >> 20} MiB")
                if alone is not None and len(read) > _BESIDE:
                    await stack.enter_async_context(alone)
                    alone = None
        return read

    async def read_at_most(self, size: int) -> bytes:
        """Read the first bytes of the body, at most `size`."""
        read = bytearray()
        async for piece in self.read_pieces():
            read += piece
            if len(read) >= size:
                break
        return bytes(read[:size])

    async def read_pieces(self) -> AsyncIterator[bytes]:
        while True:
            while self._pieces:
                for read in self._decompress(self._read_piece()):
                    yield read
            if self._has_ended():
                return
            await self._wait_for_data()

    async def feed(self, take: Callable[[bytes], bool]) -> None:
        """Pass each piece of the body to `take` until it returns False. No task wakes up for a piece."""
        while True:
            while self._pieces:
                if not all(map(take, self._decompress(self._read_piece()))):
                    return
            if self._has_ended():
                return
            self._take = take
            try:
                await self._wait_for_data()
            finally:
                self._take = None
            if self._enough:
                return

    def _read_piece(self) -> bytes:
        piece = self._pieces.popleft()
        self._waiting -= len(piece)
        if self._paused and self._waiting < _READ_AHEAD:
            self._paused = False
            self._wire.transport.resume_reading()
        return piece

    def _has_ended(self) -> bool:
        if self._complete and self._decoder is not None and not self._decoder.eof:
            raise HttpError("the answer is shorter than its Content-Encoding says")
        return self._complete

    def _hand_over(self, piece: bytes, take: Callable[[bytes], bool]) -> None:
        try:
            self._enough = not all(map(take, self._decompress(piece)))
        except Exception as error:  # noqa: BLE001  # raised where `feed` waits
            self.fail(error)
            self._take = None
        if self._enough:
            self._take = None
            self._wake()

    def record_consumed(self, size: int) -> None:
        """Count parsed bytes. Raise ValueError if heads and trailers exceed `LONGEST_HEAD`."""
        self._aside = 0 if self.moved else self._aside + size
        if self._aside > LONGEST_HEAD:
            raise ValueError(f"more than {LONGEST_HEAD >> 10} KiB of it are not body")

    def fail(self, error: Exception) -> None:
        """Raise this error in the task that waits for the answer."""
        if not self._complete:
            self._error = self._error or error
            self._wake()

    async def _wait_for_data(self) -> None:
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

    def _decompress(self, piece: bytes) -> Iterator[bytes]:
        """Decode the Content-Encoding of a piece, in pieces of `_PIECE` bytes. Raise HttpError."""
        if self._decoder is None:
            yield piece
            return
        self._packed += len(piece)
        more = False
        while piece or more:
            if piece and self._decoder.eof:
                raise HttpError("the answer has bytes after the end of its Content-Encoding")
            try:
                read = cast(bytes, self._decoder.decompress(piece, _PIECE))
            except zlib.error as error:
                raise HttpError(f"the answer contradicts its Content-Encoding: {error}") from error
            self._unpacked += len(read)
            more = len(read) == _PIECE
            if self._unpacked > _PIECE + self._packed * _MOST_PACKED:
                raise HttpError(f"the answer has more than {_MOST_PACKED} layers of Content-Encoding")
            if read:
                yield read
            piece = self._decoder.unconsumed_tail or self._decoder.unused_data

    # Callbacks of httptools.

    def on_status(self, reason: bytes) -> None:
        self.reason += reason.decode("ascii", "replace")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header field, but no trailer."""
        if self._headed:
            return
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Complete the head, unless the answer is an interim one."""
        self.status = self._wire.read_status()
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
        """Take a piece of the body; pause reading while too much waits."""
        self.moved = True
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
        """Complete the answer; discard an interim one (RFC 9110 15.2)."""
        if not self._headed:
            self.reason, self.headers = "", {}
            return
        self._complete = True
        self.reusable = not self.until_close and self._error is None and self._wire.keeps_open()
        self._wake()


def _ignore_wire(_wire: Wire) -> None:
    """Do nothing."""
