"""Repairs differences between ClusterIPs and IPAddress objects, and reports them in Events.

Both are written together, so they differ only after an edit of an IPAddress or a restored backup. The rules and the
Events' reasons are those of kube-apiserver's repair loop
(pkg/registry/core/service/ipallocator/controller/repairip.go), which runs every few minutes; vipwire checks
everything at start, then each change.

    a Service's address has no IPAddress, or one of another Service without it     create it for the Service
    an IPAddress is of a Service without this address                              delete it
    two Services have an address, or it is in no ServiceCIDR                       only an Event: recreate a Service

IPAddresses without the allocator's label are left alone.
"""

import asyncio
import contextlib
import ipaddress
from collections.abc import Iterator
from typing import Final

from vipwire.kube.errors import ApiError
from vipwire.model.times import format_time
from vipwire_up.api.change import Deletion, Options
from vipwire_up.api.kinds.service import SERVICES
from vipwire_up.api.kinds.service_cidr import IP_ADDRESSES, SERVICE_CIDRS
from vipwire_up.api.objects.addresses import family_of
from vipwire_up.api.objects.object import decode_damaged_record, decode_record, key_of, value_at
from vipwire_up.api.objects.resource import Object
from vipwire_up.api.registry import Registry
from vipwire_up.controllers.allocation.addresses import MANAGED_BY, build_ip_address, is_created_by_vipwire
from vipwire_up.controllers.allocation.pool import Holders
from vipwire_up.controllers.allocation.ranges import networks_of
from vipwire_up.controllers.endpoints.selection import Name
from vipwire_up.store.record import Key, RecordChange
from vipwire_up.store_watch.events import write_warning_event
from vipwire_up.store_watch.feed import Feed
from vipwire_up.watchdog.guard import Guard

_OPTIONS: Final = Options(manager=MANAGED_BY, validation="Ignore")
_AT_ONCE: Final = 100
"""Addresses that are checked before other tasks get a turn."""


class AddressRepair:
    """Follows the Services and IPAddresses of a registry."""

    def __init__(self, registry: Registry, guard: Guard[Key] | None = None) -> None:
        self._registry, self._guard = registry, guard or Guard("IPAddresses")
        self._feed = Feed(registry.store, (SERVICES, IP_ADDRESSES))
        self._users = Holders()

    async def run(self) -> None:
        await self._feed.run(self.step, self._guard)

    async def step(self) -> float | None:
        changes, anew = self._feed.read_changes()
        if anew:
            self._users.clear()
        touched = {key.name: None for key in self._guard.due() if key.resource == IP_ADDRESSES.id}
        for change in changes:
            with self._guard.of(change.record.key):
                touched.update(dict.fromkeys(self._collect_addresses(change)))
        for number, address in enumerate(touched):
            with self._guard.of(key_of(IP_ADDRESSES, "", address)), contextlib.suppress(ApiError):
                await self._reconcile_address(address)  # a conflict means a change, whose event brings another check
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        return self._guard.seconds_left()

    def _collect_addresses(self, change: RecordChange) -> Iterator[str]:
        key = change.record.key
        if key.resource == IP_ADDRESSES.id:
            yield key.name
            return
        addresses = () if change.deleted else cluster_ips_of(decode_record(change.record))
        yield from self._users.set_addresses((key.namespace, key.name), addresses)

    async def _reconcile_address(self, address: str) -> None:
        users = self._users.holders_of(address)
        note = self._registry.find(IP_ADDRESSES, "", address)
        if note is None:
            if users:
                await self._restore_ip_address(address, users[0], "is not allocated; repairing")
        elif (holder := _service_of_ip_address(note)) not in users:
            await self._replace_ip_address(note, address, holder, users)
        for name in users:
            if name != (holder if note is not None and holder in users else users[0]):
                await self._warn_service(
                    name, address, "ClusterIPAlreadyAllocated", "was assigned to multiple services"
                )

    async def _restore_ip_address(self, address: str, name: Name, why: str) -> None:
        if not self._is_in_service_range(address):
            await self._warn_service(
                name, address, "ClusterIPOutOfRange", "is not within any configured Service CIDR"
            )
            return
        service = self._registry.find(SERVICES, *name)
        if service is None:
            return
        text = f"Cluster IP [{family_of(address)}]: {address} {why}"
        await write_warning_event(self._registry, SERVICES, service, "ClusterIPNotAllocated", text)
        body = build_ip_address(service, address, format_time(self._registry.clock()))
        await self._registry.create(IP_ADDRESSES, "", body, _OPTIONS)

    async def _replace_ip_address(self, note: Object, address: str, holder: Name | None, users: list[Name]) -> None:
        """Delete a wrong IPAddress, and create one for the Service that has the address."""
        if not is_created_by_vipwire(note):
            return
        whose = f"Service {'/'.join(holder)}" if holder else "no Service"
        text = f"IPAddress: {address} for {whose} appears to have leaked: cleaning up"
        await write_warning_event(self._registry, IP_ADDRESSES, note, "IPAddressNotAllocated", text)
        this_one = Deletion(uid=note["metadata"]["uid"])  # another object may have this name by now
        await self._registry.delete(IP_ADDRESSES, "", address, options=_OPTIONS, deletion=this_one)
        if users:
            await self._restore_ip_address(address, users[0], "is allocated to another one; repairing")

    async def _warn_service(self, name: Name, address: str, reason: str, why: str) -> None:
        if (service := self._registry.find(SERVICES, *name)) is not None:
            text = f"Cluster IP [{family_of(address)}]: {address} {why}; please recreate service"
            await write_warning_event(self._registry, SERVICES, service, reason, text)

    def _is_in_service_range(self, address: str) -> bool:
        values = (decode_damaged_record(record) for record in self._registry.store.scan(SERVICE_CIDRS.id))
        parsed = ipaddress.ip_address(address)
        return any(parsed in network for value in values for network in networks_of(value))


def cluster_ips_of(service: Object) -> Iterator[str]:
    """Yield a Service's ClusterIPs in the form of IPAddresses' names."""
    if value_at(service, "spec", "type") != "ExternalName":
        found = (text for text in value_at(service, "spec", "clusterIPs") or () if family_of(text))
        yield from (str(ipaddress.ip_address(text)) for text in found)


def _service_of_ip_address(note: Object) -> Name | None:
    """Return the Service of an IPAddress; None if it belongs to another kind."""
    parent = value_at(note, "spec", "parentRef") or {}
    if parent.get("group") or parent.get("resource") != "services":
        return None
    return parent.get("namespace") or "", parent.get("name") or ""
