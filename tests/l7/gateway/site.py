"""Gateways for tests: a real HAProxy on loopback, small HTTP servers as Pods, and objects as in a manifest.

One site serves all cases of a module: each has its own hosts or ports. Objects put before the first test let HAProxy
start once. Objects are YAML, with `$name` for the site's port of a name. A line `--- Gateway infra/edge` begins the
Gateway of that name; without a namespace it is in `infra`.
"""

import asyncio
import contextlib
import datetime as dt
import json
import re
import ssl
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import aiohttp
import msgspec
import yaml
from aiohttp import web
from multidict import CIMultiDict
from prometheus_client import CollectorRegistry
from tests.fakes.ports import free_port

from vipwire.model.names import ObjectName
from vipwire.model.net import Prefix
from vipwire.watched_objects.event import Deleted, Listed, Upserted
from vipwire_l7.gateway.plan.kinds.objects import GatewaySetting
from vipwire_l7.gateway.plan.planner import GatewayPlanner
from vipwire_l7.gateway.run.datagrams import DatagramRelay
from vipwire_l7.gateway.watch.kinds import RESOURCES
from vipwire_l7.haproxy.layout import Layout
from vipwire_l7.plan.destinations import Destinations, DestinationSetting
from vipwire_l7.run.controller import Controller, SyncResult
from vipwire_l7.run.default_certificate import make_certificate
from vipwire_l7.run.desired import Desired
from vipwire_l7.run.process import Haproxy
from vipwire_l7.watch.objects import BackendService, BackendSlice, IngressKind, Secret
from vipwire_l7.watch.snapshot import Snapshot

PATIENCE = 60.0
BASE = """
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: vipwire, generation: 1}
spec: {controllerName: vipwire.io/gateway}
"""


@dataclass(frozen=True)
class Answer:
    """A client's answer. `seen` is the request as the Pod saw it, if one answered."""

    status: int
    headers: CIMultiDict[str]
    text: str

    @property
    def seen(self) -> Any:
        return json.loads(self.text)

    @property
    def pod(self) -> str:
        return str(self.seen["pod"]) if self.status == 200 else f"{self.status}"


@dataclass
class GatewaySite:
    """The handle of a test."""

    run: Callable[[Coroutine[Any, Any, Any]], Any]
    controller: Controller
    planner: GatewayPlanner
    haproxy: Haproxy
    done: list[SyncResult]
    pod_port: int
    registry: CollectorRegistry
    known: dict[str, int] = field(default_factory=dict)
    served: list[str] = field(default_factory=list)
    """`name path` of each request that a Pod answered."""
    runners: list[web.AppRunner] = field(default_factory=list)
    addresses: dict[str, str] = field(default_factory=dict)
    pems: dict[str, str] = field(default_factory=dict)
    heard: asyncio.Condition = field(default_factory=asyncio.Condition)
    waiting: list[Any] | None = field(default_factory=list)
    """Objects put before the lists were complete."""

    def port(self, name: str) -> int:
        return self.known.setdefault(name, free_port())

    def objects(self, text: str) -> list[Any]:
        """Read YAML with ports filled in."""
        filled = re.sub(r"\$([a-z]\w*)", lambda match: str(self.port(match[1])), text)
        return documents(filled)

    def put(self, text: str) -> None:
        for each in self.objects(text):
            self.put_object(each)

    def put_object(self, each: Any) -> None:
        meta = each["metadata"]
        if each["kind"] not in ("GatewayClass", "Namespace", "ClusterTrustBundle"):
            meta.setdefault("namespace", "infra")
        meta.setdefault("generation", 1)
        resource = RESOURCES[IngressKind(each["kind"])]
        name = ObjectName(meta.get("namespace", ""), meta["name"])
        made, problems = resource.convert(msgspec.convert(each, resource.type))
        self._emit(Deleted(resource.kind, name, problems) if made is None else Upserted(made, problems))

    def _emit(self, event: Any) -> None:
        if self.waiting is None:
            self.controller.emit(event)
        else:
            self.waiting.append(event)

    def remove(self, kind: IngressKind, name: str, namespace: str = "infra") -> None:
        self._emit(Deleted(cast("Any", kind), ObjectName(namespace, name)))

    def settle(self) -> None:
        """Wait until HAProxy has all changes."""

        async def wait() -> None:
            async with asyncio.timeout(PATIENCE):
                await self.controller.wait_until_settled()

        self.run(wait())

    def status(self, kind: IngressKind, name: str, namespace: str = "infra") -> Any:
        return self.planner.statuses[kind, ObjectName(namespace, name)]

    def pods(self, *names: str, namespace: str = "infra", tls: ssl.SSLContext | None = None, more: str = "") -> None:
        """Run a Pod for each name, as the only endpoint of a Service: port 8080."""
        for name in names:
            known = f"{namespace}/{name}"
            if known not in self.addresses:
                address = self.addresses[known] = f"127.0.0.{20 + len(self.addresses)}"
                self.run(self._pod(name, address, tls))
            self.put(service(name, self.addresses[known], self.pod_port, namespace, more))

    def until_served(self, path: str, *pods: str) -> None:
        """Wait until these Pods have answered requests for a path."""

        async def wait() -> None:
            async with asyncio.timeout(PATIENCE), self.heard:
                await self.heard.wait_for(lambda: {f"{pod} {path}" for pod in pods} <= set(self.served))

        self.run(wait())

    async def _pod(self, name: str, address: str, tls: ssl.SSLContext | None) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", _answering(name, self))
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, address, self.pod_port, reuse_address=True, ssl_context=tls).start()
        self.runners.append(runner)

    def ask(
        self,
        port: str,
        host: str = "",
        path: str = "/",
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        data: str | None = None,
    ) -> Answer:
        """Send an HTTP request."""

        async def asking() -> Answer:
            url = f"http://127.0.0.1:{self.port(port)}"
            sent = {"Host": host or f"127.0.0.1:{self.port(port)}"} | dict(headers or {})
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(PATIENCE)) as session,
                session.request(method, url + path, headers=sent, data=data, allow_redirects=False) as response,
            ):
                return Answer(response.status, CIMultiDict(response.headers), await response.text())

        return cast("Answer", self.run(asking()))

    def curl(self, *arguments: str) -> tuple[int, str]:
        """Run curl; return exit status and output."""

        async def asking() -> tuple[int, str]:
            process = await asyncio.create_subprocess_exec("curl", "-sS", "--max-time", "60", *arguments, stdout=-1)
            output, _ = await process.communicate()
            return process.returncode or 0, output.decode()

        return cast("tuple[int, str]", self.run(asking()))

    def pods_of(self, port: str, host: str, path: str = "/", times: int = 20) -> set[str]:
        return {self.ask(port, host, path).pod for _ in range(times)}


def documents(text: str) -> list[Any]:
    """Read objects; the line that begins one may give its kind and name."""

    def begin(found: re.Match[str]) -> str:
        namespace = f", namespace: {found[2]}" if found[2] else ""
        return f"---\nkind: {found[1]}\nmetadata: {{name: {found[3]}{namespace}}}"

    full = re.sub(r"^--- (\w+) (?:([\w-]+)/)?([\w.-]+)$", begin, text, flags=re.MULTILINE)
    return [each for each in yaml.safe_load_all(full) if each]


def service(name: str, address: str, target: int, namespace: str = "infra", more: str = "") -> str:
    """Write a Service with port 8080 and its slice."""
    return f"""
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: {namespace}}}
spec: {{ports: [{{name: http, port: 8080{more}}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}-1, namespace: {namespace}, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
ports: [{{name: http, port: {target}}}]
endpoints: [{{addresses: [{address}], conditions: {{ready: true}}, targetRef: {{name: {name}}}}}]
"""


def _answering(pod: str, here: GatewaySite) -> Callable[[web.Request], Coroutine[Any, Any, web.StreamResponse]]:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return await _echo(request)
        async with here.heard:
            here.served.append(f"{pod} {request.path}")
            here.heard.notify_all()
        delay, code = request.query.get("delay", "0"), int(request.query.get("code", "200"))
        # `fails=N`: only the first N requests for this path fail.
        if here.served.count(f"{pod} {request.path}") > int(request.query.get("fails", "1000000")):
            delay, code = "0", 200
        elif "drop" in request.query and request.transport is not None:
            request.transport.abort()
        await asyncio.sleep(float(delay))
        seen = {
            "pod": pod,
            "path": request.raw_path,
            "host": request.host,
            "method": request.method,
            "headers": {key.lower(): ",".join(request.headers.getall(key)) for key in request.headers},
            "body": await request.text(),
        }
        headers = {f"X-Own-{number}": "pod" for number in (1, 2)}
        if "cors" in request.query:
            headers |= {"Access-Control-Allow-Origin": "https://own.org", "Access-Control-Allow-Credentials": "true"}
        return web.json_response(seen, headers=headers, status=code)

    return answer


async def _echo(request: web.Request) -> web.StreamResponse:
    socket_ = web.WebSocketResponse()
    await socket_.prepare(request)
    async for message in socket_:
        await socket_.send_str(f"echo {message.data}")
    return socket_


def tls_policy(name: str, validation: str, *targets: str) -> str:
    """Write a BackendTLSPolicy for Services of these names, by default for that of its own name."""
    refs = ", ".join(f'{{group: "", kind: Service, name: {each}}}' for each in targets or (name,))
    return f"""
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {{name: {name}, namespace: infra}}
spec: {{targetRefs: [{refs}], validation: {validation}}}
"""


def by_authority(host: str, more: str = "", name: str = "authority") -> str:
    """Write the validation of a BackendTLSPolicy with the CAs of a ConfigMap."""
    return f'{{hostname: {host}, caCertificateRefs: [{{group: "", kind: ConfigMap, name: {name}}}]{more}}}'


def tls_secret(name: str, *hosts: str, namespace: str = "infra") -> str:
    return secret_of(name, make_certificate(now(), *hosts), namespace)


def secret_of(name: str, pem: str, namespace: str = "infra") -> str:
    """Write a Secret from a PEM of a certificate and its key."""
    certificate, _, key = pem.partition("-----BEGIN PRIVATE KEY-----")
    data = {"tls.crt": certificate, "tls.key": f"-----BEGIN PRIVATE KEY-----{key}"}
    meta = {"name": name, "namespace": namespace}
    return yaml.safe_dump({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": data})


def now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)  # noqa: TID251  # what is served must be valid now


@contextlib.contextmanager
def gateways(folder: Path, setting: GatewaySetting | None = None) -> Iterator[GatewaySite]:
    """Run a site; HAProxy ends with it."""
    run = folder / "run"
    run.mkdir()
    layout = Layout(str(run), f"{run}/haproxy.sock", "", "", threads=1)
    with asyncio.Runner() as runner:
        planner = GatewayPlanner(setting or GatewaySetting(bind="127.0.0.1", addresses=("127.0.0.1",)))
        registry = CollectorRegistry()
        snapshot, haproxy, done = Snapshot(RESOURCES), Haproxy("haproxy", run), list[SyncResult]()
        judge = Destinations(DestinationSetting(ranges=(Prefix.parse("127.0.0.0/8"), Prefix.parse("::1/128"))))
        desired = Desired(snapshot, planner, layout, make_certificate(now(), "localhost"), judge)

        async def make() -> tuple[Controller, DatagramRelay, list[asyncio.Task[None]]]:
            controller = Controller(snapshot, desired, haproxy, done.append, 0.0)
            datagrams = DatagramRelay(run, controller, registry, 60.0)
            parts = (controller.run, controller.watch_child, datagrams.run)
            return controller, datagrams, [asyncio.ensure_future(part()) for part in parts]

        controller, datagrams, tasks = runner.run(make())
        here = GatewaySite(runner.run, controller, planner, haproxy, done, free_port(), registry)
        here.put(BASE)
        try:
            yield here
        finally:
            runner.run(_end(here, tasks))
            runner.run(datagrams.stop(goes_on=False))


async def _end(here: GatewaySite, tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await here.haproxy.stop(0.2)
    for each in here.runners:
        await each.cleanup()


def list_all(here: GatewaySite) -> None:
    """Complete the lists with all objects put so far; HAProxy follows from now on."""
    before, here.waiting = here.waiting or [], None
    for kind in RESOURCES:
        found = {each.object.name: each.object for each in before if kind_of(each.object) is kind}
        here.controller.emit(cast("Any", Listed(kind, tuple(found.values()))))


def kind_of(value: Any) -> IngressKind:
    plain = {BackendService: IngressKind.SERVICE, BackendSlice: IngressKind.SLICE, Secret: IngressKind.SECRET}
    return plain.get(type(value)) or IngressKind(value.kind)
