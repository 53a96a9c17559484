"""Reads and writes single objects of a cluster, from the machine that has the store or from any other.

What runs on every machine (its Node, its Leases, probes) is written once, against `Objects`. On a machine with an API
server it works on the registry in the same process, on all others over HTTPS. Both raise ApiError for what the API
refuses: 404, and 409 for a state that somebody else has changed meanwhile.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol, Self

import msgspec

from vipwire.errors import VipwireError
from vipwire.http.client import reason_of
from vipwire.kube.access.access import Access
from vipwire.kube.access.connection import TRANSPORT_ERRORS, Connection, Payload
from vipwire.model.text import visible
from vipwire_up.api.bodies.sent import Options
from vipwire_up.api.objects.errors import ApiError
from vipwire_up.api.objects.object import decoded, key_of
from vipwire_up.api.objects.resource import Object, Resource
from vipwire_up.api.registry import Registry

_ATTEMPTS: Final = 5
LONGEST: Final = 64 << 10
"""Bytes of an answer that is no object of the API: a few certificates."""
_LONGEST_MESSAGE: Final = 500
Edit = Callable[[Object], Object]


class UnreachableError(VipwireError):
    """No API server answers."""


class Objects(Protocol):
    """A cluster's objects. Raise ApiError for a refusal, UnreachableError where nobody answers."""

    async def read(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """Read an object; None if there is none."""

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
        self._connection = Connection(access, manager)
        self._manager, self._timeout = manager, timeout

    async def __aenter__(self) -> Self:
        """Open it."""
        await self._connection.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close it."""
        await self._connection.__aexit__(*error)

    async def read(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """Read an object."""
        try:
            return await self._ask("GET", path_of(resource, namespace, name))
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    async def list(self, resource: Resource, namespace: str = "") -> list[Object]:
        """List objects."""
        found = await self._ask("GET", path_of(resource, namespace))
        about = {"apiVersion": resource.api_version, "kind": resource.kind}
        return [about | each for each in found.get("items") or ()]

    async def create(self, resource: Resource, namespace: str, value: Object) -> Object:
        """Create an object."""
        return await self._ask("POST", path_of(resource, namespace), _whole(resource, value))

    async def replace(self, resource: Resource, namespace: str, value: Object, *, subresource: str = "") -> Object:
        """Replace an object."""
        path = path_of(resource, namespace, value["metadata"]["name"], subresource)
        return await self._ask("PUT", path, _whole(resource, value))

    async def edit(
        self, resource: Resource, namespace: str, name: str, edit: Edit, *, subresource: str = ""
    ) -> Object:
        """Change an object: read, change, replace; again if somebody else was first."""
        for left in reversed(range(_ATTEMPTS)):
            value = edit(await self._ask("GET", path_of(resource, namespace, name)))
            try:
                return await self.replace(resource, namespace, value, subresource=subresource)
            except ApiError as error:
                if error.code != 409 or not left:
                    raise
        raise AssertionError  # pragma: no cover  # the last attempt raises

    async def delete(self, resource: Resource, namespace: str, name: str) -> None:
        """Delete an object."""
        try:
            await self._ask("DELETE", path_of(resource, namespace, name))
        except ApiError as error:
            if error.code != 404:
                raise

    async def ask(self, method: str, path: str, body: Any = None) -> Object:
        """Send any other request. An answer longer than LONGEST is cut, and so none."""
        return await self._ask(method, path, body, most=LONGEST)

    async def _ask(self, method: str, path: str, body: Any = None, *, most: int = 0) -> Object:
        payload = None if body is None else Payload(msgspec.json.encode(body))
        query = (("fieldManager", self._manager),) if method in ("POST", "PUT") and "/vipwire.io/" not in path else ()
        try:
            async with self._connection.request(
                method, path, query, timeout=self._timeout, payload=payload
            ) as response:
                status, content = response.status, await (response.read_at_most(most) if most else response.read())
        except TRANSPORT_ERRORS as error:
            raise UnreachableError(f"the API server does not answer: {reason_of(error)}") from None
        value = _decoded(content)
        if status >= 300:
            said = str((value or {}).get("message") or f"the API server answered {status}")
            raise ApiError(status, str((value or {}).get("reason") or ""), visible(said)[:_LONGEST_MESSAGE])
        if value is None:
            raise UnreachableError("the answer is not a JSON object that the API server writes")
        return value


def _decoded(content: bytes | bytearray) -> Object | None:
    """Read an answer; None for one that is not a JSON object."""
    try:
        value = msgspec.json.decode(content) if content else {}
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def path_of(resource: Resource, namespace: str, name: str = "", subresource: str = "") -> str:
    """Write the path of an object, or of all in a namespace, or of all."""
    place = f"namespaces/{namespace}" if resource.namespaced and namespace else ""
    return "/".join(filter(None, (resource.base, place, resource.plural, name, subresource)))


def _whole(resource: Resource, value: Object) -> Object:
    return {"apiVersion": resource.api_version, "kind": resource.kind} | value
