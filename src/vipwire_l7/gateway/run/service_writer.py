"""Keeps the Services of Gateways and their EndpointSlices as they are to be (`vipwire gateway --services`).

Objects are applied (server-side apply), so that what others have added to them stays. They belong to their Gateway:
the API server's garbage collection deletes them with it. What a Gateway has no use for any more is deleted here.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final

from vipwire.kube.access.access import Access
from vipwire.kube.errors import REQUEST_ERRORS
from vipwire.kube.gateway_addresses import GATEWAY, OF_CONTROLLER
from vipwire.kube.objects import FencedObjects, path_of
from vipwire.model.names import ObjectName
from vipwire.process import log
from vipwire_l7.gateway.plan.own_services import OwnService
from vipwire_l7.gateway.plan.service_objects import (
    MANAGED_BY,
    Json,
    copied,
    is_as_wanted,
    service_of,
    slice_object,
    slice_prefix,
    slices_of,
)
from vipwire_l7.ingress.run.write_loop import WriteLoop
from vipwire_l7.ingress.watch.objects import Declared, IngressKind
from vipwire_l7.ingress.watch.snapshot import Snapshot

_AGAIN: Final = 1.0
"""Seconds after a write before the same object is written again: our watch may not have told of it yet."""
_LATER: Final = 10.0
"""Seconds after which a write that was refused is tried again."""
_KINDS: Final = (IngressKind.GATEWAY, IngressKind.SERVICE, IngressKind.SLICE)
_SERVICES: Final = ("/api/v1", "services")
_SLICES: Final = ("/apis/discovery.k8s.io/v1", "endpointslices")


class ServiceWriter:
    """Writes while we are the one who is to. `pods` is the Service that selects our Pods."""

    def __init__(
        self, access: Access, pods: ObjectName, controller: str, snapshot: Snapshot, leading: Callable[[], bool]
    ) -> None:
        self._access, self._pods, self._controller, self._snapshot = access, pods, controller, snapshot
        self._leading = leading
        self._loop = WriteLoop[str](snapshot, _KINDS, leading)
        """Of paths."""
        self._written: dict[str, Json] = {}

    def wake(self) -> None:
        """Look now for what is to be written."""
        self._loop.wake()

    async def run(self, wanted: Callable[[], Mapping[ObjectName, OwnService] | None]) -> None:
        """Write until cancelled. `wanted` are the Services by name, None before the first plan."""
        async with FencedObjects(self._access, MANAGED_BY, self._leading) as objects:
            await self._loop.run(wanted, lambda services: self._keep_all(objects, services))

    async def _keep_all(self, objects: FencedObjects, wanted: Mapping[ObjectName, OwnService]) -> None:
        gateways = self._snapshot.declared(IngressKind.GATEWAY)
        for service in list(wanted.values()):
            gateway = gateways.get(service.gateway)
            if gateway is not None and gateway.state.uid:
                await self._keep(objects, service, gateway)
        for name in list(self._left_over(wanted)):
            await self._delete(objects, path_of(*_SERVICES, *name))

    async def _keep(self, objects: FencedObjects, service: OwnService, gateway: Declared) -> None:
        snapshot = self._snapshot
        uid, version = gateway.identity
        body = service_of(service, uid, version.rpartition("/")[2], self._controller)
        path = path_of(*_SERVICES, *service.name)
        there = snapshot.services.get(service.name)
        if self._written.get(path) != body or not is_as_wanted(there, service):
            await self._apply(objects, path, body)
        if there is None:
            return
        found = {each.name: copied((each,)) for each in snapshot.slices(service.name)}
        for each in slices_of(service, snapshot.slices(self._pods)):
            if found.pop(each.name, None) != copied((each,)):
                body = slice_object(each, service, uid, version.rpartition("/")[2])
                await self._apply(objects, path_of(*_SLICES, *each.name), body)
        for name in (each for each in found if each.name.startswith(slice_prefix(service))):
            await self._delete(objects, path_of(*_SLICES, *name))

    def _left_over(self, wanted: Mapping[ObjectName, OwnService]) -> Iterator[ObjectName]:
        """Yield our Services that no Gateway has a use for; those of Gateways that are gone go by themselves."""
        gateways = self._snapshot.declared(IngressKind.GATEWAY)
        for name, each in self._snapshot.services.items():
            if each.annotations.get(OF_CONTROLLER) == self._controller and name not in wanted:
                gateway = ObjectName(name.namespace, each.annotations.get(GATEWAY, ""))
                if gateway in gateways:
                    yield name

    async def _apply(self, objects: FencedObjects, path: str, body: Json) -> None:
        if await self._write(path, lambda: objects.apply(path, body)):
            self._written[path] = body

    async def _delete(self, objects: FencedObjects, path: str) -> None:
        await self._write(path, lambda: objects.delete(path))

    async def _write(self, path: str, write: Callable[[], Awaitable[object]]) -> bool:
        """Write, unless it is too early for that; report whether it was done."""
        if self._loop.waits(path):
            return False
        self._written.pop(path, None)
        try:
            await write()
        except REQUEST_ERRORS as error:
            self._loop.retry(path, _LATER)
            log.warning("cannot write a Gateway's Service", path=path, error=error)
            return False
        self._loop.retry(path, _AGAIN)
        return True
