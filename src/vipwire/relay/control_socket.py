"""The relay's control socket: an abstract Unix socket that takes requests of the control process and answers them."""

import select
import socket
import struct
from typing import Final

from vipwire.errors import DecodeError
from vipwire.relay.loop import Loop
from vipwire.relay.messages import decode_request, encode, take_body
from vipwire.relay.relay import Relay

CREDENTIALS: Final = struct.Struct("3i")
"""struct ucred: process, user and group."""
_TIMEOUT: Final = 5.0
"""Seconds until a control process that does not read its answers is hung up on. All relaying waits meanwhile: it is
of our own user."""


class ControlSocket:
    """Hears the control process: accepts its connections, reads requests, writes answers."""

    def __init__(self, loop: Loop, relay: Relay, listening: socket.socket, user: int) -> None:
        self._loop, self._relay, self._listening, self._user = loop, relay, listening, user
        loop.add(listening.fileno(), self, select.EPOLLIN)
        relay.retire = self.close

    def ready(self, fd: int, mask: int) -> None:
        """Accept a connection. Only processes of our own user, and root's, may say what is relayed."""
        del fd, mask
        try:
            sock, _ = self._listening.accept()
        except OSError:
            return
        uid = CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        if uid not in (0, self._user):
            sock.close()
            return
        ControlConnection(self._loop, self._relay, sock)

    def close(self) -> None:
        """Release the name, so that another relay may have it."""
        self._loop.forget(self._listening.fileno(), self._listening)


class ControlConnection:
    """One connection of a control process."""

    def __init__(self, loop: Loop, relay: Relay, sock: socket.socket) -> None:
        self._loop, self._relay, self._sock = loop, relay, sock
        self._heard = bytearray()
        sock.settimeout(_TIMEOUT)
        loop.add(sock.fileno(), self, select.EPOLLIN)

    def ready(self, fd: int, mask: int) -> None:
        """Read what is there, and answer every request that is complete."""
        del mask
        try:
            data = self._sock.recv(1 << 20, socket.MSG_DONTWAIT)
            self._heard += data
            while data and (body := take_body(self._heard)) is not None:
                self._sock.sendall(encode(self._relay.answer(decode_request(body))))
        except BlockingIOError:
            return
        except (OSError, DecodeError) as error:
            self._loop.note(f"a control connection was closed: {error}")
            data = b""
        if not data:
            self._loop.forget(fd, self._sock)
