"""Keeps the metrics of syncs and plans, and reads the kernel's counts of Services.

Small syncs are counted together, when a client reads metrics or when many wait: counting each takes as long as
planning it.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from vipwire.errors import CommitError
from vipwire.logging import log
from vipwire.model.names import ObjectName
from vipwire.model.net import Family
from vipwire.modes.spec import Mode
from vipwire.plan.ejection import Failure
from vipwire.plan.plan import Drop, FrontendKind, ServicePlan
from vipwire.plan.planner import PlanChange
from vipwire.proxy_daemon.serve.metrics import Metrics, of_family
from vipwire.proxy_daemon.sync.engine import Engine, Line, Outcome
from vipwire.reconcile.backend import RuleWriter
from vipwire.reconcile.counts import Counts

_FEW: Final = 16
"""If a sync changed at most this many Services, vipwire counts the sync later, with others."""
_MOST: Final = 64
"""The most syncs that wait for counting."""


class _Sync(NamedTuple):
    """One sync of one family; `triggered` is when its changes were made."""

    line: Line
    outcome: Outcome
    now: float
    refused: bool
    triggered: tuple[float, ...]


class SyncMetrics:
    """Keeps the metrics of syncs, and counts the planned objects from the changes."""

    def __init__(self, engine: Engine, metrics: Metrics) -> None:
        self._engine, self._metrics = engine, metrics
        self._without_local: Counter[tuple[Family, str]] = Counter()
        self._endpoints: Counter[Family] = Counter()
        self._lost: Counter[Family] = Counter()
        # Asked once: on Python 3.11 this isinstance of a protocol takes 10 µs.
        self._writers = {each.family: each.backend for each in engine.lines if isinstance(each.backend, RuleWriter)}
        self._uncounted: list[_Sync] = []
        self._begin_at_zero()
        metrics.before_reading.add(self.count_pending_syncs)

    def _begin_at_zero(self) -> None:
        """Create the series that alerts use at 0: Prometheus sees no increase in a series' first value."""
        metrics = self._metrics
        for line in self._engine.lines:
            for counter in (
                metrics.sync_proxy_rules_nftables_sync_failures_total,
                metrics.sync_proxy_rules_iptables_restore_failures_total,
                metrics.sync_proxy_rules_iptables_partial_restore_failures_total,
                metrics.kernel_drift_repairs_total,
                metrics.conntrack_reconciler_deleted_entries_total,
            ):
                counter.labels(ip_family=line.family.value)
            isolated = line.reconciler.isolated
            of_family(metrics.isolated_services, line.family.value).set_function(partial(len, isolated))
            for policy in ("internal", "external"):
                count = partial(self._without_local.__getitem__, (line.family, policy))
                metrics.sync_proxy_rules_no_local_endpoints_total.labels(policy, line.family.value).set_function(
                    count
                )
        for failure in Failure:
            metrics.ejections_total.labels(failure=failure.value)
        metrics.frontend_conflicts.set_function(self._lost.total)
        metrics.services.set_function(lambda: len(self._engine.store.services))
        metrics.endpoints.set_function(self._endpoints.total)

    def count_sync(self, line: Line, outcome: Outcome, now: float) -> None:
        """Count one sync of one family. `now` is seconds since the epoch."""
        refused = outcome.error is not None or bool(line.reconciler.isolated)
        self._uncounted.append(_Sync(line, outcome, now, refused, self._list_trigger_times(outcome)))
        if refused or len(outcome.changes) > _FEW or len(self._uncounted) >= _MOST:
            self.count_pending_syncs()

    def count_pending_syncs(self) -> None:
        syncs, self._uncounted = self._uncounted, []
        for line in self._engine.lines:
            ours = [sync for sync in syncs if sync.line is line]
            self._record_durations(line, [sync.outcome for sync in ours])
            for sync in ours:
                if sync.refused:
                    self._count_refusal(sync.outcome, line.family.value)
            if written := [sync for sync in ours if sync.outcome.error is None]:
                self._record_written(line, written)
                self._count_plans(line, [sync.outcome for sync in written])

    def _list_trigger_times(self, outcome: Outcome) -> tuple[float, ...]:
        """Return when changes were made, of those that an event brought."""
        if outcome.first or outcome.error is not None:
            return ()
        asked = [name for name in outcome.changes if name not in outcome.unasked]
        found = map(self._engine.store.triggered, asked)
        return tuple([when for when in found if when is not None])

    def _record_durations(self, line: Line, outcomes: Sequence[Outcome]) -> None:
        metrics, family = self._metrics, line.family.value
        full = [outcome.seconds for outcome in outcomes if outcome.report.observed is not None]
        partial = [outcome.seconds for outcome in outcomes if outcome.report.observed is None]
        for duration, seconds in (
            (metrics.sync_proxy_rules_duration_seconds, full + partial),
            (metrics.sync_full_proxy_rules_duration_seconds, full),
            (metrics.sync_partial_proxy_rules_duration_seconds, partial),
        ):
            if seconds:
                of_family(duration, family).observe_all(seconds)

    def _count_refusal(self, outcome: Outcome, family: str) -> None:
        metrics = self._metrics
        failures = [
            metrics.sync_proxy_rules_nftables_sync_failures_total,
            metrics.sync_proxy_rules_iptables_restore_failures_total,
        ]
        if not outcome.full:
            failures.append(metrics.sync_proxy_rules_iptables_partial_restore_failures_total)
        for failure in failures:
            failure.labels(ip_family=family).inc()

    def _record_written(self, line: Line, syncs: Sequence[_Sync]) -> None:
        metrics, family = self._metrics, line.family.value
        self._record_rules(line)
        of_family(metrics.sync_proxy_rules_last_timestamp_seconds, family).set(syncs[-1].now)
        sizes = [sync.outcome.report.size for sync in syncs if sync.outcome.report.size]
        if sizes:
            of_family(metrics.sync_transaction_bytes, family).observe_all(sizes)
        duration = of_family(metrics.network_programming_duration_seconds, family)
        if took := [max(0.0, sync.now - triggered) for sync in syncs for triggered in sync.triggered]:
            duration.observe_all(took)

    def _record_rules(self, line: Line) -> None:
        if (writer := self._writers.get(line.family)) is None:
            return
        metrics, family = self._metrics, line.family.value
        for gauge, counts in (
            (metrics.sync_proxy_rules_iptables_total, writer.rules),
            (metrics.sync_proxy_rules_iptables_last, writer.written),
        ):
            for table in ("filter", "nat"):
                gauge.labels(table=table, ip_family=family).set(counts.get(table, 0))

    def _count_plans(self, line: Line, outcomes: Sequence[Outcome]) -> None:
        for change in _join_changes(outcomes):
            for plan, sign in ((change.old, -1), (change.new, +1)):
                if plan is None:
                    continue
                for policy in _find_policies_without_local(plan):
                    self._without_local[line.family, policy] += sign
                self._endpoints[line.family] += sign * _count_endpoints(plan)
                self._lost[line.family] += sign * len(plan.lost)


def _join_changes(outcomes: Sequence[Outcome]) -> Iterable[PlanChange]:
    """Return the joint change of several syncs, without Services that came and went in between."""
    if len(outcomes) == 1:
        return outcomes[0].changes.values()
    joint: dict[ObjectName, PlanChange] = {}
    for outcome in outcomes:
        for name, change in outcome.changes.items():
            before = joint.get(name)
            joint[name] = change if before is None else PlanChange(before.old, change.new)
    return joint.values()


def _find_policies_without_local(plan: ServicePlan) -> set[str]:
    """Return the Local policies that have endpoints, but none on this node."""
    return {
        "internal" if frontend.kind is FrontendKind.CLUSTER_IP else "external"
        for frontend in plan.frontends
        if isinstance(frontend.action, Drop)
    }


def _count_endpoints(plan: ServicePlan) -> int:
    return len(
        {
            target
            for frontend in plan.frontends
            for forward in (frontend.action, frontend.short_circuit)
            for target in getattr(forward, "pool", ())
        }
    )


class CountReader:
    """Reads the counters of every family.

    If the kernel cannot be read, the last counts stay. Each new reason is logged once.
    """

    def __init__(self, engine: Engine, *, endpoints: bool) -> None:
        self._engine, self._endpoints = engine, endpoints
        self._last = Counts()
        self._error = ""

    async def read(self) -> Counts:
        found = [(line.backend, tuple(line.plans.values())) for line in self._engine.lines]
        try:
            self._last = await asyncio.to_thread(self._read, found)
            self._error = ""
        except (OSError, CommitError) as error:
            if str(error) != self._error:
                log.warning("cannot read the counters", error=error)
            self._error = str(error)
        return self._last

    def _read(self, found: Iterable[tuple[Mode, Sequence[ServicePlan]]]) -> Counts:
        total = Counts()
        for mode, plans in found:
            total.add_all(mode.read_counts(plans, endpoints=self._endpoints))
        return total
