"""LoadBalancer addresses: allocates them from the operator's ranges, writes them to Services' status, frees them.

vipwire serves Services of type LoadBalancer without loadBalancerClass or with class `vipwire.io/pool`. Each gets an
address of each of its families that has a range. spec.loadBalancerIP is honoured if it is free and in a range. A
Service keeps its address while a range contains it. If no address is free, or no range is given, an Event says so.
vipwire tries again when one becomes free.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from vipwire.kube.errors import ApiError
from vipwire_up.announcing.balanced import has_its_mode, is_foreign, is_ours, mode_of, status_addresses
from vipwire_up.api.change import Options
from vipwire_up.api.kinds.service import SERVICES
from vipwire_up.api.objects.addresses import family_of
from vipwire_up.api.objects.object import at, decoded, key_of
from vipwire_up.api.objects.resource import Object
from vipwire_up.api.registry import Registry
from vipwire_up.controllers.allocation.pool import Pool
from vipwire_up.controllers.allocation.ranges import Network
from vipwire_up.controllers.endpoints.selection import Name
from vipwire_up.store.record import Key
from vipwire_up.store_watch.events import warn
from vipwire_up.store_watch.feed import RETRY_SECONDS, Feed
from vipwire_up.watchdog.guard import Guard

_OPTIONS: Final = Options(manager="vipwire-load-balancer", validation="Ignore")


_NO_RANGE: Final = "no address: this server was started without --load-balancer-range"


class Balancers:
    """Follows the Services of a registry. `networks` are the ranges; the first free address is used first."""

    def __init__(self, registry: Registry, networks: Sequence[Network], guard: Guard[Key] | None = None) -> None:
        self._registry, self._pool, self._guard = registry, Pool(networks), guard or Guard("LoadBalancer addresses")
        self._feed = Feed(registry.store, (SERVICES,))
        self._told: dict[Name, str] = {}
        self._unwritten: dict[Name, None] = {}
        self._freed = False

    async def run(self) -> None:
        await self._feed.run(self.step, self._guard)

    async def step(self) -> float | None:
        """Update each changed Service; return the seconds until the next call.

        Two passes: Services with an address keep it before others choose. Services without a free address are tried
        again when one becomes free.
        """
        changes, anew = self._feed.look()
        if anew:
            self._pool.clear()
        latest = {(change.record.key.namespace, change.record.key.name): change for change in changes}
        for name, change in latest.items():
            with self._guard.of(change.record.key):
                value = decoded(change.record)
                self._put(name, self._kept_addresses(value) if is_ours(value) and not change.deleted else ())
        again = dict.fromkeys(self._told) if anew or self._freed else {}
        aside = dict.fromkeys((key.namespace, key.name) for key in self._guard.due())
        names = self._unwritten | again | aside | dict.fromkeys(latest)
        self._unwritten, self._freed = {}, False
        for name in names:
            with self._guard.of(key_of(SERVICES, *name)):
                await self._reconcile(name)
        return RETRY_SECONDS if self._unwritten or self._freed else self._guard.seconds_left()

    def _put(self, name: Name, addresses: Iterable[str]) -> None:
        self._freed |= self._pool.put(name, addresses)

    async def _reconcile(self, name: Name) -> None:
        value = self._registry.find(SERVICES, *name)
        if value is None:
            self._told.pop(name, None)
            return
        wanted, problem = self._choose_addresses(value) if is_ours(value) else ([], "")
        self._put(name, wanted)
        kept = wanted == status_addresses(value) and has_its_mode(value)
        if not kept and self._pool.networks and not is_foreign(value):  # without a range the status is others'
            await self._write(value, wanted)
        await self._report(value, problem)

    def _kept_addresses(self, service: Object) -> list[str]:
        asked = at(service, "spec", "loadBalancerIP")
        families = at(service, "spec", "ipFamilies") or ["IPv4"]
        return [
            address
            for address in status_addresses(service)
            if self._pool.has(address) and family_of(address) in families and asked in (None, "", address)
        ]

    def _choose_addresses(self, service: Object) -> tuple[list[str], str]:
        if not self._pool.networks:
            return [], "" if status_addresses(service) else _NO_RANGE
        kept, asked = self._kept_addresses(service), at(service, "spec", "loadBalancerIP")
        if asked:
            problem = "" if kept else self._refusal(asked)
            return ([] if problem else kept or [asked]), problem
        found, missing = list[str](), list[str]()
        for family in at(service, "spec", "ipFamilies") or ["IPv4"]:
            address = next((each for each in kept if family_of(each) == family), None) or self._pool.free(family)
            if address is None:
                missing.append(family)
            else:
                found.append(address)
        return found, "" if found else f"no free address for {', '.join(missing)}"

    def _refusal(self, asked: str) -> str:
        if not family_of(asked) or not self._pool.has(asked):
            ranges = ", ".join(map(str, self._pool.networks))
            return f"spec.loadBalancerIP {asked} is outside of the ranges {ranges}"
        return f"another Service has spec.loadBalancerIP {asked}" if self._pool.is_taken(asked) else ""

    async def _write(self, service: Object, addresses: Sequence[str]) -> None:
        ingress = [{"ip": address, "ipMode": mode_of(service)} for address in addresses]
        status = (service.get("status") or {}) | {"loadBalancer": {"ingress": ingress} if ingress else {}}
        try:
            value = service | {"status": status}
            await self._registry.replace(SERVICES, *_name(service), value, _OPTIONS, subresource="status")
        except ApiError as error:
            self._put(_name(service), self._kept_addresses(service))
            if error.code not in (404, 409):  # gone or changed: its event brings another check
                self._unwritten[_name(service)] = None

    async def _report(self, service: Object, problem: str) -> None:
        name = _name(service)
        before = self._told.pop(name, "")
        if problem:
            self._told[name] = problem
        if problem and problem != before:
            await warn(self._registry, SERVICES, service, "AllocationFailed", problem)


def _name(service: Object) -> Name:
    return service["metadata"]["namespace"], service["metadata"]["name"]
