"""One direction of a relayed connection: copies from one socket to the other.

Copies through one buffer that all directions share. Bytes that the sink does not accept are kept, and the source is
not read until the sink accepts them. A direction whose reads fill the buffer gets a pipe: splice(2) moves the pages
without a copy to userspace.
"""

import _socket
import fcntl
import os
import select
import socket
import struct
from contextlib import suppress
from typing import Final, Protocol

from vipwire.relay.balance import BalancedEndpoint
from vipwire.relay.loop import EventLoop

END: Final = select.EPOLLRDHUP | select.EPOLLHUP
BUFFER: Final = bytearray(128 << 10)
VIEW: Final = memoryview(BUFFER)
"""The shared buffer: use its content before any other read."""
READING: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET
"""The events of a socket while its peer accepts data."""
EVENTS: Final = READING | select.EPOLLOUT
NOW: Final = socket.MSG_DONTWAIT
WRITE_NOW: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_SIZE: Final = len(BUFFER)
_FULL: Final = 2
"""Number of successive reads that fill the buffer after which a direction uses splice."""
_PIPE_SIZE: Final = 1 << 20
_TURN: Final = 16
"""Buffers that one direction may copy before others get their turn."""
_RESET: Final = struct.pack("ii", 1, 0)
_SPLICE: Final = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK if hasattr(os, "SPLICE_F_MOVE") else 3
_SPARE_PIPES: Final = 16


class Carrier(Protocol):
    """The connection of a direction."""

    target: BalancedEndpoint
    closed: bool

    @property
    def loop(self) -> EventLoop:
        """The event loop."""

    def direction_ended(self) -> bool:
        """Report whether both directions have ended, and then close the connection."""

    def close(self) -> None:
        """End both directions."""


class Pipe:
    """A pipe for splice; `filled` is the bytes in the pipe."""

    __slots__ = ("filled", "reader", "writer")
    spare: "list[Pipe]" = []  # noqa: RUF012 - of the process: there is one relay in it

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.filled = 0
        with suppress(OSError):  # beyond an unprivileged user's limit: the default of 64 KiB works
            fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)

    @classmethod
    def take(cls) -> "Pipe":
        """Return a new or a reused pipe. Raise OSError at the limit of open files."""
        return cls.spare.pop() if cls.spare else cls()

    def give_back(self) -> None:
        if not self.filled and len(Pipe.spare) < _SPARE_PIPES:
            Pipe.spare.append(self)
        else:
            os.close(self.reader)
            os.close(self.writer)


class Direction:
    """One direction of a connection. `left` was read but not yet written; `ended`: the source has ended.

    `watched`: the loop reports when the sink accepts more. `gathers`: the kernel may delay a small segment while
    another is unacknowledged, which costs a single write nothing, and saves a system call.
    """

    __slots__ = ("ended", "full", "gathers", "left", "link", "pipe", "sink", "source", "up", "waiting", "watched")

    def __init__(self, link: Carrier, source: _socket.socket, sink: _socket.socket, up: bool) -> None:  # noqa: FBT001
        self.link, self.source, self.sink = link, source, sink
        self.up = self.gathers = up
        self.left = b""
        self.full = 0
        self.pipe: Pipe | None = None
        self.ended = self.waiting = self.watched = False

    def pump(self, mask: int = 0) -> None:
        """Copy the available bytes. `mask` has the source's events, which may include its end."""
        if self.ended or self.waiting:
            return
        try:
            if self.pipe is not None:
                self._splice()
            else:
                self._copy(mask & END)
        except BlockingIOError:
            return
        except OSError:
            self.link.close()

    def flush(self) -> None:
        if not self.waiting:
            return
        self.waiting = False
        try:
            if self.left:
                sent = self.sink.send(self.left, WRITE_NOW)
                self._count_bytes(sent)
                self.left = self.left[sent:]
                if self.left:
                    self.wait()
                    return
        except BlockingIOError:
            self.wait()
            return
        except OSError:
            self.link.close()
            return
        self.pump(END)

    def wait(self) -> None:
        """Stop reading the source until the sink accepts more."""
        self.waiting = True
        if self.gathers:
            self.hurry()
        if not self.watched:
            self.watched = True
            self.link.loop.change(self.sink.fileno(), EVENTS)

    def hurry(self) -> None:
        """Send small segments at once from now on."""
        self.gathers = False
        with suppress(OSError):
            self.sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _copy(self, ending: int) -> None:
        source, sink = self.source, self.sink
        for _ in range(_TURN):
            size = source.recv_into(BUFFER, 0, NOW)
            if size == 0:
                self._record_end()
                return
            if self.gathers:
                self.hurry()
            try:
                sent = sink.send(VIEW[:size], WRITE_NOW)
            except BlockingIOError:
                sent = 0
            if self.up:
                self.link.target.sent += sent
            else:
                self.link.target.received += sent
            if sent < size:
                self.left = bytes(VIEW[sent:size])
                self.wait()
                return
            if size < _SIZE:
                self.full = 0
                if not ending:
                    return
            else:
                self.full += 1
                if self.full >= _FULL and self._begin_splice():
                    self._splice()
                    return
        self.link.loop.call_again(self._pump_end)

    def _pump_end(self) -> None:
        if not self.link.closed:
            self.pump(END)

    def _begin_splice(self) -> bool:
        try:
            self.pipe = Pipe.take()
        except OSError:
            self.full = -1024  # no descriptors are left: copying works, too
            return False
        os.set_blocking(self.source.fileno(), False)
        os.set_blocking(self.sink.fileno(), False)
        return True

    def _splice(self) -> None:
        pipe = self.pipe
        assert pipe is not None  # noqa: S101 - the caller has looked
        source, sink, splice = self.source.fileno(), self.sink.fileno(), os.splice
        for _ in range(_TURN):
            if not pipe.filled:
                size = splice(source, pipe.writer, _PIPE_SIZE, flags=_SPLICE)
                if size == 0:
                    self._record_end()
                    return
                pipe.filled = size
            try:
                while pipe.filled:
                    sent = splice(pipe.reader, sink, pipe.filled, flags=_SPLICE)
                    pipe.filled -= sent
                    self._count_bytes(sent)
            except BlockingIOError:
                self.wait()
                return
        self.link.loop.call_again(self._pump_end)

    def end(self) -> None:
        """Return the pipe; reset the sink if the source did not end normally."""
        if self.pipe is not None:
            self.pipe.give_back()
            self.pipe = None
        if not self.ended:
            reset_on_close(self.sink)

    def _count_bytes(self, size: int) -> None:
        if self.up:
            self.link.target.sent += size
        else:
            self.link.target.received += size

    def _record_end(self) -> None:
        """Shut down the sink; close the connection if the other direction has ended, too."""
        self.ended = True
        link = self.link
        if link.direction_ended():
            return
        try:
            self.sink.shutdown(socket.SHUT_WR)
        except OSError:
            link.close()


def reset_on_close(sock: _socket.socket) -> None:
    """Make close() send a reset, so that the peer does not take an abort for a normal end."""
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
