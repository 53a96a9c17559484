"""The event loop: takes events in, starts syncs, and starts the work that follows a sync.

Events that arrive before the loop runs again form one transaction; only the pacer delays a sync. A sync runs in a
thread, because a mode's tool may take seconds and health and metrics must answer meanwhile. The loop waits for short
syncs (see `Worker`), and runs a sync of few Services itself if the mode commits with one system call. Only one thread
at a time uses the engine: events that arrive during a sync wait for its end.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from msgspec import field

from vipwire.kube.client import log_failures
from vipwire.kube.contact import QUICK_LOOK, Health, seconds_to_next_look
from vipwire.linux.host.addresses import AddressWatch
from vipwire.logging import log
from vipwire.model.value import Value
from vipwire.plan.ejection import Tallies
from vipwire.process_lifecycle import cyclic_garbage
from vipwire.process_lifecycle.worker import Worker
from vipwire.proxy_daemon.serve.health import ProxyHealth
from vipwire.proxy_daemon.serve.metrics import Metrics, of_family
from vipwire.proxy_daemon.sync.after_sync import EjectionReporter, ForeignChanges, HealthPorts, StaleFlowDeleter
from vipwire.proxy_daemon.sync.engine import Engine, Outcome
from vipwire.proxy_daemon.sync.report import Reporter
from vipwire.proxy_daemon.view import History
from vipwire.watched_objects.event import Deleted, Event, Kind, Listed, Upserted, kind_of


class Source(Protocol):
    """A source of objects: an API server or manifests."""

    def health(self) -> tuple[Health, ...]: ...

    async def run(self, emit: Callable[[Event], None]) -> None: ...


class ProxyParts(Value, frozen=True):
    """The parts that the loop drives.

    `in_cluster`: a node without a Node object is not eligible. `record_soon` writes this proxy's record.
    """

    engine: Engine
    source: Source
    health: ProxyHealth
    metrics: Metrics
    reporter: Reporter
    addresses: AddressWatch
    flows: StaleFlowDeleter
    ports: HealthPorts
    ejections: EjectionReporter
    in_cluster: bool
    record_soon: Callable[[], None] = lambda: None
    history: History = field(default_factory=History)


class SyncLoop:
    """Drives an engine."""

    def __init__(self, parts: ProxyParts) -> None:
        self._parts = parts
        self._wake = asyncio.Event()
        self._worker = Worker[list[Outcome]]()
        self._waiting: list[Callable[[], None]] | None = None
        self._seen = dict.fromkeys(Kind, 0)
        self._sources: dict[str, Health] = {}
        self._told: dict[str, str] = {}
        self._at_work = self._moved = False
        self._queued_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timed = False
        self._lines = {line.family: line for line in parts.engine.lines}
        self._foreign = ForeignChanges(lambda suspect: self._call_between_syncs(partial(self._check_soon, suspect)))
        self._publish_records()

    def _publish_records(self) -> None:
        """Compute costly metrics only when a client reads them."""
        metrics, seen = self._parts.metrics, self._seen
        metrics.sync_proxy_rules_endpoint_changes_pending.set_function(lambda: seen[Kind.ENDPOINT_SLICE])
        metrics.sync_proxy_rules_service_changes_pending.set_function(lambda: seen[Kind.SERVICE])
        queued = metrics.sync_proxy_rules_last_queued_timestamp_seconds
        for line in self._parts.engine.lines:
            of_family(queued, line.family.value).set_function(lambda: self._queued_at)

    def emit(self, event: Event) -> None:
        if self._waiting is None:
            self._apply_event(event)
        else:
            self._waiting.append(partial(self._apply_event, event))

    def _apply_event(self, event: Event) -> None:
        parts = self._parts
        parts.history.record_event(event, time.time())
        if problems := parts.engine.apply(event):
            parts.reporter.report_problems(problems)
        kind = kind_of(event.object) if isinstance(event, Upserted) else event.kind
        self._seen[kind] += 1
        if log.enabled(5):
            _log_problems(event, kind)
        if isinstance(event, Listed):
            parts.health.record_list(kind.value)
        if kind is Kind.NODE and (parts.in_cluster or parts.engine.node is not None):
            parts.health.record_node(parts.engine.node)
        if kind is Kind.NODE and (parts.in_cluster or parts.engine.store.nodes):
            parts.reporter.report_node(exists=parts.engine.node is not None)
        self._record_queued()

    async def run(self) -> None:
        parts, loop = self._parts, asyncio.get_running_loop()
        loop.add_reader(parts.addresses.fileno(), self._record_machine_change)
        ahead = loop.run_in_executor(None, parts.engine.read_ahead)
        try:
            await self._wait_until_due()
            await asyncio.wait([ahead])  # not `await ahead`: if the loop is cancelled, the thread must still finish
            while True:
                await self._finish_sync(await self._sync_in_worker())
                await self._wait_until_due()
        finally:
            await asyncio.wait([ahead])
            loop.remove_reader(parts.addresses.fileno())
            if self._timer is not None:
                self._timer.cancel()
            parts.ejections.close()
            self._foreign.close()
            self._worker.close()

    async def check_surroundings(self) -> None:
        """Report failing and recovered sources, and retry failed health-check ports, until cancelled."""
        parts = self._parts
        while True:
            states = parts.source.health()
            log_failures(states, self._told, "cannot read objects; the rules stay")
            for health in states:
                self._record_source(health)
            pause = seconds_to_next_look(states)
            if not parts.ports.complete:
                parts.reporter.report_problems(await parts.ports.update(()))
                pause = QUICK_LOOK
            await asyncio.sleep(pause)

    def count_results(self, tallies: Tallies) -> None:
        """Count results of new connections to endpoints that ejection watches."""
        self._call_between_syncs(lambda: self._observe(tallies))

    def _observe(self, tallies: Tallies) -> None:
        if self._parts.engine.observe(tallies, time.monotonic()):
            self._record_queued()

    def sync_again(self) -> None:
        """Sync again after a change of the configuration or of the drained endpoints."""
        self._call_between_syncs(self._update_node)

    async def _sync_in_worker(self) -> list[Outcome]:
        """Sync without blocking the loop; if cancelled, the sync still finishes."""
        self._waiting = []
        engine, now = self._parts.engine, time.monotonic()
        try:
            if engine.has_few_changes(now):
                return await self._worker.run(partial(engine.sync_few, now), brief=True)
            return await self._worker.run(partial(engine.sync, now))
        finally:
            arrived, self._waiting = self._waiting, None
            for each in arrived:
                each()

    def _call_between_syncs(self, action: Callable[[], None]) -> None:
        """Call an action that uses the engine: at once, or after the running sync."""
        if self._waiting is None:
            action()
        else:
            self._waiting.append(action)

    def _check_soon(self, suspect: str) -> None:
        if self._parts.engine.alarm(suspect, time.monotonic()):
            self._wake.set()

    def _update_node(self) -> None:
        self._moved = True
        self._parts.engine.record_node_change()
        self._record_queued()

    async def _wait_until_due(self) -> None:
        engine, due = self._parts.engine, self._parts.engine.due(time.monotonic())
        while True:
            if due is not None:
                self._wake_in(due)
            await self._wake.wait()
            self._wake.clear()
            timed, self._timed = self._timed, False
            if not timed or ((due := engine.due(time.monotonic())) is not None and due <= 0):
                return

    def _wake_in(self, seconds: float) -> None:
        """Wake in `seconds` at the latest. An earlier timer stays, because resetting it at each change would cost."""
        loop = asyncio.get_running_loop()
        at = loop.time() + seconds
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = loop.call_at(at, self._wake_by_timer)

    def _wake_by_timer(self) -> None:
        self._timer, self._timed = None, True
        self._wake.set()

    def _record_machine_change(self) -> None:
        if self._parts.addresses.refresh():
            self._call_between_syncs(self._update_node)

    def _record_queued(self) -> None:
        self._queued_at = time.time()
        for line in self._parts.engine.lines:
            self._parts.health.record_queued(line.family)
        self._wake.set()

    async def _finish_sync(self, outcomes: Sequence[Outcome]) -> None:
        parts, now = self._parts, time.time()
        for outcome in outcomes:
            line = self._lines[outcome.family]
            parts.flows.delete_stale(line, outcome)
            parts.reporter.report_sync(line, outcome, now)
            parts.history.record_sync(line, outcome, now)
            if outcome.first:
                self._foreign.listen(line)
        if outcomes:
            self._foreign.read_notifications()
        behind = False
        for line in self._lines.values():
            pending = line.reconciler.pending
            behind = behind or pending
            if line.synced and not pending:
                parts.health.record_update(line.family, now)
        if outcomes:
            self._start_garbage_collection()
        await self._open_ports(outcomes)
        parts.ejections.watch_and_report(self.count_results, now)
        parts.record_soon()
        if not behind and not parts.engine.store.waiting:
            parts.history.record_all_synced()
            self._record_done()

    async def _open_ports(self, outcomes: Sequence[Outcome]) -> None:
        parts = self._parts
        moved, self._moved = self._moved, False
        if moved and (problems := await parts.ports.move()):
            parts.reporter.report_problems(problems)
        changed = dict.fromkeys([name for outcome in outcomes for name in outcome.changes])
        if changed and (problems := await parts.ports.update(changed)):
            parts.reporter.report_problems(problems)

    def _start_garbage_collection(self) -> None:
        """Start garbage collection after the first sync's attempt, or if the API server does not send the objects."""
        if not self._at_work:
            self._at_work = True
            cyclic_garbage.collect_rarely()

    def _record_done(self) -> None:
        metrics, seen = self._parts.metrics, self._seen
        for kind, total in (
            (Kind.ENDPOINT_SLICE, metrics.sync_proxy_rules_endpoint_changes_total),
            (Kind.SERVICE, metrics.sync_proxy_rules_service_changes_total),
        ):
            if seen[kind]:
                total.inc(seen[kind])
        for kind in seen:
            seen[kind] = 0

    def _record_source(self, health: Health) -> None:
        parts, resource = self._parts, health.resource
        before = self._sources.get(resource)
        if before is health:
            return
        if before is None:
            before = Health(resource)
            parts.metrics.source_errors_total.labels(resource=resource)
        self._sources[resource] = health
        if health.total != before.total:
            parts.metrics.source_errors_total.labels(resource=resource).inc(health.total - before.total)
        if health.error == before.error:
            return
        parts.record_soon()
        if health.error:
            self._start_garbage_collection()
            parts.health.source_failed(resource, health.error, time.time())
        else:
            parts.health.source_recovered(resource)


def _log_problems(event: Event, kind: Kind) -> None:
    match event:
        case Listed(objects=objects):
            log.detail(5, "objects listed", kind=kind.value, count=len(objects))
        case Deleted(name=name):
            log.detail(5, "object deleted", kind=kind.value, object=name)
        case Upserted(object=changed):
            log.detail(5, "object added or changed", kind=kind.value, object=changed.name)
