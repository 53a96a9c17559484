"""Runs a connectivity test: makes the objects, asks, finds causes, and removes all objects, also when interrupted."""

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from vipwire.config.configuration import Config
from vipwire.errors import UnsupportedError
from vipwire.inspect.node.source import node_name, read_objects
from vipwire.kube.access.access import Access
from vipwire.kube.errors import ApiError
from vipwire.kube.objects import Object, ObjectClient
from vipwire.linux.host.addresses import read_addresses, select_global_addresses
from vipwire.model.net import Protocol, family_of, format_address, parse_address
from vipwire_lab.connectivity.asking import Asking
from vipwire_lab.connectivity.objects import (
    KINDS,
    PREFIX,
    Echo,
    build_namespace,
    build_pod,
    build_service,
    build_slices,
    collection_path,
    echo_of,
    is_ready,
)
from vipwire_lab.echo_servers import servers
from vipwire_lab.echo_servers.sockets import has_kernel_sctp
from vipwire_lab.namespaces.errors import LabError
from vipwire_lab.namespaces.processes import ProcessId, end_gracefully, reap_processes

_MANAGER: Final = "vipwire-connectivity-test"
_POD_SECONDS: Final = 120.0
_PAUSE: Final = 0.5
_ECHOES: Final = 2
_ATTEMPTS: Final = 5
Document = dict[str, Any]
Tell = Callable[[str], None]


@dataclass
class Test:
    """One test: where it asks, and what it made. `skipped` are the Services that the API server refused, and why."""

    config: Config
    access: Access
    tell: Tell
    wait: float
    domain: str
    image: str = ""
    namespace: str = field(default_factory=lambda: f"{PREFIX}{secrets.token_hex(3)}")
    made: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    def run_test(self) -> Document:
        """Make, ask and remove; return the results. Raise VipwireError if the test itself cannot run."""
        node, addresses = node_name(self.config), self._find_addresses()
        protocols = [each for each in Protocol if each is not Protocol.SCTP or has_kernel_sctp()]
        words = [each.name for each in protocols]
        with contextlib.ExitStack() as stack:
            if self.image:
                stack.enter_context(self._remove_at_end())
                echoes = asyncio.run(self._run_pods())
            else:
                echoes = stack.enter_context(run_echo_processes(node, addresses, protocols))
                stack.enter_context(self._remove_at_end())
            if not any(each.node == node for each in echoes):
                why = f"no echo server runs on Node {node}"
                self.skipped |= {name: why for name in KINDS if name.endswith("-local")}
            self.tell(f"making {len(KINDS)} Services in namespace {self.namespace}")
            services = asyncio.run(self._create_objects(echoes, words))
            families = sorted({family_of(parse_address(each)).value for each in addresses})
            asking = Asking(self.config, addresses, families, echoes, self.domain)
            asking.ask_until_settled(self._read_services, services, self.wait, self.tell)
            return {
                "kind": "Connectivity",
                "node": node,
                "namespace": self.namespace,
                **asking.make_document(self.skipped),
            }

    def _find_addresses(self) -> list[str]:
        """Return this Node's addresses, one of each family: by its Node object, if this machine has them."""
        here = [format_address(each) for each in select_global_addresses(read_addresses())]
        node = read_objects(self.config).nodes.get(node_name(self.config))
        known = [format_address(each) for each in node.addresses] if node is not None else []
        first: dict[Any, str] = {}
        for text in [each for each in known if each in here] or here:
            first.setdefault(family_of(parse_address(text)), text)
        if not first:
            raise UnsupportedError("this machine has no address for an endpoint of a Service")
        return list(first.values())

    async def _run_pods(self) -> list[Echo]:
        """Run an echo Pod on each Node that is Ready; wait until all run. Raise VipwireError if one does not."""
        async with self._open_client() as client:
            nodes = [each["metadata"]["name"] for each in await client.list("/api/v1/nodes") if is_ready(each)]
            self.tell(f"making {len(nodes)} echo Pods in namespace {self.namespace}")
            await self._create_object(client, build_namespace(self.namespace))
            paths = []
            for each in nodes:
                await self._create_object(client, build_pod(each, self.namespace, self.image))
                paths.append(self.made[-1])
            ends = time.monotonic() + _POD_SECONDS
            while True:
                pods = [pod for path in paths if (pod := await client.get(path)) is not None]
                found = [echo for pod in pods if (echo := echo_of(pod)) is not None]
                if len(found) == len(nodes) and found:
                    return found
                if time.monotonic() > ends:
                    missing = ", ".join(pod["metadata"]["name"] for pod in pods if echo_of(pod) is None)
                    why = f"not running after {_POD_SECONDS:g} s: {missing or 'no Node is Ready'}"
                    raise UnsupportedError(f"{why} (kubectl -n {self.namespace} describe pods, while it waits)")
                await asyncio.sleep(_PAUSE)

    async def _create_objects(self, echoes: Sequence[Echo], protocols: Sequence[str]) -> list[Object]:
        async with self._open_client() as client:
            if not self.image:
                await self._create_object(client, build_namespace(self.namespace))
            for name in [each for each in KINDS if each not in self.skipped]:
                try:
                    await self._create_object(client, build_service(name, self.namespace, protocols))
                except ApiError as error:
                    self.skipped[name] = f"the API server refuses the object: {error.message}"
                    continue
                for each in build_slices(name, self.namespace, echoes, protocols):
                    await self._create_object(client, each)
        return await self._read_services()

    async def _create_object(self, client: ObjectClient, value: Object) -> None:
        folder = collection_path(value)
        self.made.append(f"{folder}/{value['metadata']['name']}")
        await client.create(folder, value)

    async def _read_services(self) -> list[Object]:
        async with self._open_client() as client:
            folder = collection_path(build_service("cluster-ip", self.namespace, ()))
            found = [await client.get(f"{folder}/{name}") for name in KINDS if name not in self.skipped]
        return [each for each in found if each is not None]

    def _open_client(self) -> ObjectClient:
        return ObjectClient(self.access, _MANAGER, timeout=30.0)

    @contextlib.contextmanager
    def _remove_at_end(self) -> Iterator[None]:
        """Remove all objects at the end. A second Ctrl-C does not interrupt that."""

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGTERM, interrupt)
        try:
            yield
        finally:
            ignored = [signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)]
            try:
                if self.made:
                    self.tell(f"removing namespace {self.namespace}")
                    asyncio.run(self._remove_objects())
            finally:
                signal.signal(signal.SIGINT, ignored[0])
                signal.signal(signal.SIGTERM, before)

    async def _remove_objects(self) -> None:
        async with self._open_client() as client:
            for path in reversed(self.made):
                await client.delete(path)


@contextlib.contextmanager
def run_echo_processes(node: str, addresses: Sequence[str], protocols: Sequence[Protocol]) -> Iterator[list[Echo]]:
    """Run echo servers at this Node's addresses, each on a free port of its own."""
    with tempfile.TemporaryDirectory(prefix="vipwire-echo-") as name:
        folder = Path(name)
        servers.start_control_process(folder)
        process = ProcessId.read(folder / "echo.pid")
        try:
            names = [f"echo-{number}" for number in range(1, _ECHOES + 1)]
            ports = [_start_echo_server(folder, each, node, addresses, protocols) for each in names]
            yield [Echo(*each, tuple(addresses), node) for each in zip(names, ports, strict=True)]
        finally:
            if process is not None:
                end_gracefully([process])
                reap_processes([process])


def _start_echo_server(
    folder: Path, name: str, node: str, addresses: Sequence[str], protocols: Sequence[Protocol]
) -> int:
    """Serve on a port that is free for each protocol and address; return it."""
    family = socket.AF_INET6 if ":" in addresses[0] else socket.AF_INET
    for attempt in range(_ATTEMPTS):
        with socket.create_server((addresses[0], 0), family=family) as free:
            port: int = free.getsockname()[1]
        try:
            servers.request_serving(
                folder, name, node, Path(f"/proc/{os.getpid()}/ns/net"), [port], protocols, addresses
            )
        except LabError:
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            return port
    raise AssertionError  # pragma: no cover  # the last attempt returns or raises
