"""Runs a machine that joined: its proxy, its Node and Lease, its credentials. Lists all its parts.

All parts use the API through a relay on loopback, which connects to any server that answers. While none does, the
rules stay and Services are served; only changes are not seen.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from vipwire.config.configuration import Config
from vipwire.errors import ConfigError
from vipwire.kube.access.access import Access
from vipwire.kube.client import ApiSource
from vipwire.kube.errors import ApiError, UnreachableError
from vipwire.kube.proxied import proxy_resources
from vipwire.logging import log
from vipwire.model.net import add_brackets
from vipwire.process_lifecycle import systemd
from vipwire.process_lifecycle.supervision import Begun
from vipwire_up.announcing.announced import Announced
from vipwire_up.announcing.choose import View
from vipwire_up.announcing.claims import RENEW_TIMEOUT, Claims
from vipwire_up.announcing.keeper import AddressKeeper
from vipwire_up.announcing.kinds import RESOURCES
from vipwire_up.api.kinds.endpoints import ENDPOINTS
from vipwire_up.api.objects.object import value_at
from vipwire_up.api.objects.resource import Object
from vipwire_up.bgp.bird import Bird
from vipwire_up.bgp.run import RESOURCES as BGP_RESOURCES
from vipwire_up.bgp.run import BgpSpeaker
from vipwire_up.bgp.settings import BgpSettings
from vipwire_up.credentials.keys import warn_of_loose_modes
from vipwire_up.joining.join import Renewal, explain_rejection
from vipwire_up.joining.membership import Folder, Member, merge_servers
from vipwire_up.joining.relay import Relay
from vipwire_up.nodes.heartbeat import Heartbeat, release_node_name
from vipwire_up.nodes.name_claim import NameClaim, process_identity
from vipwire_up.nodes.objects import RemoteObjects
from vipwire_up.readiness_probes.probes import MANAGER as PROBER
from vipwire_up.readiness_probes.probes import RESOURCES as PROBED
from vipwire_up.readiness_probes.probes import Prober, Probes
from vipwire_up.supervision.own_addresses import OwnAddresses
from vipwire_up.supervision.parts import Ending, Part, Parts, ToldSource, wrap_coroutine
from vipwire_up.watchdog.watchdog import WatchedSupervisor

_LOOK_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Setting:
    """Settings of a machine. `node_seconds` is the Lease's duration; `port` is the relay's, 0 for any.

    `announce` is the interface on which the machine announces LoadBalancer addresses, "" for none. `prober` is how it
    probes its own Pods, if `probes`.
    """

    folder: Path
    proxy: Config | None = None
    node_seconds: int = 40
    port: int = 0
    announce: str = ""
    bgp: BgpSettings | None = None
    prober: Prober = field(default_factory=Prober)
    probes: bool = True
    node_ips: tuple[str, ...] = ()


async def run_machine(setting: Setting, member: Member, ready: Callable[[str], None]) -> None:
    """Run until SIGTERM or SIGINT. `ready` is called with the local URL of the API. Raise VipwireError."""
    warn_of_loose_modes(setting.folder)
    machine = _Machine(setting, member)
    async with asyncio.TaskGroup() as tasks:
        try:
            await machine.serve(tasks, ready)
        finally:
            for task in machine.parts.working:
                task.cancel()


class _Machine:
    """The running parts of a machine."""

    def __init__(self, setting: Setting, member: Member) -> None:
        self._setting, self._member = setting, member
        self._folder = Folder(setting.folder)
        self._supervisor = WatchedSupervisor()
        self.parts = Parts(self._supervisor)
        self._ending = Ending("vipwire join")
        self._url = ""
        self._addresses: AddressKeeper | None = None
        self._own = OwnAddresses(member.node, setting.node_ips, probes=setting.probes)
        identity = process_identity(member.node, self._folder.node.key.read_bytes())
        self._name = NameClaim(member.node, setting.node_seconds, identity)

    async def serve(self, tasks: asyncio.TaskGroup, ready: Callable[[str], None]) -> None:
        self._ending.hear_signals()
        await self.parts.start_part(tasks, Part("API relay", self._run_relay, opens=True)).wait()
        async with self._open_objects() as objects:
            for part in self._list_parts(objects):
                await self.parts.start_part(tasks, part).wait()
            ready(self._url)
            systemd.notify(systemd.READY)
            await self._ending.wait_for_end()
            systemd.notify(systemd.STOPPING)
            if self._addresses is not None:
                await self._addresses.hand_over()
            await release_node_name(objects, self._name)

    def _list_parts(self, objects: RemoteObjects) -> Iterator[Part]:
        """Yield the parts. Those that use `objects` share a connection, which heartbeats keep open."""
        yield Part("watchdog", wrap_coroutine(self._supervisor.watch))
        yield Part("systemd", wrap_coroutine(systemd.keep_alive))
        yield Part("own addresses", wrap_coroutine(self._own.run))
        yield Part("Node", self._ending.wrap_named_part(partial(self._run_heartbeat, objects)))
        yield Part("API servers", wrap_coroutine(partial(self._follow_servers, objects)))
        yield Part("credentials", wrap_coroutine(self._renew_certificates))
        if self._setting.probes:
            yield Part("probes here", wrap_coroutine(self._run_probes))
        if self._setting.announce:
            yield Part("announcements", self._run_announcing, opens=True)
        if self._setting.bgp is not None:
            yield Part("BGP", partial(self._run_bgp, self._setting.bgp), opens=True)
        if self._setting.proxy is not None:
            yield Part("proxy", partial(self._run_proxy, self._setting.proxy), opens=True)

    async def _run_relay(self, begun: Begun) -> None:
        def listening(url: str) -> None:
            self._url = url
            self._folder.write_kubeconfigs(url)
            begun()

        relay, wanted = Relay(lambda: self._member.servers), self._setting.port
        before = 0 if wanted else self._folder.relay_port()
        if before:  # clients that have read a kubeconfig keep this port
            with contextlib.suppress(OSError):
                await relay.run(listening, before)
        try:
            await relay.run(listening, wanted)
        except OSError as error:
            raise ConfigError(f"port {wanted} of 127.0.0.1: {error.strerror or error}") from error

    def _api_access(self) -> Access:
        return self._folder.access_to(self._url)

    def _open_objects(self, manager: str = "vipwire-node") -> RemoteObjects:
        return RemoteObjects(self._api_access(), manager)

    async def _run_heartbeat(self, objects: RemoteObjects) -> None:
        await Heartbeat(objects, self._member.node, self._own.describe_machine, current_time, self._name).run(
            explain_rejection
        )

    async def _run_probes(self) -> None:
        guard, follow = self._supervisor.guard("probes here"), ApiSource(self._api_access(), PROBED).run
        async with self._open_objects(PROBER) as objects:
            await Probes(objects, follow, current_time, self._setting.prober, guard).run()

    async def _run_announcing(self, begun: Begun) -> None:
        node, interface = self._member.node, self._setting.announce
        async with RemoteObjects(self._api_access(), "vipwire-announcer", timeout=RENEW_TIMEOUT) as objects:
            view = View()
            announced = Announced(objects, node, interface, current_time, view.services_at, self._setting.proxy)
            claims = Claims(objects, node, interface, current_time)
            serves = self._ending.has_programmed_rules if self._setting.proxy is not None else None
            keeper = AddressKeeper(claims, view, announced, interface, serves, self._name.holds_name)
            self._addresses = keeper
            await keeper.run(ApiSource(self._api_access(), RESOURCES).run, begun)

    async def _run_bgp(self, settings: BgpSettings, begun: Begun) -> None:
        node, bird, follow = self._member.node, partial(Bird, self._setting.folder / "bgp"), ApiSource
        await self._own.restart_on_change(
            lambda own: BgpSpeaker(settings, node, own, bird).run(
                follow(self._api_access(), BGP_RESOURCES).run, begun
            )
        )

    async def _follow_servers(self, objects: RemoteObjects) -> None:
        """Add new API servers of Service `kubernetes`; keep missing ones, since they may come back."""
        while True:
            try:
                found = await objects.read(ENDPOINTS, "default", "kubernetes")
            except (ApiError, UnreachableError):
                found = None
            servers = merge_servers(self._member.servers, list_servers(found or {}))
            if set(servers) != set(self._member.servers):
                log.info("received the list of API servers", servers=",".join(servers))
                self._member = Member(self._member.node, servers)
                self._folder.save_member(self._member)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _renew_certificates(self) -> None:
        """Renew certificates in time; their users read the files again."""
        renewals = [Renewal(self._folder, part) for part in self._folder.parts]
        while True:
            for each in renewals:
                if await each.step(self._api_access(), self._member.node, current_time()):
                    self._folder.write_kubeconfigs(self._url)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _run_proxy(self, config: Config, begun: Begun) -> None:
        objects = ApiSource(self._api_access(), proxy_resources(self._member.node))
        source = ToldSource(objects, self._explain_silence)
        await self._ending.run_proxy(config, source, self._api_access(), self._supervisor, begun)

    def _explain_silence(self) -> str:
        """Return why addresses are not announced here, or cannot move; "" for nothing."""
        return (self._addresses.trouble or self._addresses.note) if self._addresses is not None else ""


def current_time() -> datetime:
    return datetime.now(UTC)  # noqa: TID251  # this is the shell, which hands the clock to all others


def list_servers(endpoints: Object) -> Iterator[str]:
    for subset in endpoints.get("subsets") or ():
        ports = [port["port"] for port in subset.get("ports") or () if port.get("name") == "https"]
        for address in subset.get("addresses") or ():
            host = str(value_at(address, "ip") or "")
            yield from (f"https://{add_brackets(host)}:{port}" for port in ports if host)
