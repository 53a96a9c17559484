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
from vipwire_up.announcing.choose import View
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
from vipwire_up.controllers.gateway_services import GatewayServices, create_pool_class
from vipwire_up.controllers.hooks import Ranges, build_hooks, create_first_service_cidr
from vipwire_up.controllers.own_services import DNS_SERVICE, OwnServices
from vipwire_up.controllers.servers import OwnSlices, Server
from vipwire_up.credentials.ca import LIFE
from vipwire_up.credentials.keys import warn_of_loose_modes
from vipwire_up.dns.settings import Settings as DnsSettings
from vipwire_up.failure_events import Complaints
from vipwire_up.joining.tokens import delete_ended_tokens
from vipwire_up.nodes.heartbeat import SECONDS as NODE_SECONDS
from vipwire_up.nodes.heartbeat import Heartbeat, release_node_name
from vipwire_up.nodes.name_claim import NameClaim, NameStillHeldError, server_identity
from vipwire_up.nodes.objects import LocalObjects
from vipwire_up.nodes.readiness import NodeReadiness
from vipwire_up.open_store import open_store
from vipwire_up.readiness_probes.probes import Prober, build_local_probes
from vipwire_up.store.etcd.settings import EtcdSettings
from vipwire_up.store.record import StoreError
from vipwire_up.store_watch.source import StoreSource
from vipwire_up.supervision.own_addresses import OwnAddresses
from vipwire_up.supervision.parts import Ending, Part, Parts, ToldSource, wrap_coroutine
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


async def run_cluster(setting: Setting, ready: Callable[[str, Path], None]) -> None:
    """Run a cluster until SIGTERM or SIGINT. `ready` is called with the URL and the admin's kubeconfig."""
    warn_of_loose_modes(setting.folder)
    store = await open_store(setting.folder, setting.store_limit, setting.etcd, current_time)
    for record in store.damaged():
        log.error("a stored object is damaged; ignoring the object until its deletion", object="/".join(record.key))
    cluster = _Cluster(setting, Registry(store, current_time, build_hooks(store, current_time, setting.ranges)))
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
        self._supervisor = WatchedSupervisor(self._complaints.record_failure)
        self._services = OwnServices(registry, self._supervisor.guard("own Services"))
        self._own = OwnAddresses(setting.node, setting.node_ips, probes=setting.probes)
        objects = LocalObjects(registry, "vipwire-node")
        shared = registry.store.shared
        # A store in a file has one server, even after a reboot or in another network namespace.
        identity = server_identity(setting.folder, setting.node) if shared else f"{setting.node}_store"
        self._name = name = NameClaim(setting.node, setting.node_seconds, identity)
        self._heartbeat = Heartbeat(objects, setting.node, self._own.describe_machine, current_time, name)
        own, life = self._own.own, setting.life
        self._place = ApiListenerSettings(
            setting.folder, setting.address, setting.port, setting.names, setting.node, own, life
        )
        claims = Claims(LocalObjects(registry, "vipwire-announcer"), setting.node, setting.announce, current_time)
        view, interface = View(), setting.announce
        announced = Announced(objects, setting.node, interface, current_time, view.services_at, setting.proxy)
        self._server: Server | None = None
        if shared:
            self._server = Server(registry, setting.node, identity)
        self._readiness = NodeReadiness(registry.store, self._supervisor.guard("Node readiness"))
        self._ending = Ending("vipwire up")
        serves = self._ending.has_programmed_rules if setting.proxy is not None else None
        self._addresses = AddressKeeper(claims, view, announced, interface, serves, self._is_named)
        self.parts = Parts(self._supervisor)

    def _is_named(self) -> bool:
        return self._name.holds_name() and (self._server is None or self._server.holds_name())

    async def serve(self, tasks: asyncio.TaskGroup, ready: Callable[[str, Path], None]) -> None:
        """Prepare the directory, open the API server, run all parts, and wait for the end."""
        if self._server is not None:
            self._name.ignore_identities(await self._server.wait_for_name())
        self._ending.hear_signals()
        await self._create_first_objects(tasks)
        served = await serve_api(
            self._place, self._registry, self._services, current_time, self._supervisor, self._addresses
        )
        try:
            if self._setting.dns is None:
                await self._services.delete_service(DNS_SERVICE)
            keys = (
                Part("keys", wrap_coroutine(served.keys.run)),
                Part("shared credentials", wrap_coroutine(served.shared.run)),
            )
            self.parts.start_part(tasks, Part("own addresses", wrap_coroutine(self._own.run)))
            moving = partial(self._own.call_on_change, served.move, self._place.own)
            self.parts.start_part(tasks, Part("address of the API server", wrap_coroutine(moving)))
            opened = [self.parts.start_part(tasks, part) for part in (*keys, *self._list_parts())]
            for each in opened:
                await each.wait()
            ready(served.url, served.kubeconfig)
            systemd.notify(systemd.READY)
            await self._ending.wait_for_end()
            systemd.notify(systemd.STOPPING)
            await self._addresses.hand_over()
            await release_node_name(LocalObjects(self._registry, "vipwire-node"), self._name)
        finally:
            await served.serving.close(_GRACE_SECONDS)

    async def _create_first_objects(self, tasks: asyncio.TaskGroup) -> None:
        """Create the first objects; on a full disk, try again beside the other parts."""
        tried = asyncio.Event()

        async def make(_: Begun) -> None:
            try:
                await _write_first_objects(self._registry, self._setting, self._heartbeat)
                if self._server is not None:
                    await self._server.renew_lease()  # before objects that end with this Lease
            finally:
                tried.set()

        self.parts.start_part(tasks, Part("first objects", make))
        await tried.wait()

    def _list_parts(self) -> Iterator[Part]:
        setting, registry = self._setting, self._registry
        yield Part("watchdog", wrap_coroutine(self._supervisor.watch))
        yield Part("systemd", wrap_coroutine(systemd.keep_alive))
        yield Part("complaints", wrap_coroutine(self._complaints.run))
        yield Part("Node", self._ending.wrap_named_part(self._heartbeat.run))
        yield Part("own Services", wrap_coroutine(self._services.run))
        if self._server is not None:
            yield Part("Node observation", wrap_coroutine(self._readiness.record_renewals_only))
            yield Part("Lease of this server", self._ending.wrap_named_part(self._server.run))
            election = Election(registry, f"{setting.node}_{uuid.uuid4()}")
            yield Part("election", wrap_coroutine(partial(election.run, self._run_as_leader)))
        else:
            yield from self._list_controllers(self._registry)
        if setting.probes:
            prober = dataclasses.replace(setting.prober, node=setting.node)
            own = build_local_probes(registry, prober, self._supervisor.guard("probes here"))
            yield Part("probes here", wrap_coroutine(own.run))
        if setting.announce:
            follow = StoreSource(registry.store, ANNOUNCED_RESOURCES).run
            yield Part("announcements", partial(self._addresses.run, follow), opens=True)
        if setting.bgp is not None:
            yield Part("BGP", partial(self._run_bgp, setting.bgp), opens=True)
        if setting.proxy is not None:
            yield Part("proxy", partial(self._run_proxy, setting.proxy), opens=True)
        if setting.dns is not None:
            yield Part("DNS", partial(self._run_dns, setting.dns), opens=True)

    async def _run_as_leader(self, registry: FencedRegistry) -> None:
        parts = (*self._list_controllers(registry), *self._list_shared_controllers(registry))
        try:
            async with asyncio.TaskGroup() as tasks:
                for part in parts:
                    tasks.create_task(self._supervisor.keep(part.name, part.work))
        finally:
            for part in parts:
                self._supervisor.forget(part.name)

    def _list_controllers(self, registry: Registry) -> Iterator[Part]:
        setting, guard = self._setting, self._supervisor.guard
        yield Part("garbage collection", wrap_coroutine(GarbageCollector(registry, guard("garbage collection")).run))
        yield Part("Node readiness", wrap_coroutine(partial(self._readiness.run, registry)))
        yield Part("tokens", wrap_coroutine(partial(delete_ended_tokens, registry, current_time)))
        yield Part("endpoints", wrap_coroutine(EndpointController(registry, guard("endpoints")).run))
        yield Part("ServiceCIDRs", wrap_coroutine(ServiceCidrs(registry, guard("ServiceCIDRs")).run))
        yield Part("IPAddresses", wrap_coroutine(AddressRepair(registry, guard("IPAddresses")).run))
        elected = dataclasses.replace(setting.prober, node="")
        yield Part("probes", wrap_coroutine(build_local_probes(registry, elected, guard("probes")).run))
        balancers = Balancers(registry, setting.balancers, guard("LoadBalancer addresses"))
        yield Part("LoadBalancer addresses", wrap_coroutine(balancers.run))
        if setting.balancers:
            gateways = GatewayServices(registry, setting.balancers, guard("Gateways' Services"))
            yield Part("Gateways' Services", wrap_coroutine(gateways.run))

    def _list_shared_controllers(self, registry: FencedRegistry) -> Iterator[Part]:
        """Yield the parts that run once per cluster with several API servers."""
        guard = self._supervisor.guard
        yield Part("node ports", wrap_coroutine(PortNoteRepair(registry, guard("node ports")).run))
        yield Part("API servers", wrap_coroutine(OwnSlices(registry, guard("API servers")).run))

    async def _run_bgp(self, settings: BgpSettings, begun: Begun) -> None:
        node, bird = self._setting.node, partial(Bird, self._setting.folder / "bgp")
        follow = StoreSource(self._registry.store, BGP_RESOURCES).run
        await self._own.restart_on_change(lambda own: BgpSpeaker(settings, node, own, bird).run(follow, begun))

    async def _run_dns(self, settings: DnsSettings, begun: Begun) -> None:
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


async def _write_first_objects(registry: Registry, setting: Setting, heartbeat: Heartbeat) -> None:
    await _create_namespaces(registry)
    await create_first_service_cidr(registry, setting.ranges)
    try:
        await create_pool_class(registry, setting.balancers)
        with contextlib.suppress(NameStillHeldError):  # the heartbeat decides that
            await heartbeat.renew_once()
    except ApiError as error:
        raise StoreError(error.message) from error


def current_time() -> datetime:
    return datetime.now(UTC)  # noqa: TID251  # this is the shell, which hands the clock to all others


async def _create_namespaces(registry: Registry) -> None:
    for name in _NAMESPACES:
        if registry.store.read(key_of(NAMESPACES, "", name)) is None:
            try:
                await registry.create(NAMESPACES, "", {"metadata": {"name": name}}, Options())
            except ApiError as error:
                if error.reason == "AlreadyExists":  # another server created it first
                    continue
                raise StoreError(error.message) from error
