"""The cost of a hostile namespace to its neighbour at `vipwire gateway --ingress`: a row for each kind of object.

Each row measures the neighbour's requests and changes without and with many objects of the hostile namespace, from
their arrival on, or while it changes 100 times a second, and prints the ratios: a request's 99th percentile, and the
time until a new path of the neighbour is served. The objects of a row are deleted before the next.
"""

import asyncio
import contextlib
import csv
import http.client
import itertools
import json
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import yaml
from bench.options import Options
from bench.report import Figure
from tests.fakes.ports import free_port
from tests.up.unit.cluster_process import CLIENTS, Kubectl, up

from vipwire_l7.run.default_certificate import make_certificate

TITLE: Final = "what one namespace costs its neighbour"
Json = dict[str, Any]
Times: TypeAlias = tuple[float, float]
_REQUESTS: Final = 1_000
_CHANGES: Final = 5
_MOST: Final = 2.0
_PATIENCE: Final = 90.0
_A_SECOND: Final = 100
_WARM: Final = 4.0
_GROUP: Final = "gateway.networking.k8s.io/v1"


def named(api: str, kind: str, name: str, of: str = "hostile", **more: Any) -> Json:
    return {"apiVersion": api, "kind": kind, "metadata": {"namespace": of, "name": name}} | more


def ingress(name: str, host: str, paths: list[str], kind: str = "Prefix", of: str = "hostile", **more: Any) -> Json:
    """Build an Ingress of one host with redirects as answers: needs no Pod."""
    to = {"service": {"name": "web", "port": {"number": 80}}}
    rules = [{"host": host, "http": {"paths": [{"path": each, "pathType": kind, "backend": to} for each in paths]}}]
    made = named("networking.k8s.io/v1", "Ingress", name, of)
    made["metadata"]["annotations"] = {"vipwire.io/permanent-redirect": "https://else.org"} | more.pop("marks", {})
    return made | {"spec": {"ingressClassName": "vipwire", "rules": rules} | more}


def service(name: str, of: str) -> Json:
    return named("v1", "Service", name, of, spec={"ports": [{"port": 80}]})


def backends() -> Iterator[Json]:
    """400 Services with 100 endpoints each, and paths to them."""
    for number in range(400):
        name = f"b{number}"
        yield service(name, "hostile")
        ready = [{"addresses": [f"10.{number // 250}.{number % 250}.{each}"]} for each in range(1, 101)]
        found = named("discovery.k8s.io/v1", "EndpointSlice", name, addressType="IPv4", endpoints=ready)
        found["metadata"]["labels"] = {"kubernetes.io/service-name": name}
        yield found | {"ports": [{"port": 80}]}
        to = {"service": {"name": name, "port": {"number": 80}}}
        paths = [{"path": f"/{name}", "pathType": "Prefix", "backend": to}]
        spec = {"ingressClassName": "vipwire", "rules": [{"host": "hostile.org", "http": {"paths": paths}}]}
        yield named("networking.k8s.io/v1", "Ingress", name, spec=spec)


def certificates() -> Iterator[Json]:
    """500 certificates, each for a host of its own."""
    pem = make_certificate(datetime.now(UTC), "*.hostile.org")  # noqa: TID251  # a bench's clock
    key = pem[pem.index("-----BEGIN PRIVATE") :]
    for number in range(500):
        data = {"tls.crt": pem.removesuffix(key), "tls.key": key}
        yield named("v1", "Secret", f"c{number}", type="kubernetes.io/tls", stringData=data)
        host = f"c{number}.hostile.org"
        yield ingress(f"c{number}", host, ["/"], tls=[{"hosts": [host], "secretName": f"c{number}"}])


def listeners() -> Iterator[Json]:
    """100 Gateways with 4 ports each."""
    ports = itertools.count(20_000)
    for number in range(100):
        spec = [{"name": f"p{each}", "port": next(ports), "protocol": "HTTP"} for each in range(4)]
        yield named(_GROUP, "Gateway", f"g{number}", spec={"gatewayClassName": "vipwire", "listeners": spec})


def datagrams() -> Iterator[Json]:
    """64 UDP listeners."""
    spec = [{"name": f"u{each}", "port": 21_000 + each, "protocol": "UDP"} for each in range(64)]
    yield named(_GROUP, "Gateway", "udp", spec={"gatewayClassName": "vipwire", "listeners": spec})


def expressions() -> Iterator[Json]:
    """5,000 regular expressions."""
    marks = {"vipwire.io/use-regex": "true"}
    for number in range(100):
        paths = [f"/(a+)+{number}x{each}$" for each in range(50)]
        yield ingress(f"x{number}", "hostile.org", paths, "ImplementationSpecific", marks=marks)


def canaries() -> Iterator[Json]:
    """3,000 canaries of one path."""
    yield ingress("main", "hostile.org", ["/"])
    for number in range(3_000):
        marks = {"vipwire.io/canary": "true", "vipwire.io/canary-by-header": "X-Many"}
        marks["vipwire.io/canary-by-header-value"] = f"v{number}"
        yield ingress(f"c{number}", "hostile.org", ["/"], marks=marks)


def routes(filters: list[Json], count: int, rules: int) -> Iterator[Json]:
    """Routes of one port, with 4 matches by headers in each rule."""
    spec = {"gatewayClassName": "vipwire", "listeners": [{"name": "h", "port": 22_000, "protocol": "HTTP"}]}
    yield named(_GROUP, "Gateway", "edge", spec=spec)
    for number in range(count):
        made = []
        for rule in range(rules):
            headers = ([{"name": f"x-{each}", "value": f"v{rule}"}] for each in range(4))
            matches = [{"path": {"type": "PathPrefix", "value": f"/{rule}"}, "headers": each} for each in headers]
            made.append({"matches": matches, "filters": filters, "backendRefs": [{"name": "web", "port": 80}]})
        parent = {"parentRefs": [{"name": "edge"}], "hostnames": [f"r{number}.hostile.org"]}
        yield named(_GROUP, "HTTPRoute", f"r{number}", spec=parent | {"rules": made})


def mirrors() -> Iterator[Json]:
    return routes([{"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "web", "port": 80}}}], 200, 4)


KINDS: Final[dict[str, Callable[[], Iterator[Json]]]] = {
    "2,000 hosts": lambda: (ingress(f"h{each}", f"h{each}.hostile.org", ["/"]) for each in range(2_000)),
    "20,000 paths": lambda: (
        ingress(f"p{each}", "hostile.org", [f"/{each}/{path}" for path in range(100)], "Exact") for each in range(200)
    ),
    "5,000 expressions": expressions,
    "3,000 canaries": canaries,
    "400 backends of 100 endpoints": backends,
    "500 certificates": certificates,
    "400 listeners": listeners,
    "64 UDP listeners": datagrams,
    "200 routes of 16 rules": lambda: routes([], 200, 16),
    "800 mirrors": mirrors,
    "2,000 refused Ingresses": lambda: (
        ingress(f"r{each}", "neighbour.org", ["/*[("], marks={"vipwire.io/use-regex": "yes?"})
        for each in range(2_000)
    ),
}


def path_by_turn(turn: int) -> Json:
    return ingress("turn", "hostile.org", [f"/{turn}"])


def limit_by_turn(turn: int) -> Json:
    """Make an Ingress that needs a reload of HAProxy for each change."""
    return ingress("turn", "hostile.org", ["/"], marks={"vipwire.io/limit-rps": f"{turn + 1}"})


def route_by_turn(turn: int) -> Json:
    """Make one of 50 routes, the status of which changes by turns."""
    rule = {"backendRefs": [{"name": f"none{turn % 99}", "port": 80}]}
    spec = {"parentRefs": [{"name": "edge"}], "hostnames": ["hostile.org"], "rules": [rule]}
    return named(_GROUP, "HTTPRoute", f"turn{turn % 50}", spec=spec)


def mistake_by_turn(turn: int) -> Json:
    """Make one of 50 Ingresses with another mistake each time, and so another Event."""
    return ingress(f"turn{turn % 50}", "hostile.org", ["/"], marks={"vipwire.io/limit-rps": f"no{turn}"})


TURNS: Final[dict[str, tuple[bool, Callable[[int], Json]]]] = {
    "100 changes a second of paths": (False, path_by_turn),
    "100 changes a second that need reloads": (False, limit_by_turn),
    "100 changes a second of routes with statuses": (True, route_by_turn),
    "100 changes a second with Events": (True, mistake_by_turn),
}
"""Changes of the hostile namespace, 100 a second, by a file or with `True` by an API server."""


class Site:
    """A gateway, the folder of its manifests, and the neighbour's paths so far."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self._paths = folder, free_port(), ["/n0"]
        (folder / "manifests").mkdir()
        self.source: tuple[str, ...] = ("--manifests", str(folder / "manifests"))

    def put(self, name: str, objects: list[Json]) -> None:
        fresh = self.folder / f"{name}.new"
        fresh.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
        fresh.rename(self.folder / "manifests" / f"{name}.json")

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        where = ("--http", f"127.0.0.1:{self.port}", "--https", f"127.0.0.1:{free_port()}", "--bind", "127.0.0.1")
        flags = (*where, *self.source, "--run-dir", str(self.folder / "run"))
        command = (
            sys.executable,
            "-m",
            "vipwire",
            "gateway",
            "--ingress",
            *flags,
            f"--metrics-bind-address=127.0.0.1:{free_port()}",
        )
        with (self.folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
            try:
                yield
            finally:
                process.terminate()

    def change(self) -> float:
        """Add a path of the neighbour; return the seconds until it is served."""
        self._paths.append(f"/n{len(self._paths)}")
        objects = [ingress("web", "neighbour.org", self._paths, of="neighbour"), service("web", "neighbour")]
        self.put("neighbour", objects)
        begun = time.perf_counter()
        while asyncio.run(asked(self.port, self._paths[-1]))[1] != 301:
            if time.perf_counter() - begun > _PATIENCE:
                raise SystemExit((self.folder / "log").read_text()[-2000:])
            time.sleep(0.01)
        return time.perf_counter() - begun


class ClusterSite(Site):
    """A site with an API server instead of manifests."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        kubeconfig = folder / "data/admin.kubeconfig"
        self._kubectl, self.source = Kubectl(CLIENTS[-1], kubeconfig, folder), ("--kubeconfig", str(kubeconfig))
        config = yaml.safe_load(kubeconfig.read_text())
        url = urlsplit(config["clusters"][0]["cluster"]["server"])
        trusted = ssl.create_default_context(cafile=str(folder / "data/pki/ca.crt"))
        self._connection = http.client.HTTPSConnection("127.0.0.1", url.port, context=trusted)
        self._turn = threading.Lock()
        with (folder / "data/tokens.csv").open() as file:
            self._token = next(row[0] for row in csv.reader(file) if row[2] == "admin")
        for each in ("hostile", "neighbour"):
            self._kubectl("create", "namespace", each)

    def put(self, name: str, objects: list[Json]) -> None:
        """Apply objects. One is applied without kubectl, which takes too long."""
        for each in objects:
            group, _, version = each["apiVersion"].rpartition("/")
            start = f"/apis/{group}/{version}" if group else f"/api/{version}"
            space = each["metadata"].get("namespace")
            where = f"{start}/namespaces/{space}" if space else start
            kind = f"{each['kind'].lower()}{'es' if each['kind'].endswith('ss') else 's'}"
            path = f"{where}/{kind}/{each['metadata']['name']}?fieldManager={name}&force=true"
            head = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/apply-patch+yaml"}
            with self._turn:
                self._connection.request("PATCH", path, json.dumps(each), head)
                with self._connection.getresponse() as answer:
                    said = answer.read()
            if answer.status >= http.HTTPStatus.BAD_REQUEST:
                raise SystemExit(f"{path}: {said[:500].decode()}")


async def asked(port: int, path: str) -> tuple[float, int]:
    """Send a request on a new connection; return the seconds, and the status or 0."""
    begun = time.perf_counter()
    status = b"0"
    with contextlib.suppress(OSError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: neighbour.org\r\nConnection: close\r\n\r\n".encode())
        status = (await reader.read())[9:12] or b"0"
        writer.close()
    return time.perf_counter() - begun, int(status)


def taken(site: Site) -> Times:
    """Return the neighbour's times: a request at the 99th percentile, a change at the median."""
    waits, changes = [], []
    for _ in range(_CHANGES):
        changes.append(site.change())
        waits += [asyncio.run(asked(site.port, "/n0"))[0] for _ in range(_REQUESTS // _CHANGES)]
    return sorted(waits)[int(len(waits) * 0.99)], sorted(changes)[_CHANGES // 2]


@contextlib.contextmanager
def turning(site: Site, make: Callable[[int], Json]) -> Iterator[list[int]]:
    """Change the hostile namespace 100 times a second for the block; the number of changes is added at its end."""
    done, counts = threading.Event(), list[int]()

    def run() -> None:
        began = time.monotonic()
        for turn in itertools.count():
            if done.wait(max(0.0, began + turn / _A_SECOND - time.monotonic())):
                counts.append(turn)
                return
            site.put("turn", [make(turn)])

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield counts
    finally:
        done.set()
        thread.join()


def compare(about: str, alone: Times, beside: Times, again: Times, most: float | None = _MOST) -> list[Figure]:
    """Compare with the neighbour alone, before and after. `most` is for changes."""
    request, change = ((before + after) / 2 for before, after in zip(alone, again, strict=True))
    return [
        Figure(f"{about}: a neighbour's request, p99", beside[0] / request, "times", _MOST),
        Figure(f"{about}: a neighbour's change, median", beside[1] / change, "times", most),
    ]


def measure_objects(site: Site, about: str) -> list[Figure]:
    alone = taken(site)
    site.put("hostile", [service("web", "hostile"), *KINDS[about]()])
    first = site.change()
    beside = taken(site)
    site.put("hostile", [])
    site.change()
    found = compare(about, alone, beside, taken(site))
    return [*found, Figure(f"{about}: a neighbour's change while they are put", first * 1000, "ms")]


def measure_turns(site: Site, about: str) -> list[Figure]:
    alone = taken(site)
    spec = {"gatewayClassName": "vipwire", "listeners": [{"name": "h", "port": 22_000, "protocol": "HTTP"}]}
    site.put("hostile", [service("web", "hostile"), named(_GROUP, "Gateway", "edge", spec=spec)])
    with turning(site, TURNS[about][1]) as counts:
        begun = time.perf_counter()
        time.sleep(_WARM)
        beside = taken(site)
        seconds = time.perf_counter() - begun
    site.put("turn", [])
    time.sleep(_WARM)
    found = compare(about, alone, beside, taken(site), None)
    found.append(Figure(f"{about}: a neighbour's change, median, in ms", beside[1] * 1000, "ms"))
    return [*found, Figure(f"{about}: changes", counts[0] / seconds, "a second")]


def measure(_: Options) -> list[Figure]:
    """Measure each row against the neighbour alone, just before and after."""
    figures = []
    gateway_class = [{"apiVersion": _GROUP, "kind": "GatewayClass", "metadata": {"name": "vipwire"}}]
    gateway_class[0] |= {"spec": {"controllerName": "vipwire.io/gateway"}}
    for by_api in (False, True):
        with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
            if by_api:
                stack.enter_context(up(Path(name) / "data"))
            site = (ClusterSite if by_api else Site)(Path(name))
            site.put("class", gateway_class)
            stack.enter_context(site.serving())
            site.change()
            for about in () if by_api else KINDS:
                figures += measure_objects(site, about)
            for about in (each for each, (needs_api, _) in TURNS.items() if needs_api is by_api):
                figures += measure_turns(site, about)
    return figures
