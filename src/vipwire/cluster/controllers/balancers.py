"""LoadBalancer addresses: given from the operator's ranges, in the Service's status, and taken back.

Of the Services of type LoadBalancer, those without loadBalancerClass are ours, and those of class `vipwire.io/pool`.
Each gets an address of each of its families that there is a range of. spec.loadBalancerIP is honoured if it is free
and within a range. Whoever has an address keeps it as long as the ranges hold it. What cannot be given is told in an
Event, and tried again when a Service changes.
"""

import ipaddress
from collections.abc import Iterable, Sequence
from typing import Final

from vipwire.cluster.api.cells import at
from vipwire.cluster.api.errors import ApiError
from vipwire.cluster.api.kinds.service import SERVICES
from vipwire.cluster.api.object import decoded
from vipwire.cluster.api.registry import Options, Registry
from vipwire.cluster.api.resource import Object
from vipwire.cluster.controllers.events import warn
from vipwire.cluster.controllers.families import family_of
from vipwire.cluster.controllers.feed import Feed
from vipwire.cluster.controllers.ranges import Network
from vipwire.cluster.controllers.selection import Name

CLASS: Final = "vipwire.io/pool"
_OPTIONS: Final = Options(manager="vipwire-load-balancer", validation="Ignore")


class Balancers:
    """Follows the Services of a registry. `networks` are the ranges, the first that fits is used first."""

    def __init__(self, registry: Registry, networks: Sequence[Network]) -> None:
        self._registry, self._networks = registry, tuple(networks)
        self._feed = Feed(registry.store, (SERVICES,))
        self._told: dict[Name, str] = {}

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self.step()
            await self._feed.wait()

    async def step(self) -> None:
        """Give every Service what it should have. Two passes: who has an address keeps it before others choose."""
        self._feed.look()
        services = [decoded(record) for record in self._registry.store.scan(SERVICES.id)]
        ours = [value for value in services if is_ours(value)]
        taken = {address for value in ours for address in self._kept(value)}
        for value in services:
            wanted, problem = self._wanted(value, taken) if is_ours(value) else ([], "")
            if wanted != held(value) and (is_ours(value) or held(value)) and not _is_foreign(value):
                await self._write(value, wanted)
            await self._tell(value, problem)

    def _kept(self, service: Object) -> list[str]:
        """List the addresses that a Service has and may keep."""
        asked = at(service, "spec", "loadBalancerIP")
        families = at(service, "spec", "ipFamilies") or ["IPv4"]
        return [
            address
            for address in held(service)
            if self._inside(address) and family_of(address) in families and asked in (None, "", address)
        ]

    def _wanted(self, service: Object, taken: set[str]) -> tuple[list[str], str]:
        """Choose a Service's addresses; give them, and what is to be said."""
        kept, asked = self._kept(service), at(service, "spec", "loadBalancerIP")
        if asked:
            if kept:
                return kept, ""
            problem = self._refusal(asked, taken)
            taken.update(() if problem else (asked,))
            return ([], problem) if problem else ([asked], "")
        found, missing = list[str](), list[str]()
        for family in at(service, "spec", "ipFamilies") or ["IPv4"]:
            address = next((each for each in kept if family_of(each) == family), None) or self._free(family, taken)
            if address is None:
                missing.append(family)
                continue
            taken.add(address)
            found.append(address)
        return found, "" if found else f"no address is left for {', '.join(missing)}"

    def _inside(self, address: str) -> bool:
        parsed = ipaddress.ip_address(address)
        return any(parsed in network for network in self._networks)

    def _refusal(self, asked: str, taken: Iterable[str]) -> str:
        if not family_of(asked) or not self._inside(asked):
            ranges = ", ".join(map(str, self._networks))
            return f"spec.loadBalancerIP {asked} is in none of the ranges {ranges}"
        return f"spec.loadBalancerIP {asked} is another Service's" if asked in taken else ""

    def _free(self, family: str, taken: set[str]) -> str | None:
        for network in self._networks:
            if f"IPv{network.version}" == family:
                # A range is a list of addresses here, not a subnet: its first and last are as good as the others.
                found = next((str(address) for address in network if str(address) not in taken), None)
                if found:
                    return found
        return None

    async def _write(self, service: Object, addresses: Sequence[str]) -> None:
        ingress = [{"ip": address, "ipMode": "VIP"} for address in addresses]
        status = (service.get("status") or {}) | {"loadBalancer": {"ingress": ingress} if ingress else {}}
        try:
            value = service | {"status": status}
            await self._registry.replace(SERVICES, *_name(service), value, _OPTIONS, subresource="status")
        except ApiError as error:
            if error.code not in (404, 409):  # gone or changed: there will be another look
                raise

    async def _tell(self, service: Object, problem: str) -> None:
        name = _name(service)
        if self._told.get(name, "") == problem:
            return
        self._told[name] = problem
        if problem:
            await warn(self._registry, SERVICES, service, "AllocationFailed", problem)


def held(service: Object) -> list[str]:
    """List the addresses in a Service's status."""
    entries = at(service, "status", "loadBalancer", "ingress") or ()
    return [entry["ip"] for entry in entries if family_of(entry.get("ip") or "")]


def is_ours(service: Object) -> bool:
    """Tell whether a Service wants an address of us."""
    spec = service.get("spec") or {}
    return spec.get("type") == "LoadBalancer" and not _is_foreign(service)


def _is_foreign(service: Object) -> bool:
    return at(service, "spec", "loadBalancerClass") not in (None, "", CLASS)


def _name(service: Object) -> Name:
    return service["metadata"]["namespace"], service["metadata"]["name"]
