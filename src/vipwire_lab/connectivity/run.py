"""Runs a connectivity test: makes the objects, asks, finds causes, and removes all objects, also when interrupted."""

import asyncio
import contextlib
import secrets
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from vipwire.config.configuration import Config
from vipwire.errors import UnsupportedError
from vipwire.inspect.node.source import node_name, read_objects
from vipwire.kube.access.access import Access
from vipwire.kube.errors import ApiError
from vipwire.kube.objects import Object, ObjectClient
from vipwire.linux.host.addresses import global_addresses, read_addresses
from vipwire.model.net import Protocol, family_of, format_address, parse_address
from vipwire_lab.connectivity.asking import Asking
from vipwire_lab.connectivity.echoes import echo_processes
from vipwire_lab.connectivity.objects import KINDS, PREFIX, Echo, folder_of, namespace_of, service_of, slices_of
from vipwire_lab.echo_servers.sockets import in_kernel

_MANAGER: Final = "vipwire-connectivity-test"
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
    namespace: str = field(default_factory=lambda: f"{PREFIX}{secrets.token_hex(3)}")
    made: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    def run(self) -> Document:
        """Make, ask and remove; return the results. Raise VipwireError if the test itself cannot run."""
        node, addresses = node_name(self.config), self._addresses()
        protocols = [each for each in Protocol if each is not Protocol.SCTP or in_kernel()]
        words = [each.name for each in protocols]
        with echo_processes(node, addresses, protocols) as echoes, self._removing():
            self.tell(f"making {len(KINDS)} Services in namespace {self.namespace}")
            services = asyncio.run(self._make(echoes, words))
            families = sorted({family_of(parse_address(each)).value for each in addresses})
            asking = Asking(self.config, addresses, families, echoes, self.domain)
            asking.until(self._read, services, self.wait, self.tell)
            return {"kind": "Connectivity", "node": node, "namespace": self.namespace, **asking.told(self.skipped)}

    def _addresses(self) -> list[str]:
        """Return this Node's addresses, one of each family: by its Node object, if this machine has them."""
        here = [format_address(each) for each in global_addresses(read_addresses())]
        node = read_objects(self.config).nodes.get(node_name(self.config))
        known = [format_address(each) for each in node.addresses] if node is not None else []
        first: dict[Any, str] = {}
        for text in [each for each in known if each in here] or here:
            first.setdefault(family_of(parse_address(text)), text)
        if not first:
            raise UnsupportedError("this machine has no address that a Service could lead to")
        return list(first.values())

    async def _make(self, echoes: Sequence[Echo], protocols: Sequence[str]) -> list[Object]:
        async with self._client() as client:
            await self._create(client, namespace_of(self.namespace))
            for name in KINDS:
                try:
                    await self._create(client, service_of(name, self.namespace, protocols))
                except ApiError as error:
                    self.skipped[name] = f"the API server refused it: {error.message}"
                    continue
                for each in slices_of(name, self.namespace, echoes, protocols):
                    await self._create(client, each)
        return await self._read()

    async def _create(self, client: ObjectClient, value: Object) -> None:
        folder = folder_of(value)
        self.made.append(f"{folder}/{value['metadata']['name']}")
        await client.create(folder, value)

    async def _read(self) -> list[Object]:
        async with self._client() as client:
            folder = folder_of(service_of("cluster-ip", self.namespace, ()))
            found = [await client.get(f"{folder}/{name}") for name in KINDS if name not in self.skipped]
        return [each for each in found if each is not None]

    def _client(self) -> ObjectClient:
        return ObjectClient(self.access, _MANAGER, timeout=30.0)

    @contextlib.contextmanager
    def _removing(self) -> Iterator[None]:
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
                    asyncio.run(self._remove())
            finally:
                signal.signal(signal.SIGINT, ignored[0])
                signal.signal(signal.SIGTERM, before)

    async def _remove(self) -> None:
        async with self._client() as client:
            for path in reversed(self.made):
                await client.delete(path)
