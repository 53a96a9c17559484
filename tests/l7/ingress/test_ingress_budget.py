"""Namespaces with many regular expressions and conditions: requests of another namespace do not wait for them."""

import asyncio
import contextlib
import itertools
import json
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.ports import free_port
from tests.l7.gateway.site import BASE
from tests.l7.gateway.test_gateway_daemon import code, running, until

pytestmark = pytest.mark.attack

Json = dict[str, Any]
MANY = 12_000
ASKED, HOSTILE, SLACK = 100, 4, 0.02
CANARIES = 3_000
UNHURRIED = 300.0
"""Seconds that a busy machine may take to serve thousands of objects: no other namespace waits for these."""
LONG = ("/" + "a" * 200, "/" + "a" * 500, "/" + "a" * 6000)
NESTED = "/(a+)+([b-z]|[y]{:05d})$"
SCANNING = "/(?:a*b|a*c|a*d|a*e|a*f|a*g|a*h|a*i|a)*{:05d}$"
DOUBLING = "/" + "(?:a|aa)" * 30 + "{:05d}$"


def ingress(namespace: str, name: str, paths: list[tuple[str, str]], created: int = 1, **annotations: str) -> Json:
    """Write an Ingress; each path is of a host."""
    to = {"service": {"name": "web", "port": {"number": 8080}}}
    rules = [
        {"host": host, "http": {"paths": [{"path": path, "pathType": "ImplementationSpecific", "backend": to}]}}
        for host, path in paths
    ]
    marks = {f"vipwire.io/{key.replace('_', '-')}": value for key, value in annotations.items()}
    meta = {"namespace": namespace, "name": name, "annotations": {"vipwire.io/use-regex": "true"} | marks}
    meta["creationTimestamp"] = f"2026-01-01T00:00:{created:02d}Z"
    spec = {"ingressClassName": "vipwire", "rules": rules}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": meta, "spec": spec}


def of_one_host(of: str, form: str, number: int = MANY, **annotations: str) -> list[Json]:
    return [ingress(of, "re", [(f"{of}.org", form.format(each)) for each in range(number)], **annotations)]  # type: ignore[arg-type]


def with_canaries(of: str) -> list[Json]:
    marks = {"canary": "true", "canary_by_header": "X-Many"}
    more = [
        ingress(of, f"c{n}", [(f"{of}.org", "/")], 2, canary_by_header_value=f"v{n}", **marks)
        for n in range(CANARIES)
    ]
    return [*of_one_host(of, "/", 1), *more]


def route(of: str, name: str, rules: list[Json]) -> Json:
    meta = {"namespace": of, "name": name}
    spec = {"parentRefs": [{"name": "edge", "namespace": "good"}], "hostnames": [f"{of}.org"], "rules": rules}
    return {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": meta, "spec": spec}


def routes(of: str, match: Callable[[int], Json]) -> list[Json]:
    refs = [{"name": "web", "port": 8080}]
    return [
        route(of, f"re{first:05d}", [{"matches": [match(first + n) for n in range(8)], "backendRefs": refs}])
        for first in range(0, 3_000, 8)
    ]


def matching(part: str, form: str = "(a+)+{:05d}") -> Callable[[int], Json]:
    def match(number: int) -> Json:
        if part == "path":
            return {"path": {"type": "RegularExpression", "value": "/" + form.format(number)}}
        return {part: [{"type": "RegularExpression", "name": "q", "value": form.format(number)}]}

    return match


def weights(of: str) -> list[Json]:
    def refs(number: int) -> list[Json]:
        added = {"set": [{"name": "x", "value": "y"}]}
        other = {"filters": [{"type": "ResponseHeaderModifier", "responseHeaderModifier": added}]}
        web = {"name": "web", "port": 8080}
        return [web | {"weight": 1}, web | other | {"weight": number + 2}]

    return [
        route(of, f"w{n:05d}", [{"matches": [{"path": {"value": f"/{n}"}}], "backendRefs": refs(n)}])
        for n in range(3_000)
    ]


ORIGINS = ",".join(f"https://*.a{number}.org" for number in range(250))
KINDS: dict[str, Callable[[str], list[Json]]] = {
    "nested": lambda of: of_one_host(of, NESTED),
    "more": lambda of: of_one_host(of, NESTED, 40_000),
    "scanning": lambda of: of_one_host(of, SCANNING),
    "doubling": lambda of: of_one_host(of, DOUBLING),
    "short": lambda of: of_one_host(of, "/x{}"),
    "hosts": lambda of: [ingress(of, "re", [(f"{n}.{of}.org", NESTED.format(n)) for n in range(MANY)])],
    "wildcard": lambda of: [ingress(of, "re", [(f"*.{of}.org", NESTED.format(n)) for n in range(MANY)])],
    "guarding": lambda of: of_one_host(of, "/a.*a.*{:05d}", limit_rps="100000"),
    "waysguarding": lambda of: of_one_host(of, DOUBLING, limit_rps="100000"),
    "rewriting": lambda of: of_one_host(of, "/((?:a*b|a)*){:05d}", rewrite_target="/x/$1"),
    "origins": lambda of: of_one_host(of, "/a.*", 1, cors="true", cors_allow_origin=ORIGINS),
    "canaries": with_canaries,
    "paths": lambda of: routes(of, matching("path")),
    "headers": lambda of: routes(of, matching("headers")),
    "scannedheaders": lambda of: routes(of, matching("headers", "(?:a*b|a*c|a*d|a*e|a)*{:05d}")),
    "parameters": lambda of: routes(of, matching("queryParams")),
    "weights": weights,
}
ROUTED = ("paths", "headers", "scannedheaders", "parameters", "weights")
GATEWAY = """
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: good}
spec:
  gatewayClassName: vipwire
  listeners: [{name: http, port: PORT, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}]
"""


def backends(of: str, number: int, endpoints: int) -> list[Json]:
    """Write Services with endpoints, and a path to each."""
    made: list[Json] = []
    for name in (f"b{each}" for each in range(number)):
        meta = {"namespace": of, "name": name}
        ready = [{"addresses": [f"192.0.2.{each}"]} for each in range(1, endpoints + 1)]
        slice_ = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4"}
        labels = {"labels": {"kubernetes.io/service-name": name}}
        made.append(slice_ | {"metadata": meta | labels, "endpoints": ready, "ports": [{"port": 8080}]})
        made.append({"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"ports": [{"port": 8080}]}})
        made.append(ingress(of, name, [(f"{of}.org", f"/{name}")], use_regex="false"))
        made[-1]["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]["name"] = name
    return made


def services(namespace: str) -> list[Json]:
    """Write a Service without endpoints."""
    meta, spec = {"namespace": namespace, "name": "web"}, {"ports": [{"name": "http", "port": 8080}]}
    return [{"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}]


class Site:
    """A gateway with Ingresses; `ports` are where Ingresses and routes are served."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ingresses, self.routes = folder, free_port(), free_port()
        self.manifests = folder / "manifests"
        self.manifests.mkdir()

    def put(self, name: str, objects: list[Json]) -> None:
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        (self.folder / "new").write_text(text)
        (self.folder / "new").rename(self.manifests / f"{name}.json")

    def port(self, kind: str) -> int:
        return self.routes if kind in ROUTED else self.ingresses

    def log(self) -> str:
        return (self.folder / "log").read_text()


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("budget"))
    away = {"type": "RequestRedirect", "requestRedirect": {"hostname": "else.org"}}
    good = [ingress("good", "web", [("good.org", "/x[0-9]+")], 0, permanent_redirect="https://else.org")]
    made.put("good", [*good, route("good", "web", [{"filters": [away]}]), *services("good")])
    (made.manifests / "site.yaml").write_text(f"{BASE}---{GATEWAY.replace('PORT', str(made.routes))}")
    flags = ("--manifests", str(made.manifests), "--ingress", "--http", f"127.0.0.1:{made.ingresses}", "--https", "")
    with running(made.folder, *flags, "--threads", "2"):
        until(lambda: code(made.ingresses, "good.org", "/x1") == "301", made.folder)
        until(lambda: code(made.routes, "good.org") == "302", made.folder)
        yield made


async def ask(port: int, host: str, path: str, more: str = "") -> float:
    """Ask with a connection of its own; return the seconds until the answer."""
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{more}\r\n".encode())
        try:
            await reader.read()
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    return asyncio.get_running_loop().time() - began


def slowest(here: Site, kind: str) -> float:
    """Return the least of three, since other programs of this machine hold up some."""
    return min(asyncio.run(slowest_of_hundred(here, kind)) for _ in range(3))


async def slowest_of_hundred(here: Site, kind: str) -> float:
    """Return how long all but one of a hundred requests take at most while others are sent for hosts of a kind."""

    async def attack() -> None:
        host, value = f"{7 if kind in ('hosts', 'wildcard') else ''}.{kind}.org".lstrip("."), "a" * 500
        many = "".join(f"q: {'a' * 40}\r\n" for _ in range(80))
        for number in itertools.takewhile(lambda _: not done.is_set(), itertools.count()):
            # HAProxy remembers what it has compared: each request has another path.
            query = f"{number}?q={value}" if number % 2 else f"{number}?" + "&".join([f"q={'a' * 20}"] * 200)
            headers = f"origin: https://{value}\r\nx-many: {',' * 3000}\r\n{many}"
            with contextlib.suppress(OSError, TimeoutError):
                await ask(here.port(kind), host, LONG[number % 3] + query, headers)

    async def neighbour() -> list[float]:
        return [await ask(here.port(kind), "good.org", "/x1") for _ in range(ASKED)]

    done = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(HOSTILE):
            tasks.create_task(attack())
        found = sorted(await neighbour())
        done.set()
    return found[-2]


@pytest.mark.timeout(2 * UNHURRIED)
@pytest.mark.parametrize("kind", KINDS)
def test_a_neighbour_does_not_wait_for_what_a_namespace_has_many_of(here: Site, kind: str) -> None:
    before = slowest(here, kind)
    # What comes last tells that all before it has come.
    last = ingress("good", kind, [(f"{kind}.good.org", "/x[0-9]+")], 59, permanent_redirect="https://else.org")
    here.put(kind, [*KINDS[kind](kind), *services(kind), last])
    try:
        until(lambda: code(here.ingresses, f"{kind}.good.org", "/x1") == "301", here.folder, UNHURRIED)
        after = slowest(here, kind)
    finally:
        (here.manifests / f"{kind}.json").unlink()
    print(f"{kind}: {before * 1000:.1f} ms, then {after * 1000:.1f} ms")  # noqa: T201
    assert after < 2 * before + SLACK, f"{before * 1000:.1f} ms, then {after * 1000:.1f} ms"


def rendered(folder: Path, objects: list[Json]) -> tuple[set[str], str]:
    """Return the lines of the map of expressions, and what is told of objects."""
    folder.mkdir()
    (folder / "all.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    flags = ("--manifests", str(folder), "--output-dir", str(folder / "out"))
    command = (sys.executable, "-m", "vipwire", "ingress", "render", *flags)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set((folder / "out" / "expressions.map").read_text().splitlines()), done.stderr


def test_the_newest_objects_of_the_namespace_are_left_out_alone(tmp_path: Path) -> None:
    """Whatever the order in which objects come."""
    old = ingress("evil", "old", [("evil.org", NESTED.format(number)) for number in range(8)], 2)
    new = ingress("evil", "new", [("evil.org", NESTED.format(number)) for number in range(8, 16)], 3)
    good = ingress("good", "good", [("good.org", NESTED.format(number)) for number in range(8)], 4)
    shared = [*services("evil"), *services("good")]
    lines, said = rendered(tmp_path / "one", [new, good, old, *shared])
    assert (lines, said) == rendered(tmp_path / "other", [*shared, old, good, new])
    assert len([line for line in lines if "good" in line]) == 8
    assert {line.partition("[y]")[2][:5] for line in lines if "evil" in line} == {f"{n:05d}" for n in range(10)}
    assert [line.count("Ingress evil/new: ") for line in said.splitlines()] == [1] * 6


def test_many_namespaces_have_a_budget_together_and_the_newest_objects_are_left_out(tmp_path: Path) -> None:
    made = []
    for space in (f"ns{number}" for number in range(5)):
        made += services(space)
        for part in range(2):
            paths = [(f"{space}.org", f"/{part}x{number}") for number in range(450)]
            made.append(ingress(space, f"i{part}", paths, 10 * part))
    lines, said = rendered(tmp_path / "all", made)
    told = [line for line in said.splitlines() if "all namespaces exceed 4000" in line]
    assert (len(lines), len(told)) == (4000, 500)
    assert all("/i1: " in line for line in told), "an older Ingress lost a path to a younger one"


def test_what_is_left_out_opens_nothing_that_it_guards(tmp_path: Path) -> None:
    paths = [("evil.org", f"/a/{number}/x*y*") for number in range(100)]
    guarded = ingress("evil", "guarded", paths, 1, deny_source_range="192.0.2.0/24")
    free = ingress("evil", "open", [("evil.org", "/b.*"), ("evil.org", "/")], 0)
    free["spec"]["rules"][1]["http"]["paths"][0]["pathType"] = "Prefix"
    lines, _ = rendered(tmp_path / "all", [free, guarded, *services("evil")])
    assert sum("/a/" in line and "closed" not in line for line in lines) == 49
    assert [line.split()[-1] for line in lines if "/b" in line] == ["closed"]
    prefixes = (tmp_path / "all" / "out" / "prefixes.map").read_text().splitlines()
    assert {f"evil.org/a/{number}/ closed" for number in range(50, 100)} <= set(prefixes)
    assert "evil.org/ evil:web:8080" in prefixes


def test_a_namespace_with_more_servers_than_files_is_left_out_alone(tmp_path: Path) -> None:
    here = Site(tmp_path)
    to = {"permanent_redirect": "https://else.org"}
    here.put("good", [ingress("good", "web", [("good.org", "/x")], 0, **to), *services("good")])
    flags = ("--manifests", str(here.manifests), "--ingress", "--http", f"127.0.0.1:{here.ingresses}", "--https", "")
    with running(here.folder, *flags) as process:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (4000, 4000))
        until(lambda: code(here.ingresses, "good.org", "/x") == "301", here.folder)
        here.put("many", [*backends("many", 40, 100), *backends("few", 1, 3)])
        until(lambda: code(here.ingresses, "few.org", "/b0") == "503", here.folder)
        here.put("more", [ingress("good", "more", [("good.org", "/more")], 1, **to)])
        until(lambda: code(here.ingresses, "good.org", "/more") == "301", here.folder)
    told = [line for line in here.log().splitlines() if "exceed HAProxy's limit of open files" in line]
    assert 0 < len(told) < 40
    assert all("servers of many exceed" in line for line in told)
    assert "few.b0" not in "".join(told)
