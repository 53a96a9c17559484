"""Reads and writes single objects of an API server, by path.

Each call returns the server's answer or raises: ApiError for a refusal, UnreachableError without a server. Sets the
timeout, the field manager and the retries of an update.
"""

from collections.abc import Callable
from typing import Any, Final, Self, TypeAlias, TypeVar

import msgspec

from vipwire.http_client.client import reason_of
from vipwire.kube.access.access import Access
from vipwire.kube.access.connection import TRANSPORT_ERRORS, Connection, Payload
from vipwire.kube.errors import ApiError, OtherReplicaElectedError, UnreachableError
from vipwire.kube.resource import BROKEN
from vipwire.model.text import escape_invisible

Object: TypeAlias = dict[str, Any]
"""An object as JSON."""
Query: TypeAlias = tuple[tuple[str, str], ...]
Edit: TypeAlias = Callable[[Object], Object]
T = TypeVar("T")
APPLY: Final = "application/apply-patch+yaml"
_JSON: Final = "application/json"
_MERGE: Final = "application/merge-patch+json"
_ATTEMPTS: Final = 5
_LONGEST_MESSAGE: Final = 500


def path_of(base: str, plural: str, namespace: str = "", name: str = "", subresource: str = "") -> str:
    """Return the path of an object, of a namespace's objects, or of all; `base` is that of group and version."""
    return "/".join(filter(None, (base, f"namespaces/{namespace}" if namespace else "", plural, name, subresource)))


class ObjectClient:
    """A client of one API server; enter it as a context. `manager` owns the fields that it writes."""

    def __init__(self, access: Access, manager: str, *, timeout: float = 10.0) -> None:
        self._connection, self._manager, self._timeout = Connection(access, manager), manager, timeout

    async def __aenter__(self) -> Self:
        await self._connection.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._connection.__aexit__(*error)

    async def get(self, path: str) -> Object | None:
        """Read an object; None if it does not exist."""
        return await self.read(path, dict[str, Any])

    async def read(self, path: str, kind: type[T]) -> T | None:
        """Read an object into a struct; None if it does not exist."""
        try:
            return _decode(await self._send("GET", path), kind)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    async def list(self, path: str, query: Query = ()) -> list[Object]:
        """List objects; items of a list have no kind."""
        return (await self.ask("GET", path, query=query)).get("items") or []

    async def create(self, path: str, value: Object) -> Object:
        """Create an object at the path of its collection; ApiError 409 if the name is taken."""
        return await self.ask("POST", path, value, query=(("fieldManager", self._manager),))

    async def replace(self, path: str, value: Object) -> Object:
        """Replace the state with the value's resourceVersion; ApiError 409 if that has changed."""
        return await self.ask("PUT", path, value, query=(("fieldManager", self._manager),))

    async def update(self, path: str, edit: Edit, *, subresource: str = "") -> Object:
        """Read an object, edit it and replace it; again if another writer was first."""
        target = f"{path}/{subresource}" if subresource else path
        for left in reversed(range(_ATTEMPTS)):
            value = edit(await self.ask("GET", path))
            try:
                return await self.replace(target, value)
            except ApiError as error:
                if error.code != 409 or not left:
                    raise
        raise AssertionError  # pragma: no cover  # the last attempt raises

    async def apply(self, path: str, value: Object) -> Object:
        """Apply an object (server-side apply), taking over fields from other managers."""
        query = (("fieldManager", self._manager), ("force", "true"))
        return await self.ask("PATCH", path, value, query=query, content_type=APPLY)

    async def merge(self, path: str, patch: Object) -> Object:
        return await self.ask("PATCH", path, patch, content_type=_MERGE)

    async def delete(self, path: str, query: Query = ()) -> None:
        """Delete an object, if it exists."""
        try:
            await self.ask("DELETE", path, query=query)
        except ApiError as error:
            if error.code != 404:
                raise

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Query = (),
        content_type: str = _JSON,
        most: int = 0,
    ) -> Object:
        """Send any request. `most` truncates a longer answer, which is then no JSON."""
        payload = None if body is None else Payload(msgspec.json.encode(body), content_type)
        return _decode(await self._send(method, path, query, payload, most=most), dict[str, Any])

    async def _send(
        self, method: str, path: str, query: Query = (), payload: Payload | None = None, *, most: int = 0
    ) -> bytes | bytearray:
        try:
            async with self._connection.request(
                method, path, query, timeout=self._timeout, payload=payload
            ) as response:
                status, content = response.status, await (response.read_at_most(most) if most else response.read())
        except TRANSPORT_ERRORS as error:
            raise UnreachableError(f"the API server does not answer: {reason_of(error)}") from None
        if status >= 300:
            raise _build_api_error(status, content)
        return content


class FencedObjects(ObjectClient):
    """A client whose writes end with its election: raises OtherReplicaElectedError once `holds` returns False."""

    def __init__(self, access: Access, manager: str, holds: Callable[[], bool], *, timeout: float = 10.0) -> None:
        super().__init__(access, manager, timeout=timeout)
        self._holds = holds

    async def _send(
        self, method: str, path: str, query: Query = (), payload: Payload | None = None, *, most: int = 0
    ) -> bytes | bytearray:
        if method != "GET" and not self._holds():
            raise OtherReplicaElectedError("another replica is the elected leader")
        return await super()._send(method, path, query, payload, most=most)


def _build_api_error(status: int, content: bytes | bytearray) -> ApiError:
    try:
        value = msgspec.json.decode(content)
    except BROKEN:
        value = None
    value = value if isinstance(value, dict) else {}
    message = str(value.get("message") or f"the API server answered {status}")
    details = value.get("details")
    return ApiError(
        status,
        str(value.get("reason") or ""),
        escape_invisible(message)[:_LONGEST_MESSAGE],
        details if isinstance(details, dict) else {},
    )


def _decode(content: bytes | bytearray, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(content or b"{}", type=kind)
    except BROKEN:
        raise UnreachableError("the answer is not a JSON object of the API server") from None
