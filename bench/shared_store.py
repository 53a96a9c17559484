"""The store on etcd, and one API server that 200 nodes watch.

    python -m bench.shared_store --writes 5000 --nodes 200

Members of etcd run on loopback (`--members`, data in --folder: on a disk, to be fair), servers with `--no-proxy
--no-dns`. Writes: objects of 500 bytes, 64 at once, through the store of one process, and Services through the API of
several servers. Nodes: each watches Services, EndpointSlices and Nodes at one server, over TLS, from an address of
its own; a change's time is from before its request until the last node has it.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import ssl
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml
from tests.up.unit.etcd_here import Etcd, members

from vipwire_up.store.etcd.client import Client
from vipwire_up.store.etcd.settings import read_settings
from vipwire_up.store.etcd.store import EtcdStore
from vipwire_up.store.record import Key, Write

_SERVICES: Final = "/api/v1/namespaces/default/services"
_WATCHED: Final = ("/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices", "/api/v1/nodes")
_AT_ONCE: Final = 64
_CHANGES: Final = 20


def now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251  # certificates are judged by it


async def write_through(etcd: Etcd, count: int) -> tuple[float, float]:
    """Write objects through a store; return writes for each second, and CPU milliseconds for each write."""
    settings = read_settings({"etcd-servers": etcd.servers, "etcd-prefix": "/bench-store"})
    store = EtcdStore(Client(settings, now), settings.prefix)
    await store.open()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(store.run())
        await asyncio.sleep(0)
        numbers = iter(range(count))

        async def work() -> None:
            for number in numbers:
                await store.write(Write(Key("configmaps", "default", f"n{number}"), encoder(number), 0))

        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
        running.cancel()
    return count / took, cpu * 1000 / count


def encoder(number: int) -> Any:
    meta = {"name": f"n{number}", "namespace": "default"}
    return lambda revision: json.dumps(
        {"metadata": meta | {"resourceVersion": str(revision)}, "data": {"k": "x" * 400}}
    ).encode()


class Api:
    """One server, used as its admin."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self.process = process
        config = yaml.safe_load((folder / "admin.kubeconfig").read_text())
        self.url = config["clusters"][0]["cluster"]["server"]
        self._context = ssl.create_default_context(cafile=str(folder / "pki/ca.crt"))
        self._context.load_cert_chain(folder / "pki/admin.crt", folder / "pki/admin.key")
        self.session = self.open("127.0.0.1")

    def open(self, address: str) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(ssl=self._context, limit=0, local_addr=(address, 0))
        return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))

    async def send(self, method: str, path: str, body: Any, kind: str = "application/json") -> None:
        """Send a request that must succeed."""
        headers = {"Content-Type": kind}
        async with self.session.request(method, self.url + path, data=json.dumps(body), headers=headers) as answer:
            if answer.status >= 300:
                raise SystemExit(await answer.text())

    def cost(self) -> tuple[float, float]:
        """Return its CPU seconds so far, and its resident memory in MB."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks = os.sysconf("SC_CLK_TCK")
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return (int(fields[11]) + int(fields[12])) / ticks, pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    async def end(self) -> None:
        await self.session.close()
        self.process.send_signal(signal.SIGTERM)
        await self.process.wait()


async def started(folder: Path, *flags: str) -> Api:
    command = [sys.executable, "-m", "vipwire", "up", "--data-dir", str(folder), "--secure-port", "0"]
    process = await asyncio.create_subprocess_exec(
        *command, "--no-proxy", "--no-dns", "--node-name", folder.name, *flags, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None  # noqa: S101  # it was asked for
    while not (line := await process.stdout.readline()).startswith(b"try:"):
        if not line:
            raise SystemExit("vipwire up has ended")
    return Api(process, folder)


async def create_through(servers: list[Api], count: int) -> float:
    """Create Services through all servers at once; return the rate for each second."""
    numbers, began = iter(range(count)), time.perf_counter()

    async def work(server: Api) -> None:
        for number in numbers:
            body = {"metadata": {"name": f"s{number}"}, "spec": {"type": "NodePort", "ports": [{"port": 80}]}}
            await server.send("POST", _SERVICES, body)

    await asyncio.gather(*(work(server) for server in servers for _ in range(_AT_ONCE // len(servers))))
    return count / (time.perf_counter() - began)


async def watch_one(server: Api, nodes: int) -> dict[str, float]:
    """Watch one server from many nodes; return the cost, and the delay of changes to all nodes."""
    await server.send("POST", _SERVICES, {"metadata": {"name": "seen"}, "spec": {"ports": [{"port": 80}]}})
    _, alone = server.cost()
    seen, opened, reached = [0] * nodes, asyncio.Semaphore(0), asyncio.Event()
    coming = asyncio.Semaphore(20)
    sessions = [server.open(f"127.0.{1 + node // 250}.{1 + node % 250}") for node in range(nodes)]
    async with asyncio.TaskGroup() as tasks:

        async def watch(node: int, path: str) -> None:
            query = "watch=1&resourceVersion=0&allowWatchBookmarks=true"
            await coming.acquire()  # a server drops anonymous connections that arrive in large numbers
            async with sessions[node].get(f"{server.url}{path}?{query}") as stream:
                if stream.status != 200:
                    raise SystemExit(await stream.text())
                coming.release()
                opened.release()
                async for line in stream.content:
                    if b'"generation-of-bench":"' in line:
                        seen[node] = int(line.partition(b'"generation-of-bench":"')[2].partition(b'"')[0])
                        reached.set()

        watching = [tasks.create_task(watch(node, path)) for node in range(nodes) for path in _WATCHED]
        for _ in watching:
            await opened.acquire()
        await asyncio.sleep(2)
        took, cpu = [], server.cost()[0]
        for number in range(1, _CHANGES + 1):
            patch = {"metadata": {"annotations": {"generation-of-bench": str(number)}}}
            began = time.perf_counter()
            await server.send("PATCH", f"{_SERVICES}/seen", patch, "application/merge-patch+json")
            while min(seen) < number:
                reached.clear()
                await reached.wait()
            took.append(time.perf_counter() - began)
        spent, memory = server.cost()
        for task in watching:
            task.cancel()
    for session in sessions:
        await session.close()
    each = (spent - cpu) / _CHANGES
    return {"p50": statistics.median(took), "most": max(took), "cpu": each, "alone": alone, "watched": memory}


async def measure(given: argparse.Namespace, folder: Path) -> None:
    plain = await started(folder / "sqlite")
    try:
        report("sqlite", await watch_one(plain, given.nodes), given.nodes)
        rate = await create_through([plain], given.writes // 5)
        print(f"sqlite: {rate:.0f} Services with node ports/s, one server", flush=True)
    finally:
        await plain.end()
    with members(given.members, folder=folder) as etcd:
        rate, cost = await write_through(etcd, given.writes)
        print(f"etcd: {rate:.0f} writes/s through one store, {cost:.2f} ms of CPU time each", flush=True)
        servers: list[Api] = []
        try:
            for number in range(given.servers):
                place = data_directory(folder, number)
                servers.append(await started(place, *flags(etcd)))
            rate = await create_through(servers, given.writes // 5)
            print(f"etcd: {rate:.0f} Services with node ports/s through {len(servers)} servers", flush=True)
            report("etcd", await watch_one(servers[0], given.nodes), given.nodes)
        finally:
            for server in servers:
                await server.end()


def flags(etcd: Etcd) -> tuple[str, ...]:
    return "--store", "etcd", "--etcd-servers", etcd.servers


def data_directory(folder: Path, number: int) -> Path:
    """Prepare the data directory of one of several servers, which share the first one's CA."""
    place = folder / f"server{number}"
    if number:
        (place / "pki").mkdir(parents=True)
        for name in ("ca.crt", "ca.key"):
            shutil.copy(folder / "server0/pki" / name, place / "pki")
    return place


def report(engine: str, found: dict[str, float], nodes: int) -> None:
    print(
        f"{engine}: a change reaches {nodes} nodes in {found['p50'] * 1000:.0f} ms (median), "
        f"{found['most'] * 1000:.0f} ms (most), {found['cpu'] * 1000:.0f} ms of CPU time; "
        f"memory {found['alone']:.0f} MB, with {nodes * len(_WATCHED)} watches {found['watched']:.0f} MB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--writes", type=int, default=5000)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        asyncio.run(measure(given, Path(folder)))


if __name__ == "__main__":
    main()
