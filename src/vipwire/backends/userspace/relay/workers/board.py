"""What the workers of a relay share: a piece of memory, and locks that end with whoever holds them.

The memory is a file without a name that all map. It has two parts:

    rows of cells   one for each endpoint of a listener, and one for each listener's turn; counters are by worker
    clients         which endpoint a client had: buckets of entries, found by a digest of the group and the client

A cell is eight bytes at a multiple of eight, which the processor writes as one. What several workers write takes a
lock of the kernel on its bytes of the file (fcntl(2)). A process that is killed holds none any more, and what it was
about to write is either there or not.
"""

import fcntl
import hashlib
import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

FAILURES, RESTS_UNTIL = 0, 1
"""The cells of a row that all workers write."""
COUNTERS: Final = range(5)
CONNECTIONS, OPEN, SENT, RECEIVED, FAILED = COUNTERS
"""The cells of a row that each worker has for itself."""
_COMMON, _EACH = 2, len(COUNTERS)
_CELL: Final = 8
_CELLS: Final = 1 << 26
"""Room for as many; what nobody has written takes no memory."""
_CLIENTS_AT: Final = _CELLS * _CELL
BUCKET_BYTES: Final = 1024
DIGEST_BYTES: Final = 16
_BUCKETS: Final = 1 << 16
_SALT_AT: Final = _CLIENTS_AT + _BUCKETS * BUCKET_BYTES
_SALT_BYTES: Final = 16
_SIZE: Final = _SALT_AT + _SALT_BYTES
_PERSONAL_AT: Final = 1 << 40
"""Locks of single clients lie past the end of the file, where no memory is."""


class Board:
    """The shared memory as one process sees it: that of the worker `column`, or the relay that has started them."""

    def __init__(self, fd: int, workers: int, column: int = 0) -> None:
        self.fd, self.workers = fd, workers
        self.width = _COMMON + workers * _EACH
        self.memory = mmap.mmap(fd, _SIZE)
        view = memoryview(self.memory)[:_CLIENTS_AT]
        self.cells, self.floats = view.cast("q"), view.cast("d")
        self._own = _COMMON + column * _EACH
        self._salt = self.memory[_SALT_AT:_SIZE]

    @classmethod
    def create(cls, workers: int) -> "Board":
        """Have a new one."""
        fd = os.memfd_create("vipwire-relay", os.MFD_CLOEXEC)
        os.ftruncate(fd, _SIZE)
        os.pwrite(fd, os.urandom(_SALT_BYTES), _SALT_AT)
        return cls(fd, workers)

    @property
    def rows(self) -> int:
        """How many rows there is room for."""
        return _CELLS // self.width

    def digest(self, text: str) -> bytes:
        """Digest a text in a way that nobody foresees: clients must not choose who shares their bucket."""
        return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES, key=self._salt).digest()

    def own(self, row: int) -> int:
        """Return where this worker's cells of a row begin."""
        return row + self._own

    def total(self, row: int, what: int) -> int:
        """Sum a counter up over all workers."""
        first = row + _COMMON + what
        return sum(self.cells[first : first + self.workers * _EACH : _EACH])

    def clear(self, row: int) -> None:
        """Begin a row anew."""
        for at in range(row, row + self.width):
            self.cells[at] = 0

    def forget_open(self, rows: Iterable[int], column: int) -> None:
        """Count the open connections of a worker that is gone no more."""
        for row in rows:
            self.cells[row + _COMMON + column * _EACH + OPEN] = 0

    def lock_row(self, row: int) -> None:
        """Wait until nobody else has this row."""
        fcntl.lockf(self.fd, fcntl.LOCK_EX, _CELL, row * _CELL)

    def unlock_row(self, row: int) -> None:
        """Let others have it."""
        fcntl.lockf(self.fd, fcntl.LOCK_UN, _CELL, row * _CELL)

    @contextmanager
    def client(self, digest: bytes) -> Iterator[None]:
        """Have a client to oneself: of two connections at once the second finds what the first was given."""
        at = _PERSONAL_AT + int.from_bytes(digest[:4])
        fcntl.lockf(self.fd, fcntl.LOCK_EX, 1, at)
        try:
            yield
        finally:
            fcntl.lockf(self.fd, fcntl.LOCK_UN, 1, at)

    @contextmanager
    def bucket(self, digest: bytes) -> Iterator[int]:
        """Have a bucket of the clients to oneself; yields where it begins in `memory`."""
        at = _CLIENTS_AT + int.from_bytes(digest[:4]) % _BUCKETS * BUCKET_BYTES
        fcntl.lockf(self.fd, fcntl.LOCK_EX, BUCKET_BYTES, at)
        try:
            yield at
        finally:
            fcntl.lockf(self.fd, fcntl.LOCK_UN, BUCKET_BYTES, at)

    def close(self) -> None:
        """Close the file; the memory goes with the last process that has it."""
        os.close(self.fd)
