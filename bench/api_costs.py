"""Measures the most that a client can cost the API server: blocked event loop time and memory.

Each cost is one action that a client with or without a role may try, against a server with TLS and 18 MB of
ConfigMaps, in a separate process. Meanwhile the server must answer an admin's requests.
"""

import asyncio
import contextlib
import csv
import json
import ssl
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
from bench.options import Options
from bench.report import Figure

TITLE: Final = "what one client can cost the API server"
_MAPS: Final = "/api/v1/namespaces/default/configmaps"
_PODS: Final = "/api/v1/namespaces/default/pods"
_REVIEW: Final = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_STALL_MS: Final = 500.0
_MORE_MB: Final = 150.0


@dataclass
class Server:
    """The server, and how to reach it."""

    process: asyncio.subprocess.Process
    folder: Path
    port: int
    tls: ssl.SSLContext
    session: aiohttp.ClientSession
    base: float = 0.0

    def token(self, user: str) -> dict[str, str]:
        """Return the user's Authorization header; {} for an anonymous user."""
        rows = csv.reader((self.folder / "tokens.csv").read_text().splitlines())
        found = next((row[0] for row in rows if row[2] == user), "")
        return {"Authorization": f"Bearer {found}"} if found else {}

    async def told(self) -> dict[str, float]:
        """Return the server's costs since the last call."""
        assert self.process.stdin is not None  # noqa: S101  # they are pipes
        assert self.process.stdout is not None  # noqa: S101
        self.process.stdin.write(b"\n")
        answer: dict[str, float] = json.loads(await self.process.stdout.readline())
        return answer

    async def ask(
        self, method: str, path: str, body: bytes | None = None, kind: str = "json", user: str = "admin"
    ) -> int:
        headers = {"Content-Type": f"application/{kind}"} | self.token(user)
        url = f"https://127.0.0.1:{self.port}{path}"
        async with self.session.request(method, url, data=body, headers=headers, ssl=self.tls) as response:
            await response.read()
            return response.status

    async def connect(self, said: bytes = b"", *, plain: bool = False) -> asyncio.StreamWriter:
        """Open a connection, send `said`, and read nothing."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=None if plain else self.tls, limit=1 << 12
        )
        reader._transport.pause_reading()  # type: ignore[attr-defined]  # noqa: SLF001  # as if nobody were there
        writer.write(said)
        return writer


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[Server]:
    with tempfile.TemporaryDirectory() as name:
        command = ("prlimit", "--nofile=1024:20000", sys.executable, "-m", "bench.api_under_watch", name)
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        assert process.stdout is not None  # noqa: S101  # it is a pipe
        assert process.stdin is not None  # noqa: S101
        port = int(await process.stdout.readline())
        tls = ssl.create_default_context(cafile=f"{name}/pki/ca.crt")
        try:
            async with aiohttp.ClientSession() as session:
                server = Server(process, Path(name), port, tls, session)
                await server.ask("GET", "/version")
                server.base = (await server.told())["now_mb"]
                yield server
        finally:
            process.stdin.close()
            await process.wait()


@contextlib.asynccontextmanager
async def held(server: Server, count: int, said: bytes = b"", *, plain: bool = False) -> AsyncIterator[None]:
    writers = []
    for _ in range(count):
        with contextlib.suppress(OSError):
            writers.append(await server.connect(said, plain=plain))
    try:
        yield
    finally:
        for writer in writers:
            writer.transport.abort()


async def silent(server: Server) -> None:
    """1,100 connections that say nothing, under a limit of 1,024 files."""
    async with held(server, 1100, plain=True):
        assert await server.ask("GET", _MAPS + "/m0") == 200  # noqa: S101


async def halting(server: Server) -> None:
    """1,100 connections that begin TLS and go no further."""
    async with held(server, 1100, b"\x16", plain=True):
        assert await server.ask("GET", _MAPS + "/m0") == 200  # noqa: S101


async def slow_headers(server: Server) -> None:
    """400 connections with half of a request of a megabyte each."""
    lines = b"".join(b"X-%d: %s\r\n" % (number, b"a" * 16_000) for number in range(60))
    async with held(server, 400, b"GET /version HTTP/1.1\r\n" + lines):
        assert await server.ask("GET", _MAPS + "/m0") == 200  # noqa: S101


def garbage(said: bytes) -> Callable[[Server], Awaitable[None]]:
    """Open 5,000 connections with bytes that are no TLS handshake, or only begin as one."""

    async def say(server: Server) -> None:
        for _ in range(5000):
            async with held(server, 1, said, plain=True):
                await asyncio.sleep(0)

    return say


def review(user: str, size: int) -> Callable[[Server], Awaitable[None]]:
    """Post YAML of many values as a SubjectAccessReview."""

    async def post(server: Server) -> None:
        with contextlib.suppress(aiohttp.ClientError):
            await server.ask("POST", _REVIEW, b"a: [" + b"1, " * (size // 3) + b"1]", "yaml", user)

    return post


async def shaken(server: Server) -> None:
    """3,000 TLS handshakes, 30 at a time, and nothing after them."""

    async def shake() -> None:
        for _ in range(100):
            with contextlib.suppress(OSError):  # the server closes connections of too frequent clients
                (await server.connect()).transport.abort()

    await asyncio.gather(*(shake() for _ in range(30)))


def slow_bodies(user: str, path: str, size: int, count: int) -> Callable[[Server], Awaitable[None]]:
    """Begin bodies without a last byte; meanwhile other clients write."""

    async def begin(server: Server) -> None:
        lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {size}"]
        lines += [f"{name}: {value}" for name, value in server.token(user).items()]
        said = "\r\n".join((*lines, "", "")).encode() + b" " * (size - 1)
        async with held(server, count, said):
            for number in range(10):
                body = json.dumps({"metadata": {"name": f"meanwhile-{number}"}}).encode()
                assert await server.ask("POST", _MAPS, body) == 201  # noqa: S101
                await asyncio.sleep(0.1)

    return begin


def unread(count: int) -> Callable[[Server], Awaitable[None]]:
    """Request lists of 18 MB and read no answer."""

    async def ask(server: Server) -> None:
        token = server.token("view")["Authorization"]
        said = f"GET {_MAPS} HTTP/1.1\r\nHost: x\r\nAuthorization: {token}\r\n\r\n".encode()
        async with held(server, count, said):
            for _ in range(20):
                assert await server.ask("GET", _MAPS + "/m0") == 200  # noqa: S101
                await asyncio.sleep(0.1)

    return ask


async def lists(server: Server) -> None:
    """8 concurrent lists of 18 MB, read at full speed, twice."""
    for _ in range(2):
        await asyncio.gather(*(server.ask("GET", _MAPS, user="view") for _ in range(8)))


def watches(count: int, question: str = "") -> Callable[[Server], Awaitable[None]]:
    """Begin watches and read nothing: of 18 MB, unless a query reduces that."""

    async def watch(server: Server) -> None:
        token = server.token("view")["Authorization"]
        said = f"GET {_MAPS}?watch=1{question} HTTP/1.1\r\nHost: x\r\nAuthorization: {token}\r\n\r\n".encode()
        async with held(server, count, said):
            for number in range(10):
                body = json.dumps({"metadata": {"name": f"meanwhile-{number}"}}).encode()
                assert await server.ask("POST", _MAPS, body) == 201  # noqa: S101
                await asyncio.sleep(0.1)

    return watch


def patched(operations: Sequence[object]) -> Callable[[Server], Awaitable[None]]:
    async def patch(server: Server) -> None:
        body = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a", "image": "none"}]}}
        await server.ask("POST", _PODS, json.dumps(body).encode(), user="node")
        await server.ask("PATCH", f"{_PODS}/p", json.dumps(operations).encode(), "json-patch+json", "node")

    return patch


def posted(kind: str, body: bytes) -> Callable[[Server], Awaitable[None]]:
    async def post(server: Server) -> None:
        await server.ask("POST", _PODS, body, kind, "node")

    return post


_DOUBLING: Final = [{"op": "add", "path": "/metadata/annotations", "value": {"a": "x" * 1000}}] + [
    {"op": "copy", "from": "/metadata/annotations", "path": f"/metadata/annotations/c{n}"} for n in range(22)
]
_MANY: Final = [{"op": "add", "path": "/metadata/annotations", "value": {}}] + [
    {"op": "add", "path": f"/metadata/annotations/a{number}", "value": "b"} for number in range(9_999)
]
_LABELS: Final = json.dumps(
    {"metadata": {"name": "l", "labels": {f"l{number}": "v" for number in range(100_000)}}, "spec": {}}
).encode()
_UNKNOWN: Final = json.dumps(
    {"metadata": {"name": "u"}, **{f"field{number}": 1 for number in range(150_000)}}
).encode()
COSTS: Final[tuple[tuple[str, Callable[[Server], Awaitable[None]]], ...]] = (
    ("anonymous: 1,100 silent connections", silent),
    ("anonymous: 400 x 1 MB of headers, unfinished", slow_headers),
    ("anonymous: 5,000 x no TLS", garbage(b"GET / HTTP/1.1\r\n\r\n")),
    ("anonymous: 5,000 x TLS that fails", garbage(b"\x16\x03\x01\x00\x05hello")),
    ("anonymous: 1,100 x TLS that begins only", halting),
    ("anonymous: a question of 1 MiB in YAML", review("", 1 << 20)),
    ("view: a question of 64 KB in YAML", review("view", 65_000)),
    ("anonymous: 3,000 x TLS and no request", shaken),
    ("anonymous: 400 bodies without an end", slow_bodies("", _PODS, 3 << 20, 400)),
    ("view: 200 questions without an end", slow_bodies("view", _REVIEW, 64_000, 200)),
    ("node: 60 bodies of 3 MB without an end", slow_bodies("node", _PODS, 3 << 20, 60)),
    ("view: 40 lists of 18 MB, unread", unread(40)),
    ("view: 300 lists of 18 MB, unread", unread(300)),
    ("view: 16 lists of 18 MB, 8 at a time", lists),
    ("view: 500 watches of 18 MB, unread", watches(500)),
    ("view: 1,200 watches of 18 MB, unread", watches(1200)),
    ("view: 1,200 watches of nothing", watches(1200, "&fieldSelector=metadata.name%3Dnone")),
    ("node: JSON patch, copies that double", patched(_DOUBLING)),
    ("node: JSON patch, 10,000 operations", patched(_MANY)),
    ("node: 1.6 MB of labels", posted("json", _LABELS)),
    ("node: 2.2 MB of unknown fields", posted("json", _UNKNOWN)),
    ("node: 3 MB of YAML", posted("yaml", b"metadata: {name: y}\nspec: [" + b"a, " * 1_000_000 + b"]")),
)


async def cost() -> list[Figure]:
    figures = []
    for name, attempt in COSTS:
        async with served() as server:
            async with asyncio.TaskGroup() as tasks:
                work = tasks.create_task(_tried(attempt, server))
                slowest = await _slowest_answer(server, work)
            told = await server.told()
            figures += [
                Figure(f"{name}: loop stands", told["ms"], "ms", _STALL_MS),
                Figure(f"{name}: memory more", told["mb"] - server.base, "MB", _MORE_MB),
                Figure(f"{name}: slowest answer to an admin", slowest, "ms"),
            ]
    return figures


async def _tried(attempt: Callable[[Server], Awaitable[None]], server: Server) -> None:
    await attempt(server)


async def _slowest_answer(server: Server, work: asyncio.Task[None]) -> float:
    loop, slowest = asyncio.get_running_loop(), 0.0
    while not work.done():
        begun = loop.time()
        await server.ask("GET", f"{_MAPS}/none")
        slowest = max(slowest, loop.time() - begun)
        await asyncio.sleep(0.01)
    return slowest * 1000


def measure(_: Options) -> list[Figure]:
    return asyncio.run(cost())
