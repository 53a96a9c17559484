"""Chooses the machine that announces each address: evenly, with few moves when a machine comes or goes. Pure.

Rendezvous hashing: each eligible machine draws a number from its name and the address; the greatest wins. All
machines see the same objects, so all make the same choice. claims.py makes sure that no two machines announce one
address.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping

from vipwire.model.names import ObjectName
from vipwire_up.announcing.kinds import Balanced, Followed, Machine


def choose_machine(address: str, machines: Iterable[str]) -> str:
    return max(machines, key=lambda name: (_rendezvous_weight(address, name), name), default="")


def list_eligible(
    service: Balanced, machines: Mapping[str, Machine], alive: Mapping[str, str], placed: Collection[str]
) -> list[str]:
    """Return the machines that may announce a Service.

    `alive` are the announcing machines with their interfaces; `placed` those with ready endpoints of the Service.
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


class View(Followed[Balanced]):
    """The Services, endpoints and Nodes that decide which machine announces an address."""

    def choose_holders(self, alive: Mapping[str, str]) -> dict[str, str]:
        """Return the machine that should have each address, "" for none.

        Services that share an address share the machine, which must be eligible for all of them.
        """
        placed, able = self.nodes_with_endpoints(), dict[str, set[str]]()
        for name, each in self.services.items():
            found = set(list_eligible(each, self.machines, alive, placed.get(name, ())))
            for address in each.addresses:
                able[address] = able.get(address, found) & found
        return {address: choose_machine(address, sorted(names)) for address, names in able.items()}

    def services_at(self, address: str) -> list[ObjectName]:
        return sorted(name for name, each in self.services.items() if address in each.addresses)


def _rendezvous_weight(address: str, name: str) -> bytes:
    return hashlib.blake2b(f"{address} {name}".encode(), digest_size=8).digest()
