"""The real `vipwire proxy` as a process, in the test's network namespace, with its log and pages.

`stage()` makes the namespace: a machine with an address, routes for everything, and Pods' addresses with an echo
server that answers with the reached address, so that a connection to a VIP shows the kernel's rules. Nothing sleeps:
all waits are for a log record, a request at the fake API server, or an answer.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import aiohttp
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.objects import node, service_cidr
from tests.fakes.own_network import own_network, run

NODE = "node-0"
ECHO_PORT = 8080
PATIENCE = 60.0
"""Seconds until a test gives up; a loaded machine is slow."""
_ADDRESSES = (
    "ip link add node type veth peer name wire",
    "ip link set node up",
    "ip link set wire up",
    "ip address add 192.0.2.10/24 dev node",
    "ip route add default dev node",
    *(f"ip address add 10.244.0.{number}/32 dev lo" for number in range(1, 10)),
)

Record = dict[str, Any]


@contextlib.contextmanager
def stage() -> Iterator[int]:
    with own_network() as namespace:
        for command in _ADDRESSES:
            run(command)
        yield namespace


class Daemon:
    """One process. `records` are its log, `lines` its other output."""

    def __init__(
        self,
        *flags: str,
        environ: Mapping[str, str] | None = None,
        within: tuple[str, ...] = (),
        program: str = "vipwire",
    ) -> None:
        """`within` is a command prefix that prepares the process's surroundings and then executes it."""
        self._within, self._program = within, program
        self.flags = ("--logging-format=json", *flags)
        self.records: list[Record] = []
        self.lines: list[str] = []
        self._environ = {**_clean(os.environ), **(environ or {})}
        self._came = asyncio.Condition()
        self.process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self.process = await asyncio.create_subprocess_exec(
            *(*self._within, sys.executable, "-m", self._program, "proxy", *self.flags),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self._environ,
            limit=1 << 24,
        )
        self._reading = asyncio.ensure_future(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
        await self.ended()

    async def ended(self) -> int:
        """Wait for its exit; return the status."""
        assert self.process is not None
        assert self._reading is not None
        async with asyncio.timeout(PATIENCE):
            await self._reading
            return await self.process.wait()

    async def terminate(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait; return the exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return await self.ended()

    def said(self, message: str, **fields: object) -> list[Record]:
        """Return the records with this message and these fields."""
        wanted = {"msg": message, **fields}
        return [record for record in self.records if all(record.get(key) == wanted[key] for key in wanted)]

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition on the log; on a timeout show the log."""
        try:
            async with asyncio.timeout(PATIENCE), self._came:
                await self._came.wait_for(lambda: bool(condition()) or self._over())
        except TimeoutError:
            raise AssertionError(f"waited in vain; the log:\n{self.log()}") from None
        assert condition(), f"it ended; the log:\n{self.log()}"

    async def heard(self, message: str, **fields: object) -> Record:
        """Wait for a record; return the first."""
        await self.until(lambda: self.said(message, **fields))
        return self.said(message, **fields)[0]

    async def again(self, action: Callable[[], object], message: str, **fields: object) -> Record:
        """Run an action and wait for one more record than before; return it."""
        before = len(self.said(message, **fields))
        action()
        await self.until(lambda: len(self.said(message, **fields)) > before)
        return self.said(message, **fields)[before]

    def log(self) -> str:
        """Return all its output."""
        return "\n".join([*map(str, self.records), *self.lines])

    def _over(self) -> bool:
        return self._reading is not None and self._reading.done()

    async def _read(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            text = line.decode().rstrip("\n")
            try:
                self.records.append(json.loads(text))
            except ValueError:
                self.lines.append(text)
            await self._notify()
        asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(self._notify()))

    async def _notify(self) -> None:
        async with self._came:
            self._came.notify_all()


def _clean(environ: Mapping[str, str]) -> dict[str, str]:
    """Remove variables that would redirect a client."""
    return {key: value for key, value in environ.items() if not key.lower().endswith("_proxy")}


class Scene:
    """A fake API server and a daemon that watches it."""

    def __init__(self, server: FakeApiServer, daemon: Daemon) -> None:
        self.server, self.daemon = server, daemon

    async def synced(self) -> None:
        await self.daemon.heard("synced", ip_family="IPv4")

    async def put(self, plural: str, value: Mapping[str, Any]) -> Record:
        """Put an object into the API server; wait for a sync after it."""
        return await self.daemon.again(lambda: self.server.store.put(plural, dict(value)), "synced", ip_family="IPv4")

    async def page(self, path: str, port: int = 10256) -> tuple[int, str]:
        return await page(path, port)

    async def metric(self, name: str, **labels: str) -> float:
        """Read a metric, summed over the labels not given."""
        _, text = await page("/metrics", 10249)
        found = [line for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(float(line.rsplit(" ", 1)[1]) for line in found if all(part in line for part in wanted))

    def events(self, reason: str, name: str = "") -> list[Record]:
        """Return the posted Kubernetes Events."""
        held = [stored.value for stored in self.server.store.shelves["events"].objects.values()]
        return [
            event for event in held if event["reason"] == reason and name in ("", event["involvedObject"]["name"])
        ]

    async def posted(self, reason: str, name: str = "", count: int = 1) -> list[Record]:
        await self.server.until(lambda: len(self.events(reason, name)) >= count)
        return self.events(reason, name)


async def page(path: str, port: int) -> tuple[int, str]:
    """GET a page of this namespace: status and body."""
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as response:
        return response.status, await response.text()


async def reached(address: str, port: int = 80, patience: float = PATIENCE / 2) -> str:
    """Connect to a VIP; return the answering Pod's address, or `refused`, or `nothing` after `patience` seconds."""
    try:
        async with asyncio.timeout(patience):
            reader, writer = await asyncio.open_connection(address, port)
            answer = (await reader.read()).decode()
            writer.close()
            return answer
    except ConnectionRefusedError:
        return "refused"
    except (TimeoutError, OSError):
        return "nothing"


async def leads_to(address: str, pod: str) -> None:
    """Connect to a VIP until this Pod answers: for changes without a log record."""
    async with asyncio.timeout(PATIENCE):
        while await reached(address) != pod:
            pass


async def _echo(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(str(writer.get_extra_info("sockname")[0]).encode())
    await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def echo(at: str = "0.0.0.0") -> AsyncIterator[None]:
    """Answer at every Pod address, or at one, with that address."""
    server = await asyncio.start_server(_echo, at, ECHO_PORT)
    async with server:
        yield


@contextlib.asynccontextmanager
async def scene(
    server: FakeApiServer, *flags: str, environ: Mapping[str, str] | None = None, within: tuple[str, ...] = ()
) -> AsyncIterator[Scene]:
    """Run an API server, the Pods and a daemon; without flags for a source, it gets --master."""
    async with server, echo():
        prepare(server)
        master = () if any(flag.startswith("--kubeconfig") for flag in flags) else (f"--master={server.url}",)
        name = f"--hostname-override={NODE}"
        async with Daemon(*master, name, *flags, environ=environ, within=within) as daemon:
            yield Scene(server, daemon)


def prepare(server: FakeApiServer) -> None:
    """Put in the objects of every cluster."""
    if not server.store.shelves["nodes"].objects:
        server.store.put("nodes", node(NODE))
        server.store.put("servicecidrs", service_cidr("kubernetes", "10.96.0.0/16"))


def slice_for(name: str, *addresses: str, port: int = ECHO_PORT, suffix: str = "") -> Record:
    """Make an EndpointSlice of ready Pods for a Service of the namespace `default`."""
    return {
        "metadata": {
            "name": f"{name}-slice{suffix}",
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": name},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "protocol": "TCP", "port": port}],
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}} for address in addresses],
    }


def service_of(name: str, cluster_ip: str, created: str = "2026-01-01T00:00:00Z", **spec: Any) -> Record:
    """Make a Service of the namespace `default` with one TCP port 80."""
    return {
        "metadata": {"name": name, "namespace": "default", "creationTimestamp": created, "uid": f"uid-{name}"},
        "spec": {
            "type": "ClusterIP",
            "clusterIP": cluster_ip,
            "clusterIPs": [cluster_ip],
            "ports": [{"name": "http", "protocol": "TCP", "port": 80}],
            **spec,
        },
    }


def write(path: Path, content: str) -> Path:
    """Replace a file atomically, as editors and the kubelet do."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(content, encoding="utf-8")
    fresh.replace(path)
    return path
