"""`vipwire up` in this process, without proxy and DNS, with objects put into its store past the API.

await put(folder, {"kind": "Pod", ...})
async with up(folder) as here:
    code, body = await here.ask("GET", "/readyz?verbose")
"""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from tests.up.unit.cluster_here import Events, running

from vipwire_up.api.kinds.catalogue import RESOURCES
from vipwire_up.api.objects.object import encode
from vipwire_up.store.database import Database
from vipwire_up.store.embedded import EmbeddedStore
from vipwire_up.store.record import Key, Write
from vipwire_up.up import Setting, run_cluster

BY_KIND = {resource.kind: resource for resource in RESOURCES}


def key_of(value: Any) -> Key:
    resource, meta = BY_KIND[value["kind"]], value["metadata"]
    return Key(resource.id, meta.get("namespace", "") if resource.namespaced else "", meta["name"])


def whole(value: Any) -> dict[str, Any]:
    """Complete an object with the fields that every stored object has."""
    resource = BY_KIND[value["kind"]]
    meta = {"uid": f"uid-{value['metadata']['name']}", "creationTimestamp": "2026-01-01T00:00:00Z"}
    place = {"namespace": "default"} if resource.namespaced else {}
    made: dict[str, Any] = {"apiVersion": resource.api_version} | value
    return made | {"metadata": meta | place | value["metadata"]}


async def write(store: EmbeddedStore, *values: Any) -> None:
    """Put objects into a running store, past the API."""
    for value in map(whole, values):
        body = encode(value)
        found = store.head(key_of(value))
        await store.write(Write(key_of(value), lambda _, body=body: body, found.revision if found else 0))  # type: ignore[misc]


async def put(folder: Path, *values: Any) -> None:
    """Put objects into a folder's store, past the API."""
    async with running(EmbeddedStore(Database(folder))) as store:
        await write(store, *values)


@dataclass
class Up:
    session: aiohttp.ClientSession
    url: str
    running: "asyncio.Task[None]"

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json"} if data else {}
        async with self.session.request(method, self.url + path, data=data, headers=headers) as response:
            text = await response.text()
            kind = response.headers.get("Content-Type", "")
            return response.status, json.loads(text) if kind.startswith("application/json") else text

    async def patch(self, path: str, body: Any) -> tuple[int, Any]:
        headers = {"Content-Type": "application/merge-patch+json"}
        async with self.session.patch(self.url + path, data=json.dumps(body), headers=headers) as response:
            return response.status, await response.json()

    async def until(self, path: str, wanted: Any) -> Any:
        """Watch objects until one is as wanted; the cluster must run meanwhile."""
        async with self.session.get(f"{self.url}{path}?watch=1") as response:
            events = Events(response)
            while True:
                kind, value = await events.next()
                assert not self.running.done()
                if kind != "BOOKMARK" and wanted(value):
                    return value

    async def serves_others(self) -> None:
        """Check that the cluster serves: create a Service and a Pod, and wait for the Service's endpoint."""
        ports = [{"port": 80, "targetPort": 8080}]
        service = {"metadata": {"name": "good"}, "spec": {"ports": ports, "selector": {"app": "good"}}}
        meta = {"name": "good", "labels": {"app": "good"}, "annotations": {"vipwire.io/address": "10.1.0.5"}}
        pod = {"metadata": meta, "spec": {"containers": [{"name": "web", "image": "none"}]}}
        for path, body in (("services", service), ("pods", pod)):
            code, answer = await self.ask("POST", f"/api/v1/namespaces/default/{path}", body)
            assert code == 201, answer
        path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
        await self.until(
            path, lambda value: value["metadata"].get("generateName") == "good-" and value.get("endpoints")
        )


@contextlib.asynccontextmanager
async def up(folder: Path, **flags: Any) -> AsyncIterator[Up]:
    started: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    setting = Setting(folder, port=0, **flags)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        task = tasks.create_task(run_cluster(setting, lambda url, _: started.set_result(url)))
        await asyncio.wait((task, started), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        trusting = ssl.create_default_context(cafile=str(folder / "pki/ca.crt"))
        token = (folder / "tokens.csv").read_text().partition(",")[0]
        connector = aiohttp.TCPConnector(ssl=trusting)
        headers = {"Authorization": f"Bearer {token}"}
        async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
            yield Up(session, started.result(), task)
        task.cancel()
