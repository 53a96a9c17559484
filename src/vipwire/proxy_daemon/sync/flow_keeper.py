"""Deletes stale flows after a sync, and flows that wait for an ejected endpoint."""

import time
from collections.abc import Iterable

from vipwire.errors import UnsupportedError
from vipwire.linux.conntrack.flows import FlowDeletions, FlowTable, Judge
from vipwire.linux.conntrack.stale import (
    Staleness,
    UdpFrontends,
    Untranslated,
    collect_served_addresses,
    collect_udp_frontends,
    find_changed_udp_frontends,
    find_unanswered,
)
from vipwire.linux.host.addresses import AddressWatch, select_reachable_addresses
from vipwire.logging import log
from vipwire.model.net import Prefix, family_of
from vipwire.plan.plan import ServicePlan
from vipwire.proxy_daemon.serve.metrics import Metrics
from vipwire.proxy_daemon.sync.engine import Line, Outcome
from vipwire.reconcile.backend import Connecting, Relaying


class FlowKeeper:
    """Deletes stale UDP flows after a sync, and flows to ejected endpoints. Logs a missing privilege once."""

    def __init__(self, addresses: AddressWatch, metrics: Metrics) -> None:
        self._addresses, self._metrics = addresses, metrics
        try:
            self._table: FlowTable | None = FlowTable()
        except UnsupportedError as error:
            self._stop_deleting(error)

    def close(self) -> None:
        if self._table is not None:
            self._table.close()

    def delete_stale(self, line: Line, outcome: Outcome) -> None:
        """Examine the flows of changed frontends; after the first sync and after a repair those of all frontends."""
        if outcome.error is not None:
            return
        frontends, ranges = find_suspects(line, outcome)
        if outcome.rules_were_missing and (served := collect_served_addresses(line.plans.values())):
            self._delete_flows(line.family.value, "flows that began without rules", Untranslated(served))
        if frontends or ranges:
            # Flows to a node port at the other family's addresses belong to the other line.
            ours = select_reachable_addresses(self._addresses.addresses)
            ours = frozenset(address for address in ours if family_of(address) is line.family)
            self._delete_flows(line.family.value, "stale UDP flows", Staleness(frontends, ours, ranges))
        if (frontends or outcome.first) and isinstance(line.backend, Connecting):
            _end_sockets(line, frontends, whole=outcome.first)
        waiting = find_unanswered(outcome.changes.values())
        if waiting.endpoints and not isinstance(line.backend, Relaying):
            self._delete_flows(line.family.value, "unanswered flows to ejected endpoints", waiting)

    def _delete_flows(self, family: str, what: str, judge: Judge) -> None:
        if self._table is None:
            return
        began = time.perf_counter()
        try:
            deletions = self._table.delete_judged(judge)
        except UnsupportedError as error:
            self._stop_deleting(error)
        except OSError as error:
            log.warning(f"cannot delete {what}", ip_family=family, error=error)
        else:
            self._log_deletions(family, what, deletions, time.perf_counter() - began)

    def _log_deletions(self, family: str, what: str, deletions: FlowDeletions, seconds: float) -> None:
        self._metrics.conntrack_reconciler_sync_duration_seconds.labels(ip_family=family).observe(seconds)
        self._metrics.conntrack_reconciler_deleted_entries_total.labels(ip_family=family).inc(deletions.deleted)
        if deletions.deleted:
            log.info(f"deleted {what}", ip_family=family, deleted=deletions.deleted, examined=deletions.examined)
        if deletions.held:
            log.warning(
                (
                    f"cannot delete {what}: another program has put them into a flowtable, and Linux before 6.4 "
                    "keeps them"
                ),
                ip_family=family,
                held=deletions.held,
                remedy="do not offload UDP, or use Linux 6.4 or newer",
            )

    def _stop_deleting(self, error: UnsupportedError) -> None:
        self._table = None
        log.warning("not deleting stale flows", error=error)


def _end_sockets(line: Line, frontends: UdpFrontends, *, whole: bool) -> None:
    backend = line.backend
    try:
        ended = backend.end_sockets(frontends, whole=whole) if isinstance(backend, Connecting) else 0
    except OSError as error:
        log.warning("cannot destroy UDP sockets of removed endpoints", ip_family=line.family.value, error=error)
    else:
        if ended:
            log.info("destroyed UDP sockets of removed endpoints", ip_family=line.family.value, ended=ended)


def find_suspects(line: Line, outcome: Outcome) -> tuple[UdpFrontends, tuple[Prefix, ...]]:
    """Return the frontends whose flows to examine; if rules were missing, all of them with their ranges."""
    plans: Iterable[ServicePlan]
    if outcome.rules_were_missing and line.planner is not None:
        plans = line.plans.values()
        frontends, ranges = collect_udp_frontends(plans), line.planner.node.service_cidrs
    else:
        plans = [change.new for change in outcome.changes.values() if change.new is not None]
        frontends, ranges = find_changed_udp_frontends(outcome.changes.values()), ()
    if frontends and isinstance(line.backend, Relaying):
        relayed = line.backend.relayed(plans)
        frontends = {frontend: serving | relayed for frontend, serving in frontends.items()}
    return frontends, ranges
