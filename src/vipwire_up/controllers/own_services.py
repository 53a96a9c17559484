"""The cluster's own Services: `kubernetes` leads to the API server, `kube-dns` to DNS, as in every cluster.

They have the well-known addresses: the first and the tenth of the first range. They have no selector; vipwire writes
their Endpoints and EndpointSlice, and rewrites them after another client's change. If another client made a Service
of one of these names, vipwire leaves that alone, except `kubernetes`.

If several servers share the store, each has its own EndpointSlices, which end with its Lease (`servers.py`).
"""

import contextlib
import ipaddress
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from vipwire.kube.errors import ApiError
from vipwire_up.api.change import Options
from vipwire_up.api.kinds.endpoints import ENDPOINT_SLICES, ENDPOINTS
from vipwire_up.api.kinds.service import SERVICES
from vipwire_up.api.kinds.service_cidr import SERVICE_CIDRS
from vipwire_up.api.objects.object import decode_damaged_record, decode_record, key_of, value_at
from vipwire_up.api.objects.resource import Object, Resource
from vipwire_up.api.registry import Registry
from vipwire_up.controllers.allocation.ranges import Network, networks_of
from vipwire_up.controllers.endpoints.selection import Name
from vipwire_up.controllers.endpoints.slices import MANAGED_BY, SERVICE
from vipwire_up.controllers.hooks import FIRST_CIDR
from vipwire_up.store.record import Key
from vipwire_up.store_watch.feed import RETRY_SECONDS, Feed
from vipwire_up.watchdog.guard import Guard

MANAGER: Final = "vipwire"
API_SERVICE: Final = ("default", "kubernetes")
API_NUMBER: Final = 1
DNS_SERVICE: Final = ("kube-system", "kube-dns")
DNS_NUMBER: Final = 10
SERVER: Final = "vipwire.io/server"
"""The label of an EndpointSlice of one of several servers: its Node's name."""
_LABEL: Final = "app.kubernetes.io/managed-by"
_PAUSE: Final = 1.0
"""Seconds between checks of a Service that several servers share.

Without a pause, servers with different settings would overwrite the Service all the time.
"""
_OPTIONS: Final = Options(manager=MANAGER, validation="Ignore", force=True)


@dataclass(frozen=True, slots=True)
class OwnPort:
    """A port of a Service, and the port that listens on this machine."""

    name: str
    protocol: str
    port: int
    target: int


@dataclass(frozen=True, slots=True)
class OwnService:
    """One of the cluster's own Services: the index of its address in the range, its endpoints, its Node."""

    name: Name
    number: int
    labels: tuple[tuple[str, str], ...]
    ports: tuple[OwnPort, ...]
    addresses: tuple[str, ...]
    node: str


def build_api_service(addresses: tuple[str, ...], port: int, node: str) -> OwnService:
    labels = (("component", "apiserver"), ("provider", "kubernetes"))
    return OwnService(API_SERVICE, API_NUMBER, labels, (OwnPort("https", "TCP", 443, port),), addresses, node)


def build_dns_service(addresses: tuple[str, ...], port: int, node: str) -> OwnService:
    labels = (("k8s-app", "kube-dns"), ("kubernetes.io/cluster-service", "true"), ("kubernetes.io/name", "CoreDNS"))
    ports = (OwnPort("dns", "UDP", 53, port), OwnPort("dns-tcp", "TCP", 53, port))
    return OwnService(DNS_SERVICE, DNS_NUMBER, labels, ports, addresses, node)


class OwnServices:
    """Creates and updates the Services of the cluster itself, such as `kubernetes`, in a registry."""

    def __init__(
        self,
        registry: Registry,
        guard: Guard[Key] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry, self._guard, self._clock = registry, guard or Guard("own Services"), clock
        self._feed = Feed(registry.store, (SERVICES, ENDPOINTS, ENDPOINT_SLICES))
        self._services: dict[Name, OwnService] = {}
        self._settled: dict[Name, float] = {}
        self._waiting: set[Name] = set()

    @property
    def version(self) -> int:
        """The IP version of the first ServiceCIDR, which these Services use."""
        network = self._first_range()
        return network.version if network else 4

    def address_at(self, number: int) -> str:
        """Return the address at an index of the first range, "" beyond its end."""
        network = self._first_range()
        return str(network.network_address + number) if network and network.num_addresses > number + 1 else ""

    def _first_range(self) -> Network | None:
        record = self._registry.store.read(key_of(SERVICE_CIDRS, "", FIRST_CIDR))
        return next(networks_of(decode_damaged_record(record)), None) if record else None

    async def add_service(self, service: OwnService) -> None:
        self._services[service.name] = service
        with self._guard.of(key_of(SERVICES, *service.name)):
            await self._reconcile_service(service)

    async def delete_service(self, name: Name) -> None:
        with self._guard.of(key_of(SERVICES, *name)):
            found = self._registry.find(SERVICES, *name)
            if found is not None and _is_managed_by_vipwire(found) and not self._registry.store.shared:
                for resource in (SERVICES, ENDPOINTS, ENDPOINT_SLICES):
                    with contextlib.suppress(ApiError):  # no such Service
                        await self._registry.delete(resource, *name, options=_OPTIONS)

    async def run(self) -> None:
        await self._feed.run(self.step, self._guard)

    async def step(self) -> float | None:
        changes, anew = self._feed.read_changes()
        changed = {_service_name_of(change.record.key, self._services.values()) for change in changes}
        changed |= {(key.namespace, key.name) for key in self._guard.due()} | self._waiting
        self._waiting.clear()
        for name, service in list(self._services.items()):
            if not anew and name not in changed:
                continue
            if self._registry.store.shared and self._clock() - self._settled.get(name, -_PAUSE) < _PAUSE:
                self._waiting.add(name)
                continue
            with self._guard.of(key_of(SERVICES, *name)):
                await self._reconcile_service(service)
        return RETRY_SECONDS if self._waiting else self._guard.seconds_left()

    async def _reconcile_service(self, service: OwnService) -> None:
        self._settled[service.name] = self._clock()
        found = self._registry.find(SERVICES, *service.name)
        if found is not None and not _is_managed_by_vipwire(found) and service.name != API_SERVICE:
            return
        with contextlib.suppress(ApiError):  # the store cannot write now: its next change brings another try
            made = await self._apply_service(service, found)
            if self._registry.store.shared:
                value = build_server_slice(service, made)
                name = value["metadata"]["name"]
                await self._registry.apply(ENDPOINT_SLICES, service.name[0], name, value, _OPTIONS)
                return
            for resource, value in _build_endpoints(service, made):
                await self._registry.apply(resource, *service.name, value, _OPTIONS)

    async def _apply_service(self, service: OwnService, found: Object | None) -> Object:
        body = _build_service(service, named=self._registry.store.shared)
        if found is not None:
            body["spec"]["clusterIP"] = value_at(found, "spec", "clusterIP")
        elif address := self.address_at(service.number):
            with contextlib.suppress(ApiError):  # the address is taken: use any other
                wished = body | {"spec": body["spec"] | {"clusterIP": address}}
                return decode_record((await self._registry.apply(SERVICES, *service.name, wished, _OPTIONS)).record)
        return decode_record((await self._registry.apply(SERVICES, *service.name, body, _OPTIONS)).record)


def build_server_slice(service: OwnService, made: Object) -> Object:
    *_, (_, value) = _build_endpoints(service, made)
    meta = value["metadata"]
    labels = meta["labels"] | {SERVER: service.node}
    return value | {"metadata": meta | {"name": f"{service.name[1]}-{service.node}", "labels": labels}}


def _service_name_of(key: Key, services: Iterable[OwnService]) -> Name:
    """Return the Service of an object: the one of its name, or the one in the slice's label."""
    for service in services:
        if (key.namespace, key.name) == (service.name[0], f"{service.name[1]}-{service.node}"):
            return service.name
    return key.namespace, key.name


def _is_managed_by_vipwire(value: Object) -> bool:
    return (value["metadata"].get("labels") or {}).get(_LABEL) == MANAGER


def _build_service(service: OwnService, *, named: bool) -> Object:
    """Build the Service; if several servers share it, each slice names the port."""
    ports = [
        {"name": each.name, "protocol": each.protocol, "port": each.port}
        | {"targetPort": each.name if named else each.target}
        for each in service.ports
    ]
    meta = {"name": service.name[1], "labels": dict(service.labels) | {_LABEL: MANAGER}}
    return {"metadata": meta, "spec": {"type": "ClusterIP", "ports": ports}}


def _build_endpoints(service: OwnService, made: Object) -> Iterator[tuple[Resource, Object]]:
    family = (value_at(made, "spec", "ipFamilies") or ["IPv4"])[0]
    fitting = [each for each in service.addresses if f"IPv{ipaddress.ip_address(each).version}" == family]
    ports = [{"name": port.name, "protocol": port.protocol, "port": port.target} for port in service.ports]
    name = service.name[1]
    labels = {"endpointslice.kubernetes.io/skip-mirror": "true", _LABEL: MANAGER}
    subsets = [{"addresses": [{"ip": each} for each in fitting], "ports": ports}] if fitting else []
    yield ENDPOINTS, {"metadata": {"name": name, "labels": labels}, "subsets": subsets}
    labels = {SERVICE: name, MANAGED_BY: MANAGER, _LABEL: MANAGER}
    endpoints = [{"addresses": [each], "conditions": {"ready": True}, "nodeName": service.node} for each in fitting]
    meta = {"name": name, "labels": labels}
    yield ENDPOINT_SLICES, {"metadata": meta, "addressType": family, "endpoints": endpoints, "ports": ports}
