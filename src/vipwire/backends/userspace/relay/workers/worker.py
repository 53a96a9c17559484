"""One worker of a relay: `python -m vipwire.backends.userspace.relay.workers.worker SOCKET BOARD WORKERS COLUMN`.

SOCKET and BOARD are descriptors that it inherits. It accepts clients of the listeners that the relay hands it, each
with its sockets, and relays them. When the relay goes, it listens no more, and ends with its last connection.
"""

import _socket
import gc
import random
import signal
import socket
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

import msgspec

from vipwire.backends.userspace.messages import AskNotes, Done, Remove, Retire, take_body
from vipwire.backends.userspace.relay.file_limits import DescriptorBudget
from vipwire.backends.userspace.relay.listener import Shared
from vipwire.backends.userspace.relay.loop import Loop
from vipwire.backends.userspace.relay.stream import StreamListener
from vipwire.backends.userspace.relay.workers.board import Board
from vipwire.backends.userspace.relay.workers.orders import (
    MOST_SOCKETS,
    ORDERS,
    Hand,
    Handed,
    Order,
    Reply,
    Told,
    encode,
)
from vipwire.backends.userspace.relay.workers.shared import Seats, SharedPool
from vipwire.errors import DecodeError
from vipwire.process.file_limits import raise_limit


class Worker:
    """Hears the relay, and does what it says."""

    def __init__(self, loop: Loop, sock: socket.socket, board: Board, limit: int) -> None:
        self._loop, self._sock, self._board = loop, sock, board
        self._budget = DescriptorBudget(limit)
        self._shared = Shared(loop, self._budget, random.random)
        self._shared.ended = self._end_if_idle
        self._listeners: dict[str, StreamListener] = {}
        self._pools: dict[str, SharedPool] = {}
        self._heard = bytearray()
        self._came: list[int] = []
        self._retired = False
        loop.add(sock.fileno(), self, 1)
        sock.sendall(encode(Done()))

    def ready(self, fd: int, mask: int) -> None:
        """Read what the relay has said, with the sockets that come with it."""
        del mask
        try:
            data, sockets, _, _ = socket.recv_fds(self._sock, 1 << 16, MOST_SOCKETS, socket.MSG_CMSG_CLOEXEC)
            self._came += sockets
            self._heard += data
            while data and (body := take_body(self._heard)) is not None:
                self._loop.once_over(partial(self._say, self.answer(ORDERS.decode(body))))
        except (OSError, DecodeError, msgspec.DecodeError):
            data = b""
        if not data:
            self._loop.forget(fd, self._sock)
            self._retire()

    def _say(self, reply: Reply) -> None:
        with suppress(OSError):  # the relay has gone, as the next event says
            self._sock.sendall(encode(reply))

    def answer(self, order: Order) -> Reply:
        """Carry an order out."""
        match order:
            case Hand(listeners):
                for key, handed in listeners.items():
                    self._have(key, handed)
            case Remove(keys):
                self._close(keys)
            case AskNotes():
                notes = list(self._loop.notes.items())
                self._loop.notes.clear()
                return Told(notes, dict(self._shared.refused), self._budget.links)
            case Retire():
                self._retire()
        return Done()

    def _have(self, key: str, handed: Handed) -> None:
        if handed.sockets:
            self._close((key,))
            came, self._came = self._came[: handed.sockets], self._came[handed.sockets :]
            sockets = [_socket.socket(-1, -1, -1, fd) for fd in came]
            pool = self._pools[key] = SharedPool(self._board)
            self._listeners[key] = StreamListener(self._shared, key, handed.listener, sockets, pool)
            self._budget.others += len(sockets)
        self._pools[key].seat(handed.listener, Seats(handed.turn, handed.rows, handed.seed))
        self._listeners[key].settle(handed.listener)

    def _close(self, keys: Iterable[str]) -> None:
        for key in keys:
            listener = self._listeners.pop(key, None)
            if listener is not None:
                del self._pools[key]
                self._budget.others -= len(listener.sockets)
                listener.close()

    def _retire(self) -> None:
        self._close(list(self._listeners))
        self._retired = True
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if self._retired and not self._budget.links:
            self._loop.stopped = True


def main() -> int:
    """Relay until the relay says that it is enough."""
    sock, board, workers, column = map(int, sys.argv[1:])
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    loop = Loop()
    Worker(loop, socket.socket(fileno=sock), Board(board, workers, column), raise_limit())
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)
    loop.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
