"""Defines every metric: kube-proxy's names, types, labels and buckets, and vipwire's own.

Dashboards and alerts use kube-proxy's names, so vipwire keeps them, odd ones included (a gauge that ends in
`_total`). A mode's metrics are exposed in that mode only; all attributes exist in all modes, so that callers need not
check the mode. Each `Metrics` has its own registry.
"""

import platform
from bisect import bisect_left
from collections import Counter as Counts
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple, TypeVar

from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics import Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from vipwire.config.modes import MetricGroup, find_registered
from vipwire.proxy_daemon.serve.service_metrics import ServiceMetrics

FAMILY: Final = ("ip_family",)
SYNC_BUCKETS: Final = tuple(0.001 * 2**exponent for exponent in range(15))
_PROGRAMMING_BUCKETS: Final = (0.25, 0.5, *range(1, 60), *range(60, 120, 5), *range(120, 301, 30))
_REQUEST_BUCKETS: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60)
_TRANSACTION_BUCKETS: Final = tuple(256 * 4**exponent for exponent in range(10))


class BatchHistogram(Histogram):
    """A histogram that takes many observations in one call."""

    def observe_all(self, amounts: Sequence[float]) -> None:
        self._sum.inc(sum(amounts))
        for bucket, count in Counts([bisect_left(self._upper_bounds, amount) for amount in amounts]).items():
            self._buckets[bucket].inc(count)


S = TypeVar("S", Gauge, Counter, BatchHistogram)


@lru_cache(maxsize=256)
def of_family(metric: S, family: str) -> S:
    """Return the child of a metric whose only label is the family; cached, because each sync sets a dozen of them."""
    return metric.labels(ip_family=family)


class BeforeReading(Collector):
    """A collector without metrics; calls functions before the registry collects the others."""

    def __init__(self) -> None:
        self._due: list[Callable[[], None]] = []

    def add(self, due: Callable[[], None]) -> None:
        self._due.append(due)

    def collect(self) -> Iterator[Metric]:
        for due in self._due:
            due()
        return iter(())

    def describe(self) -> Iterator[Metric]:
        return iter(())


class KernelCounter(Collector):
    """A kernel counter (nfacct), read at each request; absent while `read` returns None."""

    def __init__(self, name: str, text: str, read: Callable[[], float | None]) -> None:
        self._name, self._text, self._read = name, text, read

    def collect(self) -> Iterator[Metric]:
        value = self._read()
        if value is not None:
            yield CounterMetricFamily(self._name, self._text, value=value)

    def describe(self) -> Iterator[Metric]:
        yield CounterMetricFamily(self._name, self._text)


class _Row(NamedTuple):
    """A metric of all modes, or of the modes with its group. Its name is the attribute's."""

    kind: type[Gauge | Counter | Histogram | KernelCounter]
    text: str
    labels: tuple[str, ...] = ()
    group: MetricGroup | None = None
    prefix: str = "kubeproxy_"
    buckets: tuple[float, ...] = ()
    stability: str = "ALPHA"


def _declare(kind: type[Gauge | Counter | Histogram | KernelCounter], **fixed: Any) -> Callable[..., Any]:
    """Return a declaration function for attributes of the metric type `kind`."""
    return partial(_Row, kind, **fixed)


_gauge, _counter = _declare(Gauge), _declare(Counter)
_own_gauge, _own_counter = _declare(Gauge, prefix="vipwire_"), _declare(Counter, prefix="vipwire_")
_histogram = _declare(BatchHistogram, labels=FAMILY, buckets=SYNC_BUCKETS)
_kernel_counter = _declare(KernelCounter, group=MetricGroup.IPTABLES_RULES)


class Metrics:
    """All metrics of one proxy in one mode (such as `nftables`).

    Attribute names omit the prefixes `kubeproxy_` and `vipwire_`. `kernel_counters` maps metric names to functions
    that read the mode's kernel counters.
    """

    # fmt: off
    sync_proxy_rules_duration_seconds: BatchHistogram = _histogram("A whole sync, in seconds")
    sync_proxy_rules_last_queued_timestamp_seconds: Gauge = _gauge("Time at which a sync was last requested", FAMILY)
    sync_proxy_rules_last_timestamp_seconds: Gauge = _gauge("Time at which the last successful sync ended", FAMILY)
    sync_proxy_rules_endpoint_changes_pending: Gauge = _gauge(
        "Changes of endpoints that are not in the kernel yet")
    sync_proxy_rules_endpoint_changes_total: Counter = _counter("Changes of endpoints received")
    sync_proxy_rules_service_changes_pending: Gauge = _gauge("Changes of Services that are not in the kernel yet")
    sync_proxy_rules_service_changes_total: Counter = _counter("Changes of Services received")
    proxy_healthz_total: Counter = _counter("Answers of /healthz by HTTP status", ("code",))
    proxy_livez_total: Counter = _counter("Answers of /livez by HTTP status", ("code",))
    network_programming_duration_seconds: BatchHistogram = _histogram(
        "From the change of a Service's endpoints until the kernel has it, in seconds",
        buckets=_PROGRAMMING_BUCKETS)
    sync_proxy_rules_no_local_endpoints_total: Gauge = _gauge(
        "Services with a Local traffic policy and no endpoint on this node", ("traffic_policy", "ip_family"))

    sync_full_proxy_rules_duration_seconds: BatchHistogram = _histogram(
        "A full sync, in seconds", group=MetricGroup.FULL_AND_PARTIAL_SYNCS)
    sync_partial_proxy_rules_duration_seconds: BatchHistogram = _histogram(
        "A partial sync, in seconds", group=MetricGroup.FULL_AND_PARTIAL_SYNCS)

    sync_proxy_rules_iptables_restore_failures_total: Counter = _counter(
        "Failures of iptables-restore", FAMILY, MetricGroup.IPTABLES_RESTORE)
    sync_proxy_rules_iptables_partial_restore_failures_total: Counter = _counter(
        "Failures of iptables-restore that made a full sync necessary", FAMILY, MetricGroup.IPTABLES_RULES)
    sync_proxy_rules_iptables_total: Gauge = _gauge(
        "Rules of vipwire in the kernel", ("table", "ip_family"), MetricGroup.IPTABLES_RULES)
    sync_proxy_rules_iptables_last: Gauge = _gauge(
        "Rules that the last sync wrote", ("table", "ip_family"), MetricGroup.IPTABLES_RULES)
    iptables_ct_state_invalid_dropped_packets_total: KernelCounter = _kernel_counter(
        "Packets dropped because connection tracking classified them as invalid")
    iptables_localhost_nodeports_accepted_packets_total: KernelCounter = _kernel_counter(
        "Packets accepted for NodePorts on 127.0.0.1")

    sync_proxy_rules_nftables_sync_failures_total: Counter = _counter(
        "Transactions that failed", FAMILY, MetricGroup.NFTABLES_TRANSACTIONS)
    sync_proxy_rules_nftables_cleanup_failures_total: Counter = _counter(
        "Failed removals of stale objects: always 0, because the transaction contains them", FAMILY,
        MetricGroup.NFTABLES_TRANSACTIONS)

    conntrack_reconciler_sync_duration_seconds: BatchHistogram = _histogram(
        "Removal of stale connection tracking entries, in seconds", group=MetricGroup.CONNECTION_TRACKING)
    conntrack_reconciler_deleted_entries_total: Counter = _counter(
        "Stale connection tracking entries removed", FAMILY, MetricGroup.CONNECTION_TRACKING)

    services: Gauge = _own_gauge("Services that vipwire proxies")
    endpoints: Gauge = _own_gauge("Endpoints that vipwire knows")
    object_problems: Gauge = _own_gauge("Problems of objects, by kind", ("kind",))
    frontend_conflicts: Gauge = _own_gauge("Addresses and ports that more than one Service claims")
    isolated_services: Gauge = _own_gauge("Services left out because the kernel refuses them", FAMILY)
    config_last_reload_successful: Gauge = _own_gauge("1 if the configuration file is valid")
    config_last_reload_success_timestamp_seconds: Gauge = _own_gauge(
        "Time at which vipwire last read a valid configuration, in seconds since the epoch")
    config_fields_awaiting_restart: Gauge = _own_gauge(
        "Fields of the configuration file with a new value that takes effect after a restart")
    drained_endpoints: Gauge = _own_gauge("Endpoints that are drained by `vipwire drain`")
    kernel_drift_repairs_total: Counter = _own_counter("Repairs of changes that other programs made", FAMILY)
    source_errors_total: Counter = _own_counter("Failures to list or watch a resource", ("resource",))
    sync_transaction_bytes: BatchHistogram = _histogram(
        "Size of a transaction, in bytes", prefix="vipwire_", buckets=_TRANSACTION_BUCKETS)

    ejected_endpoints: Gauge = _own_gauge(
        "Endpoints of Service ports that vipwire has ejected because they do not answer")
    ejections_total: Counter = _own_counter("Ejections, by the failure of the last connection", ("failure",))
    conntrack_events_lost_total: Counter = _own_counter(
        "Overflows at which the kernel dropped events of new connections")

    proxy_mode: Gauge = _own_gauge(
        "The active mode and the configured mode, which differ after a fallback", ("mode", "configured"))
    leftovers_removed_total: Counter = _own_counter(
        "Objects of other modes or of kube-proxy that vipwire has removed", ("mode", "ip_family"))

    feature_enabled: Gauge = _gauge(
        "Feature gates; 1 is on", ("name", "stage"), prefix="kubernetes_", stability="BETA")
    rest_client_requests_total: Counter = _counter(
        "Requests to the API server, by status, method and host", ("code", "method", "host"), prefix="")
    rest_client_request_duration_seconds: Histogram = _declare(Histogram, prefix="", buckets=_REQUEST_BUCKETS)(
        "Duration of requests to the API server, in seconds", ("verb", "host"))
    healthcheck: Gauge = _gauge(
        "Last result of a check; 1 is good", ("name", "type"), prefix="kubernetes_", stability="STABLE")
    healthchecks_total: Counter = _counter(
        "Results of checks", ("name", "status", "type"), prefix="kubernetes_", stability="STABLE")
    # fmt: on

    def __init__(
        self,
        mode: str,
        *,
        version: str = "",
        features: Mapping[str, tuple[str, bool]] | None = None,
        counted: ServiceMetrics | None = None,
        kernel_counters: Mapping[str, Callable[[], float | None]] | None = None,
    ) -> None:
        # Go's client has no *_created series, and they would double the number of stored series.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library leaves it untyped
        self.registry, self.sli_registry = CollectorRegistry(), CollectorRegistry()
        self.before_reading = BeforeReading()
        self.registry.register(self.before_reading)  # first: the registry asks in this order
        groups = find_registered(mode).metrics
        for name, row in vars(Metrics).items():
            if isinstance(row, _Row):
                registry = self.registry if row.group is None or row.group in groups else None
                registry = self.sli_registry if row.stability == "STABLE" else registry
                setattr(self, name, _build_metric(name, row, registry, kernel_counters or {}))
        self.counted = counted or ServiceMetrics()
        self.registry.register(self.counted)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        build = _build_info(version)
        info = Gauge("kubernetes_build_info", "[ALPHA] Version of vipwire; always 1", build, registry=self.registry)
        info.labels(**build).set(1)
        for name, (stage, on) in (features or {}).items():
            self.feature_enabled.labels(name=name, stage=stage).set(int(on))


def _build_metric(
    name: str,
    row: _Row,
    registry: CollectorRegistry | None,
    kernel_counters: Mapping[str, Callable[[], float | None]],
) -> Gauge | Counter | Histogram | KernelCounter:
    """Build a metric; a metric that only other modes expose gets no registry."""
    full, text = f"{row.prefix}{name}", f"[{row.stability}] {row.text}"
    if issubclass(row.kind, KernelCounter):
        counter = row.kind(full, text, kernel_counters.get(name, lambda: None))
        if registry is not None:
            registry.register(counter)
        return counter
    if issubclass(row.kind, Histogram):
        return row.kind(full, text, row.labels, buckets=row.buckets, registry=registry)
    return row.kind(full, text, row.labels, registry=registry)


def _build_info(version: str) -> dict[str, str]:
    major, minor, *_ = (*version.split("."), "", "")
    return {
        "build_date": "",
        "compiler": platform.python_implementation().lower(),
        "git_commit": "",
        "git_tree_state": "",
        "git_version": f"v{version}" if version else "",
        "go_version": f"python{platform.python_version()}",
        "major": major,
        "minor": minor,
        "platform": f"linux/{platform.machine()}",
    }
