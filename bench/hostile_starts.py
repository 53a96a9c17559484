"""A start with thousands of broken objects of one namespace: the time until the first right answer of its neighbour.

The answer of `vipwire gateway --ingress` is a request's, of `vipwire proxy` (nftables mode) a connection to a
ClusterIP, of `vipwire up` the EndpointSlice of a Service. Each is measured without and with the hostile objects.
"""

import asyncio
import contextlib
import http.client
import json
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from bench.options import Options
from bench.report import Figure
from bench.shares import asked, ingress, named, service
from tests.fakes.ports import free_port
from tests.up.unit.cluster_here import running
from tests.up.unit.up_here import key_of, whole

from vipwire_up.api.objects.object import encode
from vipwire_up.store.database import Database
from vipwire_up.store.embedded import EmbeddedStore
from vipwire_up.store.record import Write

TITLE: Final = "a start beside broken objects"
Json = dict[str, Any]
_PATIENCE: Final = 600.0
_MOST: Final = 60.0
_AT_ONCE: Final = 500
_GROUP: Final = "gateway.networking.k8s.io/v1"
_ADDRESS, _POD = "10.96.0.10", "192.0.2.1"
_VIPWIRE: Final = (sys.executable, "-m", "vipwire")
_OLD, _YOUNG = ({"creationTimestamp": f"2026-0{month}-01T00:00:00Z"} for month in (1, 2))


def hostile(number: int) -> list[Json]:
    made = list(write_hostile(number // 4))
    for each in made:
        each["metadata"] |= _YOUNG
    return made


def write_hostile(of_a_kind: int) -> Iterator[Json]:
    """Yield broken Ingresses, HTTPRoutes, Services that claim the neighbour's address, and EndpointSlices."""
    for number in range(of_a_kind):
        name = f"x{number}"
        yield ingress(name, "neighbour.org", ["/*[("], marks={"vipwire.io/use-regex": "yes?"})
        parent = {"parentRefs": [{"name": "none", "port": 70_000}], "hostnames": ["neighbour.org", "*.*.org"]}
        yield named(_GROUP, "HTTPRoute", name, spec=parent | {"rules": [{"filters": [{"type": "None"}]}] * 17})
        ports = [{"name": "a", "port": 80}, {"name": "a", "port": 70_000, "protocol": "NONE"}]
        yield named("v1", "Service", name, spec={"clusterIP": _ADDRESS, "ports": ports})
        ends = [{"addresses": ["300.1.1.1", "127.0.0.1"], "conditions": {"ready": "?"}}]
        found = named("discovery.k8s.io/v1", "EndpointSlice", name, addressType="IPv4", endpoints=ends)
        found["metadata"]["labels"] = {"kubernetes.io/service-name": name}
        yield found | {"ports": [{"port": -1}]}


def neighbour() -> list[Json]:
    """Return the objects of a Service with one endpoint, and an Ingress."""
    web = service("web", "neighbour")
    web["spec"] = {"clusterIP": _ADDRESS, "ports": [{"port": 80, "targetPort": 8080}]}
    ends = named("discovery.k8s.io/v1", "EndpointSlice", "web", "neighbour", addressType="IPv4")
    ends |= {"endpoints": [{"addresses": [_POD], "conditions": {"ready": True}}], "ports": [{"port": 8080}]}
    ends["metadata"]["labels"] = {"kubernetes.io/service-name": "web"}
    made = [web, ends, ingress("web", "neighbour.org", ["/n0"], of="neighbour")]
    for each in made:
        each["metadata"] |= _OLD
    return made


@contextlib.contextmanager
def started(folder: Path, *words: str) -> Iterator[None]:
    with (folder / "log").open("ab") as log, subprocess.Popen([*_VIPWIRE, *words], stdout=log, stderr=log) as process:
        try:
            yield
        finally:
            process.terminate()


def wait_for(folder: Path, answers: Callable[[], bool]) -> float:
    """Return the seconds until the right answer."""
    begun = time.perf_counter()
    while not answers():
        if time.perf_counter() - begun > _PATIENCE:
            raise SystemExit((folder / "log").read_text()[-2000:])
        time.sleep(0.02)
    return time.perf_counter() - begun


def write_manifests(folder: Path, objects: list[Json]) -> Path:
    (folder / "manifests").mkdir()
    (folder / "manifests/all.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    return folder / "manifests"


def start_gateway(folder: Path, objects: list[Json]) -> float:
    port, spec = free_port(), {"controllerName": "vipwire.io/gateway"}
    gateway_class = {"apiVersion": _GROUP, "kind": "GatewayClass", "metadata": {"name": "vipwire"}, "spec": spec}
    manifests = write_manifests(folder, [gateway_class, *objects])
    flags = ("--http", f"127.0.0.1:{port}", "--https", "", "--metrics-bind-address=", f"--run-dir={folder / 'run'}")
    with started(folder, "gateway", "--ingress", "--manifests", str(manifests), *flags):
        seconds = wait_for(folder, lambda: asyncio.run(asked(port, "/n0"))[1] == 301)
        wait_for(folder, lambda: tells(folder, objects))
    return seconds


def start_proxy(folder: Path, objects: list[Json]) -> float:
    flags = ("--healthz-bind-address=", "--metrics-bind-address=", f"--state-dir={folder / 'state'}")
    manifests = write_manifests(folder, objects)
    with answering(), started(folder, "proxy", "--proxy-mode=nftables", f"--manifests={manifests}", *flags):
        seconds = wait_for(folder, is_connected)
        wait_for(folder, lambda: tells(folder, objects))
    subprocess.run(["nft", "flush", "ruleset"], check=True)  # the proxy's end leaves the rules
    return seconds


def tells(folder: Path, objects: list[Json]) -> bool:
    """Report whether the log names a broken object, if there is one."""
    is_hostile = any(
        each["metadata"]["namespace"] == "hostile" for each in objects if "namespace" in each["metadata"]
    )
    return not is_hostile or "hostile/x" in (folder / "log").read_text()


@contextlib.contextmanager
def answering() -> Iterator[None]:
    """Answer as the Pod."""
    for words in (f"addr replace {_POD}/32 dev lo", "route replace 10.96.0.0/16 dev lo"):
        subprocess.run(["ip", *words.split()], check=True)
    with socket.create_server((_POD, 8080)) as server:

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    accepted, _ = server.accept()
                    accepted.sendall(b"right")
                    accepted.close()

        threading.Thread(target=answer, daemon=True).start()
        try:
            yield
        finally:
            server.shutdown(socket.SHUT_RDWR)


def is_connected() -> bool:
    with contextlib.suppress(OSError), socket.create_connection((_ADDRESS, 80), 1) as made:
        return made.recv(10) == b"right"
    return False


async def store(folder: Path, objects: list[Json]) -> None:
    """Put objects into a store of `vipwire up`, past the API."""
    async with running(EmbeddedStore(Database(folder))) as kept:
        for first in range(0, len(objects), _AT_ONCE):
            values = [whole(each) for each in objects[first : first + _AT_ONCE]]
            bodies = [(key_of(value), encode(value)) for value in values]
            await asyncio.gather(*(kept.write(Write(key, lambda _, body=body: body, 0)) for key, body in bodies))  # type: ignore[misc]


def start_up(folder: Path, objects: list[Json]) -> float:
    data, port = folder / "data", free_port()
    pod: Json = {"kind": "Pod", "metadata": {"name": "web", "namespace": "neighbour", "labels": {"app": "web"}}}
    pod |= {"spec": {"containers": [{"name": "web", "image": "none"}]}}
    ready = [{"type": "Ready", "status": "True"}]
    pod["status"] = {"phase": "Running", "podIP": _POD, "podIPs": [{"ip": _POD}], "conditions": ready}
    web = next(each for each in objects if each["metadata"]["name"] == "web" and each["kind"] == "Service")
    web["spec"]["selector"] = {"app": "web"}
    spaces = [{"kind": "Namespace", "metadata": {"name": name}} for name in ("neighbour", "hostile")]
    rest = [each for each in objects if (each["kind"], each["metadata"]["name"]) != ("EndpointSlice", "web")]
    data.mkdir(mode=0o700)
    asyncio.run(store(data, [*spaces, pod, *rest]))
    flags = ("--no-proxy", "--no-dns", "--secure-port", str(port), "--bind-address", "127.0.0.1")
    with started(folder, "up", "--data-dir", str(data), *flags):
        return wait_for(folder, lambda: has_slice(data, port))


def has_slice(data: Path, port: int) -> bool:
    with contextlib.suppress(OSError, ssl.SSLError):
        tls = ssl.create_default_context(cafile=str(data / "pki/ca.crt"))
        tls.load_cert_chain(data / "pki/admin.crt", data / "pki/admin.key")
        connection = http.client.HTTPSConnection("127.0.0.1", port, context=tls, timeout=60)
        connection.request("GET", "/apis/discovery.k8s.io/v1/namespaces/neighbour/endpointslices")
        return f'"{_POD}"' in connection.getresponse().read().decode()
    return False


STARTS: Final[dict[str, Callable[[Path, list[Json]], float]]] = {
    "gateway --ingress": start_gateway,
    "proxy": start_proxy,
    "up": start_up,
}


def measure(options: Options) -> list[Figure]:
    figures = []
    for name, start in STARTS.items():
        seconds = []
        for objects in (neighbour(), [*hostile(options.broken), *neighbour()]):
            with tempfile.TemporaryDirectory() as folder:
                seconds.append(start(Path(folder), objects))
        figures += [
            Figure(f"{name}: the first right answer alone", seconds[0], "s"),
            Figure(f"{name}: beside {options.broken:,} broken objects", seconds[1], "s", _MOST),
        ]
    return figures
