"""kill -9 of a whole `vipwire up` under requests: what was acknowledged is there, and all of it fits together."""

import asyncio
import random
import signal
import ssl
import subprocess
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from tests.up.unit.cluster_here import pod
from tests.up.unit.cluster_process import up

pytestmark = [pytest.mark.attack, pytest.mark.slow]

ROUNDS = 3
WRITERS = 8
SERVICES = "/api/v1/namespaces/default/services"
PODS = "/api/v1/namespaces/default/pods"
MERGE = {"Content-Type": "application/merge-patch+json"}


class Api:
    """The API server, as its admin."""

    def __init__(self, folder: Path) -> None:
        config = yaml.safe_load((folder / "admin.kubeconfig").read_text())
        self._url = config["clusters"][0]["cluster"]["server"]
        context = ssl.create_default_context(cafile=str(folder / "pki/ca.crt"))
        context.load_cert_chain(folder / "pki/admin.crt", folder / "pki/admin.key")
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context))

    async def send(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """Send a request that must succeed, if it is answered at all. Raise aiohttp.ClientError if it is not."""
        async with self._session.request(method, self._url + path, json=body, headers=headers) as answer:
            found = await answer.json()
            assert answer.status < 300, found
            return found

    async def items(self, path: str) -> dict[str, Any]:
        return {each["metadata"]["name"]: each for each in (await self.send("GET", path))["items"]}

    async def close(self) -> None:
        await self._session.close()


class Writer:
    """Makes, changes and deletes Services and Pods of its own; `known` is what has been acknowledged (None: gone)."""

    def __init__(self, number: int) -> None:
        self._number, self._count = number, 0
        self.known: dict[str, int | None] = {}
        self._unsure = ""

    async def work(self, api: Api, done: asyncio.Semaphore) -> None:
        """Go on until the server is no more."""
        try:
            while True:
                self._count += 1
                name = f"w{self._number}-{self._count}"
                await self._write(api, "POST", SERVICES, service(name), name, 0)
                done.release()
                meta = {"labels": {"app": name}, "annotations": {"vipwire.io/address": "10.1.0.5"}}
                await api.send("POST", PODS, pod(name, metadata=meta))
                change = {"metadata": {"labels": {"step": "1"}}}
                await self._write(api, "PATCH", f"{SERVICES}/{name}", change, name, 1)
                done.release()
                if self._count % 3 == 0:
                    await self._write(api, "DELETE", f"{SERVICES}/{name}", None, name, None)
                    done.release()
        except aiohttp.ClientError:  # what was under way may have happened or not
            self.known.pop(self._unsure, None)

    async def _write(self, api: Api, method: str, path: str, body: Any, name: str, state: int | None) -> None:
        self._unsure = name
        await api.send(method, path, body, **(MERGE if method == "PATCH" else {}))
        self.known[name], self._unsure = state, ""


def service(name: str) -> dict[str, Any]:
    spec = {"type": "NodePort", "selector": {"app": name}, "ports": [{"port": 80}]}
    return {"metadata": {"name": name, "labels": {"step": "0"}}, "spec": spec}


async def load_and_kill(folder: Path, process: "subprocess.Popen[str]", writers: list[Writer], requests: int) -> None:
    api, done = Api(folder), asyncio.Semaphore(0)
    try:
        async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
            for writer in writers:
                tasks.create_task(writer.work(api, done))
            for _ in range(requests):
                await done.acquire()
            process.send_signal(signal.SIGKILL)
    finally:
        await api.close()


async def check(folder: Path, writers: list[Writer]) -> None:
    """Hold what there is against what was acknowledged, and its parts against each other."""
    api = Api(folder)
    try:
        services = await api.items(SERVICES)
        for writer in writers:
            for name, state in writer.known.items():
                found = services.get(name)
                assert (int(found["metadata"]["labels"]["step"]) if found else None) == state, name
        await check_addresses(api, services)
        async with asyncio.timeout(60):
            while not await endpoints_fit(api, services):  # noqa: ASYNC110  # the controllers of another process
                await asyncio.sleep(0.05)
    finally:
        await api.close()


async def check_addresses(api: Api, services: dict[str, Any]) -> None:
    notes = await api.items("/apis/networking.k8s.io/v1/ipaddresses")
    noted = {address: note["spec"]["parentRef"]["name"] for address, note in notes.items()}
    held = {address: name for name, each in services.items() for address in each["spec"]["clusterIPs"]}
    assert held == noted
    assert len(held) == len(services)
    ports = [port["nodePort"] for each in services.values() for port in each["spec"]["ports"] if "nodePort" in port]
    assert len(set(ports)) == len(ports)


async def endpoints_fit(api: Api, services: dict[str, Any]) -> bool:
    """Tell whether each Service has the endpoints that its Pods make, and no slice is of nobody."""
    pods = await api.items(PODS)
    slices = await api.items("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices")
    found: dict[str, int] = {}
    for each in slices.values():
        owner = each["metadata"]["labels"]["kubernetes.io/service-name"]
        found[owner] = found.get(owner, 0) + len(each.get("endpoints") or ())
    found.pop("kubernetes")
    return found == {name: int(name in pods) for name in services if name != "kubernetes"}


def test_what_was_acknowledged_is_there_and_all_of_it_fits_together(tmp_path: Path) -> None:
    chance = random.Random(random.random())  # noqa: S311  # pytest-randomly has seeded it
    writers = [Writer(number) for number in range(WRITERS)]
    for number in range(ROUNDS + 1):
        with up(tmp_path) as process:
            asyncio.run(check(tmp_path, writers))
            if number < ROUNDS:
                asyncio.run(load_and_kill(tmp_path, process, writers, chance.randint(1, 150)))
        assert process.returncode == (-signal.SIGKILL if number < ROUNDS else 0)
    assert sum(len(writer.known) for writer in writers) > ROUNDS
