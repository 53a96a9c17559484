"""Endpoints, turns and affinity of a listener that several workers serve: one state for all, on the board.

The order of turns is drawn from a number that all workers are given, so that it is the same for all. Whose turn it is
stands on the board, and so do what a client had, whether an endpoint rests, and how many connections it has.
"""

import random
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from vipwire.backends.userspace.messages import Listener, Place
from vipwire.backends.userspace.relay.balance import Memory, Pool, Target, first
from vipwire.backends.userspace.relay.workers.board import (
    BUCKET_BYTES,
    CONNECTIONS,
    COUNTERS,
    FAILED,
    FAILURES,
    OPEN,
    RECEIVED,
    RESTS_UNTIL,
    SENT,
    Board,
)

_ENTRY: Final = struct.Struct("=16s16siid16x")
"""A client's digest, the endpoint's address, how many bytes it has, its port or -1, and when the client was here."""


class Seats(NamedTuple):
    """A listener's place on the board: the rows of its turn and of its endpoints, in their order.

    `seed` is the number from which the order of turns is drawn.
    """

    turn: int
    rows: tuple[int, ...]
    seed: int


class SharedTarget(Target):
    """An endpoint as a worker sees it: what it counts is its own, whether the endpoint rests is everybody's."""

    __slots__ = ("_board", "_cells", "_floats", "_own", "row")

    def __init__(self, place: Place, weight: int, board: Board, row: int) -> None:
        self._board, self._cells, self._floats = board, board.cells, board.floats
        self.row, self._own = row, board.own(row)
        self.describe(place, weight)

    @property
    def connections(self) -> int:  # noqa: D102
        return self._cells[self._own + CONNECTIONS]

    @connections.setter
    def connections(self, number: int) -> None:
        self._cells[self._own + CONNECTIONS] = number

    @property
    def open(self) -> int:  # noqa: D102
        return self._cells[self._own + OPEN]

    @open.setter  # noqa: A003 - sockets' word
    def open(self, number: int) -> None:
        self._cells[self._own + OPEN] = number

    @property
    def sent(self) -> int:  # noqa: D102
        return self._cells[self._own + SENT]

    @sent.setter
    def sent(self, number: int) -> None:
        self._cells[self._own + SENT] = number

    @property
    def received(self) -> int:  # noqa: D102
        return self._cells[self._own + RECEIVED]

    @received.setter
    def received(self, number: int) -> None:
        self._cells[self._own + RECEIVED] = number

    @property
    def failed(self) -> int:  # noqa: D102
        return self._cells[self._own + FAILED]

    @failed.setter
    def failed(self, number: int) -> None:
        self._cells[self._own + FAILED] = number

    @property
    def failures(self) -> int:  # noqa: D102
        return self._cells[self.row + FAILURES]

    @failures.setter
    def failures(self, number: int) -> None:
        if self._cells[self.row + FAILURES] != number:  # a memory that all read is written when it must be
            self._cells[self.row + FAILURES] = number

    @property
    def rests_until(self) -> float:  # noqa: D102
        return self._floats[self.row + RESTS_UNTIL]

    @rests_until.setter
    def rests_until(self, when: float) -> None:
        self._floats[self.row + RESTS_UNTIL] = when

    @property
    def load(self) -> int:
        """The open connections of all workers."""
        return self._board.total(self.row, OPEN)

    def totals(self) -> tuple[int, int, int, int, int]:
        """Return what all workers have counted."""
        connections, opened, sent, received, failed = (self._board.total(self.row, what) for what in COUNTERS)
        return connections, opened, sent, received, failed


class SharedMemory(Memory):
    """The endpoint of each client of a group, on the board. In a full bucket the entry used longest ago gives way."""

    def __init__(self, board: Board, group: str, *, whole: bool = False) -> None:
        super().__init__(whole=whole)
        self._board, self._group = board, f"{int(whole)} {group} "

    def recall(self, client: str, now: float, seconds: float) -> bytes | Place | None:
        """Return where a client went, if it is not too long ago."""
        digest = self._board.digest(self._group + client)
        with self._board.bucket(digest) as at:
            block = self._board.memory[at : at + BUCKET_BYTES]
        for found, address, size, port, when in _ENTRY.iter_unpack(block):
            if found == digest and now - when < seconds:
                return address[:size] if port < 0 else Place(address[:size], port)
        return None

    def note(self, client: str, place: Place, now: float) -> None:
        """Remember where a client goes now."""
        digest = self._board.digest(self._group + client)
        port = -1 if self.whole else place.port
        entry = _ENTRY.pack(digest, place.address, len(place.address), port, now)
        memory = self._board.memory
        with self._board.bucket(digest) as at:
            entries = _ENTRY.iter_unpack(memory[at : at + BUCKET_BYTES])
            there = [(found != digest, when) for found, _, _, _, when in entries]
            begins = at + there.index(min(there)) * _ENTRY.size
            memory[begins : begins + _ENTRY.size] = entry

    def forget(self, now: float, seconds: float) -> None:
        """Do nothing: what is too old is not found."""


class SharedPool(Pool):
    """The endpoints of a listener in one worker."""

    def __init__(self, board: Board) -> None:
        super().__init__(random.random)
        self._board = board
        self._seats = Seats(0, (), 0)
        self._rows: dict[Place, int] = {}

    def seat(self, listener: Listener, seats: Seats) -> None:
        """Take what the relay has said of a listener."""
        self._seats = seats
        self._rows = {share.place: row for share, row in zip(listener.shares, seats.rows, strict=True)}
        memory = SharedMemory(self._board, listener.group, whole=listener.whole)
        beside = SharedMemory(self._board, listener.beside, whole=listener.whole) if listener.beside else None
        self.take(listener, memory, beside)

    def choose(self, client: str, port: int, now: float, tried: Sequence[Target] = ()) -> Target | None:
        """Choose for a client. With affinity no other worker chooses for the same client meanwhile."""
        if not self._affinity:
            return super().choose(client, port, now, tried)
        with self._board.client(self._board.digest(client)):
            return super().choose(client, port, now, tried)

    def _made(self, place: Place, weight: int) -> Target:
        return SharedTarget(place, weight, self._board, self._rows[place])

    def _turned(self, now: float, tried: Sequence[Target]) -> Target:
        turn, size = self._seats.turn, len(self._order)
        self._board.lock_row(turn)
        try:
            begin = self._board.cells[turn] % size
            passed, target = first(self._from(begin), now, tried)
            self._board.cells[turn] = (begin + passed + 1) % size
        finally:
            self._board.unlock_row(turn)
        return target

    def _begin(self) -> int:
        turn = self._seats.turn
        self._board.lock_row(turn)
        try:
            begin = self._board.cells[turn] % len(self._order)
            self._board.cells[turn] = begin + 1
        finally:
            self._board.unlock_row(turn)
        return begin

    def _shuffle(self, targets: list[Target]) -> None:
        random.Random(self._seats.seed).shuffle(targets)  # noqa: S311 - for fairness
