"""Limits the total of some listeners' clients: connections, unread bytes, and requests per round.

A stranger is a connection without a request of a known user so far. At a limit, the room closes a stranger that waits
for its client: of the address with the most of these, the one that has waited longest. So a health probe always gets
in. The room never closes a connection whose request is being answered, nor a known user's.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Collection
from typing import Final, Protocol

from vipwire.model.value import Value

TURNS: Final = 16
"""Requests of strangers answered in one round of the event loop, and connections accepted."""
_LONG_ROUND: Final = 0.02  # seconds after which the next round answers half as many
MOST_UNREAD: Final = 16 << 20
"""Bytes of answers that the kernel has not accepted yet, over all strangers. One answer alone may be longer."""


class Limits(Value, frozen=True):
    """The limits of a server's clients: connections, bytes and seconds.

    `one_address` and `strangers_of_one` are the connections and the strangers of one address. A stranger has
    `first_seconds` for each request, a known user `idle_seconds`. A client has `stall_seconds` to read a piece of an
    answer; the server makes the next piece when at most `buffered` bytes wait in this process. After the last answer
    of a connection, the client may still send `ignored` bytes.
    """

    connections: int = 512
    one_address: int = 512
    strangers: int = 512
    strangers_of_one: int = 512
    first_seconds: float = 30.0
    idle_seconds: float = 30.0
    body_seconds: float = 30.0
    stall_seconds: float = 20.0
    head_bytes: int = 32 << 10
    field_bytes: int = 32 << 10
    fields: int = 100
    buffered: int = 0
    ignored: int = 32 << 10


class Guest(Protocol):
    """A connection, as a room sees it."""

    def unread(self) -> int:
        """Return the bytes of answers that the client has not read."""

    def abort(self) -> None:
        """Close at once, and discard these bytes."""


class Room:
    """The connections of one listener, or of several that share the limits."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._guests: dict[Guest, str] = {}
        self._strangers: dict[Guest, str] = {}
        self._of, self._strangers_of = Counter[str](), Counter[str]()
        self._waiting: dict[Guest, str] = {}  # strangers that wait for their client, with the address: oldest first
        self._first, self._later = list[asyncio.Future[None]](), deque[asyncio.Future[None]]()
        self._turns, self._round_began = TURNS, 0.0

    def admit(self, guest: Guest, address: str) -> bool:
        """Add a connection as a waiting stranger; report whether the limits allow it."""
        limits = self.limits
        full_at_address = self._of[address] >= limits.one_address
        if (full_at_address or self._strangers_of[address] >= limits.strangers_of_one) and not self._close_one(
            address
        ):
            return False
        full = len(self._guests) >= limits.connections or len(self._strangers) >= limits.strangers
        if full and not self._close_one():
            return False
        self._guests[guest] = self._strangers[guest] = self._waiting[guest] = address
        self._of[address] += 1
        self._strangers_of[address] += 1
        return True

    def recognize(self, guest: Guest) -> None:
        self._waiting.pop(guest, None)
        if (address := self._strangers.pop(guest, None)) is not None:
            _decrease(self._strangers_of, address)

    def leave(self, guest: Guest) -> None:
        self.recognize(guest)
        if (address := self._guests.pop(guest, None)) is not None:
            _decrease(self._of, address)

    def wait(self, guest: Guest) -> None:
        """Record that a connection waits for its client: to send, to read or to close."""
        if (address := self._strangers.get(guest)) is not None:
            self._waiting.pop(guest, None)
            self._waiting[guest] = address

    def stop_waiting(self, guest: Guest) -> None:
        self._waiting.pop(guest, None)

    def is_waiting(self, guest: Guest) -> bool:
        return guest in self._waiting

    def bound_unread(self) -> None:
        """Close connections that do not read until all of them hold at most `MOST_UNREAD` bytes."""
        while True:
            holders = {guest: size for guest in self._waiting if (size := guest.unread())}
            if len(holders) < 2 or sum(holders.values()) <= MOST_UNREAD:
                return
            self._close_oldest(holders)

    def _close_one(self, address: str = "") -> bool:
        """Close a waiting stranger, of one address or of any; report whether there was one."""
        return self._close_oldest([each for each, its in self._waiting.items() if address in ("", its)])

    def _close_oldest(self, guests: Collection[Guest]) -> bool:
        """Close the oldest guest of the address with the most; report whether there was one."""
        addresses = Counter(self._waiting[guest] for guest in guests)
        if not addresses:
            return False
        ((address, _),) = addresses.most_common(1)
        oldest = next(guest for guest in guests if self._waiting[guest] == address)
        self.leave(oldest)
        oldest.abort()
        return True

    async def wait_for_turn(self, guest: Guest, *, pipelined: bool) -> None:
        """Wait for a request's turn: `TURNS` strangers' requests per round of the loop, fewer if a round is long.

        So a thousand requests at once do not delay the process's other work. The newest goes first: under overload a
        probe still gets its answer in time. Requests that a client sent before its previous answer come last, one per
        round. The room may close the connection while it waits for its turn.
        """
        if guest not in self._strangers:
            if pipelined:
                await asyncio.sleep(0)
            return
        self.wait(guest)
        loop = asyncio.get_running_loop()
        if not self._first and not self._later:
            self._round_began = loop.time()
            loop.call_soon(self._start_next)
        mine = loop.create_future()
        (self._later if pipelined else self._first).append(mine)
        await mine
        self.stop_waiting(guest)

    def _start_next(self) -> None:
        loop = asyncio.get_running_loop()
        took, self._round_began = loop.time() - self._round_began, loop.time()
        self._turns = max(1, self._turns // 2) if took > _LONG_ROUND else min(TURNS, self._turns * 2)
        ready, self._first = self._first[-self._turns :], self._first[: -self._turns]
        if len(ready) < self._turns and self._later:
            ready.append(self._later.popleft())
        for future in reversed(ready):
            if not future.done():  # its connection may have closed meanwhile
                future.set_result(None)
        if self._first or self._later:
            loop.call_soon(self._start_next)


def _decrease(counts: Counter[str], address: str) -> None:
    counts[address] -= 1
    if not counts[address]:
        del counts[address]
