"""Upstream answers that may be told again. Pure: who asks says what time it is."""

from typing import Final, NamedTuple

from vipwire.dns.message import CD, Query
from vipwire.dns.upstream.answer import Answer

CAPACITY: Final = 10_000


class Key(NamedTuple):
    """What must be equal for two questions to have the same answer."""

    name: bytes
    type: int
    klass: int
    do: bool
    unchecked: bool


def key_of(query: Query) -> Key:
    """Give the key under which the answer to a question is kept."""
    do = query.edns is not None and query.edns.do
    return Key(query.name, query.type, query.klass, do, bool(query.flags & CD))


class Cache:
    """At most `capacity` answers; the one that was put first leaves first."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
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
        del self._held[key]
        return None

    def keep(self, key: Key, answer: Answer) -> None:
        """Keep an answer for its lifetime, if it has one."""
        self._held.pop(key, None)
        if answer.lifetime <= 0 or not self._capacity:
            return
        while len(self._held) >= self._capacity:
            del self._held[next(iter(self._held))]
        self._held[key] = answer
