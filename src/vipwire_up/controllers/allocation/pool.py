"""Which Services hold which addresses, and the first free address of a pool. Pure."""

import ipaddress
from collections import defaultdict
from collections.abc import Iterable, Sequence

from vipwire_up.controllers.allocation.ranges import Network
from vipwire_up.controllers.endpoints.selection import Name


class Holders:
    """Services by address. A change costs time in proportion to the Service's own addresses."""

    def __init__(self) -> None:
        self._of: defaultdict[str, set[Name]] = defaultdict(set)
        self._held: dict[Name, tuple[str, ...]] = {}

    def set_addresses(self, name: Name, addresses: Iterable[str]) -> tuple[str, ...]:
        """Set the addresses of a Service, perhaps none. Return those gained or lost."""
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

    def holders_of(self, address: str) -> list[Name]:
        return sorted(self._of.get(address, ()))

    def __contains__(self, address: str) -> bool:
        return address in self._of

    def clear(self) -> tuple[str, ...]:
        known = tuple(self._of)
        self._of.clear()
        self._held.clear()
        return known


class Pool:
    """The addresses of ranges; the first free one is used first.

    The search starts where the last one ended: all addresses below are taken.
    """

    def __init__(self, networks: Sequence[Network]) -> None:
        self.networks = tuple(networks)
        self._holders = Holders()
        self._full_below = dict.fromkeys(self.networks, 0)

    def set_addresses(self, name: Name, addresses: Iterable[str]) -> bool:
        """Set a Service's addresses, perhaps none. Report whether an address became free."""
        freed = [each for each in self._holders.set_addresses(name, addresses) if each not in self._holders]
        for address in freed:
            parsed = ipaddress.ip_address(address)
            for network in self.networks:
                if parsed in network:
                    number = int(parsed) - int(network.network_address)
                    self._full_below[network] = min(self._full_below[network], number)
        return bool(freed)

    def contains(self, address: str) -> bool:
        parsed = ipaddress.ip_address(address)
        return any(parsed in network for network in self.networks)

    def is_taken(self, address: str) -> bool:
        return address in self._holders

    def find_free_address(self, family: str) -> str | None:
        for network in self.networks:
            if f"IPv{network.version}" == family:
                # A range is a list of addresses here, not a subnet: its first and last are usable.
                number = self._full_below[network]
                while number < network.num_addresses and str(network[number]) in self._holders:
                    number += 1
                self._full_below[network] = number
                if number < network.num_addresses:
                    return str(network[number])
        return None

    def clear(self) -> None:
        self._holders.clear()
        self._full_below = dict.fromkeys(self.networks, 0)
