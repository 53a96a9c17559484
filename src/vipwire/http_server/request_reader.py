"""Parses requests from the bytes of a connection, one at a time (RFC 9112), with httptools (llhttp).

llhttp cannot stop after a request. So it gets pieces with the end of one message at most, and bytes after a request
stay unparsed until that is answered. Only a few bytes of a body are parsed before a site reads it.
"""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

import httptools

from vipwire.http_server.exchange import BodyError, Exchange, ExchangeConnection
from vipwire.http_server.room import Room

READ_AHEAD: Final = 4 << 10
"""Bytes of a body that are read before the site reads it, and bytes read after a request."""
_FRAMES: Final = 64 << 10  # bytes of chunk sizes, extensions and trailers


class RequestReader:
    """The requests of one connection. `exchange` is the current one; `refused` is the status of a malformed one.

    `is_last`: no other request is read.
    """

    def __init__(self, connection: ExchangeConnection, room: Room) -> None:
        self.exchange: Exchange | None = None
        self.refused: HTTPStatus | None = None
        self.is_last = False
        self._connection, self._room = connection, room
        self._parser: Any = httptools.HttpRequestParser(self)
        self._target, self._headers = b"", dict[str, str]()
        self._unparsed = bytearray()
        self._tail = b""  # the last three parsed bytes of a head or a chunked body
        self._received = 0  # bytes of the head so far, then of the body
        self._wanted = 0  # bytes of the body that may be parsed
        self._came: asyncio.Future[None] | None = None

    @property
    def is_reading(self) -> bool:
        return self._came is not None

    @property
    def unparsed(self) -> int:
        return len(self._unparsed)

    def feed(self, data: memoryview) -> None:
        self._unparsed += data
        self.parse()

    def advance(self) -> None:
        self.exchange, self._received = None, 0
        self.parse()

    def end(self) -> None:
        self.is_last = True

    def close(self) -> None:
        """Stop reading, and break the reference cycle between reader, parser and request."""
        self.is_last, self._parser, self.exchange = True, None, None
        self._unparsed, self._headers = bytearray(), {}

    def parse(self) -> None:
        """Parse until a request is complete, or the requested part of its body."""
        at = 0
        try:
            while at < len(self._unparsed) and self._is_parsing():
                begun = self.exchange is not None
                end = self._find_end_of_piece(at)
                piece = bytes(self._unparsed[at:end])
                at = end
                self._received += len(piece)
                self._tail = piece[-3:] if len(piece) > 2 else (self._tail + piece)[-3:]
                self._parser.feed_data(piece)
                if not begun and self.exchange is None and self._received > self._room.limits.head_bytes:
                    self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
                elif not begun and self.exchange is not None:
                    self._received = 0
        except httptools.HttpParserUpgrade:  # ignore the Upgrade, as RFC 9110 7.8 allows
            if self.exchange is None or self.exchange.length != 0:  # llhttp would parse the body as a request
                self._refuse(HTTPStatus.BAD_REQUEST)
        except httptools.HttpParserError:
            self._refuse(HTTPStatus.BAD_REQUEST)
        del self._unparsed[:at]
        if self._came is not None and self.exchange is not None and self._is_too_long(self.exchange):
            self._report_body()

    def _is_parsing(self) -> bool:
        exchange = self.exchange
        if self.refused is not None:
            return False
        if exchange is None:
            return True
        return not exchange.complete and not exchange.broken and self._received <= self._wanted

    def _find_end_of_piece(self, start: int) -> int:
        """Return the end of a piece with the end of one message at most.

        Heads and chunked bodies end with an empty line, other bodies by their length.
        """
        exchange = self.exchange
        if exchange is not None and exchange.length is not None:
            return min(start + exchange.length - self._received, len(self._unparsed))
        before = len(self._tail)
        across = (self._tail + self._unparsed[start : start + 3]).find(b"\r\n\r\n") if before else -1
        if across >= 0:
            return start + across + 4 - before
        found = self._unparsed.find(b"\r\n\r\n", start)
        return found + 4 if found >= 0 else len(self._unparsed)

    def _refuse(self, status: HTTPStatus) -> None:
        """Refuse with this status, unless the site is already answering; read no further request."""
        self.is_last = True
        if self._came is None:
            self.refused = self.refused or status
        self.break_off()

    def break_off(self) -> None:
        if self.exchange is not None and not self.exchange.complete:
            self.exchange.break_off()
            self._report_body()

    def _is_too_long(self, exchange: Exchange) -> bool:
        return self._received > self._wanted or exchange.size > self._wanted - _FRAMES

    def _report_body(self) -> None:
        if self._came is not None and not self._came.done():
            self._came.set_result(None)

    async def receive(self, exchange: Exchange, most: int, resume: Callable[[], None]) -> None:
        """Wait until the body is complete. Raise BodyError if it breaks off or exceeds `most` bytes.

        `resume` lets the client send more.
        """
        self._wanted = most + _FRAMES
        try:
            while not exchange.broken and not self._is_too_long(exchange):
                self._came = asyncio.get_running_loop().create_future()
                self.parse()
                if exchange.complete:
                    return
                resume()
                await self._came
        finally:
            self._came = None
        status = HTTPStatus.BAD_REQUEST if exchange.broken else HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        exchange.break_off()
        raise BodyError(status)

    # Callbacks of httptools.

    def on_message_begin(self) -> None:
        self._target, self._headers = b"", {}

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.exchange is None:  # otherwise a trailer
            self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")
            limits = self._room.limits
            if len(self._headers) > limits.fields or len(value) > limits.field_bytes:
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
                raise BodyError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)  # makes httptools stop parsing

    def on_headers_complete(self) -> None:
        """Make the Exchange of a complete head."""
        path, _, query = self._target.decode("latin-1").partition("?")
        if path.startswith(("http://", "https://")):  # absolute form, as proxies send it (RFC 9112 3.2.2)
            path = f"/{path.split('/', 3)[3:][0]}" if path.count("/") > 2 else "/"
        try:
            found = parse_qsl(query, keep_blank_values=True, max_num_fields=self._room.limits.fields) if query else []
        except ValueError:
            self._refuse(HTTPStatus.BAD_REQUEST)
            return
        parser = self._parser
        method, version = parser.get_method().decode("ascii"), parser.get_http_version()
        self.exchange = Exchange(self._connection, method, unquote(path), found, self._headers, version)
        self._wanted = READ_AHEAD
        self.is_last = self.is_last or not parser.should_keep_alive()

    def on_body(self, piece: bytes) -> None:
        if self.exchange is not None:
            self.exchange.take(piece)

    def on_message_complete(self) -> None:
        self._tail = b""
        if self.exchange is not None:
            self.exchange.finish()
            self._report_body()
