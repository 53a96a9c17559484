"""Listening sockets: accepts connections within the limits of a room, and closes them.

asyncio's own server has no limits, and logs a traceback for each connection without a free descriptor. This one asks
the room about each connection, and logs errors once a minute.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeAlias

from vipwire.http_server.connection import ServerConnection
from vipwire.http_server.exchange import Responder
from vipwire.http_server.room import TURNS, Room
from vipwire.logging.log import RateLimitedLog

_PAUSE_SECONDS: Final = 0.2  # after a failed accept; new connections wait in the kernel's queue
_GONE: Final = (errno.ECONNABORTED, errno.EPROTO, errno.EPERM)
_LOG: Final = logging.getLogger(__name__)

Opening: TypeAlias = Callable[[ServerConnection, socket.socket], Coroutine[Any, Any, None]]
"""Starts a connection on the accepted socket, with TLS for example. Raises OSError."""


async def open_plain(connection: ServerConnection, accepted: socket.socket) -> None:
    await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, accepted)


class Serving:
    """The listening sockets of a site, and their connections."""

    def __init__(self, site: Responder, room: Room | None = None) -> None:
        self.site, self.room = site, room or Room()
        self._listeners: list[socket.socket] = []
        self.connections: dict[ServerConnection, None] = {}
        self._opening: set[asyncio.Task[None]] = set()
        self._log = RateLimitedLog()

    @property
    def ports(self) -> list[int]:
        return [int(listener.getsockname()[1]) for listener in self._listeners]

    def listen(self, listener: socket.socket, opening: Opening = open_plain, backlog: int = 128) -> None:
        """Accept connections at a bound socket, which the server closes."""
        listener.settimeout(0)
        listener.listen(backlog)
        self._listeners.append(listener)
        self._accept_at(listener, opening)

    async def close(self, grace: float = 0.0) -> None:
        """Close listening sockets and idle connections; answers in progress have `grace` seconds."""
        for listener in self._listeners:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
        self._listeners.clear()
        for opening in self._opening:
            opening.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        busy = {task for connection in tuple(self.connections) if (task := connection.end_after_answer())}
        if busy:
            await asyncio.wait(busy, timeout=grace)
        for connection in tuple(self.connections):
            connection.abort()
        await asyncio.sleep(0)  # lets asyncio close the transports before the loop ends

    def _accept_at(self, listener: socket.socket, opening: Opening) -> None:
        if listener in self._listeners:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener, opening)

    def _accept(self, listener: socket.socket, opening: Opening) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(TURNS):
            try:
                accepted, address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in _GONE:
                    self._log.warning("cannot accept connections", reason=error.strerror)
                    loop.remove_reader(listener)
                    loop.call_later(_PAUSE_SECONDS, self._accept_at, listener, opening)
                    return
            else:
                self._admit(accepted, str(address[0]), opening)

    def _admit(self, accepted: socket.socket, address: str, opening: Opening) -> None:
        connection = ServerConnection(self.site, self.room, address, self._remove_connection)
        if not self.room.admit(connection, address):
            self._log.warning("too many connections: refusing some", address=address)
            accepted.close()
            return
        accepted.settimeout(0)
        self.connections[connection] = None
        connection.accept(accepted)
        task = asyncio.get_running_loop().create_task(opening(connection, accepted))
        self._opening.add(task)
        task.add_done_callback(partial(self._end_opening, connection, accepted))

    def _end_opening(self, connection: ServerConnection, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        self._opening.discard(task)
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:  # perhaps cancelled before its start
            connection.connection_lost(None)
            accepted.close()
        if error is not None and not isinstance(error, OSError):
            _LOG.error("cannot open a connection", exc_info=error)

    def _remove_connection(self, connection: ServerConnection) -> None:
        self.connections.pop(connection, None)
