"""Assigns addresses of the operator's pool to Gateways that name none. Pure.

A Gateway gets one address of each family in the pool, and keeps it: the last plan remembers the address, and after a
restart the Gateway's status does. No Gateway gets an address that another one names in its spec.
"""

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from vipwire.model.names import ObjectName
from vipwire_l7.gateway.plan.kinds.objects import Gateway

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Given = Mapping[ObjectName, tuple[str, ...]]
_MOST_TRIED = 65536
"""The number of addresses of one range that a search tries."""


@dataclass(frozen=True, slots=True)
class AddressPool:
    """Ranges of addresses of this machine. The first range with a free address is used first."""

    networks: tuple[Network, ...] = ()

    def __contains__(self, text: str) -> bool:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return False
        return any(address in network for network in self.networks)

    def assign_addresses(self, gateways: Sequence[Gateway], before: Given) -> dict[ObjectName, tuple[str, ...]]:
        """Assign an address to each Gateway that names none. Gateways keep the address they have."""
        if not self.networks:
            return {}
        taken = {value for each in gateways for value in list_requested_addresses(each)}
        wanting = [each for each in gateways if not list_requested_addresses(each)]
        given = dict[ObjectName, tuple[str, ...]]()
        for each in wanting:
            had = before.get(each.name) or [entry["value"] for entry in (each.status or {}).get("addresses", ())]
            kept = [text for text in had if text in self and text not in taken]
            given[each.name] = tuple(_choose_one_of_each_family(kept))
            taken.update(given[each.name])
        for each in wanting:
            more = [
                free
                for version in self._list_missing_families(given[each.name])
                if (free := self._find_free(version, taken))
            ]
            given[each.name] = (*given[each.name], *more)
            taken.update(more)
        return given

    def _list_missing_families(self, had: Iterable[str]) -> list[int]:
        have = {ipaddress.ip_address(text).version for text in had}
        return sorted({network.version for network in self.networks} - have)

    def _find_free(self, version: int, taken: set[str]) -> str:
        for network in self.networks:
            if network.version == version:
                # A range is a list of addresses, not a subnet: its first and last address can be used too.
                for number in range(min(network.num_addresses, _MOST_TRIED)):
                    if (text := str(network[number])) not in taken:
                        return text
        return ""


def list_requested_addresses(gateway: Gateway) -> tuple[str, ...]:
    return tuple(each.value for each in gateway.spec.addresses if each.value)


def _choose_one_of_each_family(texts: Iterable[str]) -> Iterator[str]:
    seen = set[int]()
    for text in texts:
        version = ipaddress.ip_address(text).version
        if version not in seen:
            seen.add(version)
            yield str(ipaddress.ip_address(text))
