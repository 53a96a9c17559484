"""The cost of a hostile namespace to its neighbour at `vipwire gateway --ingress`: a row for each kind of object.

Each row measures the neighbour's requests and changes without and with many objects of the hostile namespace, from
their arrival on, and prints the ratios: a request's 99th percentile, and the time until a new path of the neighbour
is served. One process serves all rows; the objects of a row are deleted before the next.
"""

import asyncio
import contextlib
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bench.options import Options
from bench.report import Figure
from tests.fakes.ports import free_port

from vipwire_l7.run.default_certificate import make_certificate

TITLE: Final = "what one namespace costs its neighbour"
Json = dict[str, Any]
_REQUESTS: Final = 300
_CHANGES: Final = 5
_MOST: Final = 2.0
_PATIENCE: Final = 90.0
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
    "2,000 refused Ingresses": lambda: (
        ingress(f"r{each}", "neighbour.org", ["/*[("], marks={"vipwire.io/use-regex": "yes?"})
        for each in range(2_000)
    ),
}


class Site:
    """A gateway, the folder of its manifests, and the neighbour's paths so far."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self._paths = folder, free_port(), ["/n0"]
        (folder / "manifests").mkdir()

    def put(self, name: str, objects: list[Json]) -> None:
        (self.folder / "new").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
        (self.folder / "new").rename(self.folder / "manifests" / f"{name}.json")

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        where = ("--http", f"127.0.0.1:{self.port}", "--https", f"127.0.0.1:{free_port()}", "--bind", "127.0.0.1")
        flags = (*where, "--manifests", str(self.folder / "manifests"), "--run-dir", str(self.folder / "run"))
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


def taken(site: Site) -> tuple[float, float]:
    """Return the neighbour's times: a request at the 99th percentile, a change at the median."""
    waits, changes = [], []
    for _ in range(_CHANGES):
        changes.append(site.change())
        waits += [asyncio.run(asked(site.port, "/n0"))[0] for _ in range(_REQUESTS // _CHANGES)]
    return sorted(waits)[int(len(waits) * 0.99)], sorted(changes)[_CHANGES // 2]


def measure(_: Options) -> list[Figure]:
    """Measure each row against the neighbour alone, just before."""
    figures = []
    with tempfile.TemporaryDirectory() as name:
        site = Site(Path(name))
        site.put("class", [{"apiVersion": _GROUP, "kind": "GatewayClass", "metadata": {"name": "vipwire"}}])
        with site.serving():
            site.change()
            for about, objects in KINDS.items():
                request, change = taken(site)
                site.put("hostile", [service("web", "hostile"), *objects()])
                first = site.change()
                beside = taken(site)
                site.put("hostile", [])
                site.change()
                figures += [
                    Figure(f"{about}: a neighbour's request, p99", beside[0] / request, "times", _MOST),
                    Figure(f"{about}: a neighbour's change, median", beside[1] / change, "times", _MOST),
                    Figure(f"{about}: a neighbour's change while they are put", first * 1000, "ms"),
                ]
    return figures
