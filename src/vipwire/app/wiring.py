"""Every part named once, and put together: read this to find what there is."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from vipwire import __version__
from vipwire.app import collector, log
from vipwire.app.config import PRIMARY, Config
from vipwire.app.config_file import config_document
from vipwire.app.config_gates import KNOWN_GATES
from vipwire.app.engine import Engine, Line, Mode
from vipwire.app.fallback import settle_mode
from vipwire.app.flags import flag_values
from vipwire.app.follow import FlowKeeper, HealthPorts
from vipwire.app.loop import Loop, Parts, Source
from vipwire.app.modes import VIP_DEVICES, attach_counters, build_modes, every_mode, mode_sysctls
from vipwire.app.node import node_plan
from vipwire.app.report import Reporter
from vipwire.app.stop import CONFIG_CHANGED, Stop
from vipwire.conntrack.sysctls import conntrack_sysctls, forwarding_sysctls
from vipwire.errors import VipwireError
from vipwire.host.addresses import AddressWatch
from vipwire.host.forwarding import router_sysctls
from vipwire.host.kernel import cpus
from vipwire.host.oom import set_oom_score_adj
from vipwire.host.sysctl import apply_sysctls
from vipwire.kube.access import load_access
from vipwire.kube.client import ApiSource
from vipwire.kube.connection import Answered
from vipwire.kube.events import EventRecorder, EventType
from vipwire.kube.manifest import ManifestSource
from vipwire.model.net import Family, Prefix, format_address
from vipwire.plan.node import NodePlan
from vipwire.reconcile.pacer import Pacer
from vipwire.serve.health import ProxyHealth
from vipwire.serve.metrics import Metrics
from vipwire.serve.pages import Addresses, ProxyInfo, proxy_servers
from vipwire.serve.server import BindPolicy, HttpServer
from vipwire.serve.service_listeners import ServiceListeners
from vipwire.state.event import Kind
from vipwire.state.store import Store


def run_proxy(config: Config) -> int:
    """Run the proxy until a signal ends it. The rules stay: traffic goes on, and the next start takes them over."""
    if config.init_only:
        _prepare_machine(config)
        return 0
    collector.look_rarely()
    with contextlib.ExitStack() as stack:
        # First the mode: where it cannot work, nothing of the machine is changed.
        asked = config.proxy_mode
        config, modes = settle_mode(config, _families(), partial(build_modes, prepare=True))
        for mode in modes.values():
            stack.callback(mode.close)
        _prepare_machine(config)
        addresses = stack.enter_context(AddressWatch())
        proxy = _Proxy(config, modes, addresses)
        proxy.metrics.proxy_mode.labels(mode=config.proxy_mode.value, configured=asked.value).set(1)
        return asyncio.run(proxy.run())


def run_cleanup(config: Config) -> int:
    """Remove everything of ours, of every mode and family, and nothing else."""
    del config
    for name, family, mode in every_mode(_families()):
        with contextlib.closing(mode):
            if mode.delete():
                log.info("removed", mode=name.value, ip_family=family.value)
    return 0


def _families() -> tuple[Family, ...]:
    """Name the families of this machine: IPv6 may have been left out of its kernel or switched off at boot."""
    return (Family.IPV4, Family.IPV6) if Path("/proc/net/if_inet6").exists() else (Family.IPV4,)


def _prepare_machine(config: Config) -> None:
    """Set what needs privileges: kernel settings and the OOM score. What cannot be set is said, and goes on."""
    conntrack = conntrack_sysctls(config.conntrack, cpus())
    wanted = (*conntrack, *router_sysctls(), *forwarding_sysctls(_families()), *mode_sysctls(config))
    report = apply_sysctls(wanted)
    for change in report.changed:
        log.info("kernel setting changed", name=change.name, old=change.old, new=change.new)
    obstacle = set_oom_score_adj(config.oom_score_adj)
    for item in (*report.obstacles, *([obstacle] if obstacle else [])):
        log.warning("not set", what=item.what, reason=item.reason, remedy=item.remedy)


class _Proxy:
    """One running proxy."""

    def __init__(self, config: Config, modes: dict[Family, Mode], addresses: AddressWatch) -> None:
        self._config, self._addresses = config, addresses
        self._node_name = config.hostname_override or socket.gethostname().lower()
        sync = config.sync
        lines = [Line(family, mode, Pacer(sync.min_sync_period, sync.sync_period)) for family, mode in modes.items()]
        self._engine = Engine(lines, self._node_name, self._make_node_plan)
        self._health = ProxyHealth(tuple(modes), tuple(kind.value for kind in Kind), sync.sync_period)
        gates = {name: (gate.stage.value, config.gates[name]) for name, gate in KNOWN_GATES.items()}
        self.metrics = Metrics(config.proxy_mode.value, version=__version__, features=gates)
        attach_counters(config, self.metrics)

    async def run(self) -> int:
        """Run until a signal; return the exit status."""
        source, recorder = self._source()
        reporter = Reporter(self._engine, self.metrics, recorder, self._node_name)
        listeners = ServiceListeners(lambda: self._health.healthy(time.time()), self._health_addresses())
        flows = FlowKeeper(self._addresses, self.metrics)
        with contextlib.closing(flows):
            async with listeners:
                parts = Parts(
                    engine=self._engine,
                    source=source,
                    health=self._health,
                    metrics=self.metrics,
                    reporter=reporter,
                    addresses=self._addresses,
                    flows=flows,
                    ports=HealthPorts(self._engine, listeners),
                    in_cluster=not self._config.manifests,
                )
                try:
                    reason = await self._serve(parts, recorder)
                except* VipwireError as errors:
                    raise errors.exceptions[0] from None
        log.info("stopped; the rules stay", reason=reason)
        return 1 if reason == CONFIG_CHANGED else 0

    async def _serve(self, parts: Parts, recorder: EventRecorder | None) -> str:
        """Run every task until something ends the proxy; say what it was."""
        stop, loop = Stop(), Loop(parts)
        log.info("starting", version=__version__, mode=self._config.proxy_mode.value, node=self._node_name)
        parts.reporter.started()
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(loop.run(), name="loop"),
                tasks.create_task(loop.look_around(), name="look around"),
                tasks.create_task(parts.source.run(loop.emit), name="source"),
                *(tasks.create_task(server.run(), name=server.name) for server in self._servers(parts.reporter)),
            ]
            if recorder:
                running.append(tasks.create_task(recorder.run(), name="events"))
            reason = await stop.wait(self._config.config_file)
            for task in running:
                task.cancel()
        return reason

    def _source(self) -> tuple[Source, EventRecorder | None]:
        config, connection = self._config, self._config.client_connection
        if config.manifests:
            return ManifestSource(Path(path) for path in config.manifests), None
        kubeconfig = Path(connection.kubeconfig) if connection.kubeconfig else None
        access = load_access(kubeconfig, config.master or None)
        recorder = EventRecorder(
            access, self._node_name, qps=connection.qps, burst=connection.burst, witness=self._count_request
        )
        return ApiSource(access, self._node_name, witness=self._count_request), recorder

    def _count_request(self, answered: Answered) -> None:
        metrics = self.metrics
        labels = {"code": answered.status, "method": answered.method, "host": answered.host}
        metrics.rest_client_requests_total.labels(**labels).inc()
        took = metrics.rest_client_request_duration_seconds.labels(verb=answered.method, host=answered.host)
        took.observe(answered.seconds)

    def _make_node_plan(self, family: Family, store: Store) -> NodePlan:
        machine = [
            item.address
            for item in self._addresses.addresses
            if not item.is_loopback and item.scope == 0 and item.interface not in VIP_DEVICES
        ]
        node = store.nodes.get(self._node_name)
        return node_plan(self._config, family, self._node_name, node, store.service_cidrs, machine)

    def _health_addresses(self) -> tuple[str, ...]:
        """Choose where healthCheckNodePorts listen: everywhere, or where an explicit list of CIDRs says."""
        chosen = [Prefix.parse(text) for text in self._config.node_port_addresses if text != PRIMARY]
        if not chosen:
            return ("0.0.0.0",)  # noqa: S104  # both families, as kube-proxy does
        own = [item.address for item in self._addresses.addresses]
        return tuple(format_address(address) for address in own if any(address in prefix for prefix in chosen))

    def _servers(self, reporter: Reporter) -> Iterator[HttpServer]:
        config = self._config

        def failed(server: str, reason: str) -> None:
            log.error("server does not start", server=server, reason=reason)
            event = "FailedToStartProxierHealthcheck" if server.startswith("healthz") else "FailedToStartMetricServer"
            reporter.node_event(event, reason, EventType.WARNING)

        info = ProxyInfo(
            mode=config.proxy_mode.value,
            version=__version__,
            config=config_document(config),
            flags=flag_values(config),
            started=time.time(),
            profiling=config.enable_profiling,
            flagz=config.gates["ComponentFlagz"],
            statusz=config.gates["ComponentStatusz"],
            set_verbosity=log.set_verbosity,
        )
        policy = BindPolicy(hard_fail=config.bind_address_hard_fail, on_failure=failed)
        addresses = Addresses(config.healthz_bind_address, config.metrics_bind_address, policy)
        yield from proxy_servers(self._health, self.metrics, info, time.time, addresses)
