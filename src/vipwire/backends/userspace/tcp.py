"""One relayed TCP connection: dialling an endpoint, then copying both ways until both ends have said that they end.

    client ──▶ Half "up"   ──▶ endpoint
    client ◀── Half "down" ◀── endpoint

Dialling is tried `LADDER` times, each time with another endpoint and more patience (kube-proxy's userspace mode:
250 ms, 500 ms, 1 s, 2 s); a refusal goes on to the next at once. Then the client gets a reset. Until an endpoint has
answered the client is not read, so that nothing of what it has sent is lost.

A half copies through one buffer that all share; what the other side does not take at once is kept, and its source is
left alone until then. A half whose reads fill the buffer carries much: it gets a pipe, and splice(2) moves the pages
without copying them through here.
"""

import _socket
import errno
import fcntl
import os
import select
import socket
import struct
from contextlib import suppress
from typing import Final, Protocol

from vipwire.backends.userspace.balance import Pool, Target
from vipwire.backends.userspace.loop import Loop

LADDER: Final = (0.25, 0.5, 1.0, 2.0)
EVENTS: Final = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET
_READ: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_WRITE: Final = select.EPOLLOUT
_BAD: Final = select.EPOLLERR | select.EPOLLHUP
_END: Final = select.EPOLLRDHUP | select.EPOLLHUP
_BUFFER: Final = bytearray(128 << 10)
_VIEW: Final = memoryview(_BUFFER)
_SIZE: Final = len(_BUFFER)
_FULL: Final = 2
"""So many reads in succession that fill the buffer make a half use splice."""
_PIPE_SIZE: Final = 1 << 20
_TURN: Final = 16
"""Buffers that one half may move before others have their turn."""
_NOW: Final = socket.MSG_DONTWAIT
_WRITE_NOW: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_STREAM: Final = socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
_RESET: Final = struct.pack("ii", 1, 0)
_SPLICE: Final = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK if hasattr(os, "SPLICE_F_MOVE") else 3
_SPARE_PIPES: Final = 16


class Owner(Protocol):
    """The listener that a connection came to."""

    loop: Loop
    pool: Pool
    family: int

    def link_ended(self, link: "Link") -> None:
        """Take note that a connection has ended."""

    def dialled(self, link: "Link", step: int) -> None:
        """Have `link.late(step)` called when the patience of this step is over."""

    def greeting(self, link: "Link") -> bytes:
        """Tell what an endpoint is sent first."""

    def refused(self, reason: str) -> None:
        """Count a client that was sent away."""


class Pipe:
    """A pipe for splice; `filled` is what is in it."""

    __slots__ = ("filled", "reader", "writer")
    spare: "list[Pipe]" = []  # noqa: RUF012 - of the process: there is one relay in it

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.filled = 0
        with suppress(OSError):  # too much for a user without privileges: 64 KiB work as well
            fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)

    @classmethod
    def take(cls) -> "Pipe":
        """Give a pipe, a used one if there is one. Raise OSError at the limit of open files."""
        return cls.spare.pop() if cls.spare else cls()

    def give_back(self) -> None:
        """Have no more use for it."""
        if not self.filled and len(Pipe.spare) < _SPARE_PIPES:
            Pipe.spare.append(self)
        else:
            os.close(self.reader)
            os.close(self.writer)


class Half:
    """One direction. `left` was read and is not yet written; `ended`: the source has said that it ends."""

    __slots__ = ("ended", "full", "left", "link", "pipe", "sink", "source", "up", "waiting")

    def __init__(self, link: "Link", source: _socket.socket, sink: _socket.socket, *, up: bool) -> None:
        self.link, self.source, self.sink, self.up = link, source, sink, up
        self.left = b""
        self.full = 0
        self.pipe: Pipe | None = None
        self.ended = self.waiting = False

    def pump(self, mask: int = 0) -> None:
        """Move what is there. `mask` are the source's events: the end may be known already."""
        if self.ended or self.waiting:
            return
        try:
            if self.pipe is not None:
                self._splice()
            else:
                self._copy(mask & _END)
        except BlockingIOError:
            return
        except OSError:
            self.link.close()

    def flush(self) -> None:
        """Go on, as the sink can take more."""
        if not self.waiting:
            return
        self.waiting = False
        try:
            if self.left:
                sent = self.sink.send(self.left, _WRITE_NOW)
                self._count(sent)
                self.left = self.left[sent:]
                if self.left:
                    self.waiting = True
                    return
        except BlockingIOError:
            self.waiting = True
            return
        except OSError:
            self.link.close()
            return
        self.pump(_END)

    def _copy(self, ending: int) -> None:
        source, sink = self.source, self.sink
        for _ in range(_TURN):
            size = source.recv_into(_BUFFER, 0, _NOW)
            if size == 0:
                self._end()
                return
            try:
                sent = sink.send(_VIEW[:size], _WRITE_NOW)
            except BlockingIOError:
                sent = 0
            if self.up:
                self.link.target.sent += sent
            else:
                self.link.target.received += sent
            if sent < size:
                self.left, self.waiting = bytes(_VIEW[sent:size]), True
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
        self.link.owner.loop.again(self._turn)

    def _turn(self) -> None:
        if not self.link.closed:
            self.pump(_END)

    def _begin_splice(self) -> bool:
        try:
            self.pipe = Pipe.take()
        except OSError:
            self.full = -1024  # no descriptors are left: copying goes on as well
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
                    self._end()
                    return
                pipe.filled = size
            try:
                while pipe.filled:
                    sent = splice(pipe.reader, sink, pipe.filled, flags=_SPLICE)
                    pipe.filled -= sent
                    self._count(sent)
            except BlockingIOError:
                self.waiting = True
                return
        self.link.owner.loop.again(self._turn)

    def end(self) -> None:
        """Give back what it has; the sink is told of an abort if there was no end."""
        if self.pipe is not None:
            self.pipe.give_back()
            self.pipe = None
        if not self.ended:
            make_reset(self.sink)

    def _count(self, size: int) -> None:
        if self.up:
            self.link.target.sent += size
        else:
            self.link.target.received += size

    def _end(self) -> None:
        """Pass the end on; with the other direction's the connection is over."""
        self.ended = True
        link = self.link
        if link.up.ended and link.down.ended:
            link.close()
            return
        try:
            self.sink.shutdown(socket.SHUT_WR)
        except OSError:
            link.close()


class Link:
    """One connection of a client."""

    __slots__ = ("client", "closed", "down", "early", "owner", "peer", "server", "step", "target", "tried", "up")
    target: Target
    server: _socket.socket
    up: Half
    down: Half

    def __init__(self, owner: Owner, client: _socket.socket, peer: tuple[str, int]) -> None:
        self.owner, self.client, self.peer = owner, client, peer
        self.tried: tuple[Target, ...] = ()
        self.early = b""
        self.step = -1
        self.closed = False

    def dial(self) -> None:
        """Call an endpoint, and the next if this one cannot even be called."""
        owner = self.owner
        while self.step + 1 < len(LADDER):
            self.step += 1
            target = owner.pool.choose(self.peer[0], self.peer[1], owner.loop.now, self.tried)
            if target is None:
                break
            self.target = target
            target.open += 1
            try:
                server = _socket.socket(owner.family, _STREAM, socket.IPPROTO_TCP)
            except OSError:
                target.open -= 1
                self._give_up("no descriptors are left")
                return
            self.server = server
            code = server.connect_ex(target.sockaddr)
            if code in (0, errno.EINPROGRESS):
                if not self._served_at_once():
                    owner.loop.add(server.fileno(), self, EVENTS)
                    owner.dialled(self, self.step)
                return
            server.close()
            self._missed(code)
        self._give_up("no endpoint answers")

    def ready(self, fd: int, mask: int) -> None:
        """Take the events of either side."""
        if self.step >= 0:
            self._answered(mask)
            return
        if fd == self.client.fileno():
            if mask & _WRITE and self.down.waiting:
                self.down.flush()
            if mask & _READ and not self.closed:
                self.up.pump(mask)
        else:
            if mask & _WRITE and self.up.waiting:
                self.up.flush()
            if mask & _READ and not self.closed:
                self.down.pump(mask)
        if mask & select.EPOLLERR and not self.closed:
            self.close()

    def late(self, step: int) -> None:
        """Lose patience with the endpoint that was called in this step, if it has not answered."""
        if self.step == step and not self.closed:
            self._redial(errno.ETIMEDOUT)

    def close(self) -> None:
        """End both sides; what was received for either has been sent, or cannot be."""
        if self.closed:
            return
        self.closed = True
        loop = self.owner.loop
        if self.step < 0:
            for half in (self.up, self.down):
                half.end()
            del self.up, self.down
        else:
            make_reset(self.client)
        loop.forget(self.client.fileno(), self.client)
        loop.forget(self.server.fileno(), self.server)
        self.target.open -= 1
        self.owner.link_ended(self)

    def _answered(self, mask: int) -> None:
        if mask & _BAD:
            code = self.server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code or not mask & _WRITE:
                self._redial(code or errno.ECONNRESET)
                return
        elif not mask & _WRITE:
            return
        self._connected()
        owner, early = self.owner, self.early
        try:
            if greeting := owner.greeting(self) + early:
                sent = self.server.send(greeting, _WRITE_NOW)
                self.target.sent += max(0, sent - len(greeting) + len(early))
                if sent < len(greeting):
                    self.up.left, self.up.waiting = greeting[sent:], True
        except OSError:
            self.close()
            return
        self.early = b""
        self.up.pump()
        if mask & _READ and not self.closed:
            self.down.pump(mask)
        if not self.closed:
            owner.loop.add(self.client.fileno(), self, EVENTS)

    def _connected(self) -> None:
        self.step = -1
        self.owner.pool.connected(self.target)
        self.up = Half(self, self.client, self.server, up=True)
        self.down = Half(self, self.server, self.client, up=False)
        with suppress(OSError):
            self.server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _served_at_once(self) -> bool:
        """Try to give the endpoint what the client has sent by now: one on this machine has answered already.

        Then half of the events of a short connection need not be waited for. What an endpoint that has not answered
        cannot take yet is kept for whoever will.
        """
        if self.early or self.owner.greeting(self):
            return False
        try:
            size = self.client.recv_into(_BUFFER, 0, _NOW)
        except OSError:
            return False  # nothing yet
        if not size:
            return False
        try:
            sent = self.server.send(_VIEW[:size], _WRITE_NOW)
        except OSError:
            self.early = bytes(_VIEW[:size])
            return False
        self._connected()
        self.target.sent += sent
        if sent < size:
            self.up.left, self.up.waiting = bytes(_VIEW[sent:size]), True
        self.owner.loop.add(self.server.fileno(), self, EVENTS)
        self.owner.loop.add(self.client.fileno(), self, EVENTS)
        return True

    def _redial(self, code: int) -> None:
        self.owner.loop.forget(self.server.fileno(), self.server)
        self._missed(code)
        self.dial()

    def _missed(self, code: int) -> None:
        target = self.target
        target.open -= 1
        self.tried = (*self.tried, target)
        owner = self.owner
        if owner.pool.missed(target, owner.loop.now):
            owner.loop.note(f"endpoint {target} rests: it does not answer ({os.strerror(code)})")

    def _give_up(self, reason: str) -> None:
        self.closed = True
        self.owner.refused(reason)
        make_reset(self.client)
        self.owner.loop.forget(self.client.fileno(), self.client)
        self.owner.link_ended(self)


def make_reset(sock: _socket.socket) -> None:
    """Have close() send a reset: the other side must not take an abort for an end."""
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
