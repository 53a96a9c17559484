"""Opens the API server's sockets, and TLS on the connections there.

TLS begins with the client's first byte, if that is one of TLS. A connection leaves no cyclic garbage: such garbage
has so few objects that Python's collector would start only at half a gigabyte.
"""

import asyncio
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from typing import Final

from vipwire.http_server.connection import ServerConnection
from vipwire.http_server.server import Opening, open_plain

BACKLOG: Final = 512
_HANDSHAKE_SECONDS: Final = 10
_CLOSING_SECONDS: Final = 2
_BUFFER: Final = memoryview(bytearray(32 << 10))  # two TLS records; all connections read into it, then copy
_HANDSHAKE: Final = b"\x16"  # the first byte of a TLS connection (RFC 8446, 5.1)


async def bind_all(host: str, port: int) -> list[socket.socket]:
    """Bind sockets to all addresses of a host, all with the same port; 0 for any. Raise OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    opened: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            opened.append(socket.create_server((address[0], port), family=family))
            port = opened[0].getsockname()[1]
    except BaseException:
        for each in opened:
            each.close()
        raise
    return opened


def plain_or_tls_opening(tls: ssl.SSLContext | None) -> Opening:
    return open_plain if tls is None else TlsOpening(tls)


class _Tls(SSLProtocol):
    """asyncio's TLS, without a buffer of 256 KiB for each connection."""

    max_size = 0

    def __init__(self, connection: ServerConnection, context: ssl.SSLContext, waiter: "asyncio.Future[bool]") -> None:
        super().__init__(
            asyncio.get_running_loop(),
            connection,
            context,
            waiter,
            server_side=True,
            ssl_handshake_timeout=_HANDSHAKE_SECONDS,
            ssl_shutdown_timeout=_CLOSING_SECONDS,
        )
        self._ssl_buffer_view = _BUFFER

    def _wakeup_waiter(self, exc: BaseException | None = None) -> None:
        """Report the handshake's result without the exception: its traceback would make cyclic garbage."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(exc is None)
        if exc is not None:
            exc.__traceback__ = None


class TlsOpening:
    """Begins TLS on accepted connections."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._tls = tls

    async def __call__(self, connection: ServerConnection, accepted: socket.socket) -> None:
        """Begin TLS at the client's first byte. Raise OSError if the connection fails."""
        if await _peek_first_byte(accepted) != _HANDSHAKE:
            raise ConnectionAbortedError
        loop = asyncio.get_running_loop()
        agreed: asyncio.Future[bool] = loop.create_future()
        transport, _ = await loop.connect_accepted_socket(lambda: _Tls(connection, self._tls, agreed), accepted)
        try:
            is_agreed = await agreed
        except BaseException:
            transport.abort()
            raise
        if not is_agreed:
            raise ConnectionAbortedError


async def _peek_first_byte(opened: socket.socket) -> bytes:
    """Wait for a connection's first byte and leave it in the socket; b"" at the end. Raise OSError."""
    loop = asyncio.get_running_loop()
    came = asyncio.Event()
    loop.add_reader(opened, came.set)
    try:
        await came.wait()
    finally:
        loop.remove_reader(opened)
    return opened.recv(1, socket.MSG_PEEK)
