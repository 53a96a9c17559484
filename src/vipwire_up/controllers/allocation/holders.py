"""Indexes addresses and Services: which Services hold an address, which addresses a Service holds. Pure."""

from collections import defaultdict
from collections.abc import Iterable

from vipwire_up.controllers.endpoints.selection import Name


class Holders:
    """Services by their addresses. A change costs what the addresses of its Service cost."""

    def __init__(self) -> None:
        self._of: defaultdict[str, set[Name]] = defaultdict(set)
        self._held: dict[Name, tuple[str, ...]] = {}

    def put(self, name: Name, addresses: Iterable[str]) -> tuple[str, ...]:
        """Store the addresses that a Service holds, perhaps none. Return those it has gained or lost."""
        before, now = self._held.pop(name, ()), tuple(addresses)
        if now:
            self._held[name] = now
        changed = tuple(each for each in dict.fromkeys((*before, *now)) if (each in before) != (each in now))
        for address in changed:
            if address in now:
                self._of[address].add(name)
                continue
            self._of[address].discard(name)
            if not self._of[address]:
                del self._of[address]
        return changed

    def of(self, address: str) -> list[Name]:
        """List the Services that have an address, by name."""
        return sorted(self._of.get(address, ()))

    def __contains__(self, address: str) -> bool:
        """Report whether anybody has an address."""
        return address in self._of

    def clear(self) -> tuple[str, ...]:
        """Forget everything; give the addresses that somebody had."""
        known = tuple(self._of)
        self._of.clear()
        self._held.clear()
        return known
