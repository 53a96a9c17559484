"""ServiceCIDRs: sets condition Ready, and keeps a deleted ServiceCIDR while its addresses are in use (KEP-1880).

    present    the finalizer, and condition Ready
    deleted    Ready is false, no address is allocated from it (addresses.py); vipwire removes the finalizer when each
               of its addresses in use is also in another ServiceCIDR that stays

Kubernetes' controller waits 10 seconds before it removes the finalizer, for allocators in other processes. vipwire
does not wait: its allocator is in this process.
"""

import asyncio
import contextlib
import ipaddress
from collections.abc import Iterable, Sequence
from typing import Final

from vipwire.kube.errors import ApiError
from vipwire.model.times import format_time
from vipwire_up.api.change import Options
from vipwire_up.api.kinds.service_cidr import IP_ADDRESSES, SERVICE_CIDRS
from vipwire_up.api.objects.addresses import family_of
from vipwire_up.api.objects.object import decode_record, value_at
from vipwire_up.api.objects.resource import Object
from vipwire_up.api.registry import Registry
from vipwire_up.controllers.allocation.ranges import Network, networks_of
from vipwire_up.store.record import Key
from vipwire_up.store_watch.feed import Feed
from vipwire_up.watchdog.guard import Guard

FINALIZER: Final = "networking.k8s.io/service-cidr-finalizer"
_OPTIONS: Final = Options(manager="vipwire-service-cidrs", validation="Ignore")
_READY: Final = ("True", "", "Kubernetes Service CIDR is ready")
_HELD: Final = (
    "False",
    "Terminating",
    "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR",
)


class ServiceCidrs:
    """Follows the ServiceCIDRs and IPAddresses of a registry."""

    def __init__(self, registry: Registry, guard: Guard[Key] | None = None) -> None:
        self._registry, self._guard = registry, guard or Guard("ServiceCIDRs")
        self._cidrs = Feed(registry.store, (SERVICE_CIDRS,))
        self._all = Feed(registry.store, (SERVICE_CIDRS, IP_ADDRESSES))
        self._held = False

    async def run(self) -> None:
        """Work until cancelled. Changes of addresses matter only while a deleted ServiceCIDR waits for them."""
        while True:
            with self._guard.step():
                await self.step()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._guard.seconds_left()):
                    await (self._all if self._held else self._cidrs).wait_for_change()

    async def step(self) -> None:
        self._cidrs.read_changes()
        self._all.read_changes()
        values: dict[Key, Object] = {}
        for record in self._registry.store.scan(SERVICE_CIDRS.id):
            with self._guard.of(record.key):
                values[record.key] = decode_record(record)
        stay = [network for value in values.values() if not _is_terminating(value) for network in networks_of(value)]
        self._held = any(map(_is_terminating, values.values()))
        for key, value in values.items():
            with self._guard.of(key), contextlib.suppress(ApiError):  # a change brings another check
                await self._reconcile(value, stay)

    async def _reconcile(self, value: Object, stay: Sequence[Network]) -> None:
        if not _is_terminating(value):
            if FINALIZER not in (value["metadata"].get("finalizers") or ()):
                await self._write_finalizer(value, finalized=True)
            await self._report_condition(value, _READY)
        elif self._is_used(list(networks_of(value)), stay):
            await self._report_condition(value, _HELD)
        elif FINALIZER in (value["metadata"].get("finalizers") or ()):
            await self._write_finalizer(value, finalized=False)

    def _is_used(self, networks: Sequence[Network], stay: Sequence[Network]) -> bool:
        names = (record.key.name for record in self._registry.store.scan(IP_ADDRESSES.id))
        used = (ipaddress.ip_address(name) for name in names if family_of(name))
        return any(_is_in_any(address, networks) and not _is_in_any(address, stay) for address in used)

    async def _write_finalizer(self, value: Object, *, finalized: bool) -> None:
        def edit(current: Object) -> Object:
            meta = current["metadata"]
            others = [name for name in meta.get("finalizers") or () if name != FINALIZER]
            return current | {"metadata": meta | {"finalizers": [*others, *([FINALIZER] if finalized else ())]}}

        await self._registry.change(SERVICE_CIDRS, "", value["metadata"]["name"], edit, _OPTIONS)

    async def _report_condition(self, value: Object, state: tuple[str, str, str]) -> None:
        before = [each for each in value_at(value, "status", "conditions") or () if each.get("type") == "Ready"]
        if any((each["status"], each.get("reason", ""), each.get("message", "")) == state for each in before):
            return
        status, reason, message = state
        condition = {"type": "Ready", "status": status, "reason": reason, "message": message}
        condition["lastTransitionTime"] = format_time(self._registry.clock())

        def edit(current: Object) -> Object:
            others = [each for each in value_at(current, "status", "conditions") or () if each.get("type") != "Ready"]
            return current | {"status": (current.get("status") or {}) | {"conditions": [*others, condition]}}

        await self._registry.change(
            SERVICE_CIDRS, "", value["metadata"]["name"], edit, _OPTIONS, subresource="status"
        )


def _is_terminating(value: Object) -> bool:
    return bool(value_at(value, "metadata", "deletionTimestamp"))


def _is_in_any(address: ipaddress.IPv4Address | ipaddress.IPv6Address, networks: Iterable[Network]) -> bool:
    return any(address in network for network in networks)
