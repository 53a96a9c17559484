"""Writes the Services of Gateways and their EndpointSlices (`vipwire gateway --services`).

The writer uses server-side apply, so that fields of other managers stay. The Gateway owns the objects: garbage
collection deletes them with the Gateway. The writer itself deletes the objects that an existing Gateway no longer
needs.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Final

from vipwire.kube.access.access import Access
from vipwire.kube.gateway_addresses import OF_CONTROLLER
from vipwire.kube.objects import FencedObjects, path_of
from vipwire.kube.write_loop import Pauses, WriteLoop
from vipwire.model.names import ObjectName
from vipwire_l7.gateway.plan.own_services import (
    MANAGED_BY,
    OwnService,
    copy_slices,
    is_as_wanted,
    list_copied_fields,
    name_slices,
    write_service,
    write_slice,
)
from vipwire_l7.watch.objects import GatewayObject, IngressKind, Json
from vipwire_l7.watch.snapshot import Snapshot

_PAUSES: Final = Pauses(refused=10.0, written=1.0)
_KINDS: Final = (IngressKind.GATEWAY, IngressKind.SERVICE, IngressKind.SLICE)
_SERVICES: Final = ("/api/v1", "services")
_SLICES: Final = ("/apis/discovery.k8s.io/v1", "endpointslices")


class ServiceWriter:
    """Writes while this replica is the leader. `pods` is the Service that selects vipwire's Pods."""

    def __init__(
        self, access: Access, pods: ObjectName, controller: str, snapshot: Snapshot, leading: Callable[[], bool]
    ) -> None:
        self._pods, self._controller, self._snapshot = pods, controller, snapshot
        self._loop = WriteLoop[str](access, MANAGED_BY, leading, lambda: snapshot.count_events(_KINDS), _PAUSES)
        """The key of an object is its path."""
        self._written: dict[str, Json] = {}

    def wake(self) -> None:
        self._loop.wake()

    async def run(self, wanted: Callable[[], Mapping[ObjectName, OwnService] | None]) -> None:
        """Write until cancelled. `wanted` returns the Services by name, None before the first plan."""
        await self._loop.run(wanted, self._write_all)

    async def _write_all(self, objects: FencedObjects, wanted: Mapping[ObjectName, OwnService]) -> None:
        gateways = self._snapshot.list_gateway_objects(IngressKind.GATEWAY)
        for service in list(wanted.values()):
            gateway = gateways.get(service.gateway)
            if gateway is not None and gateway.uid:
                await self._write_gateway_service(objects, service, gateway)
        for name in list(self._find_left_over(wanted)):
            await self._delete_object(objects, path_of(*_SERVICES, *name))

    async def _write_gateway_service(
        self, objects: FencedObjects, service: OwnService, gateway: GatewayObject[object]
    ) -> None:
        snapshot, uid, version = self._snapshot, gateway.uid, gateway.api_version.rpartition("/")[2]
        body = write_service(service, uid, version, self._controller)
        path = path_of(*_SERVICES, *service.name)
        there = snapshot.services.get(service.name)
        if self._written.get(path) != body or not is_as_wanted(there, service):
            await self._apply_object(objects, path, body)
        if there is None:
            return
        found = {each.name: list_copied_fields((each,)) for each in snapshot.list_slices(service.name)}
        for each in copy_slices(service, snapshot.list_slices(self._pods)):
            if found.pop(each.name, None) != list_copied_fields((each,)):
                body = write_slice(each, service, uid, version)
                await self._apply_object(objects, path_of(*_SLICES, *each.name), body)
        for name in (each for each in found if each.name.startswith(name_slices(service))):
            await self._delete_object(objects, path_of(*_SLICES, *name))

    def _find_left_over(self, wanted: Mapping[ObjectName, OwnService]) -> Iterator[ObjectName]:
        """Yield Services that no Gateway needs. Garbage collection deletes a deleted Gateway's Service."""
        for gateway in self._snapshot.list_gateway_objects(IngressKind.GATEWAY):
            for each in self._snapshot.list_services_of(gateway):
                if each.annotations.get(OF_CONTROLLER) == self._controller and each.name not in wanted:
                    yield each.name

    async def _apply_object(self, objects: FencedObjects, path: str, body: Json) -> None:
        if await self._send_request(path, partial(objects.apply, path, body)):
            self._written[path] = body

    async def _delete_object(self, objects: FencedObjects, path: str) -> None:
        await self._send_request(path, partial(objects.delete, path))

    async def _send_request(self, path: str, send: Callable[[], Awaitable[object]]) -> bool:
        if not self._loop.waits(path):
            self._written.pop(path, None)
        return await self._loop.write(path, send, "cannot write a Gateway's Service", path=path)
