"""Copies of requests, and questions about them, while eight clients ask at once: no process of HAProxy ends."""

import asyncio
import contextlib
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest
from tests.fakes import http2
from tests.fakes.ports import free_port
from tests.l7.gateway.site import BASE, service
from tests.l7.gateway.test_gateway_daemon import code, running, until

pytestmark = pytest.mark.attack

CLIENTS, ON_ONE_CONNECTION = 8, 50
CONNECTIONS = 100 if os.environ.get("VIPWIRE_TEST_REQUESTS") == "all" else 12
"""Of each client, one after another."""
THREADS = 2
PODS = {"web": "127.0.0.71", "copies": "127.0.0.72", "lots": "127.0.0.73", "auth": "127.0.0.74"}
MIRROR = "{type: RequestMirror, requestMirror: {backendRef: {name: SERVICE, port: 8080}MORE}}"
ALL = MIRROR.replace("SERVICE", "copies").replace("MORE", "")
A_FIFTH = MIRROR.replace("SERVICE", "lots").replace("MORE", ", percent: 20")
ASKED = "{type: ExternalAuth, externalAuth: {protocol: HTTP, backendRef: {name: auth, port: 8080}, http: {}}}"
STUCK = {"stuck": "127.0.0.75"}
ENDLESS = {"endless": "127.0.0.76", "told": "127.0.0.77", "calls": "127.0.0.78", "drips": "127.0.0.79"}
HEADS = {"calls": b"content-type: application/grpc\r\n"}
DRIPS = {"drips": 7}
"""Seconds for which an answer comes byte by byte before it floods."""
CONNECTIONS = 50
MOST_AT_ONCE = 64
"""Copies for one mirror that a thread waits for."""
ENDED_AFTER = 50 << 20
"""Bytes after which an answer without an end does end."""
PATHS = {"/all": [ALL], "/share": [A_FIFTH], "/asked": [ASKED], "/each": [ASKED, ALL, A_FIFTH]}


HOSTILE = {
    "/stuck": [MIRROR.replace("SERVICE", "stuck").replace("MORE", "")],
    "/endless": [MIRROR.replace("SERVICE", "endless").replace("MORE", "")],
    "/told": [ASKED.replace("name: auth", "name: told")],
    "/calls": [MIRROR.replace("SERVICE", "calls").replace("MORE", "")],
    "/drips": [ASKED.replace("name: auth", "name: drips")],
}


def objects(port: int, pod_port: int, paths: Mapping[str, Sequence[str]] = PATHS) -> Iterator[str]:
    """Write a Gateway, the route with a rule for each path, and the Services."""
    meta = "metadata: {name: edge, namespace: infra}"
    listeners = f"[{{name: http, port: {port}, protocol: HTTP}}]"
    yield BASE
    yield (
        f"apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\n{meta}\n"
        f"spec: {{gatewayClassName: vipwire, listeners: {listeners}}}"
    )
    rules = "".join(
        f"  - matches: [{{path: {{value: {path}}}}}]\n    filters: [{', '.join(filters)}]\n"
        "    backendRefs: [{name: web, port: 8080}]\n"
        for path, filters in paths.items()
    )
    yield (
        f"apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\n{meta}\n"
        f"spec:\n  parentRefs: [{{name: edge}}]\n  rules:\n{rules}"
    )
    yield from (service(name, address, pod_port) for name, address in (PODS | STUCK | ENDLESS).items())


class Counted(asyncio.Protocol):
    """A connection of a Pod that answers each request with 200, and counts them by path."""

    def __init__(self, served: Counter[str], opened: list[asyncio.Transport]) -> None:
        self._served, self._opened, self._data = served, opened, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._opened.append(transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        while b"\r\n\r\n" in self._data:
            head, _, self._data = self._data.partition(b"\r\n\r\n")
            self._served[head.split(b" ", 2)[1].decode()] += 1
            self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")


class Stuck(asyncio.Protocol):
    """A connection of a Pod that never answers."""

    def __init__(self, opened: list[asyncio.Transport]) -> None:
        self._opened = opened

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._opened.append(transport)


def pods_of(
    served: Mapping[str, Counter[str]], opened: list[asyncio.Transport], port: int
) -> Iterator[Awaitable[asyncio.Server]]:
    """Have a server for each Pod that answers."""
    loop = asyncio.get_running_loop()
    for name, address in PODS.items():
        yield loop.create_server(partial(Counted, served[name], opened), address, port)


@contextlib.asynccontextmanager
async def serving(opened: Sequence[asyncio.Transport], *servers: Awaitable[asyncio.Server]) -> AsyncIterator[None]:
    """Run the servers of Pods. In the end each connection is cut, whatever it has yet to send."""
    async with contextlib.AsyncExitStack() as stack:
        for server in servers:
            stack.callback((await server).close)
        try:
            yield
        finally:
            for transport in opened:
                transport.abort()


async def answer_without_end(name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send chunks until HAProxy hangs up."""
    with contextlib.suppress(OSError, EOFError), contextlib.ExitStack() as stack:
        stack.callback(writer.transport.abort)  # what it has yet to send would keep it open
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n" + HEADS.get(name, b"") + b"transfer-encoding: chunked\r\n\r\n")
        for _ in range(DRIPS.get(name, 0)):
            writer.write(b"1\r\nx\r\n")
            await asyncio.sleep(1.0)
        for _ in range(ENDED_AFTER >> 14):
            writer.write(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
            await writer.drain()


def resident(pid: int) -> int:
    """Return the megabytes of memory that a process has."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(each.split()[1]) for each in lines if each.startswith("VmRSS")) >> 10


async def ask(port: int, number: int, statuses: Counter[str]) -> None:
    """Ask for each path in turn, with a new connection now and then; count statuses and what failed."""
    asked = number
    for _ in range(CONNECTIONS):
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError as error:
            statuses[type(error).__name__] += 1
            continue
        with contextlib.closing(writer):
            for _ in range(ON_ONE_CONNECTION):
                path = list(PATHS)[asked % len(PATHS)]
                asked += 1
                writer.write(f"GET {path}/{asked} HTTP/1.1\r\nhost: a.org\r\n\r\n".encode())
                try:
                    async with asyncio.timeout(60):
                        head = await reader.readuntil(b"\r\n\r\nok")
                except (OSError, EOFError, TimeoutError) as error:
                    statuses[type(error).__name__] += 1
                    break
                statuses[f"{path} {head.split(b' ', 2)[1].decode()}"] += 1


def children(pid: int) -> list[int]:
    """Return the child processes of a process; none when it has ended."""
    file = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(each) for each in file.read_text().split()] if file.exists() else []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("load")


async def test_no_process_ends_while_clients_of_two_threads_are_mirrored_and_asked_about(folder: Path) -> None:
    """Of a share, each thread mirrors exactly one of each five of its requests."""
    port, pod_port = free_port(), free_port()
    (folder / "manifests").mkdir()
    (folder / "manifests" / "all.yaml").write_text("\n---\n".join(objects(port, pod_port)))
    served = {name: Counter[str]() for name in PODS}
    statuses, opened = Counter[str](), list[asyncio.Transport]()
    with running(folder, "--manifests", str(folder / "manifests"), "--threads", str(THREADS)) as process:
        async with serving(opened, *pods_of(served, opened, pod_port)):
            await asyncio.to_thread(until, lambda: code(port, "a.org", "/asked") == "200", folder)
            (master,) = children(process.pid)
            before = children(master)
            await asyncio.gather(*(ask(port, number, statuses) for number in range(CLIENTS)))
            await asyncio.sleep(1.0)  # the last copies are on their way
            after, said = children(master), (folder / "run" / "messages").read_text()
    assert len(before) == 1
    assert after == before
    assert "exited" not in said
    assert set(statuses) == {f"{path} 200" for path in PATHS}
    asked = {path: statuses[f"{path} 200"] for path in PATHS}
    assert sum(asked.values()) == CLIENTS * CONNECTIONS * ON_ONE_CONNECTION
    copied = {name: sum(found.values()) for name, found in served.items()}
    assert copied["copies"] == asked["/all"] + asked["/each"]
    assert copied["auth"] == asked["/asked"] + asked["/each"] + 1  # the first of all
    # Two rules have a share, each thread draws for itself: each of these four is off by less than one.
    assert abs(copied["lots"] - (asked["/share"] + asked["/each"]) / 5) < 2 * THREADS


def test_mirrors_that_never_answer_and_answers_without_an_end_cost_a_constant(tmp_path: Path) -> None:
    """Before, each copy for a mirror that hung held a connection for ten seconds, and each answer was kept whole."""
    port, pod_port = free_port(), free_port()
    (tmp_path / "manifests").mkdir()
    text = "\n---\n".join(objects(port, pod_port, HOSTILE | {"/asked": [ASKED]}))
    (tmp_path / "manifests" / "all.yaml").write_text(text)
    served = {name: Counter[str]() for name in PODS}
    opened, stuck = list[asyncio.Transport](), list[asyncio.Transport]()

    async def ask(path: str, times: int) -> Counter[str]:
        found = Counter[str]()
        for _ in range(times):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.closing(writer):
                writer.write(f"GET {path} HTTP/1.1\r\nhost: a.org\r\n\r\n".encode())
                async with asyncio.timeout(30):
                    found[(await reader.readline()).split(b" ")[1].decode()] += 1
        return found

    async def load(pid: int) -> None:
        loop = asyncio.get_running_loop()
        hostile = (
            loop.create_server(partial(Stuck, stuck), STUCK["stuck"], pod_port),
            *(asyncio.start_server(partial(answer_without_end, name), at, pod_port) for name, at in ENDLESS.items()),
        )
        async with serving(opened, *pods_of(served, opened, pod_port)), serving(stuck, *hostile):
            await asyncio.to_thread(until, lambda: code(port, "a.org", "/asked") == "200", tmp_path)
            (master,) = children(pid)
            (worker,) = children(master)
            before = resident(worker)
            assert await ask("/stuck", 4 * MOST_AT_ONCE) == {"200": 4 * MOST_AT_ONCE}
            assert len(stuck) <= MOST_AT_ONCE
            assert await ask("/endless", 50) == {"200": 50}
            assert await ask("/told", 10) == {"502": 10}
            assert await ask("/calls", 50) == {"200": 50}
            dripped = await asyncio.gather(*(ask("/drips", 1) for _ in range(10)))
            assert dripped == [{"504": 1}] * 10
            assert await ask("/asked", 1) == {"200": 1}
            assert children(master) == [worker]
            assert resident(worker) - before < 40

    with running(tmp_path, "--manifests", str(tmp_path / "manifests")) as process:
        asyncio.run(load(process.pid))


async def ask_by_http_2(port: int, end: float, statuses: Counter[str]) -> None:
    """Ask for each path in turn."""
    while asyncio.get_running_loop().time() < end:
        for path in PATHS:
            status, _ = await http2.asked(port, http2.pseudo(path, "a.org"))
            statuses[f"{path} {status}"] += 1


def test_headers_of_http_2_without_an_end_cost_a_constant(tmp_path: Path) -> None:
    """Clients send them for paths that are mirrored and asked about, while others ask there."""
    port, pod_port = free_port(), free_port()
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "all.yaml").write_text("\n---\n".join(objects(port, pod_port)))
    served = {name: Counter[str]() for name in PODS}
    statuses, opened = Counter[str](), list[asyncio.Transport]()

    async def flood_until(end: float) -> None:
        while asyncio.get_running_loop().time() < end:
            await http2.send_headers_without_end(port, http2.pseudo("/each", "a.org"), 2_000)
            await asyncio.sleep(0.02)  # the Pods of this test share the loop

    async def load(pid: int) -> None:
        loop = asyncio.get_running_loop()
        async with serving(opened, *pods_of(served, opened, pod_port)):
            await asyncio.to_thread(until, lambda: code(port, "a.org", "/asked") == "200", tmp_path)
            (master,) = children(pid)
            (worker,) = children(master)
            before, end = resident(worker), loop.time() + 8.0
            await asyncio.gather(
                *(flood_until(end) for _ in range(4)),
                *(ask_by_http_2(port, end, statuses) for _ in range(2)),
            )
            await asyncio.sleep(1.0)
            assert children(master) == [worker]
            assert resident(worker) - before < 60

    with running(tmp_path, "--manifests", str(tmp_path / "manifests"), "--threads", str(THREADS)) as process:
        asyncio.run(load(process.pid))
    assert set(statuses) == {f"{path} 200" for path in PATHS}


@pytest.mark.parametrize(("path", "megabytes"), [("/nothing", 2), ("/all", 3), ("/asked", 6)])
def test_requests_of_http_2_that_are_reset_at_once_cost_a_constant_for_each_connection(
    tmp_path: Path, path: str, megabytes: int
) -> None:
    """HAProxy goes on with each of the hundred requests of a connection, and with the connection until then."""
    port, pod_port = free_port(), free_port()
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "all.yaml").write_text("\n---\n".join(objects(port, pod_port)))
    served = {name: Counter[str]() for name in PODS}
    opened = list[asyncio.Transport]()
    attack = f"from tests.fakes import http2; http2.send_requests_and_reset_them({port}, {path!r}, 4.0)"

    async def load(pid: int) -> None:
        loop = asyncio.get_running_loop()
        pods = [
            await loop.create_server(partial(Counted, served[name], opened), address, pod_port)
            for name, address in PODS.items()
        ]
        await asyncio.to_thread(until, lambda: code(port, "a.org", "/asked") == "200", tmp_path)
        (master,) = children(pid)
        (worker,) = children(master)
        before = resident(worker)
        attacks = [await asyncio.create_subprocess_exec(sys.executable, "-c", attack) for _ in range(3)]
        await asyncio.gather(*(each.wait() for each in attacks))
        grown = resident(worker) - before
        await asyncio.to_thread(until, lambda: code(port, "a.org", "/asked") == "200", tmp_path)
        assert children(master) == [worker]
        assert grown < 40 + CONNECTIONS * megabytes
        for pod in pods:
            pod.close()
        for transport in opened:
            transport.close()

    most = ("--max-connections", str(CONNECTIONS), "--threads", str(THREADS))
    with running(tmp_path, "--manifests", str(tmp_path / "manifests"), *most) as process:
        asyncio.run(load(process.pid))


async def test_mirrors_of_one_namespace_leave_places_for_those_of_others(tmp_path: Path) -> None:
    """Four mirrors that never answer would have all copies that a thread waits for."""
    port, other, pod_port = free_port(), free_port(), free_port()
    paths = {f"/s{n}": [ALL.replace("copies", f"stuck{n}")] for n in range(4)}
    hostile = [*objects(port, pod_port, paths), *(service(f"stuck{n}", "127.0.0.75", pod_port) for n in range(4))]
    good = "\n---\n".join(objects(other, pod_port, {"/all": [ALL]})).replace("infra", "good")
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "all.yaml").write_text("\n---\n".join((*hostile, good)))
    served = {name: Counter[str]() for name in PODS}
    opened = list[asyncio.Transport]()
    with running(tmp_path, "--manifests", str(tmp_path / "manifests"), "--threads", "1"):
        loop = asyncio.get_running_loop()
        async with serving(
            opened,
            *pods_of(served, opened, pod_port),
            loop.create_server(partial(Stuck, opened), "127.0.0.75", pod_port),
        ):
            await asyncio.to_thread(until, lambda: code(other, "a.org", "/all") == "200", tmp_path)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for path in paths:
                for _ in range(2 * MOST_AT_ONCE):
                    writer.write(f"GET {path} HTTP/1.1\r\nhost: a.org\r\n\r\n".encode())
                    await reader.readuntil(b"\r\n\r\nok")
            writer.close()
            before = served["copies"].total()
            assert await asyncio.to_thread(code, other, "a.org", "/all") == "200"
            async with asyncio.timeout(5):
                while served["copies"].total() == before:  # noqa: ASYNC110  # a Pod hears of it by its connection
                    await asyncio.sleep(0.05)
