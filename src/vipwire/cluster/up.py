"""`vipwire up`: the parts of a cluster on one machine, wired. Each part is named once, here.

A part is something that runs until it is cancelled; all are held by one task group. If one fails, all end, and the
error is the command's; if one ends, which the proxy does at a signal, all end too.
"""

import asyncio
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from vipwire.app.run import run_beside
from vipwire.cluster.announce import announce
from vipwire.cluster.api.bodies.sent import Options
from vipwire.cluster.api.errors import ApiError
from vipwire.cluster.api.kinds.node import NAMESPACES
from vipwire.cluster.api.object import key_of
from vipwire.cluster.api.registry import Registry
from vipwire.cluster.api.resource import Object
from vipwire.cluster.controllers.allocation.cidrs import ServiceCidrs
from vipwire.cluster.controllers.allocation.ranges import Network
from vipwire.cluster.controllers.allocation.repair import AddressRepair
from vipwire.cluster.controllers.balancers import Balancers
from vipwire.cluster.controllers.endpoints.controller import EndpointController
from vipwire.cluster.controllers.own_services import DNS_SERVICE, OwnServices
from vipwire.cluster.controllers.parts import Ranges, hooks, make_first_cidr
from vipwire.cluster.garbage import GarbageCollector
from vipwire.cluster.listen import Place, serve_api, serve_names
from vipwire.cluster.own_addresses import internal_addresses
from vipwire.cluster.probes import Probes
from vipwire.cluster.source import StoreSource
from vipwire.cluster.store.database import Database
from vipwire.cluster.store.record import StoreError
from vipwire.cluster.store.store import Store
from vipwire.cluster.this_node import declare_node, node_addresses
from vipwire.config.configuration import Config
from vipwire.dns.settings import Settings as DnsSettings
from vipwire.host.addresses import read_addresses
from vipwire.kube.proxied import proxy_resources

_NAMESPACES: Final = ("default", "kube-node-lease", "kube-public", "kube-system")


@dataclass(frozen=True, slots=True)
class Setting:
    """Where the data is, and where the API server listens. `names` are further ones for its certificate.

    `proxy` and `dns` are what runs beside it, None for not; `node` is the name of this machine's Node.
    """

    folder: Path
    address: str = "127.0.0.1"
    port: int = 6443
    names: tuple[str, ...] = ()
    store_limit: int = 0
    ranges: Ranges = field(default_factory=Ranges)
    node: str = field(default_factory=lambda: socket.gethostname().lower())
    proxy: Config | None = None
    dns: DnsSettings | None = None
    exec_probes: bool = False
    balancers: tuple[Network, ...] = ()
    announce: str = ""

    def summary(self) -> Iterator[str]:
        """Say in lines what runs besides the API server."""
        mode = self.proxy.proxy_mode if self.proxy else ""
        yield f"proxy of node {self.node} in {mode} mode" if mode else "no proxy on this machine (--no-proxy)"
        if self.dns is not None:
            yield f"DNS for {self.dns.domain} at {self.dns.addresses[0]} port {self.dns.port or 'any'}"


async def run(setting: Setting, ready: Callable[[str, Path], None]) -> None:
    """Run a cluster until SIGTERM or SIGINT. `ready` is told the URL and the admin's kubeconfig."""
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    store = Store(Database(setting.folder, limit=setting.store_limit))
    registry = Registry(store, now, hooks(store, now, setting.ranges))
    async with asyncio.TaskGroup() as tasks:
        storing = tasks.create_task(store.run())
        addresses = node_addresses(read_addresses(), setting.node)
        await _make_first_objects(registry, setting, addresses)
        services = OwnServices(registry)
        place = Place(
            setting.folder, setting.address, setting.port, setting.names, setting.node, internal_addresses(addresses)
        )
        working: list[asyncio.Task[None]] = []
        served = None
        try:
            served = await serve_api(place, registry, services, now())
            if setting.dns is None:
                await services.drop(DNS_SERVICE)
            parts = _parts(setting, registry, services, place)
            working += [tasks.create_task(_until_end(part, ending)) for part in parts]
            ready(served.url, served.kubeconfig)
            await ending.wait()
        finally:
            if served is not None:
                await served.runner.cleanup()
            for task in (*working, storing):
                task.cancel()


def _parts(setting: Setting, registry: Registry, services: OwnServices, place: Place) -> Iterator[Awaitable[None]]:
    """Name what runs beside the API server."""
    yield GarbageCollector(registry).run()
    yield EndpointController(registry).run()
    yield ServiceCidrs(registry).run()
    yield AddressRepair(registry).run()
    yield services.run()
    yield Probes(registry, commands=setting.exec_probes).run()
    if setting.balancers:
        yield Balancers(registry, setting.balancers).run()
    if setting.announce:
        yield announce(registry, setting.announce)
    if setting.proxy is not None:
        yield run_beside(setting.proxy, StoreSource(registry.store, proxy_resources(setting.node)))
    if setting.dns is not None:
        yield serve_names(setting.dns, registry, services, place)


async def _make_first_objects(registry: Registry, setting: Setting, addresses: list[Object]) -> None:
    await _make_namespaces(registry)
    await make_first_cidr(registry, setting.ranges)
    await declare_node(registry, setting.node, addresses)


def now() -> datetime:
    """Tell the time."""
    return datetime.now(UTC)  # noqa: TID251  # this is the shell, which hands the clock to all others


async def _until_end(work: Awaitable[None], ending: asyncio.Event) -> None:
    await work
    ending.set()


async def _make_namespaces(registry: Registry) -> None:
    for name in _NAMESPACES:
        if registry.store.read(key_of(NAMESPACES, "", name)) is None:
            try:
                await registry.create(NAMESPACES, "", {"metadata": {"name": name}}, Options())
            except ApiError as error:
                raise StoreError(error.message) from error
