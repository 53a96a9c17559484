"""Random faults over three etcd members, while clients write and ARP questions look for two owners of an address.

A round kills or suspends a member, a server or both on one machine, or cuts the machine off in one or both
directions, and undoes that after a random time. Every ten rounds the Services are compared with the acknowledged
writes: none may be lost, no deleted one return, no address or node port be given twice. See
bench/shared_store_faults.py.
"""

import asyncio
import random
import signal
import ssl
import threading
import time
from collections import Counter
from typing import Any, Final

import aiohttp
from bench.failover.clients import Owners
from bench.failover.machines import NODES, OWNED
from bench.failover.servers import ADDRESSES, Servers
from bench.shared_store_faults import WRITERS, Ledger, listed, write

_ANSWER_SECONDS: Final = 3.0
_CHECK_EVERY: Final = 10
_KINDS: Final = {
    "member killed": 3,
    "member suspended": 3,
    "server suspended": 3,
    "cut": 3,
    "deaf": 3,
    "dumb": 3,
    "server killed": 1,
    "machine killed": 1,
    "server ended": 1,
}
"""The kinds of faults with their weights: a server takes seconds to start."""


class _Server:
    """A machine's API server, as a client on the same Ethernet reaches it."""

    def __init__(self, machines: Servers, node: str) -> None:
        data = machines.data(node)
        context = ssl.create_default_context(cafile=str(data / "pki/ca.crt"))
        context.load_cert_chain(data / "pki/admin.crt", data / "pki/admin.key")
        connector = aiohttp.TCPConnector(ssl=context, limit=0)
        self.url = f"https://{ADDRESSES[node]}:6443"
        self.session = aiohttp.ClientSession(connector=connector)


class Writing(threading.Thread):
    """Clients that create and delete Services through all servers, from the client's namespace."""

    def __init__(self, machines: Servers, seed: int) -> None:
        super().__init__(daemon=True)
        self._machines, self._chance = machines, random.Random(seed)
        self.ledger, self.failure = Ledger(), ""
        self._check_asked, self._checked, self._over = threading.Event(), threading.Event(), False

    def run(self) -> None:
        with self._machines.lab.enter_namespace("client"):
            asyncio.run(self._write())
        self._checked.set()

    async def _write(self) -> None:
        servers, number = [_Server(self._machines, node) for node in NODES], 0
        try:
            while not self._over:
                workers = [
                    asyncio.ensure_future(
                        write(lambda: servers, self.ledger, number + each, self._chance, _ANSWER_SECONDS)
                    )
                    for each in range(WRITERS)
                ]
                number += WRITERS
                await asyncio.to_thread(self._check_asked.wait)
                for worker in workers:
                    worker.cancel()
                await asyncio.wait(workers)
                await asyncio.sleep(0.5)
                self.ledger.check(await listed(lambda: servers))
                self._check_asked.clear()
                self._checked.set()
        except SystemExit as error:
            self.failure = str(error)
        finally:
            for server in servers:
                await server.session.close()

    def check(self, *, last: bool = False) -> None:
        """Compare the Services with the acknowledged writes. Raise SystemExit for a loss."""
        self._over = last
        self._checked.clear()
        self._check_asked.set()
        self._checked.wait()
        if self.failure:
            raise SystemExit(self.failure)


def _strike(machines: Servers, kind: str, node: str, seconds: float) -> None:
    if kind in ("cut", "deaf", "dumb"):
        machines.cut(node, kind)
        time.sleep(seconds)
        machines.heal(node)
    elif kind.endswith("suspended"):
        process = machines.members[node] if kind.startswith("member") else machines.running[node][0]
        process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        process.send_signal(signal.SIGCONT)
    else:
        if kind in ("member killed", "machine killed"):
            machines.kill_member(node)
        if kind != "member killed":
            machines.end_server(node, signal.SIGTERM if kind == "server ended" else signal.SIGKILL)
        time.sleep(seconds)
        machines.bring_back(node)


def rounds(machines: Servers, count: int, seed: int) -> dict[str, Any]:
    """Apply `count` faults; return the observations. Raise SystemExit for a loss."""
    chance, owners, writing = (
        random.Random(seed),
        Owners(machines.lab, tuple(OWNED.values())),
        Writing(machines, seed),
    )
    owners.start()
    writing.start()
    counts, began = Counter[str](), time.monotonic()
    for number in range(1, count + 1):
        (kind,), node = chance.choices(list(_KINDS), list(_KINDS.values())), chance.choice(NODES)
        long = chance.random() < 0.2
        counts[kind] += 1
        time.sleep(chance.uniform(0, 0.3))
        _strike(machines, kind, node, chance.uniform(2, 3.5) if long else chance.expovariate(2.5))
        if number % _CHECK_EVERY == 0 or number == count:
            writing.check(last=number == count)
            print(
                f"{time.monotonic() - began:.0f} s, round {number}: {_acknowledged(writing.ledger)} changes "
                f"acknowledged, none lost; {owners.questions} questions, {owners.answered} answered, "
                f"{sum(map(len, owners.doubles.values()))} by two machines, for {owners.longest():.2f} s at most",
                flush=True,
            )
    owners.end()
    return {"rounds": count, "faults": dict(counts), "answers": dict(writing.ledger.answers)}


def _acknowledged(ledger: Ledger) -> int:
    return ledger.answers["POST 201"] + ledger.answers["DELETE 200"]
