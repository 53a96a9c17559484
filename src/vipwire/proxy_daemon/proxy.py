"""Puts a proxy together from its parts."""

import asyncio
import contextlib
import dataclasses
import os
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from vipwire import __version__
from vipwire.config.configuration import Config
from vipwire.config.flags import list_explicit_flags
from vipwire.config.gates import KNOWN_GATES
from vipwire.config.sections import Series
from vipwire.errors import UnsupportedError, raise_ungrouped
from vipwire.file_io.file_watch import FileWatch
from vipwire.kube.access.access import Access
from vipwire.kube.access.connection import RequestResult
from vipwire.kube.client import ApiSource, KeptSource
from vipwire.kube.events import EventRecorder
from vipwire.kube.proxied import proxy_resources
from vipwire.linux.host.addresses import AddressWatch, select_global_addresses
from vipwire.logging import log
from vipwire.model.net import AddressPort, Family, format_address
from vipwire.modes.registry import find_selected_mode, load_driver
from vipwire.modes.spec import Mode
from vipwire.plan.node import NodePlan
from vipwire.process_lifecycle.event_loop import Stop
from vipwire.process_lifecycle.single_instance import Claim
from vipwire.proxy_daemon.drains import DrainFollower, drains_path
from vipwire.proxy_daemon.handover.handover import Handover, wrap_backend
from vipwire.proxy_daemon.loop import ProxyParts, Source, SyncLoop
from vipwire.proxy_daemon.reloader import Reloader
from vipwire.proxy_daemon.serve.health import ProxyHealth
from vipwire.proxy_daemon.serve.metrics import Metrics
from vipwire.proxy_daemon.serve.service_health import ServiceListeners
from vipwire.proxy_daemon.serve.service_metrics import ServiceMetrics
from vipwire.proxy_daemon.servers import ProxyServers, ViewProcess
from vipwire.proxy_daemon.start.machine import adjust_machine
from vipwire.proxy_daemon.start.modes import find_mode
from vipwire.proxy_daemon.start.record import ProxyRecord, Recorder, read_recorded_facts, read_recorded_node
from vipwire.proxy_daemon.sync.after_sync import EjectionReporter, HealthPorts, StaleFlowDeleter
from vipwire.proxy_daemon.sync.engine import Engine, Line
from vipwire.proxy_daemon.sync.node_plan import Known, health_check_prefixes, list_awaited_facts, plan_node
from vipwire.proxy_daemon.sync.report import Reporter, describe_missing_node, describe_unknown_fact
from vipwire.proxy_daemon.sync.sync_metrics import CountReader
from vipwire.proxy_daemon.view import History, changes_file
from vipwire.reconcile.pacer import Pacer
from vipwire.watched_objects.event import Kind
from vipwire.watched_objects.store import Store


class Proxy:
    """A running proxy: the parts that a configuration asks for, with the modes built for it."""

    def __init__(
        self,
        config: Config,
        modes: dict[Family, Mode],
        addresses: AddressWatch,
        recorder: Recorder,
        access: Access | None = None,
        source: Source | None = None,
    ) -> None:
        self._started, self._recorder = time.time(), recorder
        self._config, self._addresses, self._access, self._given = config, addresses, access, source
        self._node_name = config.hostname_override or socket.gethostname().lower()
        sync = config.sync
        lines = [
            Line(
                family,
                mode,
                Pacer(sync.min_sync_period, sync.sync_period),
                wrap_backend(find_selected_mode(config), family, mode),
            )
            for family, mode in modes.items()
        ]
        known_node = read_recorded_node(config.state_dir, self._node_name)
        self._engine = Engine(lines, self._node_name, self._make_node_plan, known_node)
        self._health = ProxyHealth(tuple(modes), tuple(kind.value for kind in Kind), sync.sync_period)
        gates = {name: (gate.stage.value, config.gates[name]) for name, gate in KNOWN_GATES.items()}
        series = Series(config.counters.series)
        reader = CountReader(self._engine, endpoints=series is Series.ENDPOINTS)
        self.metrics = Metrics(
            config.proxy_mode,
            version=__version__,
            features=gates,
            counted=ServiceMetrics(series, config.counters.limit, reader.read),
            kernel_counters=load_driver(find_selected_mode(config)).kernel_counters,
        )
        self.changes_mode = False
        self._api_servers: frozenset[AddressPort] = frozenset()
        self._replan: Callable[[], None] = lambda: None
        self._view = ViewProcess(lambda: self._config)
        self._handover = Handover(find_selected_mode(config), modes, self.metrics, self._record_obstruction)
        self._completed = asyncio.Event()
        """Set once all rules are in the kernel. Until then the old mode's rules serve the missing Services."""
        self.files = FileWatch()
        path = drains_path(config.state_dir, self._node_name)
        self._drains = DrainFollower(path, self.files, self.metrics.drained_endpoints.set)

    @property
    def config(self) -> Config:
        """The running configuration; differs from the requested one after a fallback of the mode."""
        return self._config

    def ready(self) -> bool:
        """Report whether the kernel has held all rules at least once since this proxy started."""
        return self._health.ready()

    async def run(self, reloader: Reloader, claim: Claim | None = None) -> int:
        """Run until a signal, or until another process takes over `claim`; return the exit status."""
        given, recorder = self._build_source()
        source = KeptSource(given)
        history = History(changes_file(self._config.state_dir))
        reporter = Reporter(self._engine, self.metrics, recorder, self._node_name, history.record_change)
        flows = StaleFlowDeleter(self._addresses, self.metrics)
        changed, spec = self._recorder.write_soon, find_selected_mode(self._config)
        self._ejections = EjectionReporter(self._engine, self.metrics, reporter, changed, spec)
        with contextlib.closing(flows):
            listeners = ServiceListeners(self._health.healthy, self._list_health_addresses)
            async with HealthPorts(self._engine, listeners) as ports:
                parts = ProxyParts(
                    engine=self._engine,
                    source=source,
                    health=self._health,
                    metrics=self.metrics,
                    reporter=reporter,
                    addresses=self._addresses,
                    flows=flows,
                    ports=ports,
                    ejections=self._ejections,
                    in_cluster=not self._config.manifests,
                    record_soon=self._record_progress,
                    history=history,
                )
                with raise_ungrouped():
                    reason = await self._run_loop(parts, recorder, reloader, claim)
        self._recorder.end(reason)
        log.info("stopped; the rules stay", reason=reason)
        return 0

    def _build_record(self) -> ProxyRecord:
        return ProxyRecord(
            os.getpid(),
            self._started,
            __version__,
            self._node_name,
            self._config.proxy_mode,
            list_explicit_flags(dataclasses.replace(self._config, explicit=self._config.explicit | {"mode"})),
            self._health.last_updated(),
            self._health.failing(),
            self._find_node_problems(),
            self._ejections.current,
            read_recorded_facts(self._engine.known_node),
            tuple(sorted((format_address(address), port) for address, port in self._api_servers)),
        )

    def _record_progress(self) -> None:
        self._recorder.write_soon()
        if self._engine.complete and not self._health.awaited_node_facts:
            self._completed.set()

    def _record_obstruction(self, reason: str) -> None:
        self._health.obstruction = reason
        self._recorder.write_soon()

    def _find_node_problems(self) -> tuple[str, ...]:
        missing = (describe_missing_node(self._node_name),) if self._health.node_missing else ()
        return (*missing, *(describe_unknown_fact(self._node_name, each) for each in self._health.awaited_node_facts))

    async def _run_loop(
        self, parts: ProxyParts, recorder: EventRecorder | None, reloader: Reloader, claim: Claim | None
    ) -> str:
        """Run every task until the proxy ends; return the reason."""
        stop, loop = Stop(reloader.request_reload), SyncLoop(parts)
        self._replan = loop.sync_again
        if claim is not None:
            claim.when_asked(stop.make_room)
        log.info("starting", version=__version__, mode=self._config.proxy_mode, node=self._node_name)
        parts.reporter.report_start()
        async with asyncio.TaskGroup() as tasks:
            servers = ProxyServers(tasks, self._health, self.metrics, parts.reporter)
            await servers.apply(self._config)
            adopt = partial(self._adopt_config, loop, servers)
            change_mode = partial(self._change_mode, stop)
            running = [
                tasks.create_task(loop.run(), name="loop"),
                tasks.create_task(loop.check_surroundings(), name="look around"),
                tasks.create_task(parts.source.run(loop.emit), name="source"),
                tasks.create_task(reloader.run(adopt, change_mode), name="configuration"),
                tasks.create_task(self._drains.run(loop.sync_again), name="drains"),
                tasks.create_task(self._recorder.run(self._build_record), name="record"),
                tasks.create_task(parts.history.run(), name="changes"),
                tasks.create_task(self._view.run(), name="view"),
                tasks.create_task(self._handover.run(self._completed), name="hand-over"),
            ]
            if recorder:
                running.append(tasks.create_task(recorder.run(), name="events"))
            try:
                reason = await stop.wait()
            finally:
                self._engine.halt()
            servers.stop()
            for task in running:
                task.cancel()
        return reason

    async def _adopt_config(self, loop: SyncLoop, servers: ProxyServers, before: Config, after: Config) -> None:
        self._config = after
        if before.logging != after.logging:
            log.configure(after.logging)
        adjust_machine(before, after)
        if before.sync != after.sync:
            self._health.sync_period = after.sync.sync_period
            for line in self._engine.lines:
                line.pacer.become(after.sync.min_sync_period, after.sync.sync_period, time.monotonic())
        self._set_gate_metrics()
        await servers.apply(after)
        self._view.config_changed()
        self._recorder.write_soon()
        loop.sync_again()

    async def _change_mode(self, stop: Stop, wanted: Config) -> bool:
        """Restart in another mode. If this machine cannot run that mode, keep the current one and return False."""
        try:
            mode = await asyncio.to_thread(find_mode, wanted)
        except UnsupportedError as error:
            log.error("cannot change the mode; keeping the old mode", mode=wanted.proxy_mode, reason=error)
            return False
        if mode == self._config.proxy_mode:  # already reached by a fallback
            return False
        log.info("changing the mode", mode=self._config.proxy_mode, to=mode)
        self.changes_mode = True
        stop.end(f"changing to {mode} mode")
        return True

    def _set_gate_metrics(self) -> None:
        for name, on in self._config.gates.items():
            self.metrics.feature_enabled.labels(name=name, stage=KNOWN_GATES[name].stage.value).set(int(on))

    def _build_source(self) -> tuple[Source, EventRecorder | None]:
        access, connection, given = self._access, self._config.client_connection, self._given
        if access is None and given is not None:
            return given, None
        if access is None:
            from vipwire.kube.manifests import documents, source  # noqa: PLC0415

            return source.ManifestSource(map(Path, self._config.manifests), documents.MANIFESTS), None
        recorder = EventRecorder(
            access, self._node_name, qps=connection.qps, burst=connection.burst, witness=self._count_request
        )
        if given is not None:
            return given, recorder
        resources = proxy_resources(self._node_name)
        return ApiSource(access, resources, witness=self._count_request, places=self._record_api_servers), recorder

    def _record_api_servers(self, places: frozenset[AddressPort]) -> None:
        """Exempt the API server's addresses from Services, before the proxy connects to them."""
        self._api_servers = places
        self._replan()
        self._recorder.write_soon()

    def _count_request(self, answered: RequestResult) -> None:
        metrics = self.metrics
        labels = {"code": answered.status, "method": answered.method, "host": answered.host}
        metrics.rest_client_requests_total.labels(**labels).inc()
        took = metrics.rest_client_request_duration_seconds.labels(verb=answered.method, host=answered.host)
        took.observe(answered.seconds)

    def _make_node_plan(self, family: Family, store: Store) -> NodePlan:
        machine, node = select_global_addresses(self._addresses.addresses), self._engine.known_node
        self._await_facts(list_awaited_facts(self._config, node))
        drained, known = self._drains.drained, Known(node, self._api_servers)
        return plan_node(self._config, family, self._node_name, store, machine, drained, known)

    def _await_facts(self, awaited: tuple[str, ...]) -> None:
        """Record, and log once, the Node's missing fields, for which /readyz waits."""
        before, self._health.awaited_node_facts = self._health.awaited_node_facts, awaited
        for path in awaited:
            if path not in before:
                log.warning(describe_unknown_fact(self._node_name, path), node=self._node_name, field=path)
        for path in before:
            if path not in awaited:
                log.info("found a missing field of the Node", node=self._node_name, field=path)

    def _list_health_addresses(self) -> tuple[str, ...]:
        if not (chosen := health_check_prefixes(self._config)):
            return ("0.0.0.0",)  # noqa: S104  # both families, as kube-proxy does
        own = dict.fromkeys(item.address for item in self._addresses.addresses)
        return tuple(format_address(address) for address in own if any(address in prefix for prefix in chosen))
