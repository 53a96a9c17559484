"""The workers of a relay, as the relay sees them: started, told what to listen for, asked, and started again.

The relay opens the listening sockets and keeps them; each worker has them too, and whichever is idle accepts. So
clients that wait are lost with no worker. One that ends costs its own connections; another takes its place at once,
or after a second if it has lived for less.
"""

import select
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from typing import Final

import msgspec

from vipwire.backends.userspace.messages import HEAD, AskNotes, Listener, Remove, Retire, take_body
from vipwire.backends.userspace.relay.loop import Loop
from vipwire.backends.userspace.relay.workers.board import Board
from vipwire.backends.userspace.relay.workers.handed import HandedListener, Rows, SeatedPool
from vipwire.backends.userspace.relay.workers.orders import (
    MOST_SOCKETS,
    REPLIES,
    Hand,
    Handed,
    Order,
    Reply,
    Told,
    encode,
)
from vipwire.errors import DecodeError

_PATIENCE: Final = 10.0
"""Seconds for a worker's answer: one that gives none is ended, for it serves nobody either."""
_SHORT_LIFE: Final = 1.0
_SECTION: Final = "vipwire.backends.userspace.relay.workers.worker"


class Member:
    """One worker: its process and what was last heard of it. `ready` once it has said so."""

    def __init__(self, crew: "Crew", column: int) -> None:
        self._crew, self.column = crew, column
        self.said = Told([], {}, 0)
        self.serves = False
        self.began = crew.loop.now
        self.sock, theirs = socket.socketpair()
        with theirs:
            board = crew.board
            words = (theirs.fileno(), board.fd, board.workers, column)
            self._process = subprocess.Popen(  # noqa: S603 - ourselves
                [sys.executable, "-m", _SECTION, *map(str, words)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), board.fd),
                cwd="/",
            )
        self.sock.settimeout(_PATIENCE)
        crew.loop.add(self.sock.fileno(), self, select.EPOLLIN)

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def ready(self, fd: int, mask: int) -> None:
        """Hear that the worker is ready, or that it has ended."""
        del mask
        with suppress(OSError, DecodeError):
            if not self.serves:
                self._reply()
                self.serves = True
                self._crew.joined(self)
                return
        self._crew.loop.forget(fd, self.sock)
        self.kill()
        self._crew.ended(self, self._process.wait())

    def ask(self, order: Order, sockets: Collection[int] = ()) -> Reply | None:
        """Tell the worker something and wait for its answer; end it if there is none."""
        try:
            data = encode(order)
            sent = socket.send_fds(self.sock, [data], list(sockets)) if sockets else 0
            self.sock.sendall(memoryview(data)[sent:])
            return self._reply()
        except (OSError, DecodeError):
            self.kill()  # which its socket will tell
            return None

    def kill(self) -> None:
        """End it."""
        self.serves = False
        self._process.kill()

    def terminate(self) -> None:
        """Have it end, with its connections."""
        self._process.terminate()

    def _reply(self) -> Reply:
        heard = bytearray()
        while (body := take_body(heard)) is None:
            missing = HEAD.unpack_from(heard)[0] + HEAD.size - len(heard) if len(heard) >= HEAD.size else HEAD.size
            piece = self.sock.recv(missing)
            if not piece:
                raise ConnectionResetError("the worker has ended")
            heard += piece
        try:
            return REPLIES.decode(body)
        except msgspec.DecodeError as error:
            raise DecodeError(str(error)) from error


class Crew:
    """All workers. `listeners` are those that they serve; `idle` is called when the last has ended."""

    def __init__(self, loop: Loop, workers: int, idle: Callable[[], None]) -> None:
        self.loop, self.board, self._idle = loop, Board.create(workers), idle
        self.rows = Rows(self.board)
        self.listeners: dict[str, HandedListener] = {}
        self._retired = False
        self._refused = Counter[str]()
        self._later = loop.timer_queue(_SHORT_LIFE, self._start)
        self._members: dict[int, Member] = {}
        for column in range(workers):
            self._start(column)

    @property
    def members(self) -> list[Member]:
        """The workers that are there."""
        return list(self._members.values())

    def fits(self, listeners: Collection[Listener]) -> bool:
        """Report whether there is room for the endpoints of these."""
        return sum(1 + len(each.shares) for each in listeners) <= self.rows.room()

    def pool(self) -> SeatedPool:
        """Make room for the endpoints of a listener."""
        return SeatedPool(self.board, self.rows)

    def hand(self, keys: Collection[str], opened: Collection[str]) -> None:
        """Have all workers know these listeners; those in `opened` with their sockets."""
        for member in self._serving():
            self._hand(member, {key: self.listeners[key] for key in keys}, opened)

    def remove(self, keys: Collection[str]) -> None:
        """Have no worker listen there."""
        for key in keys:
            self.listeners.pop(key, None)
        for member in self._serving():
            member.ask(Remove(list(keys)))

    def hear(self) -> None:
        """Ask every worker for its notes, which become the relay's, and for who was refused."""
        for member in self._serving():
            said = member.ask(AskNotes())
            if isinstance(said, Told):
                member.said = said
                for text, times in said.notes:
                    self.loop.note(text, times)

    @property
    def refused(self) -> Counter[str]:
        """Who was refused, by reason, as last heard."""
        return sum((Counter(member.said.refused) for member in self.members), self._refused.copy())

    @property
    def links(self) -> int:
        """The connections of all workers, as last heard."""
        return sum(member.said.links for member in self.members)

    def retire(self) -> None:
        """Have every worker end with its last connection."""
        self._retired = True
        for member in self.members:
            if member.serves:
                member.ask(Retire())
            else:
                member.kill()

    def terminate(self) -> None:
        """End all of them, with their connections."""
        for member in self.members:
            member.terminate()

    def close(self) -> None:
        """Let go of what is shared, once no worker is left."""
        self.board.close()

    def joined(self, member: Member) -> None:
        """Tell a worker that is ready everything."""
        if self._retired:
            member.ask(Retire())
        else:
            self._hand(member, self.listeners, self.listeners)

    def ended(self, member: Member, code: int) -> None:
        """Note that a worker has ended, and have another in its place."""
        del self._members[member.column]
        self._refused.update(member.said.refused)
        if self._retired:
            self._idle()
            return
        self.rows.forget_open(member.column)
        how = f"by signal {-code}" if code < 0 else f"with status {code}"
        self.loop.note(
            f"worker {member.column + 1} of {self.board.workers} (process {member.pid}) was ended {how}: "
            "its connections are lost, another takes its place"
        )
        if self.loop.now - member.began < _SHORT_LIFE:
            self.loop.schedule(self._later, member.column)
        else:
            self._start(member.column)

    def _start(self, column: int) -> None:
        if self._retired:
            return
        try:
            self._members[column] = Member(self, column)
        except OSError as error:
            self.loop.note(f"worker {column + 1} of {self.board.workers} does not start: {error.strerror}")
            self.loop.schedule(self._later, column)

    def _serving(self) -> Iterator[Member]:
        return (member for member in self.members if member.serves)

    def _hand(self, member: Member, listeners: Mapping[str, HandedListener], opened: Collection[str]) -> None:
        batch: dict[str, Handed] = {}
        sockets: list[int] = []
        for key, listener in listeners.items():
            fds = list(listener.sockets) if key in opened else []
            if batch and (len(sockets) + len(fds) > MOST_SOCKETS or len(batch) >= MOST_SOCKETS):
                member.ask(Hand(batch), sockets)
                batch, sockets = {}, []
            batch[key] = Handed(listener.listener, len(fds), *listener.seats)
            sockets += fds
        if batch:
            member.ask(Hand(batch), sockets)
