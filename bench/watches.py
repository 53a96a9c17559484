"""A soak of the HTTP server of `vipwire up`: `python -m bench.watches --minutes 5`.

1,000 watches of role `view` stay open, kubectl and the official Python client change ConfigMaps, and strangers at
another address attack with all that they can send. At the end: no client has failed, each watch has heard each new
ConfigMap once, memory is level, and the server has no connection and no watch but those that are open. Exit status 1
otherwise.
"""

import argparse
import asyncio
import contextlib
import csv
import functools
import json
import os
import random
import re
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import yaml
from tests.up.unit.cluster_process import CLIENTS, Kubectl, up

WATCHES, STRANGERS = 1_000, 6
_NAMESPACE: Final = "default"
_KINDS: Final = ("configmaps",) * 7 + ("services", "pods", "endpoints")
_STRANGER: Final = "127.0.0.66"
_PATIENCE: Final = 120.0
_LEVEL: Final = 0.05
_MORE_MB: Final = 4.0
"""The growth of memory from the second quarter to the last that is noise: a part of it, and MB."""
_SPARE_FILES: Final = 16
_LAST: Final = "soak-last"
PYTHON: Final = Path(sys.executable).parents[1] / "tools/clients/bin/python"
OFFICIAL: Final = """
import sys, threading
from kubernetes import client, config, watch
config.load_kube_config()
core, done, made = client.CoreV1Api(), threading.Event(), 0
threading.Thread(target=lambda: (sys.stdin.read(), done.set()), daemon=True).start()
while not done.is_set():
    name = f"soak-p{made}"
    body = {"metadata": {"name": name, "labels": {"by": "python"}}, "data": {"a": "1"}}
    told = core.create_namespaced_config_map("default", body)
    made += 1
    core.patch_namespaced_config_map(name, "default", {"data": {"b": "2"}})
    since = {"resource_version": told.metadata.resource_version, "timeout_seconds": 20}
    for event in watch.Watch().stream(core.list_namespaced_config_map, "default", **since):
        if (event["object"].metadata.name, event["object"].data.get("b")) == (name, "2"):
            break
    else:
        sys.exit(f"no watch told of {name}")
    assert name in [each.metadata.name for each in core.list_namespaced_config_map("default").items]
    core.delete_namespaced_config_map(name, "default")
    done.wait(0.5)
print(made)
"""


class Server:
    """A running `vipwire up`, and how to reach it."""

    def __init__(self, folder: Path, process: "subprocess.Popen[str]") -> None:
        self.folder, self.process = folder, process
        config = yaml.safe_load((folder / "admin.kubeconfig").read_text())
        url = urlsplit(config["clusters"][0]["cluster"]["server"])
        self.host, self.port = "127.0.0.1", url.port
        self.tls = ssl.create_default_context(cafile=str(folder / "pki/ca.crt"))
        with (folder / "tokens.csv").open() as file:
            self.tokens = {row[2].split(":")[-1]: row[0] for row in csv.reader(file)}

    @property
    def memory(self) -> float:
        """Return the process's resident MB."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    @property
    def files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    async def connect(
        self, source: str = "127.0.0.1", *, plain: bool = False
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        tls = None if plain else self.tls
        return await asyncio.open_connection(
            self.host,
            self.port,
            ssl=tls,
            local_addr=(source, 0),
            limit=1 << 20,
            ssl_handshake_timeout=60 if tls else None,
        )

    def request(self, path: str, user: str, method: str = "GET", more: str = "") -> bytes:
        given = f"Authorization: Bearer {self.tokens[user]}\r\n" if user else ""
        return f"{method} {path} HTTP/1.1\r\nHost: {self.host}\r\n{given}{more}\r\n".encode()

    async def watches(self, wanted: int) -> int:
        """Wait until the server counts so many watches; return the count then, or after a while."""
        for _ in range(int(_PATIENCE)):
            if (found := await self._count_watches()) == wanted:
                break
            await asyncio.sleep(1)
        return found

    async def _count_watches(self) -> int:
        reader, writer = await self.connect()
        writer.write(self.request("/metrics", "admin", more="Connection: close\r\n"))
        said = (await reader.read()).decode()
        writer.close()
        found = re.search(r'apiserver_longrunning_requests\{verb="WATCH"\} (\d+)', said)
        return int(found[1]) if found else -1


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Read the head of an answer; return the status and the headers."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
    fields = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    return int(head[0].split()[1]), fields


async def chunks(reader: asyncio.StreamReader) -> Any:
    """Yield the chunks of a body."""
    while size := int(await reader.readline(), 16):
        yield (await reader.readexactly(size + 2))[:-2]
    await reader.readline()


class Watch:
    """One client with one connection, which watches again when the server ends a watch."""

    def __init__(self, server: Server, kind: str, chance: random.Random, turn: asyncio.Semaphore) -> None:
        self.server, self.kind, self.chance, self._turn = server, kind, chance, turn
        self.heard = Counter[str]()
        self.opened, self.last = asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        path = f"/api/v1/{self.kind}"
        async with self._turn:  # the server lets few clients of an address wait before their first request
            reader, writer = await self.server.connect()
            writer.write(self.server.request(path, "view"))
            status, fields = await answer_of(reader)
        try:
            body = await reader.readexactly(int(fields["content-length"]))
            since = json.loads(body)["metadata"]["resourceVersion"] if status == 200 else _fail(status, body)
            while True:
                seconds = self.chance.randint(20, 90)
                query = f"?watch=1&resourceVersion={since}&timeoutSeconds={seconds}&allowWatchBookmarks=true"
                writer.write(self.server.request(path + query, "view"))
                status, _ = await answer_of(reader)
                self.opened.set()
                rest = b""
                async for chunk in chunks(reader):
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        since = self._hear(status, json.loads(line))
        finally:
            writer.transport.abort()

    def _hear(self, status: int, event: Mapping[str, Any]) -> str:
        """Count a new ConfigMap; return the event's version."""
        meta = event["object"]["metadata"]
        if status != 200 or event["type"] == "ERROR":
            _fail(status, json.dumps(event).encode())
        name = meta.get("name", "")
        if event["type"] == "ADDED" and name.startswith("soak-"):
            self.heard[name] += 1
            if name == _LAST:
                self.last.set()
        return str(meta["resourceVersion"])


def _fail(status: int, said: bytes) -> str:
    raise ConnectionError(f"status {status}: {said[:200].decode(errors='replace')}")


async def silent(server: Server, chance: random.Random) -> None:
    """Open connections that say nothing, or only begin TLS."""
    said = chance.choice((b"", b"\x16", b"\x16\x03\x01\x02\x00", chance.randbytes(300)))
    held = [await server.connect(_STRANGER, plain=True) for _ in range(100)]
    for _, writer in held:
        writer.write(said)
    await asyncio.sleep(chance.random() * 3)
    for _, writer in held:
        writer.transport.abort()


async def sent(server: Server, chance: random.Random, said: bytes, count: int = 20) -> None:
    """Send bytes on connections with TLS, read nothing, reset."""
    held = []
    for _ in range(count):
        reader, writer = await server.connect(_STRANGER)
        reader._transport.pause_reading()  # type: ignore[attr-defined]  # noqa: SLF001
        writer.write(said)
        held.append(writer)
    await asyncio.sleep(chance.random() * 3)
    for writer in held:
        writer.transport.abort()


Attack: TypeAlias = Callable[[Server, random.Random], Awaitable[None]]


def attacks(server: Server) -> dict[str, Attack]:
    ask, review = server.request, "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    large = "Content-Type: application/json\r\nContent-Length: 3000000\r\n"
    said = {
        "half a head": ask("/version", "")[:-2] + b"X-A: " + b"a" * 4_000,
        "an endless head": ask("/version", "")[:-2] + b"X-A: b\r\n" * 40_000,
        "no credentials": ask("/api/v1/secrets", "") * 50,
        "unread answers": ask("/openapi/v2", "view") * 8,
        "HEAD": ask("/api/v1/configmaps?watch=1", "view", "HEAD"),
        "watches": ask("/api/v1/configmaps?watch=1", "view"),
        "a body that stops": ask(review, "view", "POST", large) + b'{"a": "',
        "no HTTP": b"\x00\xffPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" * 20,
        "two lengths": ask("/version", "", "POST", "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n")
        + b"0\r\n\r\n",
    }
    made: dict[str, Attack] = {name: functools.partial(_sent, said=each) for name, each in said.items()}
    return made | {"silence": silent}


async def _sent(server: Server, chance: random.Random, *, said: bytes) -> None:
    await sent(server, chance, said)


async def attack(server: Server, chance: random.Random, counts: Counter[str]) -> None:
    kinds = attacks(server)
    while True:
        name = chance.choice(list(kinds))
        counts[name] += 1
        with contextlib.suppress(OSError):  # the server may refuse or close
            await kinds[name](server, chance)


def use_kubectl(kubectl: Kubectl, end: float) -> int:
    """Create, read, change and delete ConfigMaps until a time; return their number."""
    made = 0
    while time.monotonic() < end:
        name = f"soak-k{made}"
        kubectl("create", "configmap", name, "--from-literal=a=1")
        made += 1
        labels = {"metadata": {"labels": {"by": "kubectl"}}}
        kubectl("patch", "configmap", name, "--type=merge", "-p", json.dumps(labels))
        assert name in kubectl("get", "configmaps", "-l", "by=kubectl", "-o", "name")  # noqa: S101
        kubectl("delete", "configmap", name)
    return made


def use_python(environment: dict[str, str], end: float) -> int:
    """Let the official Python client work until a time; return the number of its ConfigMaps."""
    command, pipe = (str(PYTHON), "-c", OFFICIAL), subprocess.PIPE
    with subprocess.Popen(command, env=environment, text=True, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, end - time.monotonic()))
        said, wrong = process.communicate("", timeout=_PATIENCE)
    if process.returncode:
        raise SystemExit(f"the Python client failed: {wrong[-600:]}")
    return int(said)


class Soak:
    """One run. `verdict` lists failed expectations."""

    def __init__(self, server: Server, seconds: float, seed: int) -> None:
        self._server, self._seconds, self._chance = server, seconds, random.Random(seed)
        turn = asyncio.Semaphore(32)
        self._watches = [Watch(server, _KINDS[number % len(_KINDS)], self._chance, turn) for number in range(WATCHES)]
        self._attacks = Counter[str]()
        self._memory: list[float] = []
        self.figures: dict[str, float] = {}
        self.verdict: list[str] = []

    async def run(self) -> None:
        files = self._server.files
        loop = asyncio.get_running_loop()
        watching = [loop.create_task(each.run()) for each in self._watches]
        for each, task in zip(self._watches, watching, strict=True):
            opening = loop.create_task(each.opened.wait())
            await asyncio.wait((opening, task), return_when=asyncio.FIRST_COMPLETED, timeout=_PATIENCE)
            opening.cancel()
        self._expect("watches", await self._server.watches(WATCHES), WATCHES, WATCHES)
        made = await self._work(watching)
        self._judge(watching, made)
        self._expect("watches at the end", await self._server.watches(WATCHES), WATCHES, WATCHES)
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
        self._expect("watches after all", await self._server.watches(0), 0, 0)
        self._expect("files more than before", self._server.files - files, -_SPARE_FILES, _SPARE_FILES)

    async def _work(self, watching: "list[asyncio.Task[None]]") -> int:
        """Attack and work until the end; return the number of new ConfigMaps."""
        server, loop = self._server, asyncio.get_running_loop()
        kubectl = Kubectl(CLIENTS[-1], server.folder / "admin.kubeconfig", server.folder)
        strangers = [loop.create_task(attack(server, self._chance, self._attacks)) for _ in range(STRANGERS)]
        sampling, end = loop.create_task(self._sample()), time.monotonic() + self._seconds
        working = [loop.run_in_executor(None, use_kubectl, kubectl, end)]
        working.append(loop.run_in_executor(None, use_python, kubectl.environment, end))
        made = sum(await asyncio.gather(*working)) + 1
        for task in (*strangers, sampling):
            task.cancel()
        await asyncio.gather(*strangers, sampling, return_exceptions=True)
        await asyncio.to_thread(kubectl, "create", "configmap", _LAST)
        hearing = [each.last.wait() for each in self._watches if each.kind == "configmaps"]
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*hearing), _PATIENCE)
        await asyncio.sleep(0)
        self.figures["watches that ended"] = sum(task.done() for task in watching)
        return made

    async def _sample(self) -> None:
        while True:
            self._memory.append(self._server.memory)
            await asyncio.sleep(1)

    def _judge(self, watching: "list[asyncio.Task[None]]", made: int) -> None:
        for task in [each for each in watching if each.done()][:3]:
            self.verdict.append(f"a watch failed: {task.exception()!r}")
        hearers = [each.heard for each in self._watches if each.kind == "configmaps"]
        wrong = sum(len(each) != made or each.total() != made for each in hearers)
        quarter = max(1, len(self._memory) // 4)
        early, late = (statistics.median(self._memory[part * quarter : (part + 1) * quarter]) for part in (1, 3))
        self.figures["new ConfigMaps"] = made
        self.figures["events that watches heard"] = sum(each.total() for each in hearers)
        self.figures["attacks"] = self._attacks.total()
        self.figures |= {f"attacks: {name}": number for name, number in sorted(self._attacks.items())}
        self.figures["MB in the second quarter"], self.figures["MB in the last quarter"] = early, late
        self._expect("watches that heard too little or too much", wrong, 0, 0)
        self._expect("more MB", late - early, -early, _MORE_MB + early * _LEVEL)

    def _expect(self, name: str, value: float, least: float, most: float) -> None:
        self.figures[name] = value
        if not least <= value <= most:
            self.verdict.append(f"{name}: {value:g}, not {least:g} to {most:g}")


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as name, up(Path(name) / "data") as process:
        yield Server(Path(name) / "data", process)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.watches", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with serving() as server:
        soak = Soak(server, arguments.minutes * 60, arguments.seed)
        asyncio.run(soak.run())
    for name, value in soak.figures.items():
        print(f"  {name:45} {value:10,.6g}")
    for each in soak.verdict:
        print(f"FAILED: {each}")
    sys.exit(bool(soak.verdict))


if __name__ == "__main__":
    main()
