"""One request and its answer, as a site knows them: what was asked, the body, what is answered."""

from collections.abc import AsyncGenerator, Mapping
from http import HTTPStatus
from typing import Any, Final, Protocol

from msgspec import field

from vipwire.errors import VipwireError
from vipwire.http_server.encoding import Fields
from vipwire.model.value import Value

TEXT: Final = {"Content-Type": "text/plain; charset=utf-8"}


class Reply(Value, frozen=True):
    """A whole answer. Text goes out as UTF-8."""

    body: bytes | str = b""
    status: int = HTTPStatus.OK
    headers: Fields = field(default_factory=lambda: TEXT)


class Stream(Value, frozen=True):
    """An answer that is written as its pieces come, until there are no more or the client leaves.

    A `chunked` one leaves the connection open for the next request, any other ends it. An `endless` one ends as soon
    as the client says that it sends no more. `buffered` bytes wait at most for a client that does not read.
    """

    pieces: AsyncGenerator[bytes, None]
    headers: Fields = field(default_factory=lambda: TEXT)
    chunked: bool = False
    endless: bool = True
    buffered: int = 0


class BodyError(VipwireError):
    """The body cannot be had. `status` is 413 for too many bytes, 408 for a late body, 400 for a broken one."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(f"{status.value}: {status.phrase}")
        self.status = status


class ClientGoneError(ConnectionResetError):
    """The client has closed the connection or does not read: no answer can reach it."""


class ExchangeConnection(Protocol):
    """The connection of a request, as the request knows it."""

    @property
    def address(self) -> str:
        """The client's IP address."""

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """The client's certificate, which TLS has verified."""

    def recognize(self) -> None:
        """Note that a known user has sent a request."""

    def abort(self) -> None:
        """Reset the connection; drop what waits to be sent."""

    async def receive_body(self, exchange: "Exchange", most: int) -> None:
        """Wait until the body is complete. Raise BodyError."""

    async def send(self, exchange: "Exchange", answer: Reply | Stream) -> int:
        """Write an answer; return its status. Raise ClientGoneError."""


class Exchange:
    """One request and its answer. Names in `headers` are in small letters; of double ones, the last counts.

    `path` is decoded. `parameters` are the query's in their order; `query` has them by name, of double ones the
    first, as Go takes them.
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
        """Whether all of the body has come; whether it never will; whether the answer is on its way."""
        self.awaits_continue = headers.get("expect", "").lower() == "100-continue" and version != "1.0"
        self._body = bytearray()

    @property
    def address(self) -> str:
        """The client's IP address."""
        return self.connection.address

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """The client's certificate, which TLS has verified."""
        return self.connection.certificate

    async def read(self, most: int) -> bytes:
        """Read the body. Raise BodyError where it is longer than `most` bytes, late or broken."""
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
        """Write the answer, no faster than the client reads; return its status. Raise ClientGoneError."""
        return await self.connection.send(self, answer)

    @property
    def size(self) -> int:
        """How many bytes of the body wait to be read."""
        return len(self._body)

    def take(self, piece: bytes) -> None:
        """Take a piece of the body."""
        self._body += piece

    def finish(self) -> None:
        """Note that the body is complete."""
        self.complete = True

    def break_off(self) -> None:
        """Note that the rest of the body does not come."""
        self.broken = True

    def invite(self) -> bool:
        """Note that the client is told to send the body; report whether it waits for that."""
        awaited, self.awaits_continue = self.awaits_continue, False
        return awaited

    def begin(self) -> bool:
        """Note that the answer is on its way; report whether it is the first one."""
        begun, self.begun = self.begun, True
        return not begun


class Responder(Protocol):
    """Answers requests. It returns the answer, or None where it has sent one itself."""

    async def __call__(self, exchange: Exchange, /) -> Reply | Stream | None:
        """Answer one request. The client is told any exception but ClientGoneError as 500."""

    def refuse(self, status: HTTPStatus, /) -> Reply:
        """Build the answer to what is no request, or too much of one."""
