"""A site for tests: a real HAProxy on loopback, Pods that are small HTTP servers, and the objects between them.

    async with site(tmp_path) as here:
        await here.pods("web", 2)
        here.put(ingress("web", rule("a.example.com", "/")))
        await here.settled()
        answer = await here.curl("http://a.example.com/")

Objects are written as in a manifest. Clients are curl and aiohttp; every host name leads to HAProxy.
"""

import asyncio
import contextlib
import datetime as dt
import json
import ssl
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import aiohttp
import msgspec
from aiohttp import WSMsgType, web
from tests.fakes.coroutine_tests import CoroutineTest, runs_in
from tests.fakes.ports import free_port

from vipwire.model.names import ObjectName
from vipwire.model.net import Prefix
from vipwire.watched_objects.event import Deleted, Listed, Upserted
from vipwire_l7.haproxy.layout import Layout
from vipwire_l7.ingress.plan.planner import IngressPlanner
from vipwire_l7.plan.destinations import Destinations, DestinationSetting
from vipwire_l7.plan.plan import Setting
from vipwire_l7.run.controller import Controller, SyncResult
from vipwire_l7.run.default_certificate import make_certificate, read_or_make_certificate
from vipwire_l7.run.desired import Desired
from vipwire_l7.run.process import Haproxy
from vipwire_l7.run.rates import ReloadTurns
from vipwire_l7.run.surroundings import DestinationFollower
from vipwire_l7.watch.kinds import RESOURCES
from vipwire_l7.watch.objects import INGRESS_KINDS, IngressKind
from vipwire_l7.watch.snapshot import Snapshot

Json = dict[str, Any]
PATIENCE = 60.0
TRIAL = DestinationSetting(ranges=(Prefix.parse("127.0.0.0/8"),))
"""The tests' Pods have loopback addresses."""


def backend(service: str, port: int | str = 80) -> Json:
    return {"service": {"name": service, "port": {"number" if isinstance(port, int) else "name": port}}}


def rule(host: str, *paths: str, service: str = "web", kind: str = "Prefix", port: int | str = 80) -> Json:
    """Write a rule with paths of one kind."""
    made = [{"path": path, "pathType": kind, "backend": backend(service, port)} for path in paths]
    return ({"host": host} if host else {}) | {"http": {"paths": made}}


def ingress(name: str, *rules: Json, annotations: dict[str, str] | None = None, **spec: Any) -> Json:
    """Write an Ingress of vipwire's class."""
    meta = {"name": name, "namespace": "default", "annotations": annotations or {}}
    body = {"ingressClassName": "vipwire"} | ({"rules": list(rules)} if rules else {}) | spec
    return {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": meta, "spec": body}


def service(name: str, **spec: Any) -> Json:
    """Write a Service with the port http, 80."""
    body = {"ports": [{"name": "http", "port": 80}]} | spec
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"}, "spec": body}


def endpoint_slice(name: str, port: int, endpoints: Sequence[Json]) -> Json:
    labels = {"kubernetes.io/service-name": name}
    meta = {"name": f"{name}-1", "namespace": "default", "labels": labels}
    body = {"addressType": "IPv4", "ports": [{"name": "http", "port": port}], "endpoints": list(endpoints)}
    return {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": meta} | body


def endpoint(address: str, **conditions: bool) -> Json:
    return {
        "addresses": [address],
        "conditions": {"ready": True} | conditions,
        "targetRef": {"name": f"pod-{address}"},
    }


def secret(name: str, **data: str) -> Json:
    """Write a Secret; underscores in keys become dots."""
    text = {key.replace("_", "."): value for key, value in data.items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": "default"},
        "stringData": text,
    }


def tls_secret(name: str, pem: str) -> Json:
    """Write a TLS Secret from a PEM of a certificate and its key."""
    certificate, _, key = pem.partition("-----BEGIN PRIVATE KEY-----")
    return secret(name, tls_crt=certificate, tls_key=f"-----BEGIN PRIVATE KEY-----{key}")


@dataclass(frozen=True)
class Answer:
    """curl's answer. `headers` are in lower case; `version` is 1.1 or 2; `body` is the Pod's JSON, if it is that."""

    code: int
    version: str
    headers: dict[str, str]
    text: str

    @property
    def seen(self) -> Any:
        """The request as the Pod saw it."""
        return json.loads(self.text)

    @property
    def pod(self) -> str:
        return str(self.seen["pod"])


@dataclass
class Site:
    """The handle of a test."""

    controller: Controller
    haproxy: Haproxy
    http: int
    https: int
    done: list[SyncResult]
    pod_port: int
    runners: dict[str, web.AppRunner] = field(default_factory=dict)
    served: list[str] = field(default_factory=list)
    released: asyncio.Event = field(default_factory=asyncio.Event)
    """When set, Pods answer requests with `X-Slow: until released`."""

    @property
    def reloads(self) -> list[str]:
        """The reasons of HAProxy's reloads, including the start."""
        return [each.reload for each in self.done if each.reload]

    @property
    def problems(self) -> str:
        return "\n".join(str(problem) for problem in self.controller.desired.problems)

    def put(self, *objects: Json) -> None:
        for each in objects:
            resource = RESOURCES[IngressKind(each["kind"])]
            made, problems = resource.convert(msgspec.convert(each, resource.type))
            if made is None:
                name = ObjectName(each["metadata"].get("namespace", ""), each["metadata"]["name"])
                self.controller.emit(Deleted(resource.kind, name, problems))
            else:
                self.controller.emit(Upserted(made, problems))

    def remove(self, kind: str, name: str) -> None:
        self.controller.emit(Deleted(cast("Any", IngressKind(kind)), ObjectName("default", name)))

    async def settled(self) -> None:
        """Wait until HAProxy has all changes."""
        async with asyncio.timeout(PATIENCE):
            await self.controller.wait_until_settled()

    async def pod(self, address: str, tls: ssl.SSLContext | None = None) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", _answering(address, self))
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, address, self.pod_port, reuse_address=True, ssl_context=tls).start()
        self.runners[address] = runner

    async def pods(self, name: str, *addresses: str) -> None:
        """Run missing Pods, and make them the Service's endpoints."""
        for address in addresses:
            if address not in self.runners:
                await self.pod(address)
        self.put(service(name), endpoint_slice(name, self.pod_port, [endpoint(each) for each in addresses]))

    async def end_pod(self, address: str) -> None:
        await self.runners.pop(address).cleanup()

    def url(self, text: str) -> str:
        """Insert the port into a URL."""
        scheme, _, rest = text.partition("://")
        host, slash, path = rest.partition("/")
        return f"{scheme}://{host}:{self.https if scheme == 'https' else self.http}{slash}{path}"

    async def codes(self, host: str, count: int) -> list[int]:
        """Send requests on new connections; return the status codes."""

        async def ask(session: aiohttp.ClientSession) -> int:
            async with session.get(f"http://127.0.0.1:{self.http}/", headers={"Host": host}) as response:
                return response.status

        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
            return await asyncio.gather(*(ask(session) for _ in range(count)))

    async def codes_of(self, *hosts: str) -> dict[str, int]:
        """Request / from hosts below example.com, once each; return the status codes."""
        return {host: (await self.curl(f"http://{host}.example.com/")).code for host in hosts}

    async def pods_of(self, url: str, *flags: str, times: int = 6) -> set[str]:
        """Send requests as new clients; return the Pods that answered."""
        return {(await self.curl(url, *flags)).pod for _ in range(times)}

    async def curl(self, url: str, *flags: str) -> Answer:
        """Send a request with curl; certificates are unchecked unless a flag says otherwise."""
        connect = f"::127.0.0.1:{self.https if url.startswith('https') else self.http}"
        command = ("curl", "-sS", "-i", "--max-time", "60", "--connect-to", connect, "-k", *flags, self.url(url))
        process = await asyncio.create_subprocess_exec(*command, stdout=-1, stderr=-1)
        output, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
        head, _, body = output.decode().replace("\r\n", "\n").partition("\n\n")
        status, *lines = head.splitlines()
        fields = (line.partition(": ") for line in lines)
        version, code = status.split()[:2]
        return Answer(
            int(code), version.removeprefix("HTTP/"), {key.lower(): value for key, _, value in fields}, body
        )


def _answering(pod: str, here: Site) -> Callable[[web.Request], Coroutine[Any, Any, web.StreamResponse]]:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return await _echo(request)
        here.served.append(pod)
        body = await request.text()
        slow = request.headers.get("X-Slow", "0")
        await (here.released.wait() if slow == "until released" else asyncio.sleep(float(slow)))
        seen = {"pod": pod, "path": request.raw_path, "headers": {k.lower(): v for k, v in request.headers.items()}}
        headers = {"X-Pod": pod, "Server": "a pod"}
        return web.json_response(seen | {"method": request.method, "size": len(body)}, headers=headers)

    return answer


async def _echo(request: web.Request) -> web.StreamResponse:
    socket_ = web.WebSocketResponse()
    await socket_.prepare(request)
    async for message in socket_:
        if message.type is WSMsgType.TEXT:
            await socket_.send_str(f"echo {message.data}")
    return socket_


def certificate(*names: str) -> str:
    return make_certificate(dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(days=365 * 54), *names)


@contextlib.asynccontextmanager
async def site(
    folder: Path,
    *,
    pause: float = 0.0,
    setting: Setting | None = None,
    destinations: DestinationSetting = TRIAL,
    resolvers: Sequence[tuple[str, int]] = (),
    turns: ReloadTurns | None = None,
    **layout: Any,
) -> AsyncIterator[Site]:
    """Run a site; HAProxy ends with it."""
    run = folder / "run"
    run.mkdir()
    http, https = free_port(), free_port()
    pem = read_or_make_certificate(run, dt.datetime.now(dt.UTC))  # noqa: TID251  # what is served must be valid now
    made = Layout(str(run), f"{run}/haproxy.sock", f"127.0.0.1:{http}", f"127.0.0.1:{https}", threads=1, **layout)
    snapshot, haproxy, done = Snapshot(), Haproxy("haproxy", run), list[SyncResult]()
    judge = Destinations(destinations)
    desired = Desired(snapshot, IngressPlanner(setting or Setting()), made, pem, judge)

    def touch(services: Collection[ObjectName]) -> None:
        controller.touch_services(services)

    follower = DestinationFollower(judge, resolvers, touch)
    controller = Controller(snapshot, desired, haproxy, done.append, pause, follower, turns)
    here = Site(controller, haproxy, http, https, done, free_port())
    for kind in INGRESS_KINDS:
        controller.emit(Listed(cast("Any", kind), ()))
    async with asyncio.TaskGroup() as tasks:
        parts = (controller.run(), controller.watch_child(), follower.run())
        running = [tasks.create_task(part) for part in parts]
        try:
            yield here
        finally:
            for task in running:
                task.cancel()
            await asyncio.wait(running)
            await haproxy.stop(0.2)
            follower.close()
            for runner in here.runners.values():
                await runner.cleanup()


def in_site(**settings: Any) -> Callable[[CoroutineTest], CoroutineTest]:
    """Run the decorated test at its own site."""
    return runs_in(lambda folder: site(folder, **settings))
