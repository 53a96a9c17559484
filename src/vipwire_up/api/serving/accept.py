"""Accepting connections: each is counted before anything is done for it, and trouble is logged once a minute.

asyncio's own way accepts a hundred at a time, logs a traceback for each that finds no free file, and has a buffer of
256 KiB for each TLS connection. So TLS begins with the client's first byte, if that is one of TLS, with a buffer of
two of its records. A failed handshake leaves cyclic garbage, of so few objects that the collector would not look for
it before there is half a gigabyte.
"""

import asyncio
import errno
import gc
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from functools import partial
from typing import Final

from aiohttp import web

from vipwire.logging.rate_limited_log import RateLimitedLog
from vipwire_up.api.serving.connections import Connection, Connections

_REST_SECONDS: Final = 0.2  # after the machine could not give a connection: who waits stays in the kernel's queue
_HANDSHAKE_SECONDS: Final = 10.0
_CLOSING_SECONDS: Final = 2.0
_FAILED_BETWEEN: Final = 200
"""Handshakes that fail before the garbage they leave is collected."""
_BACKLOG: Final = 512
_TLS_BUFFER: Final = 32 << 10
_HANDSHAKE: Final = b"\x16"  # how every TLS connection begins (RFC 8446, 5.1)
_GONE: Final = (errno.ECONNABORTED, errno.EPROTO, errno.EPERM)


async def bound(host: str, port: int) -> list[socket.socket]:
    """Bind sockets to all addresses of a host; port 0 is any, the same for all. Raise OSError."""
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


class Listening(web.ServerRunner):
    """A server with the sockets that it accepts connections at."""

    def __init__(self, connections: Connections) -> None:
        super().__init__(connections, shutdown_timeout=1.0)
        SSLProtocol.max_size = _TLS_BUFFER  # of all this process's connections: there is no other way to say it
        self._connections = connections
        self._accepting: dict[asyncio.Task[None], socket.socket] = {}
        self._opening: set[asyncio.Task[None]] = set()
        self._failed = 0
        self._log = RateLimitedLog()

    @property
    def ports(self) -> list[int]:
        """The ports that it listens at."""
        return [int(listening.getsockname()[1]) for listening in self._accepting.values()]

    def open(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Accept connections at a bound socket."""
        listening.settimeout(0)
        listening.listen(_BACKLOG)
        loop = asyncio.get_running_loop()
        self._accepting[loop.create_task(self._accept(listening, tls))] = listening

    async def cleanup(self) -> None:
        """Accept no more, and end what there is."""
        for task in (*self._accepting, *self._opening):
            task.cancel()
        await asyncio.gather(*self._accepting, *self._opening, return_exceptions=True)
        for listening in self._accepting.values():
            listening.close()
        self._accepting.clear()
        await super().cleanup()

    async def _accept(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                opened, address = await loop.sock_accept(listening)
            except OSError as error:
                if error.errno not in _GONE:
                    self._log.warning("cannot accept connections", reason=error.strerror)
                    await asyncio.sleep(_REST_SECONDS)
                continue
            connection = self._connections.admit(str(address[0]))
            if connection is None:
                self._log.warning("too many connections: some are refused", address=address[0])
                opened.close()
                continue
            connection.opening(opened)
            task = loop.create_task(self._open(connection, opened, tls))
            self._opening.add(task)
            task.add_done_callback(partial(self._opened, connection, opened))
            await asyncio.sleep(0)  # who is here already gets a turn

    async def _open(self, connection: Connection, opened: socket.socket, tls: ssl.SSLContext | None) -> None:
        seconds = (_HANDSHAKE_SECONDS, _CLOSING_SECONDS) if tls else (None, None)
        try:
            if tls is not None and await _first_byte(opened) != _HANDSHAKE:
                self._end(connection, opened)
                return
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                opened,
                ssl=tls,
                ssl_handshake_timeout=seconds[0],
                ssl_shutdown_timeout=seconds[1],
            )
        except OSError:
            self._end(connection, opened)
            self._failed += 1
            if self._failed % _FAILED_BETWEEN == 0:
                gc.collect(1)
        except BaseException:
            self._end(connection, opened)
            raise

    def _opened(self, connection: Connection, opened: socket.socket, task: asyncio.Task[None]) -> None:
        self._opening.discard(task)
        if task.cancelled():  # perhaps before it began
            self._end(connection, opened)

    def _end(self, connection: Connection, opened: socket.socket) -> None:
        connection.busy()
        self._connections.forget(connection)
        opened.close()


async def _first_byte(opened: socket.socket) -> bytes:
    """Wait for the first byte of a connection, and leave it there; b"" if it ends. Raise OSError."""
    loop = asyncio.get_running_loop()
    opened.settimeout(0)
    came = asyncio.Event()
    loop.add_reader(opened, came.set)
    try:
        await came.wait()
    finally:
        loop.remove_reader(opened)
    return opened.recv(1, socket.MSG_PEEK)
