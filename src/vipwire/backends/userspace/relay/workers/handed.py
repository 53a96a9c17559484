"""A TCP frontend that workers serve, as the relay has it: its sockets, its rows on the board, what was counted."""

import _socket
import random
from collections.abc import Iterable, Sequence
from typing import Final

from vipwire.backends.userspace.messages import Listener, Place, Share
from vipwire.backends.userspace.relay.balance import Memory, Pool, Target
from vipwire.backends.userspace.relay.listener import BaseListener, Shared
from vipwire.backends.userspace.relay.workers.board import OPEN, Board
from vipwire.backends.userspace.relay.workers.shared import Seats, SharedTarget

_SEEDS: Final = 1 << 31


class Rows:
    """Gives rows of a board away. One that is given back waits until no worker has a connection that counts there."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._free: list[int] = []
        self._left: list[int] = []
        self._made = 0
        self.limit = board.rows

    def room(self) -> int:
        """Return how many rows there are to be had."""
        return self.limit - self._made + len(self._free)

    def take(self) -> int:
        """Have a row, with nothing in it."""
        if self._free:
            row = self._free.pop()
            self._board.clear(row)
            return row
        self._made += 1
        return (self._made - 1) * self._board.width

    def leave(self, row: int) -> None:
        """Give a row back."""
        self._left.append(row)

    def forget_open(self, column: int) -> None:
        """Count the open connections of a worker that is gone no more."""
        rows = (number * self._board.width for number in range(self._made))
        self._board.forget_open(rows, column)

    def sweep(self) -> None:
        """Look which rows that were given back are no longer used."""
        used = [row for row in self._left if self._board.total(row, OPEN)]
        self._free += set(self._left).difference(used)
        self._left = used


class SeatedPool(Pool):
    """The endpoints of a listener that workers serve: chooses nobody, gives each its row and sums up."""

    def __init__(self, board: Board, rows: Rows) -> None:
        super().__init__(random.random)
        self._board, self._rows = board, rows
        self._turn = rows.take()
        self._seed = 0
        self._listed: tuple[Share, ...] = ()

    @property
    def seats(self) -> Seats:
        """Where the listener stands on the board."""
        rows = tuple(self._row(self.targets[share.place]) for share in self._listed)
        return Seats(self._turn, rows, self._seed)

    def take(self, listener: Listener, memory: Memory, beside: Memory | None = None) -> None:
        """Set the endpoints; the rows of those that have gone are given back."""
        before, self._listed = self.targets, listener.shares
        super().take(listener, memory, beside)
        self._give_back(target for place, target in before.items() if place not in self.targets)

    def leave(self) -> None:
        """Give every row back."""
        self._give_back(self.targets.values())
        self._rows.leave(self._turn)
        self.targets = {}

    def _give_back(self, targets: Iterable[Target]) -> None:
        for target in targets:
            self._rows.leave(self._row(target))

    def _made(self, place: Place, weight: int) -> Target:
        return SharedTarget(place, weight, self._board, self._rows.take())

    def _ordered(self) -> list[Target]:
        """Draw another number for the workers, who begin anew as well."""
        self._seed = int(self._chance() * _SEEDS)
        self._board.cells[self._turn] = 0
        return []

    @staticmethod
    def _row(target: Target) -> int:
        assert isinstance(target, SharedTarget)  # noqa: S101 - there are no others here
        return target.row


class HandedListener(BaseListener):
    """The relay's part of a TCP listener that workers serve."""

    def __init__(
        self, shared: Shared, key: str, listener: Listener, sockets: Sequence[_socket.socket], pool: SeatedPool
    ) -> None:
        super().__init__(shared, key, listener, sockets, pool)
        self._seated = pool

    @property
    def seats(self) -> Seats:
        """Where it stands on the board."""
        return self._seated.seats

    def close(self) -> None:
        """Listen no more; workers have been told."""
        for sock in self.sockets.values():
            sock.close()
        self.sockets = {}
        self._seated.leave()
