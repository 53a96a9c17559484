"""A pool of addresses for LoadBalancer Services: who has which, and which is the first that is free. Pure."""

import ipaddress
from collections.abc import Iterable, Sequence

from vipwire_up.controllers.allocation.holders import Holders
from vipwire_up.controllers.allocation.ranges import Network
from vipwire_up.controllers.endpoints.selection import Name


class Pool:
    """The addresses of ranges, of which the first that fits is used first.

    To find a free one costs as much as has been taken since the last was found: below where a range was left, all
    are taken.
    """

    def __init__(self, networks: Sequence[Network]) -> None:
        self.networks = tuple(networks)
        self._holders = Holders()
        self._full_below = dict.fromkeys(self.networks, 0)

    def put(self, name: Name, addresses: Iterable[str]) -> bool:
        """Store what a Service holds, perhaps nothing. Report whether an address has become free."""
        freed = [each for each in self._holders.put(name, addresses) if each not in self._holders]
        for address in freed:
            parsed = ipaddress.ip_address(address)
            for network in self.networks:
                if parsed in network:
                    number = int(parsed) - int(network.network_address)
                    self._full_below[network] = min(self._full_below[network], number)
        return bool(freed)

    def has(self, address: str) -> bool:
        """Report whether an address is in one of the ranges."""
        parsed = ipaddress.ip_address(address)
        return any(parsed in network for network in self.networks)

    def is_taken(self, address: str) -> bool:
        """Report whether a Service has an address."""
        return address in self._holders

    def free(self, family: str) -> str | None:
        """Find an address of a family, IPv4 or IPv6, that no Service has."""
        for network in self.networks:
            if f"IPv{network.version}" == family:
                # A range is a list of addresses here, not a subnet: its first and last are as good as the others.
                number = self._full_below[network]
                while number < network.num_addresses and str(network[number]) in self._holders:
                    number += 1
                self._full_below[network] = number
                if number < network.num_addresses:
                    return str(network[number])
        return None

    def clear(self) -> None:
        """Forget who has what."""
        self._holders.clear()
        self._full_below = dict.fromkeys(self.networks, 0)
