"""Reads and writes single objects of a cluster, from the machine that has the store or from any other.

What runs on every machine (its Node, its Leases, probes) is written once, against `Objects`. On a machine with an API
server it works on the registry in the same process, on all others over HTTPS. Both raise ApiError for what the API
refuses: 404, and 409 for a state that somebody else has changed meanwhile.
"""

from typing import Any, Final, Protocol, Self

from vipwire.kube.access.access import Access
from vipwire.kube.errors import ApiError
from vipwire.kube.objects import Edit, ObjectClient, path_of
from vipwire_up.api.change import Options
from vipwire_up.api.objects.errors import internal
from vipwire_up.api.objects.object import decoded, key_of
from vipwire_up.api.objects.resource import Object, Resource
from vipwire_up.api.registry import Registry
from vipwire_up.store.record import StoreError

LONGEST: Final = 64 << 10
"""Bytes of an answer that is no object of the API: a few certificates."""


class Objects(Protocol):
    """A cluster's objects. Raise ApiError for a refusal, UnreachableError where nobody answers."""

    async def read(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """Read an object; None if there is none."""

    async def read_newest(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """Read an object as the last acknowledged write of any API server left it; None if there is none."""

    async def list(self, resource: Resource, namespace: str = "") -> list[Object]:
        """List the objects of a kind, of one namespace or of all."""

    async def create(self, resource: Resource, namespace: str, value: Object) -> Object:
        """Create an object; raise ApiError 409 if there is one."""

    async def replace(self, resource: Resource, namespace: str, value: Object, *, subresource: str = "") -> Object:
        """Replace the state that the value's resourceVersion names; raise ApiError 409 if it is an old one."""

    async def edit(
        self, resource: Resource, namespace: str, name: str, edit: Edit, *, subresource: str = ""
    ) -> Object:
        """Change an object, whatever its current state is. Raise ApiError 404."""

    async def delete(self, resource: Resource, namespace: str, name: str) -> None:
        """Delete an object; one that is not there is well."""


class LocalObjects:
    """The objects of the registry in this process."""

    def __init__(self, registry: Registry, manager: str) -> None:
        self._registry, self._options = registry, Options(manager=manager, validation="Ignore")

    async def read(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """Read an object."""
        record = self._registry.store.read(key_of(resource, namespace, name))
        return decoded(record) if record is not None else None

    async def read_newest(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """Read an object once everything that was acknowledged is visible here."""
        try:
            await self._registry.store.newest()
        except StoreError as error:
            raise internal(str(error)) from error
        return await self.read(resource, namespace, name)

    async def list(self, resource: Resource, namespace: str = "") -> list[Object]:
        """List objects."""
        found = self._registry.store.scan(resource.id)
        return [decoded(each) for each in found if namespace in ("", each.key.namespace)]

    async def create(self, resource: Resource, namespace: str, value: Object) -> Object:
        """Create an object."""
        return decoded((await self._registry.create(resource, namespace, value, self._options)).record)

    async def replace(self, resource: Resource, namespace: str, value: Object, *, subresource: str = "") -> Object:
        """Replace an object."""
        name = value["metadata"]["name"]
        done = await self._registry.replace(resource, namespace, name, value, self._options, subresource=subresource)
        return decoded(done.record)

    async def edit(
        self, resource: Resource, namespace: str, name: str, edit: Edit, *, subresource: str = ""
    ) -> Object:
        """Change an object."""
        done = await self._registry.change(resource, namespace, name, edit, self._options, subresource=subresource)
        return decoded(done.record)

    async def delete(self, resource: Resource, namespace: str, name: str) -> None:
        """Delete an object."""
        try:
            await self._registry.delete(resource, namespace, name, options=self._options)
        except ApiError as error:
            if error.code != 404:
                raise


class RemoteObjects:
    """The objects of an API server elsewhere. `timeout` in seconds; to be entered as a context."""

    def __init__(self, access: Access, manager: str, *, timeout: float = 10.0) -> None:
        self._client = ObjectClient(access, manager, timeout=timeout)

    async def __aenter__(self) -> Self:
        """Open it."""
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close it."""
        await self._client.__aexit__(*error)

    async def read(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """Read an object."""
        return await self._client.get(_path(resource, namespace, name))

    async def read_newest(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """Read an object: without a resourceVersion the API server answers with its newest state."""
        return await self.read(resource, namespace, name)

    async def list(self, resource: Resource, namespace: str = "") -> list[Object]:
        """List objects."""
        return [_whole(resource, each) for each in await self._client.list(_path(resource, namespace))]

    async def create(self, resource: Resource, namespace: str, value: Object) -> Object:
        """Create an object."""
        return await self._client.create(_path(resource, namespace), _whole(resource, value))

    async def replace(self, resource: Resource, namespace: str, value: Object, *, subresource: str = "") -> Object:
        """Replace an object."""
        path = _path(resource, namespace, value["metadata"]["name"], subresource)
        return await self._client.replace(path, _whole(resource, value))

    async def edit(
        self, resource: Resource, namespace: str, name: str, edit: Edit, *, subresource: str = ""
    ) -> Object:
        """Change an object."""
        path = _path(resource, namespace, name)
        return await self._client.update(path, lambda value: _whole(resource, edit(value)), subresource=subresource)

    async def delete(self, resource: Resource, namespace: str, name: str) -> None:
        """Delete an object."""
        await self._client.delete(_path(resource, namespace, name))

    async def ask(self, method: str, path: str, body: Any = None) -> Object:
        """Send a request to one of our own pages. An answer longer than LONGEST is cut, and so none."""
        return await self._client.ask(method, path, body, most=LONGEST)


def _path(resource: Resource, namespace: str, name: str = "", subresource: str = "") -> str:
    return path_of(resource.base, resource.plural, namespace if resource.namespaced else "", name, subresource)


def _whole(resource: Resource, value: Object) -> Object:
    return {"apiVersion": resource.api_version, "kind": resource.kind} | value
