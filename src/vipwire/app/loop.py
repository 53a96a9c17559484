"""The one event loop: events in, syncs out, and what follows from a sync.

Whatever arrives before the loop comes round again is one transaction. Nothing waits unless the pacer says so.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from vipwire.app import log
from vipwire.app.engine import Engine, Outcome
from vipwire.app.report import Reporter, changed_plans
from vipwire.conntrack.changes import suspect_frontends, udp_frontends
from vipwire.conntrack.flows import FlowTable
from vipwire.conntrack.stale import Staleness
from vipwire.errors import UnsupportedError
from vipwire.host.addresses import AddressWatch, reachable
from vipwire.kube.contact import Health
from vipwire.model.names import ObjectName
from vipwire.model.net import Address
from vipwire.model.problem import Problem
from vipwire.serve.health import ProxyHealth
from vipwire.serve.metrics import Metrics
from vipwire.serve.service_health import ServiceHealthCheck
from vipwire.serve.service_listeners import ServiceListeners
from vipwire.state.event import Event, Kind, Listed


class Source(Protocol):
    """Where objects come from: an API server, or manifests."""

    def health(self) -> tuple[Health, ...]:
        """Tell how the contact is."""

    async def run(self, emit: Callable[[Event], None]) -> None:
        """Emit events until cancelled."""


class Loop:
    """Drives an engine."""

    def __init__(
        self,
        engine: Engine,
        source: Source,
        health: ProxyHealth,
        metrics: Metrics,
        reporter: Reporter,
        addresses: AddressWatch,
        listeners: ServiceListeners,
    ) -> None:
        self._engine, self._source = engine, source
        self._health, self._metrics, self._reporter = health, metrics, reporter
        self._addresses, self._listeners = addresses, listeners
        self._wake = asyncio.Event()
        self._seen = dict.fromkeys(Kind, 0)
        self._source_errors: dict[str, str] = {}
        self._flows: FlowTable | None = _flow_table()
        self._health_ports: dict[ObjectName, tuple[int, int]] = {}

    def emit(self, event: Event) -> None:
        """Take an event from the source."""
        problems = self._engine.apply(event)
        if problems:
            self._reporter.problems(problems)
        kind = event.kind if not hasattr(event, "object") else Kind(type(event.object).__name__)
        self._seen[kind] += 1
        if isinstance(event, Listed):
            self._health.listed(kind.value)
        if kind is Kind.NODE and not self._engine.store.waiting & {Kind.NODE}:
            self._health.node_seen(self._engine.node)
        now = time.time()
        for line in self._engine.lines:
            self._health.queued(line.family, now)
            self._metrics.sync_proxy_rules_last_queued_timestamp_seconds.labels(ip_family=line.family.value).set(now)
        self._wake.set()

    async def run(self) -> None:
        """Sync until cancelled."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._addresses.fileno(), self._machine_changed)
        try:
            while True:
                await self._sleep()
                outcomes = self._engine.sync(time.monotonic())
                await self._settle(outcomes)
                self._note_changes(done=bool(outcomes) and all(outcome.error is None for outcome in outcomes))
        finally:
            loop.remove_reader(self._addresses.fileno())
            if self._flows:
                self._flows.close()

    async def watch_source(self) -> None:
        """Report a source that fails, and one that recovers, until cancelled."""
        while True:
            for health in self._source.health():
                self._note_source(health)
            await asyncio.sleep(1)

    async def _sleep(self) -> None:
        try:
            async with asyncio.timeout(self._engine.due(time.monotonic())):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    def _machine_changed(self) -> None:
        if self._addresses.refresh():
            self._engine.node_moved()
            self._wake.set()

    async def _settle(self, outcomes: Iterable[Outcome]) -> None:
        """Do what follows from a sync: conntrack, health checks, reports."""
        now = time.time()
        done = [outcome for outcome in outcomes if outcome.error is None]
        self._forget_stale_flows(done)
        for outcome in outcomes:
            line = next(line for line in self._engine.lines if line.family is outcome.family)
            if outcome.error is None:
                self._health.updated(outcome.family, now)
            self._reporter.synced(line, outcome, now)
        for line in self._engine.lines:
            if line.synced and not line.reconciler.pending:
                self._health.updated(line.family, now)
        if any(change.old != change.new for change in changed_plans(done)):
            self._reporter.problems(await self._update_health_ports(done))

    def _forget_stale_flows(self, outcomes: Iterable[Outcome]) -> None:
        if self._flows is None:
            return
        for outcome in outcomes:
            line = next(line for line in self._engine.lines if line.family is outcome.family)
            frontends = (
                udp_frontends(line.plans.values()) if outcome.first else suspect_frontends(outcome.changes.values())
            )
            ranges = line.planner.node.service_cidrs if outcome.first and line.planner else ()
            if not frontends and not ranges:
                continue
            began = time.perf_counter()
            try:
                swept = self._flows.swept(Staleness(frontends, self._local_addresses(), ranges))
            except (UnsupportedError, OSError) as error:
                log.warning("stale UDP flows cannot be deleted", ip_family=outcome.family.value, error=error)
                continue
            family = outcome.family.value
            seconds = time.perf_counter() - began
            self._metrics.conntrack_reconciler_sync_duration_seconds.labels(ip_family=family).observe(seconds)
            self._metrics.conntrack_reconciler_deleted_entries_total.labels(ip_family=family).inc(swept.deleted)
            if swept.deleted:
                log.info("stale UDP flows deleted", ip_family=family, deleted=swept.deleted, examined=swept.examined)

    def _local_addresses(self) -> frozenset[Address]:
        return reachable(self._addresses.addresses)

    async def _update_health_ports(self, outcomes: Iterable[Outcome]) -> tuple[Problem, ...]:
        """Serve healthCheckNodePorts as planned; a dual-stack Service counts the family that has more endpoints."""
        touched = {name for outcome in outcomes for name in outcome.changes}
        for name in touched:
            checks = [
                plan.health_check
                for line in self._engine.lines
                if (plan := line.plans.get(name)) is not None and plan.health_check is not None
            ]
            if checks:
                self._health_ports[name] = checks[0].port, max(check.local_endpoints for check in checks)
            else:
                self._health_ports.pop(name, None)
        wanted = {port: ServiceHealthCheck(name, count) for name, (port, count) in self._health_ports.items()}
        return await self._listeners.update(wanted)

    def _note_changes(self, *, done: bool) -> None:
        if done:
            metrics = self._metrics
            metrics.sync_proxy_rules_endpoint_changes_total.inc(self._seen[Kind.ENDPOINT_SLICE])
            metrics.sync_proxy_rules_service_changes_total.inc(self._seen[Kind.SERVICE])
            self._seen = dict.fromkeys(Kind, 0)
        self._metrics.sync_proxy_rules_endpoint_changes_pending.set(self._seen[Kind.ENDPOINT_SLICE])
        self._metrics.sync_proxy_rules_service_changes_pending.set(self._seen[Kind.SERVICE])

    def _note_source(self, health: Health) -> None:
        before = self._source_errors.get(health.resource, "")
        if health.error == before:
            return
        self._source_errors[health.resource] = health.error
        if health.error:
            self._metrics.source_errors_total.labels(resource=health.resource).inc()
            self._health.source_failed(health.resource, health.error, time.time())
            log.warning(
                "source of objects fails; what is programmed stays", resource=health.resource, error=health.error
            )
        else:
            self._health.source_recovered(health.resource)
            log.info("source of objects answers again", resource=health.resource)


def _flow_table() -> FlowTable | None:
    try:
        return FlowTable()
    except UnsupportedError as error:
        log.warning("stale UDP flows cannot be deleted", error=error)
        return None
