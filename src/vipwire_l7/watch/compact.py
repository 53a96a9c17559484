"""Keeps values of many objects in little memory: equal ones once, and small sets as tuples. Pure."""

from collections.abc import Collection
from functools import lru_cache
from types import MappingProxyType
from typing import Final, Generic, Never, TypeVar

K = TypeVar("K")
V = TypeVar("V")
_FEW: Final = 4
"""Sets are tuples up to this number of members: a set takes four times the memory."""
NO_PARTS: Final = MappingProxyType[str, Never]({})
"""The empty parts of all results, as one object."""


@lru_cache(maxsize=4096)
def share_equal(found: V) -> V:
    """Return the one stored value that equals this one."""
    return found


class SetsByKey(Generic[K, V]):
    """Sets by key, none of them empty."""

    def __init__(self) -> None:
        self._sets: dict[K, tuple[V, ...] | set[V]] = {}

    def get(self, key: K) -> Collection[V]:
        return self._sets.get(key, ())

    def keys(self) -> Collection[K]:
        return self._sets.keys()

    def add(self, key: K, member: V) -> None:
        members = self._sets.get(key, ())
        if isinstance(members, set):
            members.add(member)
        elif member not in members:
            self._sets[key] = (*members, member) if len(members) < _FEW else {*members, member}

    def discard(self, key: K, member: V) -> None:
        members = self._sets.get(key, ())
        if isinstance(members, set):
            members.discard(member)
        else:
            self._sets[key] = members = tuple(each for each in members if each != member)
        if not members:
            del self._sets[key]
