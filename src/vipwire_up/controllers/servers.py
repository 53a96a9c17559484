"""The API servers that share a store: each has a Lease, and its own objects end with the Lease.

Server      a server renews its Lease kube-system/vipwire-server-NODE and frees it at its end. It does not begin
            while another live server has the Lease, and ends if another one has taken it
OwnSlices   the elected server deletes the EndpointSlices of servers whose Lease expired, and writes the Endpoints of
            Services `kubernetes` and `kube-dns` from the slices that are left
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final

from vipwire.kube.errors import ApiError
from vipwire.kube.lease import LeaseHeldError, LeaseObserver, find_holder, release
from vipwire.logging import log
from vipwire_up.api.change import Options
from vipwire_up.api.kinds.endpoints import ENDPOINT_SLICES, ENDPOINTS
from vipwire_up.api.kinds.small_kinds import LEASES
from vipwire_up.api.objects.object import decode_damaged_record, key_of, value_at
from vipwire_up.api.objects.resource import Object
from vipwire_up.api.registry import Registry
from vipwire_up.controllers.election import LEASE_MANAGER, NAMESPACE, LocalLease
from vipwire_up.controllers.endpoints.selection import Name
from vipwire_up.controllers.endpoints.slices import MANAGED_BY, SERVICE
from vipwire_up.controllers.own_services import API_SERVICE, DNS_SERVICE, MANAGER, SERVER
from vipwire_up.nodes.name_claim import NameClaim, NameStillHeldError
from vipwire_up.nodes.node import SERVERS
from vipwire_up.nodes.objects import LocalObjects
from vipwire_up.store.record import Key, Record, RecordChange
from vipwire_up.store_watch.feed import Feed
from vipwire_up.watchdog.guard import Guard

SECONDS: Final = 10
EVERY: Final = 3.0
_LOOK_SECONDS: Final = 1.0
_OWN: Final = (API_SERVICE, DNS_SERVICE)
_IDENTITY: Final = {"apiserver.kubernetes.io/identity": "vipwire"}
_OPTIONS: Final = Options(manager=MANAGER, validation="Ignore", force=True)


class Server:
    """This server: `node` is the name of its Node, `identity` is unique to its data directory.

    So a process that replaces a killed one has the Lease at once.
    """

    def __init__(self, registry: Registry, node: str, identity: str) -> None:
        self._registry, self._name, self._told = registry, lease_name(node), False
        self._claim = NameClaim(node, SECONDS, identity, kind="API server")
        self._lease = LocalLease(registry, self._name)

    async def wait_for_name(self) -> frozenset[str]:
        """Wait until no other server holds the Node's name; return which one had it.

        Raise NameTakenError if a live one does.
        """
        while record := self._registry.store.read(key_of(LEASES, NAMESPACE, self._name)):
            if not (left := self._claim.seconds_until_free(decode_damaged_record(record))):
                return frozenset((find_holder(decode_damaged_record(record)),)) - {""}
            self._warn_once("another API server recently had this Node's name: waiting for its Lease to expire")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, _LOOK_SECONDS)):
                    await self._registry.store.wait_for_change(LEASES.id)
        return frozenset()

    def holds_name(self) -> bool:
        return self._claim.holds_name()

    async def run(self) -> None:
        """Renew the Lease until cancelled; then free the Lease and delete its objects. Raise NameTakenError."""
        try:
            while True:
                await self.renew_lease()
                await asyncio.sleep(EVERY if self.holds_name() else _LOOK_SECONDS)
        finally:
            with contextlib.suppress(LeaseHeldError, ApiError, TimeoutError):
                async with asyncio.timeout(EVERY):
                    await release(self._lease, self._claim.identity, self._registry.clock)

    async def renew_lease(self) -> None:
        """Claim or renew the Lease, if possible now. Objects that end with the Lease are written after it.

        Raise NameTakenError if another live server has the Lease.
        """
        objects, now = LocalObjects(self._registry, LEASE_MANAGER), self._registry.clock()
        try:
            await self._claim.renew_lease(objects, NAMESPACE, self._name, now, metadata={"labels": _IDENTITY})
        except NameStillHeldError:
            self._warn_once("another API server has this Node's name, or recently had it")
        except ApiError:
            pass  # the store reports its own failure
        else:
            self._told = False

    def _warn_once(self, text: str) -> None:
        if not self._told:
            log.warning(text, node=self._claim.node)
        self._told = True


class OwnSlices:
    """Follows the EndpointSlices of the cluster's own Services."""

    def __init__(self, registry: Registry, guard: Guard[Key] | None = None) -> None:
        self._registry, self._guard = registry, guard or Guard("API servers")
        self._feed = Feed(registry.store, (ENDPOINT_SLICES, ENDPOINTS))
        self._observer = LeaseObserver()
        self._slices: dict[Key, Record] = {}

    async def run(self) -> None:
        """Work until cancelled. Leases expire without an event, so this looks every second."""
        while True:
            with self._guard.step():
                await self.step(asyncio.get_running_loop().time())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._feed.wait_for_change()

    async def step(self, now: float) -> None:
        self._feed.pass_changes(self._slices.clear, self._apply_change, self._guard)
        for name in _OWN:
            with self._guard.of(key_of(ENDPOINTS, *name)), contextlib.suppress(ApiError):
                left = [each for each in self._slices_of(name) if await self._is_server_alive(each, now)]
                await self._write_endpoints(name, left)

    def _apply_change(self, change: RecordChange) -> None:
        key = change.record.key
        if (
            change.deleted
            or key.resource != ENDPOINT_SLICES.id
            or not any(_may_be_slice_of(key, name) for name in _OWN)
        ):
            self._slices.pop(key, None)
        else:
            self._slices[key] = change.record

    def _slices_of(self, name: Name) -> list[Object]:
        service = name[1]
        values = (
            decode_damaged_record(record) for key, record in self._slices.items() if _may_be_slice_of(key, name)
        )
        return [
            each for each in values if _label_of(each, SERVICE) == service and _label_of(each, MANAGED_BY) == MANAGER
        ]

    async def _is_server_alive(self, value: Object, now: float) -> bool:
        server = _label_of(value, SERVER)
        if server and LocalLease(self._registry, lease_name(server)).seconds_left(self._observer, now):
            return True
        meta = value["metadata"]
        if server:
            log.info("an API server has gone; removing its endpoint", node=server, slice=meta["name"])
        await self._registry.delete(ENDPOINT_SLICES, meta["namespace"], meta["name"], options=_OPTIONS)
        return False

    async def _write_endpoints(self, name: Name, slices: Iterable[Object]) -> None:
        by_ports = defaultdict[tuple[Any, ...], set[str]](set)
        for value in slices:
            ports = tuple((each["name"], each["protocol"], each["port"]) for each in value.get("ports") or ())
            by_ports[ports] |= {text for each in value.get("endpoints") or () for text in each["addresses"]}
        subsets = [
            {
                "addresses": [{"ip": text} for text in sorted(addresses)],
                "ports": [dict(zip(("name", "protocol", "port"), port, strict=True)) for port in ports],
            }
            for ports, addresses in sorted(by_ports.items())
            if addresses
        ]
        record = self._registry.store.read(key_of(ENDPOINTS, *name))
        if (value_at(decode_damaged_record(record), "subsets") or [] if record else None) == subsets:
            return
        labels = {"endpointslice.kubernetes.io/skip-mirror": "true", "app.kubernetes.io/managed-by": MANAGER}
        value = {"metadata": {"name": name[1], "labels": labels}, "subsets": subsets}
        await self._registry.apply(ENDPOINTS, *name, value, _OPTIONS)


def lease_name(node: str) -> str:
    return f"{SERVERS}{node}"


def _may_be_slice_of(key: Key, name: Name) -> bool:
    namespace, service = name
    return key.namespace == namespace and key.name.startswith(service)


def _label_of(value: Object, name: str) -> str:
    return str((value["metadata"].get("labels") or {}).get(name) or "")
