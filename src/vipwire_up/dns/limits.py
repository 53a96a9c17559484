"""Limits each client of the DNS server: questions per second, questions that wait, connections. Pure.

A client is an address. The server keeps no state of an idle client, except its count of this second.
"""

from collections import Counter
from typing import Final

RATE: Final = 20_000
"""Questions per second of one client; further ones are dropped without an answer."""
WAITING: Final = 100
"""Questions of one client that wait for upstream; further ones are answered with SERVFAIL."""
CONNECTIONS: Final = 50
"""TCP connections of one client; further ones are closed."""


class ClientLimits:
    """Counts each client's questions and connections. A `rate` of 0 is no limit."""

    def __init__(self, *, rate: int = RATE, waiting: int = WAITING, connections: int = CONNECTIONS) -> None:
        self._rate, self._most_waiting, self._most_connections = rate, waiting, connections
        self._asked: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()
        self._connections: Counter[str] = Counter()
        self._until = float("-inf")

    @property
    def clients(self) -> int:
        return len({*self._asked, *self._waiting, *self._connections})

    def count_question(self, client: str, now: float) -> bool:
        """Count a question; report whether it may be answered. `now` in seconds."""
        if not self._rate:
            return True
        if now >= self._until:
            self._asked.clear()
            self._until = now + 1.0
        self._asked[client] += 1
        return self._asked[client] <= self._rate

    def begin_wait(self, client: str) -> bool:
        """Count a question that waits, until `end_wait`; report whether it may wait."""
        return _take_one(self._waiting, client, self._most_waiting)

    def end_wait(self, client: str) -> None:
        _give_back_one(self._waiting, client)

    def begin_connection(self, client: str) -> bool:
        """Count a connection, until `end_connection`; report whether it is allowed."""
        return _take_one(self._connections, client, self._most_connections)

    def end_connection(self, client: str) -> None:
        _give_back_one(self._connections, client)


def _take_one(counts: Counter[str], client: str, most: int) -> bool:
    if counts[client] >= most:
        return False
    counts[client] += 1
    return True


def _give_back_one(counts: Counter[str], client: str) -> None:
    counts[client] -= 1
    if counts[client] <= 0:
        del counts[client]
