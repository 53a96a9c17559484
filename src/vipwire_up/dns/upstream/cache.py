"""Upstream answers that may be told again. Pure: who asks says what time it is."""

from typing import Final, NamedTuple

from vipwire_up.dns.messages.message import CD, Query
from vipwire_up.dns.upstream.answer import Answer

CAPACITY: Final = 10_000
MOST_BYTES: Final = 64 << 20
"""What all kept answers may take together: anybody may ask for large ones."""


class Key(NamedTuple):
    """What two questions with the same answer have in common."""

    name: bytes
    type: int
    klass: int
    do: bool
    unchecked: bool


def key_of(query: Query) -> Key:
    """Return the key under which the answer to a question is kept."""
    do = query.edns is not None and query.edns.do
    return Key(query.name, query.type, query.klass, do, bool(query.flags & CD))


class Cache:
    """At most `capacity` answers, of `most_bytes` together; the one that was put first leaves first."""

    def __init__(self, capacity: int = CAPACITY, most_bytes: int = MOST_BYTES) -> None:
        self._capacity, self._most_bytes = capacity, most_bytes
        self.size = 0
        self._held: dict[Key, Answer] = {}

    def __len__(self) -> int:
        return len(self._held)

    def find(self, key: Key, now: float) -> Answer | None:
        """Find an answer that still holds."""
        answer = self._held.get(key)
        if answer is None:
            return None
        if now - answer.stored < answer.lifetime:
            return answer
        self._drop(key)
        return None

    def keep(self, key: Key, answer: Answer) -> None:
        """Keep an answer for its lifetime, if it has one."""
        if key in self._held:
            self._drop(key)
        if answer.lifetime <= 0 or not self._capacity or answer.size > self._most_bytes:
            return
        while len(self._held) >= self._capacity or self.size + answer.size > self._most_bytes:
            self._drop(next(iter(self._held)))
        self._held[key] = answer
        self.size += answer.size

    def _drop(self, key: Key) -> None:
        self.size -= self._held.pop(key).size
