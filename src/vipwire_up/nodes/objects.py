"""Reads and writes single objects of a cluster, in the process of the API server or on any other machine.

Parts that run on every machine (its Node, its Leases, probes) use `Objects`: the registry in the same process on a
machine with an API server, HTTPS on all others. Both raise ApiError for refusals: 404, and 409 for a conflict.
"""

from typing import Any, Final, Protocol, Self

from vipwire.kube.access.access import Access
from vipwire.kube.errors import ApiError
from vipwire.kube.objects import Edit, ObjectClient, path_of
from vipwire_up.api.change import Options
from vipwire_up.api.objects.errors import internal_error
from vipwire_up.api.objects.object import decode_record
from vipwire_up.api.objects.resource import Object, Resource
from vipwire_up.api.registry import Registry
from vipwire_up.store.record import StoreError

LONGEST: Final = 64 << 10
"""Bytes of an answer that is not an API object: a few certificates."""


class Objects(Protocol):
    """A cluster's objects. Raise ApiError for a refusal, UnreachableError if no server answers."""

    async def read(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """Read an object; None if missing."""

    async def read_newest(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """Read an object as of the last acknowledged write of any API server; None if missing."""

    async def list(self, resource: Resource, namespace: str = "") -> list[Object]: ...

    async def create(self, resource: Resource, namespace: str, value: Object) -> Object:
        """Create an object; raise ApiError 409 if it exists."""

    async def replace(self, resource: Resource, namespace: str, value: Object, *, subresource: str = "") -> Object:
        """Replace the state that the value's resourceVersion names; raise ApiError 409 if that is not current."""

    async def edit(
        self, resource: Resource, namespace: str, name: str, edit: Edit, *, subresource: str = ""
    ) -> Object:
        """Change an object, retrying on conflicts. Raise ApiError 404."""

    async def delete(self, resource: Resource, namespace: str, name: str) -> None:
        """Delete an object; a missing one is no error."""


class LocalObjects:
    """The objects of the registry in this process."""

    def __init__(self, registry: Registry, manager: str) -> None:
        self._registry, self._options = registry, Options(manager=manager, validation="Ignore")

    async def read(self, resource: Resource, namespace: str, name: str) -> Object | None:
        return self._registry.find(resource, namespace, name)

    async def read_newest(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """Read an object once all acknowledged writes are visible here."""
        try:
            await self._registry.store.wait_for_newest()
        except StoreError as error:
            raise internal_error(str(error)) from error
        return await self.read(resource, namespace, name)

    async def list(self, resource: Resource, namespace: str = "") -> list[Object]:
        found = self._registry.store.scan(resource.id)
        return [decode_record(each) for each in found if namespace in ("", each.key.namespace)]

    async def create(self, resource: Resource, namespace: str, value: Object) -> Object:
        return decode_record((await self._registry.create(resource, namespace, value, self._options)).record)

    async def replace(self, resource: Resource, namespace: str, value: Object, *, subresource: str = "") -> Object:
        name = value["metadata"]["name"]
        done = await self._registry.replace(resource, namespace, name, value, self._options, subresource=subresource)
        return decode_record(done.record)

    async def edit(
        self, resource: Resource, namespace: str, name: str, edit: Edit, *, subresource: str = ""
    ) -> Object:
        done = await self._registry.change(resource, namespace, name, edit, self._options, subresource=subresource)
        return decode_record(done.record)

    async def delete(self, resource: Resource, namespace: str, name: str) -> None:
        try:
            await self._registry.delete(resource, namespace, name, options=self._options)
        except ApiError as error:
            if error.code != 404:
                raise


class RemoteObjects:
    """The objects of an API server elsewhere. `timeout` in seconds; enter it as a context."""

    def __init__(self, access: Access, manager: str, *, timeout: float = 10.0) -> None:
        self._client = ObjectClient(access, manager, timeout=timeout)

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.__aexit__(*error)

    async def read(self, resource: Resource, namespace: str, name: str) -> Object | None:
        return await self._client.get(_api_path(resource, namespace, name))

    async def read_newest(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """Read an object: without a resourceVersion the API server answers with its newest state."""
        return await self.read(resource, namespace, name)

    async def list(self, resource: Resource, namespace: str = "") -> list[Object]:
        return [_with_type(resource, each) for each in await self._client.list(_api_path(resource, namespace))]

    async def create(self, resource: Resource, namespace: str, value: Object) -> Object:
        return await self._client.create(_api_path(resource, namespace), _with_type(resource, value))

    async def replace(self, resource: Resource, namespace: str, value: Object, *, subresource: str = "") -> Object:
        path = _api_path(resource, namespace, value["metadata"]["name"], subresource)
        return await self._client.replace(path, _with_type(resource, value))

    async def edit(
        self, resource: Resource, namespace: str, name: str, edit: Edit, *, subresource: str = ""
    ) -> Object:
        path = _api_path(resource, namespace, name)
        return await self._client.update(
            path, lambda value: _with_type(resource, edit(value)), subresource=subresource
        )

    async def delete(self, resource: Resource, namespace: str, name: str) -> None:
        await self._client.delete(_api_path(resource, namespace, name))

    async def send_request(self, method: str, path: str, body: Any = None) -> Object:
        """Send a request to one of vipwire's own pages. An answer longer than LONGEST is cut, and so invalid."""
        return await self._client.ask(method, path, body, most=LONGEST)


def _api_path(resource: Resource, namespace: str, name: str = "", subresource: str = "") -> str:
    return path_of(resource.base, resource.plural, namespace if resource.namespaced else "", name, subresource)


def _with_type(resource: Resource, value: Object) -> Object:
    return {"apiVersion": resource.api_version, "kind": resource.kind} | value
