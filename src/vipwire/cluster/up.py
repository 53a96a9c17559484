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

from aiohttp import web

from vipwire.app.config import Config
from vipwire.app.wiring import run_beside
from vipwire.cluster.access import Access, load_tokens, write_kubeconfigs
from vipwire.cluster.announce import announce
from vipwire.cluster.api.errors import ApiError
from vipwire.cluster.api.kinds.node import NAMESPACES
from vipwire.cluster.api.object import key_of
from vipwire.cluster.api.registry import Options, Registry
from vipwire.cluster.api.server import ApiServer
from vipwire.cluster.ca import Authority
from vipwire.cluster.controllers.balancers import Balancers
from vipwire.cluster.controllers.endpoint_controller import EndpointController
from vipwire.cluster.controllers.ranges import Network
from vipwire.cluster.controllers.wiring import Ranges, hooks, make_first_cidr
from vipwire.cluster.garbage import GarbageCollector
from vipwire.cluster.probes import Probes
from vipwire.cluster.source import StoreSource
from vipwire.cluster.store.database import Database
from vipwire.cluster.store.record import CompactedError, StoreError
from vipwire.cluster.store.store import Store
from vipwire.cluster.this_node import declare_node, node_addresses
from vipwire.dns.feed import StoreFeed
from vipwire.dns.run import serve as serve_dns
from vipwire.dns.settings import Settings as DnsSettings
from vipwire.errors import ConfigError
from vipwire.host.addresses import read_addresses

_NAMESPACES: Final = ("default", "kube-node-lease", "kube-public", "kube-system")
_NAMES: Final = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
_NAMES_BELOW: Final = ("kubernetes.default.svc.cluster.local", "127.0.0.1", "::1")


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

    def told(self) -> Iterator[str]:
        """Say in lines what runs besides the API server."""
        mode = self.proxy.proxy_mode.value if self.proxy else ""
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
        await _make_first_objects(registry, setting)
        working: list[asyncio.Task[None]] = []
        runner, url = None, ""
        try:
            runner, url, kubeconfig = await _serve(setting, registry)
            working += [tasks.create_task(_until_end(part, ending)) for part in _parts(setting, registry)]
            ready(url, kubeconfig)
            await ending.wait()
        finally:
            if runner is not None:
                await runner.cleanup()
            for task in (*working, storing):
                task.cancel()


def _parts(setting: Setting, registry: Registry) -> Iterator[Awaitable[None]]:
    """Name what runs beside the API server."""
    yield GarbageCollector(registry).run()
    yield EndpointController(registry).run()
    yield Probes(registry, commands=setting.exec_probes).run()
    if setting.balancers:
        yield Balancers(registry, setting.balancers).run()
    if setting.announce:
        yield announce(registry, setting.announce)
    if setting.proxy is not None:
        yield run_beside(setting.proxy, StoreSource(registry.store, setting.node))
    if setting.dns is not None:
        yield serve_dns(setting.dns, StoreFeed(registry.store, CompactedError).run)


async def _make_first_objects(registry: Registry, setting: Setting) -> None:
    await _make_namespaces(registry)
    await make_first_cidr(registry, setting.ranges)
    await declare_node(registry, setting.node, node_addresses(read_addresses(), setting.node))


def now() -> datetime:
    """Tell the time."""
    return datetime.now(UTC)  # noqa: TID251  # this is the shell, which hands the clock to all others


async def _until_end(work: Awaitable[None], ending: asyncio.Event) -> None:
    await work
    ending.set()


async def _serve(setting: Setting, registry: Registry) -> tuple[web.AppRunner, str, Path]:
    authority = Authority(setting.folder / "pki", now())
    names = (*_NAMES, *_NAMES_BELOW, setting.address, socket.gethostname().lower(), *setting.names)
    pair = authority.server(name for name in names if name not in ("0.0.0.0", "::"))  # noqa: S104  # not bound here
    server = ApiServer(registry, Access(load_tokens(setting.folder / "tokens.csv")).identify)
    try:
        runner, port = await server.listen(setting.address, setting.port, authority.server_context(pair))
    except OSError as error:
        raise ConfigError(
            f"--bind-address {setting.address} --secure-port {setting.port}: {error.strerror}"
        ) from error
    url = _url(setting.address, port)
    return runner, url, write_kubeconfigs(setting.folder, authority, url)


def _url(address: str, port: int) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)  # noqa: S104  # where a client here finds it
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


async def _make_namespaces(registry: Registry) -> None:
    for name in _NAMESPACES:
        if registry.store.read(key_of(NAMESPACES, "", name)) is None:
            try:
                await registry.create(NAMESPACES, "", {"metadata": {"name": name}}, Options())
            except ApiError as error:
                raise StoreError(error.message) from error
