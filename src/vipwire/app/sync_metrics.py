"""Keeps the metrics of syncs and of plans.

Small syncs are counted together, when somebody reads metrics or when there are many: counting each by itself takes as
long as planning it.
"""

from collections import Counter
from functools import partial
from typing import Final, NamedTuple

from vipwire.app.engine import Engine, Line, Outcome
from vipwire.model.net import Family
from vipwire.plan.ejection import Failure
from vipwire.plan.plan import Drop, FrontendKind, ServicePlan
from vipwire.reconcile.offers import RuleWriter
from vipwire.serve.metrics import Metrics
from vipwire.serve.registry import of_family

_FEW: Final = 16
"""Services that a sync may have changed to be counted later."""
_MOST: Final = 64
"""Syncs that wait to be counted."""


class _Sync(NamedTuple):
    """One sync of one family; `triggered` is when its changes were made."""

    line: Line
    outcome: Outcome
    now: float
    refused: bool
    triggered: tuple[float, ...]


class SyncMetrics:
    """Keeps the metrics of syncs, and counts of what is planned by what has changed."""

    def __init__(self, engine: Engine, metrics: Metrics) -> None:
        self._engine, self._metrics = engine, metrics
        self._without_local: Counter[tuple[Family, str]] = Counter()
        self._endpoints: Counter[Family] = Counter()
        self._lost: Counter[Family] = Counter()
        # Asked once: on Python 3.11 the answer takes ten microseconds.
        self._writers = {each.family: each.backend for each in engine.lines if isinstance(each.backend, RuleWriter)}
        self._uncounted: list[_Sync] = []
        self._begin_at_zero()
        metrics.before_reading.due = self.settle

    def _begin_at_zero(self) -> None:
        """Expose what alerts look at before it happens: Prometheus sees no increase in a series' first value."""
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

    def synced(self, line: Line, outcome: Outcome, now: float) -> None:
        """Count one sync of one family. `now` is seconds since the epoch."""
        refused = outcome.error is not None or bool(line.reconciler.isolated)
        self._uncounted.append(_Sync(line, outcome, now, refused, self._triggered(outcome)))
        if refused or len(outcome.changes) > _FEW or len(self._uncounted) >= _MOST:
            self.settle()

    def settle(self) -> None:
        """Count what waits for it."""
        syncs, self._uncounted = self._uncounted, []
        for sync in syncs:
            self._took(sync.line, sync.outcome)
            if sync.refused:
                self._refused(sync.outcome, sync.line.family.value)
            if sync.outcome.error is None:
                self._wrote(sync)
                self._planned(sync.line, sync.outcome)

    def _triggered(self, outcome: Outcome) -> tuple[float, ...]:
        """Find when changes were made, of those that an event has brought."""
        if outcome.first or outcome.error is not None:
            return ()
        found = map(self._engine.store.triggered, outcome.changes.keys() - outcome.unasked)
        return tuple(when for when in found if when is not None)

    def _took(self, line: Line, outcome: Outcome) -> None:
        metrics, family = self._metrics, line.family.value
        full, partial = (
            metrics.sync_full_proxy_rules_duration_seconds,
            metrics.sync_partial_proxy_rules_duration_seconds,
        )
        for duration in (metrics.sync_proxy_rules_duration_seconds, full if outcome.full else partial):
            of_family(duration, family).observe(outcome.seconds)

    def _refused(self, outcome: Outcome, family: str) -> None:
        metrics = self._metrics
        failures = [
            metrics.sync_proxy_rules_nftables_sync_failures_total,
            metrics.sync_proxy_rules_iptables_restore_failures_total,
        ]
        if not outcome.full:
            failures.append(metrics.sync_proxy_rules_iptables_partial_restore_failures_total)
        for failure in failures:
            failure.labels(ip_family=family).inc()

    def _wrote(self, sync: _Sync) -> None:
        metrics, family, size = self._metrics, sync.line.family.value, sync.outcome.report.size
        self._rules(sync.line)
        of_family(metrics.sync_proxy_rules_last_timestamp_seconds, family).set(sync.now)
        if size:
            of_family(metrics.sync_transaction_bytes, family).observe(size)
        duration = of_family(metrics.network_programming_duration_seconds, family)
        for triggered in sync.triggered:
            duration.observe(max(0.0, sync.now - triggered))

    def _rules(self, line: Line) -> None:
        if (writer := self._writers.get(line.family)) is None:
            return
        metrics, family = self._metrics, line.family.value
        for gauge, counts in (
            (metrics.sync_proxy_rules_iptables_total, writer.rules),
            (metrics.sync_proxy_rules_iptables_last, writer.written),
        ):
            for table in ("filter", "nat"):
                gauge.labels(table=table, ip_family=family).set(counts.get(table, 0))

    def _planned(self, line: Line, outcome: Outcome) -> None:
        """Update the counts of planned objects by what changed."""
        for change in outcome.changes.values():
            for plan, sign in ((change.old, -1), (change.new, +1)):
                if plan is None:
                    continue
                for policy in _without_local(plan):
                    self._without_local[line.family, policy] += sign
                self._endpoints[line.family] += sign * _endpoints(plan)
                self._lost[line.family] += sign * len(plan.lost)


def _without_local(plan: ServicePlan) -> set[str]:
    """Name the policies that are Local and have no endpoint here, although there are some elsewhere."""
    return {
        "internal" if frontend.kind is FrontendKind.CLUSTER_IP else "external"
        for frontend in plan.frontends
        if isinstance(frontend.action, Drop)
    }


def _endpoints(plan: ServicePlan) -> int:
    return len(
        {
            target
            for frontend in plan.frontends
            for forward in (frontend.action, frontend.short_circuit)
            for target in getattr(forward, "pool", ())
        }
    )
