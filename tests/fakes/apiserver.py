"""A fake Kubernetes API server: list, watch, selectors, bookmarks, writes, and faults on demand.

In a test: `async with FakeApiServer() as server: ...`, then `server.store.put("services", {...})`. As a process:
`python -m tests.fakes.apiserver --manifests DIR --port 8001` or `--services 10000 --endpoints 10`; clients then
create, replace and delete objects by POST, PUT, PATCH and DELETE on the usual paths.
"""

import argparse
import asyncio
import contextlib
import hmac
import json
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import yaml
from aiohttp import web
from tests.fakes.apistore import COLLECTIONS, ApiError, ApiStore, Change, Collection, Matches, selector
from tests.fakes.objects import node, service, service_cidr, slice_of

_END = object()


@dataclass(slots=True)
class Fault:
    """A fault of a collection's lists or watches, `times` times."""

    code: int
    times: int = 1
    verb: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """A received request; `client` is the common name of the client's certificate."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    client: str = ""


@dataclass(slots=True, eq=False)
class _Watcher:
    plural: str
    matches: Matches
    queue: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)


class FakeApiServer:
    """The server. `faults[plural]` come first; every answer waits `latency` seconds."""

    def __init__(
        self,
        store: ApiStore | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        token: str = "",
        bookmark_every: float = 60.0,
    ) -> None:
        self.store = store or ApiStore()
        self.store.on_change = self._changed
        self.token = token
        self.latency = 0.0
        self.faults: dict[str, deque[Fault]] = {collection.plural: deque() for collection in COLLECTIONS}
        self.seen: list[Seen] = []
        self.url = ""
        self._tls = tls
        self._bookmark_every = bookmark_every
        self._watchers: set[_Watcher] = set()
        self._happened = asyncio.Condition()
        self._runner: web.AppRunner | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen; port 0 is any free one. `url` is then set."""
        app = web.Application(client_max_size=64 << 20, middlewares=[self._guard])
        for collection in COLLECTIONS:
            self._route(app, collection)
        app.router.add_get("/version", _version)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, ssl_context=self._tls)
        await site.start()
        bound = self._runner.addresses[0][1]
        self.url = f"{'https' if self._tls else 'http'}://{f'[{host}]' if ':' in host else host}:{bound}"

    async def stop(self) -> None:
        """Close everything; `start` with the same port restarts it."""
        self.end_watches()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def fail(self, plural: str, fault: Fault) -> None:
        """Let the next answers of a collection fail."""
        self.faults[plural].append(fault)

    def end_watches(self, plural: str = "") -> None:
        """End watches orderly, as at their timeout."""
        self._warn_once(plural, _END)

    def send_error(self, plural: str, code: int, reason: str) -> None:
        status = json.dumps({"type": "ERROR", "object": ApiError(code, reason, reason).status()})
        self._warn_once(plural, status.encode() + b"\n")

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition that requests and watches change; raise TimeoutError after 60 s."""
        async with asyncio.timeout(60), self._happened:
            await self._happened.wait_for(condition)

    def watching(self, plural: str) -> int:
        """Return the number of open watches."""
        return sum(watcher.plural == plural for watcher in self._watchers)

    def requests(self, plural: str, *, watch: bool) -> list[Seen]:
        """Return the received lists or watches of a collection."""
        paths = tuple(f"{collection.base}/{plural}" for collection in COLLECTIONS)
        return [seen for seen in self.seen if seen.path in paths and ("watch" in seen.query) == watch]

    def _warn_once(self, plural: str, item: object) -> None:
        for watcher in self._watchers:
            if plural in ("", watcher.plural):
                watcher.queue.put_nowait(item)

    def _changed(self, plural: str, change: Change) -> None:
        for watcher in self._watchers:
            if watcher.plural == plural and (line := change.seen_by(watcher.matches)):
                watcher.queue.put_nowait(line)

    def _bookmark(self, plural: str) -> bytes:
        collection = self.store.shelves[plural].collection
        value = {
            "kind": collection.kind,
            "apiVersion": collection.version,
            "metadata": {"resourceVersion": str(self.store.version)},
        }
        return json.dumps({"type": "BOOKMARK", "object": value}).encode() + b"\n"

    def _route(self, app: web.Application, collection: Collection) -> None:
        prefixes = [f"{collection.base}/{collection.plural}"]
        if collection.namespaced:
            prefixes.append(f"{collection.base}/namespaces/{{namespace}}/{collection.plural}")

        def bound(
            handler: Callable[[web.Request, Collection], Awaitable[web.StreamResponse]],
        ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
            async def handle(request: web.Request) -> web.StreamResponse:
                return await handler(request, collection)

            return handle

        for prefix in prefixes:
            app.router.add_get(prefix, bound(self._list_or_watch))
            app.router.add_post(prefix, bound(self._write))
            for method in ("GET", "PUT", "PATCH", "DELETE"):
                app.router.add_route(method, f"{prefix}/{{name}}", bound(self._one))

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        client = _common_name(request)
        self.seen.append(Seen(request.method, request.path, dict(request.query), dict(request.headers), client))
        await self._notify()
        if self.latency:
            await asyncio.sleep(self.latency)
        try:
            self._authenticate(request.headers.get("Authorization", ""))
            return await handler(request)
        except ApiError as error:
            return web.json_response(error.status(), status=error.code)
        except web.HTTPNotFound:
            return web.json_response(ApiError(404, "NotFound", "no such resource").status(), status=404)

    def _authenticate(self, given: str) -> None:
        if self.token and not hmac.compare_digest(given, f"Bearer {self.token}"):
            raise ApiError(401, "Unauthorized", "Unauthorized")

    async def _list_or_watch(self, request: web.Request, collection: Collection) -> web.StreamResponse:
        query, plural = request.query, collection.plural
        watch = query.get("watch") in ("true", "1")
        faults = self.faults[plural]
        if faults and faults[0].verb in ("", "watch" if watch else "list"):
            return self._fault(plural)
        matches = selector(
            query.get("labelSelector", ""),
            query.get("fieldSelector", ""),
            request.match_info.get("namespace", ""),
            collection.fields,
        )
        if watch:
            return await self._watch(request, plural, matches)
        page = self.store.page(plural, matches, int(query.get("limit", "0")), query.get("continue", ""))
        return web.Response(body=page, content_type="application/json")

    def _fault(self, plural: str) -> web.Response:
        fault = self.faults[plural][0]
        fault.times -= 1
        if not fault.times:
            self.faults[plural].popleft()
        status = json.dumps(ApiError(fault.code, "Fault", "on demand").status()).encode()
        body = status if fault.body is None else fault.body
        return web.Response(status=fault.code, body=body, headers=fault.headers, content_type="application/json")

    async def _watch(self, request: web.Request, plural: str, matches: Matches) -> web.StreamResponse:
        replay = [
            change.seen_by(matches) for change in self.store.since(plural, int(request.query["resourceVersion"]))
        ]
        watcher = _Watcher(plural, matches)
        for line in replay:
            if line:
                watcher.queue.put_nowait(line)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        async with self._registered(watcher):
            await response.prepare(request)
            limit = float(request.query.get("timeoutSeconds", "3600"))
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(limit):
                    await self._feed(request, response, watcher)
        return response

    @contextlib.asynccontextmanager
    async def _registered(self, watcher: _Watcher) -> AsyncIterator[None]:
        self._watchers.add(watcher)
        await self._notify()
        try:
            yield
        finally:
            self._watchers.discard(watcher)
            await self._notify()

    async def _notify(self) -> None:
        async with self._happened:
            self._happened.notify_all()

    async def _feed(self, request: web.Request, response: web.StreamResponse, watcher: _Watcher) -> None:
        bookmarks = request.query.get("allowWatchBookmarks") == "true"
        while True:
            try:
                async with asyncio.timeout(self._bookmark_every):
                    item = await watcher.queue.get()
            except TimeoutError:
                if bookmarks:
                    await response.write(self._bookmark(watcher.plural))
                continue
            if item is _END:
                return
            await response.write(item)

    async def _write(self, request: web.Request, collection: Collection) -> web.StreamResponse:
        value = self._with_namespace(request, await request.json())
        return web.json_response(self.store.put(collection.plural, value, create=True), status=201)

    async def _one(self, request: web.Request, collection: Collection) -> web.StreamResponse:
        namespace, name = request.match_info.get("namespace", ""), request.match_info["name"]
        plural = collection.plural
        if request.method == "GET":
            return web.json_response(self.store.read(plural, namespace, name))
        if request.method == "DELETE":
            return web.json_response(self.store.delete(plural, namespace, name))
        if request.method == "PATCH":
            return web.json_response(self.store.patch(plural, namespace, name, await request.json()))
        value = self._with_namespace(request, await request.json())
        return web.json_response(self.store.put(plural, value))

    def _with_namespace(self, request: web.Request, value: dict[str, Any]) -> dict[str, Any]:
        meta = dict(value.get("metadata") or {})
        if namespace := request.match_info.get("namespace"):
            meta["namespace"] = namespace
        if name := request.match_info.get("name"):
            meta["name"] = name
        return {**value, "metadata": meta}


def _common_name(request: web.Request) -> str:
    certificate = request.transport.get_extra_info("peercert") if request.transport else None
    subject = (certificate or {}).get("subject", ())
    return next((value for part in subject for key, value in part if key == "commonName"), "")


async def _version(_request: web.Request) -> web.Response:
    return web.json_response({"major": "1", "minor": "36", "gitVersion": "v1.36.2-fake"})


def load_manifests(store: ApiStore, folder: Path) -> None:
    plurals = {collection.kind: collection.plural for collection in COLLECTIONS}
    files = sorted(folder.glob("*.y*ml")) if folder.is_dir() else [folder]
    for file in files:
        for document in yaml.safe_load_all(file.read_text(encoding="utf-8")):
            for item in (document or {}).get("items", [document]):
                if item and item.get("kind") in plurals:
                    store.put(plurals[item["kind"]], json.loads(json.dumps(item, default=str)))


def generate(store: ApiStore, services: int, endpoints: int) -> None:
    """Put a node, a ServiceCIDR and many Services with endpoints into a store."""
    store.put("nodes", node("node-0"))
    store.put("servicecidrs", service_cidr("kubernetes", "10.96.0.0/12"))
    for index in range(services):
        store.put("services", service(index))
        store.put("endpointslices", slice_of(index, endpoints))


async def _serve(arguments: argparse.Namespace) -> None:
    store = ApiStore()
    if arguments.manifests:
        load_manifests(store, arguments.manifests)
    if arguments.services:
        generate(store, arguments.services, arguments.endpoints)
    server = FakeApiServer(store)
    await server.start(arguments.host, arguments.port)
    print(server.url, flush=True)  # noqa: T201 - the caller reads where it listens
    try:
        await asyncio.Event().wait()
    finally:
        await server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description="A fake Kubernetes API server.")
    parser.add_argument("--manifests", type=Path, help="a folder or file of YAML objects to begin with")
    parser.add_argument("--services", type=int, default=0, help="how many services to generate")
    parser.add_argument("--endpoints", type=int, default=10, help="how many endpoints each of them has")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8001, help="0 takes any free one; the URL is printed")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
