"""Chooses the machine that should have each address: evenly, and so that few move when a machine comes or goes. Pure.

Rendezvous hashing: each eligible machine draws a number from its name and the address; the greatest wins. All
machines see the same objects and so choose alike; that no two of them announce one address, claims.py makes sure of.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping

from vipwire.model.names import ObjectName
from vipwire_up.announcing.kinds import Balanced, Machine


def choose(address: str, machines: Iterable[str]) -> str:
    """Choose one of some machines for an address; "" if there are none."""
    return max(machines, key=lambda name: (_draw(address, name), name), default="")


def eligible(
    service: Balanced, machines: Mapping[str, Machine], alive: Mapping[str, str], placed: Collection[str]
) -> list[str]:
    """Name the machines that may announce a Service.

    `alive` are those that announce now, with their interfaces; `placed` those with ready endpoints of it.
    """
    return [
        name
        for name, interface in alive.items()
        if (machine := machines.get(name)) is not None
        and machine.ready
        and not machine.excluded
        and service.interface in ("", interface)
        and machine.labels.issuperset(service.wanted)
        and (not service.local or name in placed)
    ]


class View:
    """What is known of Services, endpoints and Nodes."""

    def __init__(self) -> None:
        self.services: dict[ObjectName, Balanced] = {}
        self.machines: dict[str, Machine] = {}
        self.slices: dict[ObjectName, tuple[ObjectName, frozenset[str]]] = {}

    def wanted(self, alive: Mapping[str, str]) -> dict[str, str]:
        """Choose for each address the machine that should have it, "" for none.

        Services that share an address also share the machine: it is the choice of all that each allows.
        """
        placed: dict[ObjectName, set[str]] = {}
        for service, nodes in self.slices.values():
            placed.setdefault(service, set()).update(nodes)
        able: dict[str, set[str]] = {}
        for name, each in self.services.items():
            found = set(eligible(each, self.machines, alive, placed.get(name, ())))
            for address in each.addresses:
                able[address] = able.get(address, found) & found
        return {address: choose(address, sorted(names)) for address, names in able.items()}

    def holders(self, address: str) -> list[ObjectName]:
        """Name the Services that have an address."""
        return sorted(name for name, each in self.services.items() if address in each.addresses)


def _draw(address: str, name: str) -> bytes:
    return hashlib.blake2b(f"{address} {name}".encode(), digest_size=8).digest()
