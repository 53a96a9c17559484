"""Bounds what the clients of some listeners cost together: connections, bytes that they do not read, and turns.

A healthy prober always gets in: where a bound is reached, the connection makes room that has waited longest for its
client, of the address that has the most of these. A connection whose request a page is answering never makes room.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Collection
from typing import Final, Protocol

MOST_CONNECTIONS: Final = 512
TURNS: Final = 16
"""Requests that are answered in one round of the event loop, and connections that are accepted."""
MOST_UNREAD: Final = 16 << 20
"""Bytes of answers that the kernel has not taken yet, over all connections. One answer alone may be longer."""


class Guest(Protocol):
    """A connection, as a room knows it."""

    def unread(self) -> int:
        """Return how many bytes of answers wait for the client to read."""

    def abort(self) -> None:
        """Close at once, and drop these bytes."""


class Room:
    """The connections of one listener, or of several that share the bounds."""

    def __init__(self) -> None:
        self.guests: set[Guest] = set()
        self.waiting: dict[Guest, str] = {}
        """Connections that wait for their client to send, to read or to close, with its address: oldest first."""
        self._first, self._later = list[asyncio.Future[None]](), deque[asyncio.Future[None]]()

    def admit(self, guest: Guest) -> bool:
        """Take a new connection in; tell whether there was room."""
        if len(self.guests) >= MOST_CONNECTIONS and not self._close_one(self.waiting):
            return False
        self.guests.add(guest)
        return True

    def wait(self, guest: Guest, address: str) -> None:
        """Note that a connection waits for its client from now on."""
        self.waiting.pop(guest, None)
        self.waiting[guest] = address

    def leave(self, guest: Guest) -> None:
        """Forget a connection."""
        self.guests.discard(guest)
        self.waiting.pop(guest, None)

    def bound_unread(self) -> None:
        """Close connections that do not read while they hold too much together."""
        while True:
            holders = {guest: size for guest in self.waiting if (size := guest.unread())}
            if len(holders) < 2 or sum(holders.values()) <= MOST_UNREAD:
                return
            self._close_one(holders)

    def _close_one(self, guests: Collection[Guest]) -> bool:
        """Close the oldest of the address that has the most of these; tell whether there was one."""
        addresses = Counter(self.waiting[guest] for guest in guests)
        if not addresses:
            return False
        ((address, _),) = addresses.most_common(1)
        oldest = next(guest for guest in guests if self.waiting[guest] == address)
        self.leave(oldest)
        oldest.abort()
        return True

    async def turn(self, *, pipelined: bool) -> None:
        """Wait until a request may be answered: `TURNS` in each round of the event loop.

        So a thousand requests that come at once keep no other work of the process waiting. The newest goes first:
        where more come than can be answered, a prober gets its answer in time. Requests that a client sent before it
        had the answer to the one before come last, one in a round.
        """
        loop = asyncio.get_running_loop()
        if not self._first and not self._later:
            loop.call_soon(self._next)
        mine = loop.create_future()
        (self._later if pipelined else self._first).append(mine)
        await mine

    def _next(self) -> None:
        ready, self._first = self._first[-TURNS:], self._first[:-TURNS]
        if len(ready) < TURNS and self._later:
            ready.append(self._later.popleft())
        for future in reversed(ready):
            if not future.done():  # its connection has not gone meanwhile
                future.set_result(None)
        if self._first or self._later:
            asyncio.get_running_loop().call_soon(self._next)
