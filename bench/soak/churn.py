"""Writers that create, change and delete Services and EndpointSlices, and record acknowledged writes."""

import asyncio
import random
import ssl
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import aiohttp
import yaml

from vipwire_lab.namespaces.topology import Pod

SERVICES = "/api/v1/namespaces/default/services"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
_MERGE = {"Content-Type": "application/merge-patch+json"}
_PATIENCE = aiohttp.ClientTimeout(total=15)
_STEP = "soak/step"
_MOST = 40
"""Services that each writer keeps."""


class RefusedError(Exception):
    """The server refused the request."""


class Api:
    """The API server, used as its admin."""

    def __init__(self, folder: Path) -> None:
        config = yaml.safe_load((folder / "admin.kubeconfig").read_text(encoding="utf-8"))
        self._url = config["clusters"][0]["cluster"]["server"]
        context = ssl.create_default_context(cafile=str(folder / "pki/ca.crt"))
        context.load_cert_chain(folder / "pki/admin.crt", folder / "pki/admin.key")
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context), timeout=_PATIENCE)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def send(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """Send a request. Raise RefusedError for a refusal, or aiohttp's errors and TimeoutError."""
        async with self._session.request(method, self._url + path, json=body, headers=headers) as answer:
            if answer.status >= 300:
                raise RefusedError(f"{answer.status}")
            return await answer.json()

    async def items(self, path: str) -> dict[str, Any]:
        return {each["metadata"]["name"]: each for each in (await self.send("GET", path))["items"]}


def service(name: str, step: int, port: int = 80, node_port: int = 0) -> dict[str, Any]:
    ports = [{"name": "http", "port": port, "targetPort": 8080} | ({"nodePort": node_port} if node_port else {})]
    spec = {"ports": ports, "type": "NodePort" if node_port else "ClusterIP"}
    return {"metadata": {"name": name, "labels": {_STEP: str(step)}}, "spec": spec}


def slice_of(name: str, step: int, pods: Sequence[Pod]) -> dict[str, Any]:
    """Build its slice, with node names, which masquerade a Pod's connections to itself."""
    return {
        "metadata": {"name": name, "labels": {_STEP: str(step), "kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": [
            {"addresses": [pod.addresses[0]], "nodeName": pod.node, "conditions": {"ready": True}} for pod in pods
        ],
    }


class Ledger:
    """The acknowledged step of each object by its path, None if deleted."""

    def __init__(self) -> None:
        self.known: dict[str, int | None] = {}
        self.acknowledged, self.troubles = 0, Counter[str]()

    async def write(self, api: Api, method: str, path: str, body: Any, step: int | None) -> bool:
        """Write an object; report whether the server acknowledged it. Otherwise the outcome is unknown."""
        name = body["metadata"]["name"] if body else path.rpartition("/")[2]
        key = path if path.endswith(f"/{name}") else f"{path}/{name}"
        self.known.pop(key, None)
        try:
            await api.send(method, path, body, **(_MERGE if method == "PATCH" else {}))
        except (aiohttp.ClientError, TimeoutError, RefusedError) as error:
            self.troubles[str(error) if isinstance(error, RefusedError) else type(error).__name__] += 1
            return False
        self.known[key] = step
        self.acknowledged += 1
        return True

    async def lost(self, api: Api) -> list[str]:
        """Return differences between the server's objects and the acknowledged ones."""
        wrong = []
        for folder in (SERVICES, SLICES):
            items = await api.items(folder)
            held = {
                f"{folder}/{name}": int(each["metadata"]["labels"].get(_STEP, -1)) for name, each in items.items()
            }
            known = {key: step for key, step in self.known.items() if key.rpartition("/")[0] == folder}
            wrong += [f"{key}: {held.get(key)}, not {step}" for key, step in known.items() if held.get(key) != step]
        return wrong


class Writer:
    """A writer with its own object names."""

    def __init__(self, number: int, ledger: Ledger, pods: Sequence[Pod], seed: int) -> None:
        self._number, self._ledger, self._pods = number, ledger, tuple(pods)
        self._chance = random.Random(f"{seed} {number}")
        self._made = 0
        self._names: list[str] = []

    async def run(self, api: Api, pause: float) -> None:
        """Write until cancelled, with a pause after each object, longer without a server."""
        while True:
            done = await self._one(api)
            await asyncio.sleep(pause if done else 0.3)

    async def _one(self, api: Api) -> bool:
        self._made += 1
        choice = self._chance.random()
        if not self._names or (choice < 0.3 and len(self._names) < _MOST):
            return await self._make(api, f"w{self._number}-{self._made}")
        name = self._chance.choice(self._names)
        if choice > 0.9:
            self._names.remove(name)
            first = await self._ledger.write(api, "DELETE", f"{SLICES}/{name}", None, None)
            return await self._ledger.write(api, "DELETE", f"{SERVICES}/{name}", None, None) and first
        body = slice_of(name, self._made, self._chance.sample(self._pods, self._chance.randint(1, len(self._pods))))
        return await self._ledger.write(api, "PATCH", f"{SLICES}/{name}", body, self._made)

    async def _make(self, api: Api, name: str) -> bool:
        self._names.append(name)
        if not await self._ledger.write(api, "POST", SERVICES, service(name, self._made), self._made):
            return False
        body = slice_of(name, self._made, self._chance.sample(self._pods, 2))
        return await self._ledger.write(api, "POST", SLICES, body, self._made)
