"""LoadBalancer addresses: allocates them from the operator's ranges, writes them to Services' status, frees them.

vipwire serves Services of type LoadBalancer without loadBalancerClass or with class `vipwire.io/pool`. Each gets an
address of each of its families that has a range. spec.loadBalancerIP is honoured if it is free and in a range. A
Service keeps its address while a range contains it. If no address is free, or no range is given, an Event says so.
vipwire tries again when one becomes free.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from vipwire.kube.errors import ApiError
from vipwire_up.announcing.balanced import (
    has_right_ip_mode,
    ip_mode_of,
    is_announced_class,
    is_foreign,
    status_addresses,
)
from vipwire_up.api.change import Options
from vipwire_up.api.kinds.service import SERVICES
from vipwire_up.api.objects.addresses import family_of
from vipwire_up.api.objects.object import decode_record, key_of, value_at
from vipwire_up.api.objects.resource import Object
from vipwire_up.api.registry import Registry
from vipwire_up.controllers.allocation.pool import Pool
from vipwire_up.controllers.allocation.ranges import Network
from vipwire_up.controllers.endpoints.selection import Name
from vipwire_up.store.record import Key
from vipwire_up.store_watch.events import write_warning_event
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
        changes, anew = self._feed.read_changes()
        if anew:
            self._pool.clear()
        latest = {(change.record.key.namespace, change.record.key.name): change for change in changes}
        for name, change in latest.items():
            with self._guard.of(change.record.key):
                value = decode_record(change.record)
                self._set_addresses(
                    name, self._kept_addresses(value) if is_announced_class(value) and not change.deleted else ()
                )
        again = dict.fromkeys(self._told) if anew or self._freed else {}
        aside = dict.fromkeys((key.namespace, key.name) for key in self._guard.due())
        names = self._unwritten | again | aside | dict.fromkeys(latest)
        self._unwritten, self._freed = {}, False
        for name in names:
            with self._guard.of(key_of(SERVICES, *name)):
                await self._reconcile_service(name)
        return RETRY_SECONDS if self._unwritten or self._freed else self._guard.seconds_left()

    def _set_addresses(self, name: Name, addresses: Iterable[str]) -> None:
        self._freed |= self._pool.set_addresses(name, addresses)

    async def _reconcile_service(self, name: Name) -> None:
        value = self._registry.find(SERVICES, *name)
        if value is None:
            self._told.pop(name, None)
            return
        wanted, problem = self._choose_addresses(value) if is_announced_class(value) else ([], "")
        self._set_addresses(name, wanted)
        kept = wanted == status_addresses(value) and has_right_ip_mode(value)
        if not kept and self._pool.networks and not is_foreign(value):  # without a range the status is others'
            await self._write_status(value, wanted)
        await self._report_problem(value, problem)

    def _kept_addresses(self, service: Object) -> list[str]:
        asked = value_at(service, "spec", "loadBalancerIP")
        families = value_at(service, "spec", "ipFamilies") or ["IPv4"]
        return [
            address
            for address in status_addresses(service)
            if self._pool.contains(address) and family_of(address) in families and asked in (None, "", address)
        ]

    def _choose_addresses(self, service: Object) -> tuple[list[str], str]:
        if not self._pool.networks:
            return [], "" if status_addresses(service) else _NO_RANGE
        kept, asked = self._kept_addresses(service), value_at(service, "spec", "loadBalancerIP")
        if asked:
            problem = "" if kept else self._explain_refused_address(asked)
            return ([] if problem else kept or [asked]), problem
        found, missing = list[str](), list[str]()
        for family in value_at(service, "spec", "ipFamilies") or ["IPv4"]:
            address = next(
                (each for each in kept if family_of(each) == family), None
            ) or self._pool.find_free_address(family)
            if address is None:
                missing.append(family)
            else:
                found.append(address)
        return found, "" if found else f"no free address for {', '.join(missing)}"

    def _explain_refused_address(self, asked: str) -> str:
        if not family_of(asked) or not self._pool.contains(asked):
            ranges = ", ".join(map(str, self._pool.networks))
            return f"spec.loadBalancerIP {asked} is outside of the ranges {ranges}"
        return f"another Service has spec.loadBalancerIP {asked}" if self._pool.is_taken(asked) else ""

    async def _write_status(self, service: Object, addresses: Sequence[str]) -> None:
        ingress = [{"ip": address, "ipMode": ip_mode_of(service)} for address in addresses]
        status = (service.get("status") or {}) | {"loadBalancer": {"ingress": ingress} if ingress else {}}
        try:
            value = service | {"status": status}
            await self._registry.replace(SERVICES, *_service_name(service), value, _OPTIONS, subresource="status")
        except ApiError as error:
            self._set_addresses(_service_name(service), self._kept_addresses(service))
            if error.code not in (404, 409):  # gone or changed: its event brings another check
                self._unwritten[_service_name(service)] = None

    async def _report_problem(self, service: Object, problem: str) -> None:
        name = _service_name(service)
        before = self._told.pop(name, "")
        if problem:
            self._told[name] = problem
        if problem and problem != before:
            await write_warning_event(self._registry, SERVICES, service, "AllocationFailed", problem)


def _service_name(service: Object) -> Name:
    return service["metadata"]["namespace"], service["metadata"]["name"]
