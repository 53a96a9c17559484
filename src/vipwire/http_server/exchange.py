"""One request and its answer, as a site sees them."""

import time
from collections.abc import AsyncGenerator, Mapping
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final, Protocol, TypeAlias

from msgspec import field

from vipwire.errors import VipwireError
from vipwire.model.value import Value

Fields: TypeAlias = Mapping[str, str | tuple[str, ...]]
"""Header fields by name; several values become a field each."""


def encode_head(status: int, fields: Fields) -> bytes:
    lines = [f"HTTP/1.1 {int(status)} {HTTPStatus(status).phrase}"]
    for name, value in fields.items():
        lines += (f"{name}: {each}" for each in ((value,) if isinstance(value, str) else value))
    return "\r\n".join((*lines, f"Date: {_format_date(int(time.time()))}", "", "")).encode("latin-1", "replace")


@lru_cache(1)
def _format_date(now: int) -> str:
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(now))


TEXT: Final = {"Content-Type": "text/plain; charset=utf-8"}


class Reply(Value, frozen=True):
    """A whole answer. Text is sent as UTF-8."""

    body: bytes | str = b""
    status: int = HTTPStatus.OK
    headers: Fields = field(default_factory=lambda: TEXT)


class Stream(Value, frozen=True):
    """An answer whose pieces are sent as they come, until the last one or until the client closes.

    A `chunked` one keeps the connection for the next request; any other ends it. An `endless` one ends when the
    client shuts down its side. At most `buffered` bytes wait for a client that does not read.
    """

    pieces: AsyncGenerator[bytes, None]
    headers: Fields = field(default_factory=lambda: TEXT)
    chunked: bool = False
    endless: bool = True
    buffered: int = 0


class BodyError(VipwireError):
    """The body cannot be read. `status` is 413 for too many bytes, 408 for a late body, 400 for a malformed one."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(f"{status.value}: {status.phrase}")
        self.status = status


class ClientGoneError(ConnectionResetError):
    """The client has closed the connection or does not read, so no answer can reach it."""


class ExchangeConnection(Protocol):
    """The connection of a request, as the request sees it."""

    @property
    def address(self) -> str:
        """The client's IP address."""

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """The client's certificate, which TLS has verified."""

    def recognize(self) -> None:
        """Mark the client as a known user."""

    def abort(self) -> None:
        """Reset the connection, and discard unsent bytes."""

    async def receive_body(self, exchange: "Exchange", most: int) -> None:
        """Wait until the body is complete. Raise BodyError."""

    async def send(self, exchange: "Exchange", answer: Reply | Stream) -> int:
        """Write an answer; return its status. Raise ClientGoneError."""


class Exchange:
    """One request and its answer. `headers` has lower-case names; the last of repeated headers counts.

    `path` is decoded. `parameters` are the query's in order. `query` has them by name; the first
    of repeated parameters counts, as in Go.
    """

    def __init__(  # a request's head
        self,
        connection: "ExchangeConnection",
        method: str,
        path: str,
        parameters: list[tuple[str, str]],
        headers: Mapping[str, str],
        version: str,
    ) -> None:
        self.method, self.path, self.headers, self.version = method, path, headers, version
        self.parameters, self.query = parameters, dict[str, str]()
        for name, value in parameters:
            self.query.setdefault(name, value)
        self.connection = connection
        self.length = None if "transfer-encoding" in headers else int(headers.get("content-length", "0"))
        """The bytes of the body, None for a chunked one."""
        self.complete = self.broken = self.begun = False
        """Whether the whole body has arrived; whether it never will; whether the answer has begun."""
        self.awaits_continue = headers.get("expect", "").lower() == "100-continue" and version != "1.0"
        self._body = bytearray()

    @property
    def address(self) -> str:
        return self.connection.address

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        return self.connection.certificate

    async def read(self, most: int) -> bytes:
        """Read the body. Raise BodyError if it exceeds `most` bytes, is late or malformed."""
        if (self.length or 0) > most:
            raise BodyError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        if not self.complete:
            await self.connection.receive_body(self, most)
        if len(self._body) > most:
            raise BodyError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        body = bytes(self._body)
        self._body.clear()
        return body

    async def send(self, answer: Reply | Stream) -> int:
        """Write the answer at the client's speed; return its status. Raise ClientGoneError."""
        return await self.connection.send(self, answer)

    @property
    def size(self) -> int:
        return len(self._body)

    def take(self, piece: bytes) -> None:
        self._body += piece

    def finish(self) -> None:
        self.complete = True

    def break_off(self) -> None:
        self.broken = True

    def invite(self) -> bool:
        """Record that 100 Continue is being sent; report whether the client waits for that."""
        awaited, self.awaits_continue = self.awaits_continue, False
        return awaited

    def begin(self) -> bool:
        """Record the begin of an answer; report whether it is the first one."""
        begun, self.begun = self.begun, True
        return not begun


class Responder(Protocol):
    """Answers requests. Returns the answer, or None after sending one itself."""

    async def __call__(self, exchange: Exchange, /) -> Reply | Stream | None:
        """Answer one request. The server answers 500 after any exception but ClientGoneError."""

    def refuse(self, status: HTTPStatus, /) -> Reply:
        """Build the answer to a malformed or too large request."""
