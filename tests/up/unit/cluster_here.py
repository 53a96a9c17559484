"""A cluster's API in this process, for tests: a real store, a real registry, a real server on loopback, without TLS.

    async with cluster(folder) as here:
        code, body = await here.send("POST", "/api/v1/namespaces", {...})

The user of a request is whoever the header X-User says: admin unless told otherwise.
"""

import asyncio
import contextlib
import dataclasses
import io
import itertools
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import aiohttp
from tests.fakes.coroutine_tests import CoroutineTest, runs_in

from vipwire.http_server.exchange import Exchange
from vipwire.http_server.server import Serving
from vipwire_up.api.admission import Admission, AdmissionRequest, Admitted
from vipwire_up.api.change import Options
from vipwire_up.api.damaged_records import is_readable
from vipwire_up.api.kinds.small_kinds import NAMESPACES
from vipwire_up.api.registry import Registry
from vipwire_up.api.server import ApiServer
from vipwire_up.api.serving.authorization import ANONYMOUS, Role, User
from vipwire_up.api.serving.limits import Bounds
from vipwire_up.store.database import Database
from vipwire_up.store.embedded import EmbeddedStore
from vipwire_up.store.etcd.store import EtcdStore

START = datetime(2026, 1, 1, 12, tzinfo=UTC)
SERVICES = "/api/v1/namespaces/default/services"
USERS = {role.name.lower(): User(role.name.lower(), (role.value,)) for role in Role} | {"nobody": User("nobody")}


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now

    def move(self, **by: float) -> None:
        self.now += timedelta(**by)


class SentBy:
    """A hook that also sees `caller`'s changes as external ones, although they are made in this process."""

    def __init__(self, hook: Admission) -> None:
        self._hook = hook
        self.caller: User | None = None

    def __call__(self, attempt: AdmissionRequest) -> Admitted | None:
        return self._hook(dataclasses.replace(attempt, caller=self.caller))


@dataclass
class Here:
    store: EmbeddedStore
    registry: Registry
    clock: Clock
    session: aiohttp.ClientSession
    url: str
    serving: Serving
    server: ApiServer
    warnings: Sequence[str] = ()

    async def send(
        self, method: str, path: str, body: Any = None, *, patch: str = "", user: str = "admin", **headers: str
    ) -> tuple[int, Any]:
        """Send a request, with `patch` as the kind of a patch; return status code and body."""
        sent = {"X-User": user} | {name.replace("_", "-"): value for name, value in headers.items()}
        if patch:
            sent["Content-Type"] = f"application/{patch}"
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        if data is not None:
            sent.setdefault("Content-Type", "application/json")
        content = None if data is None else io.BytesIO(data)
        async with self.session.request(method, self.url + path, data=content, headers=sent) as response:
            text = await response.text()
            self.warnings = response.headers.getall("Warning", [])
            kind = response.headers.get("Content-Type", "")
            return response.status, json.loads(text) if kind.startswith("application/json") else text

    def bound(self, **bounds: float) -> None:
        """Change timeouts from now on; earlier steps may take as long as the machine needs."""
        self.server.bounds = self.serving.room.limits = dataclasses.replace(self.server.bounds, **bounds)  # type: ignore[arg-type]

    def connections(self) -> int:
        return len(self.serving.connections)

    async def post(self, path: str, body: Any) -> Any:
        """Create an object, which must succeed."""
        code, answer = await self.send("POST", path, body)
        assert code == 201, answer
        return answer

    @contextlib.asynccontextmanager
    async def watch(self, path: str, **headers: str) -> AsyncIterator["Events"]:
        sent = {"X-User": "admin"} | headers
        async with self.session.get(self.url + path, headers=sent) as response:
            assert response.status == 200, await response.text()
            yield Events(response)


class Events:
    """The events of a watch, one at a time."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def next(self) -> tuple[str, Any]:
        async with asyncio.timeout(60):
            line = await self._response.content.readline()
        if not line:
            raise EOFError("the watch has ended")
        event = json.loads(line)
        return event["type"], event["object"]

    async def names(self, count: int) -> list[tuple[str, str]]:
        """Read events as types with their objects' names."""
        found = [await self.next() for _ in range(count)]
        return [(kind, value["metadata"].get("name", "")) for kind, value in found]


def identify(request: Exchange) -> User:
    name = request.headers.get("x-user", "nobody")
    return ANONYMOUS if name == "anonymous" else USERS[name]


@contextlib.asynccontextmanager
async def cluster(
    folder: Path,
    *,
    hooks: Sequence[Admission] = (),
    make_hooks: Callable[[EmbeddedStore], Sequence[Admission]] = lambda _: (),
    bookmark_every: float = 60.0,
    bounds: Bounds | None = None,
    keep: int = 10_000,
    limit: int = 0,
) -> AsyncIterator[Here]:
    """Run a cluster with the namespace `default`."""
    async with running(EmbeddedStore(Database(folder, limit=limit), is_readable, keep=keep)) as store:
        clock = Clock()
        registry = Registry(store, clock, (*hooks, *make_hooks(store)))
        if not store.count(NAMESPACES.id):
            await registry.create(NAMESPACES, "", {"metadata": {"name": "default"}}, Options())
        server = ApiServer(registry, identify, bookmark_every=bookmark_every, bounds=bounds)
        serving, port = await server.listen("127.0.0.1", 0, None)
        try:
            async with aiohttp.ClientSession(read_bufsize=4 << 20) as session:
                yield Here(store, registry, clock, session, f"http://127.0.0.1:{port}", serving, server)
        finally:
            await serving.close()


AStore = TypeVar("AStore", EmbeddedStore, EtcdStore)


@contextlib.asynccontextmanager
async def running(store: AStore) -> AsyncIterator[AStore]:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(store.run())
        await asyncio.sleep(0)  # cancelling a task before its first step would close nothing
        try:
            yield store
        finally:
            task.cancel()


_NUMBERS = itertools.count()


def service(name: str = "", **spec: Any) -> dict[str, Any]:
    ports = [{"port": 80, "targetPort": 8080}]
    meta = {"name": name or f"service-{next(_NUMBERS)}"}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"ports": ports} | spec}


def pod(name: str = "web", container: Mapping[str, Any] = MappingProxyType({}), **parts: Any) -> dict[str, Any]:
    """Make a Pod with one container; `parts` has its other parts, such as `spec`."""
    main = {"name": "main", "image": "none"} | dict(container)
    meta, spec = {"name": name} | parts.pop("metadata", {}), {"containers": [main]} | parts.pop("spec", {})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, **parts}


def in_cluster(**settings: Any) -> Callable[[CoroutineTest], CoroutineTest]:
    return runs_in(lambda folder: cluster(folder, **settings))
