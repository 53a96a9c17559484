"""`vipwire up`: connects the parts of a cluster on one machine, and lists them all.

A part runs until cancelled and is supervised by itself: a failed part is logged and restarted, and all others go on.
No content of the store can stop a start. Only an impossible choice of the operator (a port in use, a missing
interface) ends the command, at the start.
"""

import asyncio
import contextlib
import dataclasses
import socket
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final

from vipwire.config.configuration import Config
from vipwire.errors import ConfigError
from vipwire.kube.access.access import load_access
from vipwire.kube.errors import ApiError
from vipwire.kube.proxied import proxy_resources
from vipwire.logging import log
from vipwire.process_lifecycle import systemd
from vipwire.process_lifecycle.supervision import Begun
from vipwire_up.announcing.announced import Announced
from vipwire_up.announcing.claims import Claims
from vipwire_up.announcing.keeper import AddressKeeper
from vipwire_up.announcing.kinds import RESOURCES as ANNOUNCED_RESOURCES
from vipwire_up.api.change import Options
from vipwire_up.api.kinds.small_kinds import NAMESPACES
from vipwire_up.api.objects.object import key_of
from vipwire_up.api.registry import FencedRegistry, Registry
from vipwire_up.api_listener import ApiListenerSettings, serve_api, serve_names
from vipwire_up.bgp.bird import Bird
from vipwire_up.bgp.run import RESOURCES as BGP_RESOURCES
from vipwire_up.bgp.run import BgpSpeaker
from vipwire_up.bgp.settings import BgpSettings
from vipwire_up.controllers.allocation.cidrs import ServiceCidrs
from vipwire_up.controllers.allocation.port_notes import PortNoteRepair
from vipwire_up.controllers.allocation.ranges import Network
from vipwire_up.controllers.allocation.repair import AddressRepair
from vipwire_up.controllers.balancers import Balancers
from vipwire_up.controllers.election import Election
from vipwire_up.controllers.endpoints.controller import EndpointController
from vipwire_up.controllers.garbage_collector import GarbageCollector
from vipwire_up.controllers.gateway_services import GatewayServices, declare_pool
from vipwire_up.controllers.hooks import Ranges, hooks, make_first_cidr
from vipwire_up.controllers.own_services import DNS_SERVICE, OwnServices
from vipwire_up.controllers.servers import OwnSlices, Server
from vipwire_up.credentials.ca import LIFE
from vipwire_up.credentials.keys import tell_loose_modes
from vipwire_up.dns.settings import Settings as DnsSettings
from vipwire_up.failure_events import Complaints
from vipwire_up.joining.tokens import delete_ended_tokens
from vipwire_up.nodes.heartbeat import SECONDS as NODE_SECONDS
from vipwire_up.nodes.heartbeat import Heartbeat, give_back
from vipwire_up.nodes.name_claim import NameClaim, NameStillHeldError, server_identity
from vipwire_up.nodes.objects import LocalObjects
from vipwire_up.nodes.readiness import NodeReadiness
from vipwire_up.open_store import open_store
from vipwire_up.readiness_probes.probes import Prober, local_probes
from vipwire_up.store.etcd.settings import EtcdSettings
from vipwire_up.store.record import StoreError
from vipwire_up.store_watch.source import StoreSource
from vipwire_up.supervision.own_addresses import OwnAddresses
from vipwire_up.supervision.parts import Ending, Part, Parts, ToldSource, simply
from vipwire_up.watchdog.watchdog import WatchedSupervisor

_ENDING_SECONDS: Final = 5.0
_GRACE_SECONDS: Final = 1.0  # for requests in flight at the end
_NAMESPACES: Final = ("default", "kube-node-lease", "kube-public", "kube-system")


@dataclass(frozen=True, slots=True)
class Setting:
    """The data directory and the API server's addresses. `names` are further ones for its certificate.

    `proxy` and `dns` are parts beside it, None for not; `node` is the name of this machine's Node. `prober` is how
    this machine probes, `probes` whether it probes its own Pods even if not elected. `life` is the validity of
    certificates of servers and machines.
    """

    folder: Path
    address: str = "127.0.0.1"
    port: int = 6443
    names: tuple[str, ...] = ()
    store_limit: int = 0
    etcd: EtcdSettings | None = None
    ranges: Ranges = field(default_factory=Ranges)
    node: str = field(default_factory=lambda: socket.gethostname().lower())
    proxy: Config | None = None
    dns: DnsSettings | None = None
    prober: Prober = field(default_factory=Prober)
    probes: bool = True
    balancers: tuple[Network, ...] = ()
    announce: str = ""
    node_ips: tuple[str, ...] = ()
    node_seconds: int = NODE_SECONDS
    bgp: BgpSettings | None = None
    life: timedelta = LIFE

    def summary(self) -> Iterator[str]:
        mode = self.proxy.proxy_mode if self.proxy else ""
        yield f"proxy of node {self.node} in {mode} mode" if mode else "no proxy on this machine (--no-proxy)"
        if self.dns is not None:
            yield f"DNS for {self.dns.domain} at {self.dns.addresses[0]} port {self.dns.port or 'any'}"


async def run(setting: Setting, ready: Callable[[str, Path], None]) -> None:
    """Run a cluster until SIGTERM or SIGINT. `ready` is called with the URL and the admin's kubeconfig."""
    tell_loose_modes(setting.folder)
    store = await open_store(setting.folder, setting.store_limit, setting.etcd, now)
    for record in store.damaged():
        log.error("a stored object is damaged; ignoring the object until its deletion", object="/".join(record.key))
    cluster = _Cluster(setting, Registry(store, now, hooks(store, now, setting.ranges)))
    async with asyncio.TaskGroup() as tasks:
        storing = tasks.create_task(store.run())
        await asyncio.sleep(0)  # the store closes its file only if its task has begun
        try:
            await cluster.serve(tasks, ready)
        finally:
            for task in cluster.parts.working:
                task.cancel()
            if cluster.parts.working:  # they free Leases and addresses for other machines
                await asyncio.wait(cluster.parts.working, timeout=_ENDING_SECONDS)
            storing.cancel()


class _Cluster:
    """The parts over one registry."""

    def __init__(self, setting: Setting, registry: Registry) -> None:
        self._setting, self._registry = setting, registry
        self._complaints = Complaints(registry)
        self._supervisor = WatchedSupervisor(self._complaints.hear)
        self._services = OwnServices(registry, self._supervisor.guard("own Services"))
        self._own = OwnAddresses(setting.node, setting.node_ips, probes=setting.probes)
        objects = LocalObjects(registry, "vipwire-node")
        shared = registry.store.shared
        # A store in a file has one server, even after a reboot or in another network namespace.
        identity = server_identity(setting.folder, setting.node) if shared else f"{setting.node}_store"
        self._name = name = NameClaim(setting.node, setting.node_seconds, identity)
        self._heartbeat = Heartbeat(objects, setting.node, self._own.describe, now, name)
        own, life = self._own.own, setting.life
        self._place = ApiListenerSettings(
            setting.folder, setting.address, setting.port, setting.names, setting.node, own, life
        )
        claims = Claims(LocalObjects(registry, "vipwire-announcer"), setting.node, setting.announce, now)
        announced = Announced(objects, setting.node, setting.announce, now, setting.proxy)
        self._server: Server | None = None
        if shared:
            self._server = Server(registry, setting.node, identity)
        self._readiness = NodeReadiness(registry.store, self._supervisor.guard("Node readiness"))
        self._ending = Ending("vipwire up")
        serves = self._ending.serves if setting.proxy is not None else None
        self._addresses = AddressKeeper(claims, announced, setting.announce, serves, self._is_named)
        self.parts = Parts(self._supervisor)

    def _is_named(self) -> bool:
        return self._name.holds() and (self._server is None or self._server.holds())

    async def serve(self, tasks: asyncio.TaskGroup, ready: Callable[[str, Path], None]) -> None:
        """Prepare the directory, open the API server, run all parts, and wait for the end."""
        if self._server is not None:
            self._name.succeed(await self._server.wait_for_name())
        self._ending.hear_signals()
        await self._begin(tasks)
        served = await serve_api(self._place, self._registry, self._services, now, self._supervisor, self._addresses)
        try:
            if self._setting.dns is None:
                await self._services.drop(DNS_SERVICE)
            keys = Part("keys", simply(served.keys.run)), Part("shared credentials", simply(served.shared.run))
            self.parts.start(tasks, Part("own addresses", simply(self._own.run)))
            moving = partial(self._own.each, served.move, self._place.own)
            self.parts.start(tasks, Part("address of the API server", simply(moving)))
            opened = [self.parts.start(tasks, part) for part in (*keys, *self._parts())]
            for each in opened:
                await each.wait()
            ready(served.url, served.kubeconfig)
            systemd.notify(systemd.READY)
            await self._ending.wait()
            systemd.notify(systemd.STOPPING)
            await self._addresses.hand_over()
            await give_back(LocalObjects(self._registry, "vipwire-node"), self._name)
        finally:
            await served.serving.close(_GRACE_SECONDS)

    async def _begin(self, tasks: asyncio.TaskGroup) -> None:
        """Create the first objects; on a full disk, try again beside the other parts."""
        tried = asyncio.Event()

        async def make(_: Begun) -> None:
            try:
                await _make_first_objects(self._registry, self._setting, self._heartbeat)
                if self._server is not None:
                    await self._server.renew()  # before objects that end with this Lease
            finally:
                tried.set()

        self.parts.start(tasks, Part("first objects", make))
        await tried.wait()

    def _parts(self) -> Iterator[Part]:
        setting, registry = self._setting, self._registry
        yield Part("watchdog", simply(self._supervisor.watch))
        yield Part("systemd", simply(systemd.keep_alive))
        yield Part("complaints", simply(self._complaints.run))
        yield Part("Node", self._ending.while_named(self._heartbeat.run))
        yield Part("own Services", simply(self._services.run))
        if self._server is not None:
            yield Part("Node observation", simply(self._readiness.listen))
            yield Part("Lease of this server", self._ending.while_named(self._server.run))
            election = Election(registry, f"{setting.node}_{uuid.uuid4()}")
            yield Part("election", simply(partial(election.run, self._lead)))
        else:
            yield from self._controllers(self._registry)
        if setting.probes:
            prober = dataclasses.replace(setting.prober, node=setting.node)
            own = local_probes(registry, prober, self._supervisor.guard("probes here"))
            yield Part("probes here", simply(own.run))
        if setting.announce:
            follow = StoreSource(registry.store, ANNOUNCED_RESOURCES).run
            yield Part("announcements", partial(self._addresses.run, follow), opens=True)
        if setting.bgp is not None:
            yield Part("BGP", partial(self._speak_bgp, setting.bgp), opens=True)
        if setting.proxy is not None:
            yield Part("proxy", partial(self._run_proxy, setting.proxy), opens=True)
        if setting.dns is not None:
            yield Part("DNS", partial(self._serve_names, setting.dns), opens=True)

    async def _lead(self, registry: FencedRegistry) -> None:
        parts = (*self._controllers(registry), *self._shared_controllers(registry))
        try:
            async with asyncio.TaskGroup() as tasks:
                for part in parts:
                    tasks.create_task(self._supervisor.keep(part.name, part.work))
        finally:
            for part in parts:
                self._supervisor.forget(part.name)

    def _controllers(self, registry: Registry) -> Iterator[Part]:
        setting, guard = self._setting, self._supervisor.guard
        yield Part("garbage collection", simply(GarbageCollector(registry, guard("garbage collection")).run))
        yield Part("Node readiness", simply(partial(self._readiness.run, registry)))
        yield Part("tokens", simply(partial(delete_ended_tokens, registry, now)))
        yield Part("endpoints", simply(EndpointController(registry, guard("endpoints")).run))
        yield Part("ServiceCIDRs", simply(ServiceCidrs(registry, guard("ServiceCIDRs")).run))
        yield Part("IPAddresses", simply(AddressRepair(registry, guard("IPAddresses")).run))
        elected = dataclasses.replace(setting.prober, node="")
        yield Part("probes", simply(local_probes(registry, elected, guard("probes")).run))
        balancers = Balancers(registry, setting.balancers, guard("LoadBalancer addresses"))
        yield Part("LoadBalancer addresses", simply(balancers.run))
        if setting.balancers:
            gateways = GatewayServices(registry, setting.balancers, guard("Gateways' Services"))
            yield Part("Gateways' Services", simply(gateways.run))

    def _shared_controllers(self, registry: FencedRegistry) -> Iterator[Part]:
        """Yield the parts that run once per cluster with several API servers."""
        guard = self._supervisor.guard
        yield Part("node ports", simply(PortNoteRepair(registry, guard("node ports")).run))
        yield Part("API servers", simply(OwnSlices(registry, guard("API servers")).run))

    async def _speak_bgp(self, settings: BgpSettings, begun: Begun) -> None:
        node, bird = self._setting.node, partial(Bird, self._setting.folder / "bgp")
        follow = StoreSource(self._registry.store, BGP_RESOURCES).run
        await self._own.restart_on_change(lambda own: BgpSpeaker(settings, node, own, bird).run(follow, begun))

    async def _serve_names(self, settings: DnsSettings, begun: Begun) -> None:
        async def work(own: tuple[str, ...]) -> None:
            place = dataclasses.replace(self._place, own=own)
            await serve_names(settings, self._registry, self._services, place, begun)

        await self._own.restart_on_change(work)

    async def _run_proxy(self, config: Config, begun: Begun) -> None:
        objects, addresses = StoreSource(self._registry.store, proxy_resources(self._setting.node)), self._addresses
        source = ToldSource(objects, lambda: addresses.trouble or addresses.note)
        access = None
        with contextlib.suppress(ConfigError):  # without the API server's file the proxy writes no Events
            access = load_access(self._setting.folder / "node.kubeconfig")
        await self._ending.run_proxy(config, source, access, self._supervisor, begun)


async def _make_first_objects(registry: Registry, setting: Setting, heartbeat: Heartbeat) -> None:
    await _make_namespaces(registry)
    await make_first_cidr(registry, setting.ranges)
    try:
        await declare_pool(registry, setting.balancers)
        with contextlib.suppress(NameStillHeldError):  # the heartbeat decides that
            await heartbeat.beat()
    except ApiError as error:
        raise StoreError(error.message) from error


def now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251  # this is the shell, which hands the clock to all others


async def _make_namespaces(registry: Registry) -> None:
    for name in _NAMESPACES:
        if registry.store.read(key_of(NAMESPACES, "", name)) is None:
            try:
                await registry.create(NAMESPACES, "", {"metadata": {"name": name}}, Options())
            except ApiError as error:
                if error.reason == "AlreadyExists":  # another server created it first
                    continue
                raise StoreError(error.message) from error
