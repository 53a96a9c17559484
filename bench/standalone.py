"""`vipwire up` under load: Services created with the allocators on, and how soon a Pod's readiness is in the kernel.

    python -m bench.standalone --services 1000 --changes 100

Runs it in a network namespace of its own, as root, with TLS, and talks to it as kubectl would. The time of a change
is from before the PATCH of the Pod's status to the kernel's notice that the table has another generation.
"""

import argparse
import asyncio
import ctypes
import json
import os
import ssl
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml

_CLONE_NEWNET: Final = 0x40000000
_SERVICES: Final = "/api/v1/namespaces/default/services"
_PODS: Final = "/api/v1/namespaces/default/pods"
_AT_ONCE: Final = 16


def service(number: int) -> dict[str, Any]:
    """Build a Service that selects one Pod."""
    spec = {"selector": {"app": f"a{number}"}, "ports": [{"port": 80, "targetPort": 8080}]}
    return {"metadata": {"name": f"s{number}"}, "spec": spec}


def pod(number: int) -> dict[str, Any]:
    meta = {"name": f"p{number}", "labels": {"app": f"a{number}"}}
    address = f"10.200.{number // 250}.{number % 250 + 1}"
    status = {"phase": "Running", "podIP": address, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": meta, "spec": {"containers": [{"name": "a", "image": "none"}]}, "status": status}


class Client:
    """Talks to the API server as its admin."""

    def __init__(self, folder: Path) -> None:
        config = yaml.safe_load((folder / "admin.kubeconfig").read_text())
        self.url = config["clusters"][0]["cluster"]["server"]
        context = ssl.create_default_context(cafile=str(folder / "pki/ca.crt"))
        context.load_cert_chain(folder / "pki/admin.crt", folder / "pki/admin.key")
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context, limit=_AT_ONCE))

    async def send(self, method: str, path: str, body: Any, kind: str = "application/json") -> None:
        """Send a request that must succeed."""
        headers = {"Content-Type": kind}
        async with self.session.request(method, self.url + path, data=json.dumps(body), headers=headers) as answer:
            if answer.status >= 300:
                raise SystemExit(await answer.text())

    async def create(self, path: str, values: list[dict[str, Any]]) -> float:
        """Create objects, several at once; return the seconds."""
        begun, waiting = time.monotonic(), iter(values)

        async def work() -> None:
            for value in waiting:
                await self.send("POST", path, value)

        await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
        return time.monotonic() - begun


async def follow(monitor: asyncio.subprocess.Process, address: str) -> None:
    """Wait until the kernel reports an element with an address."""
    assert monitor.stdout is not None  # noqa: S101  # it was asked for
    while address.encode() not in await monitor.stdout.readline():
        pass


async def changes(client: Client, count: int, services: int) -> list[float]:
    """Make Pods ready and unready in turn; return the milliseconds until the kernel has each change."""
    monitor = await asyncio.create_subprocess_exec(
        "stdbuf", "-oL", "nft", "monitor", stdout=asyncio.subprocess.PIPE, limit=1 << 24
    )
    await asyncio.sleep(5)  # `nft monitor` reads the whole table before it listens, without a sign
    took = []
    for number in range(count):
        which = number // 2 % services
        address = pod(which)["status"]["podIP"]
        body = {"status": {"conditions": [{"type": "Ready", "status": str(number % 2 == 1)}]}}
        begun = time.monotonic()
        path = f"{_PODS}/p{which}/status"
        await asyncio.gather(
            follow(monitor, f"{address} . 8080"),
            client.send("PATCH", path, body, "application/strategic-merge-patch+json"),
        )
        took.append((time.monotonic() - begun) * 1000)
        await asyncio.sleep(0.05)
    monitor.terminate()
    await monitor.wait()
    return took


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def settled(pid: int) -> None:
    before = -1.0
    while cpu_seconds(pid) - before > 0.05:
        before = cpu_seconds(pid)
        await asyncio.sleep(1)


async def measure(folder: Path, services: int, count: int) -> None:
    """Start it, load it, and print the figures."""
    command = (
        sys.executable,
        "-m",
        "vipwire.cli.main",
        "up",
        "--data-dir",
        str(folder),
        "--secure-port",
        "0",
        "--no-dns",
    )
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=(folder / "log").open("w")
    )
    assert process.stdout is not None  # noqa: S101  # it was asked for
    try:
        while b"try:" not in (line := await process.stdout.readline()):
            if not line:
                raise SystemExit((folder / "log").read_text())
        client, began = Client(folder), cpu_seconds(process.pid)
        seconds = await client.create(_SERVICES, [service(number) for number in range(services)])
        print(f"services={services} seconds={seconds:.1f} load={os.getloadavg()[0]:.1f}")
        await settled(process.pid)
        print(f"server_cpu_seconds={cpu_seconds(process.pid) - began:.1f} (until it rests)")
        if count:
            await client.create(_PODS, [pod(number) for number in range(min(services, 1000))])
            await asyncio.sleep(3)
            took = sorted(await changes(client, count, min(services, 1000)))
            print(f"changes={count} median_ms={statistics.median(took):.1f} p90_ms={took[len(took) * 9 // 10]:.1f}")
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()  # noqa: ASYNC240  # in memory
        print(next(line for line in lines if line.startswith("VmRSS")))
        await client.session.close()
    finally:
        process.terminate()
        await process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", type=int, default=1000)
    parser.add_argument("--changes", type=int, default=100, help="0 measures the creation only")
    arguments = parser.parse_args()
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
        raise SystemExit("a network namespace cannot be made: run as root")
    os.system("ip link set lo up")  # noqa: S605  # a fixed text
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder), arguments.services, arguments.changes))


if __name__ == "__main__":
    main()
