"""Wires `vipwire ingress`."""

import asyncio
import contextlib
import os
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, TypeAlias

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from vipwire import __version__
from vipwire.errors import ConfigError, raise_ungrouped
from vipwire.file_io.private_files import make_folder
from vipwire.http_server.exchange import Reply
from vipwire.http_server.pages import Pages, Request
from vipwire.kube.access.access import FOLDER, WRITERS, Access, load_access
from vipwire.kube.access.kubectl import find_files_of_this_machine, find_kubectl_files
from vipwire.kube.client import ApiSource, KeptSource, log_failures
from vipwire.kube.contact import seconds_to_next_look
from vipwire.kube.events import EventRecorder
from vipwire.kube.manifests.documents import ManifestReader
from vipwire.kube.manifests.source import ManifestSource
from vipwire.logging import log
from vipwire.model.names import ObjectName
from vipwire.process_lifecycle import cyclic_garbage, event_loop, systemd
from vipwire.process_lifecycle.event_loop import Stop
from vipwire.process_lifecycle.single_instance import Claim
from vipwire.process_lifecycle.supervision import Supervisor, Work
from vipwire.proxy_daemon.serve.server import HttpServer
from vipwire_l7.haproxy.layout import Layout
from vipwire_l7.plan.certificates import read_pair
from vipwire_l7.plan.destinations import Destinations, DestinationSetting
from vipwire_l7.plan.limits import Limited
from vipwire_l7.plan.plan import Planner, Setting
from vipwire_l7.run.claim import claim_ingress
from vipwire_l7.run.confinement import confine_workers
from vipwire_l7.run.control import ControlError, ask_haproxy
from vipwire_l7.run.controller import Controller, SyncResult
from vipwire_l7.run.default_certificate import read_or_make_certificate
from vipwire_l7.run.desired import Desired
from vipwire_l7.run.election import LeaseKeeper
from vipwire_l7.run.process import Haproxy
from vipwire_l7.run.rates import Rate, ReloadTurns
from vipwire_l7.run.reporter import IngressReporter
from vipwire_l7.run.statistics import Statistics
from vipwire_l7.run.surroundings import DestinationFollower, Place, read_cluster_domains
from vipwire_l7.watch.kinds import MANIFESTS, RESOURCES, IngressResource
from vipwire_l7.watch.objects import IngressKind, IngressObject
from vipwire_l7.watch.snapshot import ChangeExtent, Snapshot

_LIST_SECONDS = 30.0

Part: TypeAlias = Callable[[], Awaitable[None]]
Parts: TypeAlias = Callable[[Access, Snapshot, Desired, Callable[[], bool]], Iterator[tuple[str, Part]]]
Source: TypeAlias = ApiSource[IngressKind, IngressObject] | ManifestSource[IngressKind, IngressObject]


@dataclass(frozen=True, slots=True)
class Options:
    """The operator's flags. The process derives `layout.folder` and `layout.socket` from `folder`."""

    folder: Path
    layout: Layout
    setting: Setting = field(default_factory=Setting)
    manifests: tuple[Path, ...] = ()
    kubeconfig: Path | None = None
    master: str = ""
    haproxy: str = "haproxy"
    default_certificate: Path | None = None
    addresses: tuple[str, ...] = ()
    metrics: str = ""
    pause: float = 1.0
    grace: float = 30.0
    leave_running: bool = False
    takeover: bool = False
    publish_service: ObjectName | None = None
    lease: ObjectName | None = None
    haproxy_user: str = ""
    destinations: DestinationSetting = field(default_factory=DestinationSetting)
    resolvers: tuple[Place, ...] = ()
    command: str = "vipwire ingress"


def run_ingress(options: Options, served: "ControllerInput") -> int:
    """Run until a signal; return the exit status."""
    os.umask(0o077)
    make_folder(options.folder, "--run-dir")
    try:
        if options.folder.stat().st_uid == os.geteuid():
            options.folder.chmod(0o700)  # the folder may exist with another mode; it has sockets
    except OSError as error:
        raise ConfigError(f"--run-dir {options.folder}: {error.strerror}") from error
    claim = claim_ingress(options.folder, options.layout, takeover=options.takeover, command=options.command)
    with claim as claimed, raise_ungrouped():
        return event_loop.run_in_loop(IngressProcess(options, served).run(claimed))


def read_default_certificate(options: Options) -> str:
    if options.default_certificate is None:
        try:
            return read_or_make_certificate(options.folder, datetime.now(UTC))  # noqa: TID251  # this is the shell
        except OSError as error:
            raise ConfigError(f"--run-dir: {error.filename}: {error.strerror}") from error
    try:
        content = options.default_certificate.read_bytes()
    except OSError as error:
        raise ConfigError(f"--default-certificate {options.default_certificate}: {error.strerror}") from error
    pair, reason = read_pair(content, content)
    if pair is None:
        raise ConfigError(f"--default-certificate {options.default_certificate}: {reason}")
    return pair.pem


class SideService(Protocol):
    """A service that the process runs beside HAProxy."""

    async def run(self) -> None:
        """Serve until cancelled."""

    async def stop(self, *, goes_on: bool) -> None:
        """Stop, or leave the service to the next process."""


@dataclass(frozen=True, slots=True)
class ControllerInput:
    """The input of a process: its kinds, its planner, and its writers.

    `choose` asks an API server for the versions of the kinds. `parts` yields the writers of statuses; its last
    argument reports whether this replica is the leader. `beside` makes a service beside HAProxy, with a folder of its
    own.
    """

    planner: Planner
    resources: Mapping[IngressKind, IngressResource] = field(default_factory=lambda: RESOURCES)
    manifests: ManifestReader[IngressKind, IngressObject] = MANIFESTS
    choose: Callable[[Access], Awaitable[Mapping[IngressKind, IngressResource]]] | None = None
    parts: Parts | None = None
    beside: Callable[[Path, Controller, CollectorRegistry], SideService] | None = None


def complete_destinations(options: Options) -> DestinationSetting:
    """Complete the operator's choices by the cluster's domain in resolv.conf."""
    domains = dict.fromkeys((*options.destinations.domains, *read_cluster_domains()))
    return replace(options.destinations, domains=tuple(domains), from_files=bool(options.manifests))


async def make_source(options: Options, access: Access | None, served: ControllerInput) -> Source:
    if access is None:
        return ManifestSource(options.manifests, served.manifests)
    resources = await served.choose(access) if served.choose else served.resources
    return ApiSource(access, resources.values())


def find_api_server(options: Options) -> Access | None:
    """Find the API server, if one is wanted: by the flags, else as kubectl or a Pod finds it.

    Without any of these, use a `vipwire up` on this machine.
    """
    if options.manifests:
        return None
    if options.kubeconfig or options.master:
        return load_access(options.kubeconfig, options.master or None)
    if (found := find_kubectl_files()) is not None:
        return found.access(log.info)
    try:
        return load_access()
    except ConfigError as error:
        if (found := find_files_of_this_machine(role="ingress")) is not None:
            return found.access(log.info)
        raise ConfigError(f"{error}; {FOLDER} has no readable ingress.kubeconfig: {WRITERS}") from error


async def list_once(options: Options, served: ControllerInput) -> Snapshot:
    """Read all objects once; raise ConfigError if the API server does not send them."""
    snapshot = Snapshot(served.resources)
    source = KeptSource(await make_source(options, find_api_server(options), served))
    task = asyncio.ensure_future(source.run(snapshot.apply))
    try:
        async with asyncio.timeout(_LIST_SECONDS):
            while not snapshot.complete:  # noqa: ASYNC110  # a short-lived command
                await asyncio.sleep(0.02)
    except TimeoutError:
        errors = "; ".join(health.error for health in source.health() if health.error)
        raise ConfigError(f"cannot read the objects: {errors or 'no answer'}") from None
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    return snapshot


def _adapt_part(part: Part) -> Work:
    """Adapt a task to the supervisor. The task opens no address of the operator's: its first failure is not fatal."""
    return lambda _begun: part()


class IngressProcess:
    """One running controller."""

    def __init__(self, options: Options, served: ControllerInput) -> None:
        self._options, self._access = options, find_api_server(options)
        self._served = served
        self.haproxy = Haproxy(options.haproxy, options.folder)
        self._snapshot = Snapshot(self._served.resources)
        layout = confine_workers(options.layout, options.folder, options.haproxy_user)
        self._recorder = EventRecorder(self._access, socket.gethostname().lower()) if self._access else None
        limits = options.setting.limits
        self._keeper: LeaseKeeper | None = None
        if self._access and options.lease is not None:
            identity = f"{socket.gethostname()}_{uuid.uuid4()}"
            self._keeper = LeaseKeeper(self._access, options.lease, identity, self._wake_writers)
        destinations = Destinations(complete_destinations(options))
        pem = read_default_certificate(options)
        self._desired = Desired(self._snapshot, self._served.planner, layout, pem, destinations, limits)
        rate, serves = Rate(limits[Limited.EVENTS]), self._desired.serves_ingress
        self._teller = IngressReporter(self._snapshot, self._recorder, rate, self._is_leading, serves)
        self._follower = DestinationFollower(destinations, options.resolvers, self._touch_services, self._access)
        turns = ReloadTurns(Rate(limits[Limited.RELOADS]))
        self._controller = Controller(
            self._snapshot, self._desired, self.haproxy, self._report_sync, options.pause, self._follower, turns
        )
        self._statistics = Statistics()
        self._teller.registry.register(self._statistics)
        self._supervisor = Supervisor(self._count_failure)
        self._failures = Counter(
            "vipwire_ingress_part_failures",
            "Failures of a task, after which vipwire ran the task again",
            ("part",),
            registry=self._teller.registry,
        )
        beside = self._served.beside
        self._beside = beside(options.folder, self._controller, self._teller.registry) if beside else None
        self._serves = False

    def _count_failure(self, part: str, thing: Hashable, error: Exception, *, again: bool) -> None:
        del thing, error, again  # all count
        self._failures.labels(part).inc()

    async def run(self, claim: Claim) -> int:
        """Run until a signal, or until a successor takes over: then HAProxy goes on for the successor."""
        options, stop = self._options, Stop(lambda: None)
        cyclic_garbage.disable_collection()
        cyclic_garbage.limit_heap()
        asyncio.get_running_loop().call_later(_LIST_SECONDS, cyclic_garbage.collect_rarely)
        claim.when_asked(stop.make_room)
        serves_ingresses = IngressKind.INGRESS in self._served.resources
        about = {"ingress_class": options.setting.class_name} if serves_ingresses else {}
        log.info("starting", version=__version__, **about, folder=options.folder)
        source = await make_source(options, self._access, self._served)
        reason = "an error"
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [
                    tasks.create_task(self._supervisor.keep(name, _adapt_part(part)), name=name)
                    for name, part in self._list_tasks(source)
                ]
                if options.metrics:
                    server = HttpServer("metrics", self._make_pages(), options.metrics)
                    running.append(tasks.create_task(server.run(), name="metrics"))
                reason = await stop.wait()
                for task in running:
                    task.cancel()
        finally:
            # An end of this process also ends HAProxy, unless the operator or a successor keeps it. SIGKILL keeps it:
            # no process can catch it.
            goes_on = options.leave_running or stop.succeeded
            if not goes_on:
                await self.haproxy.stop(options.grace)
            if self._beside:
                await self._beside.stop(goes_on=goes_on)
            self._follower.close()
            log.info("stopped", reason=reason, haproxy="keeps running" if goes_on else "stopped")
        return 0

    def _list_tasks(self, source: Source) -> Iterator[tuple[str, Part]]:
        """Yield the tasks that run side by side.

        If one raises, the supervisor logs the exception and runs it again.
        """
        yield "controller", self._controller.run
        yield "child", self._controller.watch_child
        yield "source", lambda: source.run(self._controller.emit)
        yield "destinations", self._follower.run
        yield "problems", lambda: self._watch_problems(source)
        yield "systemd", systemd.keep_alive
        if self._beside:
            yield "datagrams", self._beside.run
        if self._recorder:
            yield "events", self._recorder.run
        if self._keeper:
            yield "election", self._keeper.run
        if self._access and self._served.parts:
            yield from self._served.parts(self._access, self._snapshot, self._desired, self._is_leading)

    def _touch_services(self, services: Collection[ObjectName]) -> None:
        self._controller.touch_services(services)

    def _is_leading(self) -> bool:
        """Report whether this replica writes statuses and Events: the elected one, or the only one."""
        return self._keeper is None or self._keeper.is_leading()

    def _wake_writers(self) -> None:
        for tell in self._desired.taken:
            tell()

    def _report_sync(self, done: SyncResult) -> None:
        systemd.notify(systemd.READY)
        if not self._serves:
            self._serves = True
            cyclic_garbage.collect_rarely()
        self._teller.report_sync(done)
        self._report_problems()

    def _report_problems(self) -> None:
        self._teller.report_problems(self._controller.desired.take_changed_problems())

    async def _watch_problems(self, source: Source) -> None:
        """Report problems that change nothing in HAProxy, and a source that fails."""
        told: dict[str, str] = {}
        with self._desired.call_after_changes(self._report_problems):
            while True:
                log_failures(states := source.health(), told, "cannot read objects; HAProxy keeps its configuration")
                await asyncio.sleep(seconds_to_next_look(states))
                self._report_problems()

    def _make_pages(self) -> Pages:
        return Pages(
            metrics=self._answer_metrics,
            healthz=self._answer_healthz,
            readyz=self._answer_healthz,
            livez=self._answer_livez,
        )

    async def _answer_metrics(self, _request: Request) -> Reply:
        try:
            (answer,) = await ask_haproxy(self.haproxy.socket, ["show stat"])
        except ControlError:
            answer = ""
        slots = self._controller.desired.slots
        self._statistics.update(answer, lambda pool: slots.get(pool, ()), self._controller.spares)
        body = generate_latest(self._teller.registry)
        return Reply(body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _answer_livez(self, _request: Request) -> Reply:
        """Answer as long as the process can: a restart would help neither an API server nor HAProxy."""
        return Reply("ok")

    async def _answer_healthz(self, _request: Request) -> Reply:
        serving = self._controller.serving
        return Reply("ok" if serving else "HAProxy does not serve", 200 if serving else 503)


async def render_once(options: Options, served: ControllerInput) -> tuple[Sequence[tuple[str, str]], Sequence[str]]:
    """Write all files that HAProxy needs, and a line for each problem."""
    snapshot = await list_once(options, served)
    destinations = Destinations(complete_destinations(options))
    pem, limits = read_default_certificate(options), options.setting.limits
    desired = Desired(snapshot, served.planner, options.layout, pem, destinations, limits)
    access = find_api_server(options)
    with contextlib.closing(
        DestinationFollower(destinations, options.resolvers, snapshot.touch_services, access)
    ) as follower:
        desired.update(ChangeExtent(structure=True), time.time())
        if follower.waits:
            await follower.query_new_names()
            desired.update(ChangeExtent(structure=True), time.time())
    made = desired.build_configuration(str(options.folder))
    problems = [str(each) for each in desired.problems]
    problems += [f"{each.name}: HAProxy has no UDP: run `vipwire gateway`" for each in desired.datagrams]
    return (("haproxy.cfg", made.write_text("vipwire-rendered")), *made.list_files()), problems
