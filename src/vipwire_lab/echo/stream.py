"""One accepted connection of an echo server, over TCP or SCTP.

The first line a client sends is answered with who is here; what follows is echoed. So a short probe is one exchange,
and a long one can tell at any time whether its connection still lives. Nothing is said first, for an HTTP client
would take it for the response: what begins like an HTTP request is answered in HTTP.
"""

import asyncio

from vipwire_lab.echo.answer import Answer, Peer, http_response

_METHODS = (b"GET ", b"HEAD ")
_HEAD_LIMIT = 65536


class StreamEcho(asyncio.Protocol):
    """A connection. It is in `connections` as long as it is open."""

    def __init__(self, host: str, node: str, protocol: str, connections: set["StreamEcho"]) -> None:
        self._who = (host, node, protocol)
        self._connections = connections
        self._transport: asyncio.Transport
        self._request = b""
        self._greeted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember whom we saw."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - asyncio's interface is wider than what it does
        self._transport = transport
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        del exc
        self._connections.discard(self)

    def abort(self) -> None:
        """End it at once, as the end of a Pod does."""
        self._transport.abort()

    def pause_writing(self) -> None:
        """Stop reading while the client does not read."""
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Read from the client again."""
        self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Answer first, then echo."""
        if self._greeted:
            self._transport.write(data)
            return
        self._request += data
        if not self._request.startswith(_METHODS):
            self._greet(self._request.partition(b"\n")[2])
        elif b"\r\n\r\n" in self._request or len(self._request) > _HEAD_LIMIT:
            self._greeted = True
            self._transport.write(http_response(self._answer()))
            self._transport.close()

    def eof_received(self) -> bool:
        """Answer those that only listen, too; asyncio closes the connection after what is written."""
        if not self._greeted:
            self._greet(b"")
        return False

    def _greet(self, rest: bytes) -> None:
        self._greeted = True
        self._request = b""
        self._transport.write(self._answer().encode() + rest)

    def _answer(self) -> Answer:
        peer = self._transport.get_extra_info("peername")
        local = self._transport.get_extra_info("sockname")
        return Answer(*self._who, Peer(peer[0], peer[1]), Peer(local[0], local[1]))
