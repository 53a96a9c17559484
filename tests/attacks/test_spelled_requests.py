"""Send thousands of requests to one guarded handler through `vipwire ingress` and `vipwire gateway`, with HAProxy.

The corpus is every spelling of tests/fakes/spellings.py, with headers and methods that claim to be from elsewhere,
over HTTP/1.1 and HTTP/2; requests that are framed in two ways; and requests that the seed draws. The Pod reads each
path in all the ways that servers do, and lists those that came to its guarded handler. `make test` sends a part of
the corpus, `make attack` all of it.
"""

import asyncio
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import yaml
from tests.fakes import http2
from tests.fakes.frameworks import framework
from tests.fakes.ports import free_port
from tests.fakes.spellings import DOTS, HONEST, SLASHES, WORDS, exchanged, spellings
from tests.l7.gateway.test_gateway_daemon import CLASS
from tests.l7.gateway.test_gateway_policies import policy
from tests.l7.ingress.site import endpoint, endpoint_slice, ingress, rule, service

pytestmark = [pytest.mark.attack, pytest.mark.slow]
ALL: Final = os.environ.get("VIPWIRE_TEST_REQUESTS") == "all"
DRAWN: Final = 1500
PART: Final = 500
AT_ONCE: Final = 32
PATIENCE: Final = 60.0
POD: Final = "127.0.0.1"
HOST: Final = "a.org"
GUARDED: Final = ("/admin", "/@team", "/caf%C3%A9")
OPEN: Final = ("/", "/admin/public")
LIES: Final = (
    (),
    *((f"{name}: 192.0.2.1",) for name in ("X-Forwarded-For", "X-Real-IP", "True-Client-IP", "CF-Connecting-IP")),
    *((f"{name}: /admin/x",) for name in ("X-Original-URL", "X-Rewrite-URL", "X-Forwarded-URI", "X-Original-URI")),
    *((f"{name}: /admin",) for name in ("X-Forwarded-Prefix", "X-Script-Name", "Referer", "Origin")),
    ("Forwarded: for=192.0.2.1;host=b.org;proto=https",),
    ("X-Forwarded-For: 192.0.2.1", "X-Forwarded-For: 10.0.0.1", "x_forwarded_for: 10.0.0.1"),
    ("X-Forwarded-Host: b.org", "X-HTTP-Method-Override: PUT", "X-Forwarded-Proto: https"),
    ("Connection: close, X-Forwarded-For",),
    ("Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AAMAAABkAAQAAP__"),
    ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Key: eA==", "Sec-WebSocket-Version: 13"),
    ("Cookie: a=b; vipwire=1; admin=1", "Authorization: Basic YWRtaW46YWRtaW4="),
    ("Expect: 100-continue",),
    ("Range: bytes=0-", "Accept-Encoding: gzip, br"),
    ("X: " + "y" * 2000,),
)
METHODS: Final = ("GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE", "PATCH", "PROPFIND", "get", "G-E-T", "TRACE")
ANSWERS: Final = frozenset({200, 308, 400, 403, 404, 405, 408, 413, 414, 422, 501})
"""The status codes that a request of the corpus may have. HAProxy's 5xx would say that it, or the Pod, is hurt."""


class Sent(NamedTuple):
    """One request: over which version, and its text as HTTP/1.1 has it."""

    version: str
    text: str


def written(path: str, headers: Sequence[str] = (), method: str = "GET", host: str = HOST) -> str:
    """Write a request."""
    lines = f"{method} {path} HTTP/1.1", f"Host: {host}", *headers
    closed = () if any(each.startswith("Connection:") for each in headers) else ("Connection: close",)
    return "".join(f"{each}\r\n" for each in (*lines, *closed, ""))


def spelled() -> list[Sent]:
    """Return every spelling over both versions, each with the next lie and, each fifth, with another method."""
    made = []
    for number, path in enumerate(spellings()):
        method = METHODS[number // 5 % len(METHODS)] if number % 5 == 0 else "GET"
        text = written(path, LIES[number % len(LIES)], method)
        made += [Sent("HTTP/1.1", text), Sent("HTTP/2", text)]
    return made


def lied() -> list[Sent]:
    """Return the guarded paths as they stand, with every lie and method, at every spelling of the host."""
    hosts = (HOST, HOST.upper(), f"{HOST}.", f"{HOST}:80", f"{HOST}:1", f"x@{HOST}")
    made = [
        written(f"{path}/x", lie, method) for path in GUARDED for lie in LIES for method in ("GET", "POST", "HEAD")
    ]
    made += [written(f"{path}/x", (), method, host) for path in GUARDED for method in METHODS for host in hosts]
    whole = [written(f"http://{host}{path}/x") for path in GUARDED for host in (*hosts, "b.org", "", "b.org@a.org")]
    return [Sent(version, text) for version in ("HTTP/1.1", "HTTP/2") for text in made] + [
        Sent("HTTP/1.1", text) for text in whole
    ]


def framed() -> list[Sent]:
    """Return requests whose end can be read in two ways, with a second one to the guarded handler inside."""
    inner = written("/admin/smuggled")
    chunked = f"0\r\n\r\n{inner}"
    lengths = (str(len(chunked)), "0", "5", "+5", "5, 5", "0x5", "5 ", "-1", "1e1", str(1 << 64))
    codings = (
        *("chunked", "Chunked", "chunked, identity", "identity, chunked", "gzip, chunked", "xchunked", '"chunked"'),
        *("chunked;q=1", "\x0bchunked", "chunked\x00", "chunked,", "identity", "chunked\r\n chunked"),
    )
    heads = [[f"Content-Length: {length}"] for length in lengths]
    heads += [[f"Content-Length: {one}", f"Content-Length: {two}"] for one in lengths[:4] for two in lengths[:4]]
    heads += [[f"Transfer-Encoding: {coding}"] for coding in codings]
    heads += [
        [f"{name}: {coding}", f"Content-Length: {length}"]
        for name in ("Transfer-Encoding", "Transfer-Encoding ", "Transfer_Encoding", " Transfer-Encoding")
        for coding in codings
        for length in lengths[:3]
    ]
    bodies = chunked, f"1;x=\n\r\ny\r\n{chunked}", f"5\r\nabcde\n{chunked}", f"\r\n{inner}"
    return [
        Sent("HTTP/1.1", written("/", (*head, "Connection: keep-alive"), method) + body)
        for head in heads
        for method in ("POST", "GET")
        for body in bodies[: 2 if method == "POST" else 1]
    ]


def drawn(chance: random.Random, count: int) -> list[Sent]:
    """Draw requests: how each character, slash and step upwards is written, what is before and behind, headers."""

    def encoded(text: str) -> str:
        forms = "{}", "{}", "{}", "%{:02x}", "%{:02X}", "%25{:02x}", "%u00{:02x}"
        parts = re.findall(r"%[0-9A-F]{2}|.", text)
        return "".join(
            form.format(part if form == "{}" else ord(part))
            for part in parts
            for form in (chance.choice(forms) if len(part) == 1 and chance.random() < 0.3 else "{}",)
        )

    def path() -> str:
        names = [encoded(chance.choice((*GUARDED, "/admin/public")).lstrip("/")) for _ in range(chance.randint(1, 2))]
        names += [
            chance.choice((*DOTS, *DOTS, "x", "public", ".", "", "a;b", *WORDS)) for _ in range(chance.randint(0, 3))
        ]
        chance.shuffle(names)
        first = "/" if chance.random() < 0.8 else chance.choice([each for each in SLASHES if each.startswith("/")])
        made = first + "".join(f"{name}{chance.choice(('/', '/', *SLASHES))}" for name in names)
        return made + chance.choice(
            ("", "", "x", ";", "?", "?a=/../admin", "#", "%00", "%2e%2e", ".json", "?/../@team/x")
        )

    return [
        Sent(
            chance.choice(("HTTP/1.1", "HTTP/2")),
            written(path(), chance.choice(LIES), "GET" if chance.random() < 0.8 else chance.choice(METHODS)),
        )
        for _ in range(count)
    ]


def corpus(seed: int) -> list[Sent]:
    """Return the requests of this session."""
    chance = random.Random(seed)  # noqa: S311  # an attacker's draws, to be repeated
    fixed = list(dict.fromkeys([*spelled(), *lied(), *framed()]))
    assert len(fixed) >= 2000
    return [*fixed, *drawn(chance, DRAWN)] if ALL else [*chance.sample(fixed, PART - 100), *drawn(chance, 100)]


@contextlib.contextmanager
def served(kind: str, folder: Path) -> Iterator[tuple[int, int, int]]:
    """Run the command with a Pod behind it; yield the ports of HAProxy and of the Pod, and the process's number."""
    port, pod = free_port(), free_port()
    manifests = folder / "manifests"
    manifests.mkdir()
    (manifests / "all.yaml").write_text(ingresses(pod) if kind == "ingress" else routes(port, pod))
    where = ("--http", f"{POD}:{port}", "--https", f"{POD}:{free_port()}") if kind == "ingress" else ("--bind", POD)
    common = (
        "--run-dir",
        str(folder / "run"),
        "--grace",
        "0.2",
        "--threads",
        "1",
        "--allow-target-range",
        "127.0.0.0/8",
    )
    metrics = ("--metrics-bind-address", f"{POD}:{free_port()}")
    command = (sys.executable, "-m", "vipwire", kind, "--manifests", str(manifests), *common, *metrics, *where)
    with (
        framework("node", folder, POD, pod),
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as process,
    ):
        try:
            end = time.monotonic() + PATIENCE
            while answered(port, "/") != 200 or answered(port, "/admin") != 403:
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < end, (folder / "log").read_text()
                time.sleep(0.1)
            yield port, pod, process.pid
        finally:
            process.terminate()
    assert "Traceback" not in (folder / "log").read_text()


def answered(port: int, path: str) -> int:
    with contextlib.suppress(OSError):
        return asyncio.run(exchanged(port, written(path)))[0]
    return 0


def ingresses(pod: int) -> str:
    guard = {"vipwire.io/deny-source-range": "127.0.0.0/8"}
    return yaml.safe_dump_all(
        (
            service("web"),
            endpoint_slice("web", pod, [endpoint(POD)]),
            ingress("web", rule(HOST, *OPEN)),
            ingress("admin", rule(HOST, *GUARDED), annotations=guard),
        )
    )


def routes(port: int, pod: int) -> str:
    group = "gateway.networking.k8s.io/v1"
    listener = {"name": "http", "port": port, "protocol": "HTTP"}
    gateway = {"apiVersion": group, "kind": "Gateway", "metadata": {"name": "edge", "namespace": "default"}}
    made = [gateway | {"spec": {"gatewayClassName": "vipwire", "listeners": [listener]}}]
    for name, paths in (("open", OPEN), ("guarded", GUARDED)):
        matches = [{"path": {"type": "PathPrefix", "value": path}} for path in paths]
        spec = {
            "parentRefs": [{"name": "edge"}],
            "hostnames": [HOST],
            "rules": [{"matches": matches, "backendRefs": [{"name": "web", "port": 80}]}],
        }
        made.append(
            {
                "apiVersion": group,
                "kind": "HTTPRoute",
                "metadata": {"name": name, "namespace": "default"},
                "spec": spec,
            }
        )
    made += [service("web"), endpoint_slice("web", pod, [endpoint(POD)])]
    guard = policy("TrafficPolicy", "guard", "denySources: [127.0.0.0/8]", "HTTPRoute/guarded")
    return f"{CLASS}---\n{yaml.safe_dump_all(made)}---\n{guard.replace('namespace: infra', 'namespace: default')}"


async def codes(port: int, sent: Sent) -> tuple[list[int], str]:
    """Send a request; return the status codes of all answers, and their text. HTTP/1.1 may have several."""
    if sent.version == "HTTP/2":
        code, told = await http2.exchanged(port, sent.text)
        return [code], json.dumps(told)
    reader, writer = await asyncio.open_connection(POD, port)
    heard = b""
    try:
        writer.write(sent.text.encode("latin-1"))
        with contextlib.suppress(TimeoutError, ConnectionResetError):
            # a kept connection, or a body that lacks its end, is not waited for
            async with asyncio.timeout(
                PATIENCE if "Connection: close\r\n" in sent.text.partition("\r\n\r\n")[0] else 0.5
            ):
                while part := await reader.read(1 << 16):
                    heard += part
    finally:
        writer.close()
    text = heard.decode("latin-1")
    return [int(code) for code in re.findall(r"^HTTP/1\.[01] (\d+)", text, re.MULTILINE)], text


async def attack(port: int, requests: Sequence[Sent]) -> list[str]:
    """Send all requests, some at once; return those that a guarded handler answered, or that hurt a server."""
    wrong, rest = [], iter(requests)

    async def client() -> None:
        for sent in rest:
            found, text = await codes(port, sent)
            if '"guarded ' in text or set(found) - ANSWERS - {100}:
                wrong.append(f"{sent} {found} {text[:300]}")

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(client())
    return wrong


@pytest.mark.parametrize("kind", ["ingress", "gateway"])
def test_no_request_of_the_corpus_reaches_the_guarded_handler(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    requests = corpus(request.config.getoption("randomly_seed") if ALL else 0)
    record_property("requests", len(requests))
    with served(kind, tmp_path) as (port, pod, _):
        assert asyncio.run(attack(port, requests))[:5] == []
        for path in HONEST[:6]:
            assert answered(port, path) == 200
        assert answered(pod, "/admin/seen") == 200  # nothing guards the Pod itself
        _, told = asyncio.run(exchanged(pod, written("/")))
        assert told["guarded"] == ["/admin/seen"]
    assert len(requests) >= (2000 + DRAWN if ALL else PART)
