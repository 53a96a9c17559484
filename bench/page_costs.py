"""The most that clients can cost a process's pages (health, metrics): memory, a blocked loop, slow answers.

A thousand clients in one process repeat one action for five seconds, against the proxy's pages in another. Closed
clients reconnect. Meanwhile a prober at the same address requests /healthz on new connections.
"""

import asyncio
import contextlib
import json
import os
import random
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

from bench.api_under_watch import Watch, resident
from bench.options import Options
from bench.report import Figure

from vipwire.http_server.exchange import Stream
from vipwire.http_server.pages import Request, serve_pages
from vipwire.model.net import Family
from vipwire.process_lifecycle.cyclic_garbage import collect_rarely
from vipwire.process_lifecycle.event_loop import run_in_loop
from vipwire.process_lifecycle.file_limits import raise_limit
from vipwire.proxy_daemon.serve.health import ProxyHealth
from vipwire.proxy_daemon.serve.metrics import Metrics
from vipwire.proxy_daemon.serve.pages import ProxyInfo, build_health_pages, build_metrics_pages
from vipwire.proxy_daemon.serve.server import open_listening_socket

TITLE: Final = "what a thousand clients can cost health and metrics pages"
CLIENTS: Final = 1000
_SECONDS: Final = 5.0
_STALL_MS: Final = 50.0
_MORE_MB: Final = 100.0
_HOST: Final = b" HTTP/1.1\r\nHost: x\r\n"


def _many(request: bytes) -> bytes:
    return request * (65536 // len(request))


async def flood(stream: socket.socket, said: bytes, *, reads: int = 0, pause: float = 0.0) -> None:
    """Send without end; read `reads` bytes at a time."""
    loop = asyncio.get_running_loop()

    async def read() -> None:
        while await loop.sock_recv(stream, reads):  # noqa: ASYNC110  # a slow client
            await asyncio.sleep(pause)

    async with asyncio.TaskGroup() as tasks:
        if reads:
            tasks.create_task(read())
        while True:
            await loop.sock_sendall(stream, said)


async def drip(stream: socket.socket, said: bytes) -> None:
    """Send `said`, then one byte a second."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(stream, said)
    while True:
        await asyncio.sleep(1)
        await loop.sock_sendall(stream, b"x")


async def endless_chunks(stream: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(stream, b"PUT /healthz" + _HOST + b"Transfer-Encoding: chunked\r\n\r\n")
    await flood(stream, b"400\r\n" + b"x" * 1024 + b"\r\n")


async def half_closed(stream: socket.socket) -> None:
    """Send requests, shut down the sending side, and read nothing."""
    await asyncio.get_running_loop().sock_sendall(stream, b"GET /metrics" + _HOST + b"\r\n")
    stream.shutdown(socket.SHUT_WR)
    await asyncio.sleep(random.uniform(0.5, 1.0))


async def reset(stream: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(stream, b"GET /healthz" + _HOST + b"Connection: close\r\n\r\n")
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await asyncio.sleep(random.uniform(0, 0.5))


Attempt = Callable[[socket.socket], Awaitable[None]]
_GET: Final = _many(b"GET /healthz" + _HOST + b"\r\n")
_FIELDS: Final = b"".join(b"x%d: y\r\n" % number for number in range(6000))
ATTEMPTS: Final[dict[str, Attempt]] = {
    "pipelines, unread": lambda s: flood(s, _GET),
    "pipelines of /metrics, unread": lambda s: flood(s, _many(b"GET /metrics" + _HOST + b"\r\n")),
    "pipelines, read at 1 byte/s": lambda s: flood(s, _GET, reads=1, pause=1.0),
    "pipelines with bodies, unread": lambda s: flood(
        s, _many(b"PUT /healthz" + _HOST + b"Content-Length: 1000\r\n\r\n" + b"x" * 1000)
    ),
    "pipelines of HEAD, read": lambda s: flood(s, _many(b"HEAD /healthz" + _HOST + b"\r\n"), reads=65536),
    "chunks without an end": endless_chunks,
    "60 KB of header fields, unfinished": lambda s: drip(s, b"GET /healthz" + _HOST + _FIELDS[:60000]),
    "60 KB of a body, unfinished": lambda s: drip(
        s, b"PUT /healthz" + _HOST + b"Content-Length: 64000\r\n\r\n" + b"x" * 60000
    ),
    "a request byte by byte": lambda s: drip(s, b"GET /"),
    "Expect, and no body": lambda s: drip(
        s, b"PUT /healthz" + _HOST + b"Expect: 100-continue\r\nContent-Length: 9000\r\n\r\n"
    ),
    "half-closed, unread": half_closed,
    "reset after a request": reset,
    "streams, unread": lambda s: flood(s, b"GET /stream" + _HOST + b"\r\n"),
}


async def attack(name: str, port: int) -> None:
    """Run one action with many clients."""

    async def client() -> None:
        loop = asyncio.get_running_loop()
        while True:
            with contextlib.suppress(OSError, ExceptionGroup), socket.socket() as stream:
                stream.setblocking(False)  # noqa: FBT003
                await loop.sock_connect(stream, ("127.0.0.1", port))
                await ATTEMPTS[name](stream)
            await asyncio.sleep(random.uniform(0, 1.0))

    raise_limit()
    async with asyncio.timeout(_SECONDS + 3), asyncio.TaskGroup() as tasks:
        for _ in range(CLIENTS):
            tasks.create_task(client())
        print(flush=True)


async def pages() -> None:
    """Serve until the input ends; print the port, and after each input line the costs since the last."""
    health = ProxyHealth((Family.IPV4,), ("Service",), sync_period=30.0)
    health.record_update(Family.IPV4, time.time())
    metrics = Metrics("nftables")
    health_pages = build_health_pages(health, metrics, time.time)
    info = ProxyInfo("nftables", "", {}, {}, started=time.time())
    metrics_pages = build_metrics_pages(metrics, info, time.time)

    async def site(request: Request) -> object:
        if request.path == "/stream":
            return Stream(blocks())
        return await (metrics_pages if request.path == "/metrics" else health_pages)(request)

    async def blocks() -> AsyncGenerator[bytes, None]:
        while True:
            yield bytes(65536)
            await asyncio.sleep(0.1)

    raise_limit()
    listener, watch, loop = open_listening_socket("127.0.0.1", 0), Watch(), asyncio.get_running_loop()
    print(listener.getsockname()[1], resident(), flush=True)
    serving = serve_pages(listener, site)  # type: ignore[arg-type]  # a Reply or a Stream
    watching = loop.create_task(watch.run())
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(watch.told()), flush=True)
    watching.cancel()
    await serving.close()


def probe(port: int, seconds: float) -> list[float]:
    """Request /healthz for a while; return the milliseconds of each answer, 5,000 for none."""
    taken, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        begun = time.perf_counter()
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5.0) as stream:
                stream.sendall(b"GET /healthz" + _HOST + b"Connection: close\r\n\r\n")
                answered = stream.recv(65536).startswith(b"HTTP/1.1 200 ")
        except OSError:
            answered = False
        taken.append((time.perf_counter() - begun) * 1000 if answered else 5000.0)
        time.sleep(0.02)
    return taken


def cost(name: str) -> list[Figure]:
    """Try one action against a new server."""
    command, pipe = (sys.executable, "-m", "bench.page_costs"), subprocess.PIPE
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen((*command, "serve"), stdin=pipe, stdout=pipe, stderr=log, text=True) as server,
    ):
        assert server.stdin is not None  # noqa: S101  # they are pipes
        assert server.stdout is not None  # noqa: S101
        port, base = server.stdout.readline().split()
        quiet = statistics.median(probe(int(port), 1.0))
        print(file=server.stdin, flush=True)
        server.stdout.readline()
        with subprocess.Popen((*command, name, port), stdout=pipe, stderr=subprocess.DEVNULL) as clients:
            assert clients.stdout is not None  # noqa: S101
            clients.stdout.readline()
            time.sleep(1.0)
            taken = probe(int(port), _SECONDS)
            print(file=server.stdin, flush=True)
            told = json.loads(server.stdout.readline())
            clients.terminate()
        server.stdin.close()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
        logged = os.lseek(log.fileno(), 0, os.SEEK_END)
    return [
        Figure(f"{name}: loop stands", told["ms"], "ms", _STALL_MS),
        Figure(f"{name}: memory more", told["mb"] - float(base), "MB", _MORE_MB),
        Figure(f"{name}: a prober's answer, median", statistics.median(taken), "ms", 2 * quiet),
        Figure(f"{name}: a prober's answer, slowest", max(taken), "ms"),
        Figure(f"{name}: written to the log", logged, "bytes", 0.0),
    ]


def measure(_: Options) -> list[Figure]:
    return [figure for name in ATTEMPTS for figure in cost(name)]


if __name__ == "__main__":
    collect_rarely()
    if sys.argv[1] == "serve":
        run_in_loop(pages())
    else:
        with contextlib.suppress(TimeoutError):
            asyncio.run(attack(sys.argv[1], int(sys.argv[2])))
