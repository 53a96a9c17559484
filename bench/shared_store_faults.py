"""Faults at random points, while clients create and delete Services through three servers over three members of etcd.

    python -m bench.shared_store_faults --rounds 40

A round kills or suspends a member or a server (SIGKILL; SIGSTOP, then SIGCONT), and brings it back. Afterwards every
Service that was acknowledged is there with the address and port that it was given, none that was deleted is, and no
address or node port is given twice. Answers that tell no outcome are allowed either way.
"""

import argparse
import asyncio
import contextlib
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import aiohttp
from bench.shared_store import Api, data_directory, flags, started
from tests.up.unit.etcd_here import Etcd, members

_SERVICES: Final = "/api/v1/namespaces/default/services"
RANGES: Final = ("--service-cluster-ip-range", "10.96.0.0/24", "--service-node-port-range", "30000-30200")
_MOST: Final = 60
WRITERS: Final = 6


class Ledger:
    """The acknowledged writes, and those without a known outcome."""

    def __init__(self) -> None:
        self.made: dict[str, tuple[str, int]] = {}
        self.gone: set[str] = set()
        self.unsure: set[str] = set()
        self.left: set[str] = set()
        self.answers: Counter[str] = Counter()

    def check(self, items: list[dict[str, Any]]) -> None:
        """Compare with the existing Services; raise SystemExit for a loss or a duplicate address."""
        found = {each["metadata"]["name"]: given(each) for each in items if each["metadata"]["name"].startswith("s-")}
        lost = {name for name, what in self.made.items() if name not in self.unsure and found.get(name) != what}
        self.left = self.unsure & found.keys()
        back = self.gone & found.keys()
        twice = [
            what for place in (0, 1) for what, times in Counter(v[place] for v in found.values()).items() if times > 1
        ]
        if lost or back or twice:
            raise SystemExit(f"lost: {lost}; came back: {back}; given twice: {twice}")


def given(service: dict[str, Any]) -> tuple[str, int]:
    return service["spec"]["clusterIP"], service["spec"]["ports"][0].get("nodePort", 0)


class Server(Protocol):
    """An API server, used as its admin."""

    @property
    def url(self) -> str: ...

    @property
    def session(self) -> aiohttp.ClientSession: ...


class Cluster:
    """Three servers over three members."""

    def __init__(self, etcd: Etcd, folder: Path) -> None:
        self.etcd, self.folder = etcd, folder
        self.servers: dict[int, Api] = {}

    async def start(self, number: int) -> None:
        """Start a server unless it runs."""
        place = self.folder / f"server{number}"
        if not place.exists():
            data_directory(self.folder, number)
        self.servers[number] = await started(place, *flags(self.etcd), *RANGES)

    async def kill(self, number: int) -> None:
        server = self.servers.pop(number)
        server.process.kill()
        await server.process.wait()
        await server.session.close()

    async def fault(self, chance: random.Random) -> str:
        """Apply a random fault, and undo it."""
        kind, number = chance.choice(("kill", "stop")), chance.randrange(3)
        who, pause = chance.choice(("member", "server")), chance.uniform(0.1, 3)
        if who == "member" and kind == "kill":
            self.etcd.stop(number)
            await asyncio.sleep(pause)
            self.etcd.start(number)
        elif who == "member":
            await suspended(self.etcd.processes[number], pause)
        elif kind == "kill":
            await self.kill(number)
            await asyncio.sleep(pause)
            await self.start(number)
        else:
            await suspended(self.servers[number].process, pause * 3)
        return f"{kind} {who} {number} for {pause:.1f} s"

    async def items(self) -> list[dict[str, Any]]:
        return await listed(lambda: list(self.servers.values()))


async def listed(servers: Callable[[], Sequence[Server]]) -> list[dict[str, Any]]:
    """List all Services, from the first server that answers."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        for server in servers():
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with asyncio.timeout(10), server.session.get(server.url + _SERVICES) as answer:
                    if answer.status == 200:
                        found: list[dict[str, Any]] = (await answer.json())["items"]
                        return found
        await asyncio.sleep(0.2)
    raise SystemExit("no server answers")


async def suspended(process: Any, seconds: float) -> None:
    process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(seconds)
    process.send_signal(signal.SIGCONT)


async def write(
    servers: Callable[[], Sequence[Server]],
    ledger: Ledger,
    worker: int,
    chance: random.Random,
    patience: float = 20.0,
) -> None:
    """Create and delete until cancelled; `patience` is the timeout of each answer in seconds."""
    theirs = (ledger.made.keys() - ledger.unsure) | ledger.left
    number, own = 0, sorted(theirs)[worker % WRITERS :: WRITERS]
    while True:
        number += 1
        able = servers()
        if not able:
            await asyncio.sleep(0.1)
            continue
        server = chance.choice(able)
        deletes = len(own) > _MOST // WRITERS
        name = own.pop(0) if deletes else f"s-{worker}-{number}"
        ledger.unsure.add(name)
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, RuntimeError):  # the answer is lost
            async with asyncio.timeout(patience):
                code, value = await (delete(server, name) if deletes else create(server, name))
            ledger.answers[f"{'DELETE' if deletes else 'POST'} {code}"] += 1
            if code == 201:
                ledger.made[name] = given(value)
                ledger.unsure.discard(name)
                own.append(name)
            elif code == 200 and deletes:
                ledger.gone.add(name)
                ledger.made.pop(name, None)
                ledger.unsure.discard(name)
            elif code == 500 and value.get("reason") == "ServerTimeout":  # the server did not execute it
                ledger.unsure.discard(name)
                own += [name] if deletes else []


async def create(server: Server, name: str) -> tuple[int, Any]:
    body = {"metadata": {"name": name}, "spec": {"type": "NodePort", "ports": [{"port": 80}]}}
    async with server.session.post(server.url + _SERVICES, json=body) as answer:
        return answer.status, await answer.json()


async def delete(server: Server, name: str) -> tuple[int, Any]:
    async with server.session.delete(f"{server.url}{_SERVICES}/{name}") as answer:
        return answer.status, await answer.json()


async def play(etcd: Etcd, folder: Path, rounds: int, seed: int) -> None:
    chance, cluster, ledger = random.Random(seed), Cluster(etcd, folder), Ledger()

    def able() -> list[Api]:
        return list(cluster.servers.values())

    try:
        for number in range(3):
            await cluster.start(number)
        for number in range(rounds):
            async with asyncio.TaskGroup() as tasks:
                workers = [
                    tasks.create_task(write(able, ledger, number * WRITERS + each, chance)) for each in range(WRITERS)
                ]
                await asyncio.sleep(chance.uniform(0.2, 1))
                what = await cluster.fault(chance)
                for worker in workers:
                    worker.cancel()
            await asyncio.sleep(0.5)
            ledger.check(await cluster.items())
            print(f"round {number + 1}: {what}; {dict(ledger.answers)}", flush=True)
    finally:
        for server in cluster.servers.values():
            await server.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, members(3) as etcd:
        asyncio.run(play(etcd, Path(folder), arguments.rounds, arguments.seed))


if __name__ == "__main__":
    main()
