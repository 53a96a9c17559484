"""Every metric: kube-proxy's names, types, labels and buckets, and vipwire's own beside them.

Dashboards and alerts are written against kube-proxy's names, so those are not ours to change, odd ones included (a
gauge that ends in `_total`). Metrics of one mode are only exposed in that mode, as there; all attributes always
exist, so that nobody who counts has to ask for the mode. One `Metrics` has one registry: nothing is global.
`registry` makes them.
"""

import platform
from collections.abc import Callable, Mapping
from typing import Final

from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics import Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import CollectorRegistry

from vipwire.config.modes import MetricGroup
from vipwire.proxy.serve.registry import FAMILY, SYNC_BUCKETS, BatchHistogram, ModeRegistry
from vipwire.proxy.serve.service_metrics import ServiceMetrics

_PROGRAMMING_BUCKETS: Final = (0.25, 0.5, *range(1, 60), *range(60, 120, 5), *range(120, 301, 30))
_REQUEST_BUCKETS: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60)
_TRANSACTION_BUCKETS: Final = tuple(256 * 4**exponent for exponent in range(10))


class Metrics(ModeRegistry):
    """All metrics of one proxy in one mode (`nftables`, `iptables` and so on).

    Attributes carry kube-proxy's names without the prefix `kubeproxy_` and ours without `vipwire_`.
    """

    def __init__(
        self,
        mode: str,
        *,
        version: str = "",
        features: Mapping[str, tuple[str, bool]] | None = None,
        counted: ServiceMetrics | None = None,
        kernel_counters: Mapping[str, Callable[[], float | None]] | None = None,
    ) -> None:
        # Go's client has no *_created series, and whoever scrapes would store twice as many.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library leaves it untyped
        super().__init__(mode, kernel_counters or {})
        self.sli_registry = CollectorRegistry()
        self._core()
        self._programming()
        self._full_and_partial()
        self._of_iptables()
        self._of_nftables()
        self._of_conntrack()
        self._own()
        self._of_ejection()
        self._about_the_mode()
        self.counted = counted or ServiceMetrics()
        self.registry.register(self.counted)
        self._process(version, features or {})

    def _core(self) -> None:
        self.sync_proxy_rules_duration_seconds = self.sync_histogram("sync", "A whole sync")
        self.sync_proxy_rules_last_queued_timestamp_seconds = self.gauge(
            "sync_proxy_rules_last_queued_timestamp_seconds", "When a sync was last asked for", FAMILY
        )
        self.sync_proxy_rules_last_timestamp_seconds = self.gauge(
            "sync_proxy_rules_last_timestamp_seconds", "When the last successful sync ended", FAMILY
        )
        self.sync_proxy_rules_endpoint_changes_pending = self.gauge(
            "sync_proxy_rules_endpoint_changes_pending", "Changes of endpoints that are not in the kernel yet"
        )
        self.sync_proxy_rules_endpoint_changes_total = self.counter(
            "sync_proxy_rules_endpoint_changes_total", "Changes of endpoints seen"
        )
        self.sync_proxy_rules_service_changes_pending = self.gauge(
            "sync_proxy_rules_service_changes_pending", "Changes of Services that are not in the kernel yet"
        )
        self.sync_proxy_rules_service_changes_total = self.counter(
            "sync_proxy_rules_service_changes_total", "Changes of Services seen"
        )
        self.proxy_healthz_total = self.counter(
            "proxy_healthz_total", "Answers of /healthz by HTTP status", ("code",)
        )
        self.proxy_livez_total = self.counter("proxy_livez_total", "Answers of /livez by HTTP status", ("code",))

    def _programming(self) -> None:
        self.network_programming_duration_seconds = BatchHistogram(
            "kubeproxy_network_programming_duration_seconds",
            "[ALPHA] From the change of a Service's endpoints to its being in the kernel, in seconds",
            FAMILY,
            buckets=_PROGRAMMING_BUCKETS,
            registry=self.registry,
        )
        self.sync_proxy_rules_no_local_endpoints_total = self.gauge(
            "sync_proxy_rules_no_local_endpoints_total",
            "Services with a Local traffic policy and no endpoint on this node",
            ("traffic_policy", "ip_family"),
        )

    def _full_and_partial(self) -> None:
        self.sync_full_proxy_rules_duration_seconds = self.sync_histogram(
            "sync_full", "A full sync", MetricGroup.FULL_AND_PARTIAL_SYNCS
        )
        self.sync_partial_proxy_rules_duration_seconds = self.sync_histogram(
            "sync_partial", "A sync of what has changed", MetricGroup.FULL_AND_PARTIAL_SYNCS
        )

    def _of_nftables(self) -> None:
        nftables = MetricGroup.NFTABLES_TRANSACTIONS
        self.sync_proxy_rules_nftables_sync_failures_total = self.counter(
            "sync_proxy_rules_nftables_sync_failures_total", "Transactions that failed", FAMILY, group=nftables
        )
        self.sync_proxy_rules_nftables_cleanup_failures_total = self.counter(
            "sync_proxy_rules_nftables_cleanup_failures_total",
            "Failed removals of what is stale: none, they are part of the transaction",
            FAMILY,
            group=nftables,
        )

    def _of_iptables(self) -> None:
        iptables = MetricGroup.IPTABLES_RULES
        self.sync_proxy_rules_iptables_restore_failures_total = self.counter(
            "sync_proxy_rules_iptables_restore_failures_total",
            "Failures of iptables-restore",
            FAMILY,
            group=MetricGroup.IPTABLES_RESTORE,
        )
        self.sync_proxy_rules_iptables_partial_restore_failures_total = self.counter(
            "sync_proxy_rules_iptables_partial_restore_failures_total",
            "Failures of iptables-restore that made a full sync necessary",
            FAMILY,
            group=iptables,
        )
        self.sync_proxy_rules_iptables_total = self.gauge(
            "sync_proxy_rules_iptables_total", "Rules in the kernel that are ours", ("table", "ip_family"), iptables
        )
        self.sync_proxy_rules_iptables_last = self.gauge(
            "sync_proxy_rules_iptables_last", "Rules that the last sync wrote", ("table", "ip_family"), iptables
        )
        self.iptables_ct_state_invalid_dropped_packets_total = self.kernel_counter(
            "iptables_ct_state_invalid_dropped_packets_total", "Packets dropped because conntrack called them invalid"
        )
        self.iptables_localhost_nodeports_accepted_packets_total = self.kernel_counter(
            "iptables_localhost_nodeports_accepted_packets_total", "Packets accepted for NodePorts on 127.0.0.1"
        )

    def _of_conntrack(self) -> None:
        kernel = MetricGroup.CONNECTION_TRACKING
        self.conntrack_reconciler_sync_duration_seconds = Histogram(
            "kubeproxy_conntrack_reconciler_sync_duration_seconds",
            "[ALPHA] Removal of stale connection tracking entries, in seconds",
            FAMILY,
            buckets=SYNC_BUCKETS,
            registry=self.registry_of(kernel),
        )
        self.conntrack_reconciler_deleted_entries_total = self.counter(
            "conntrack_reconciler_deleted_entries_total",
            "Stale connection tracking entries removed",
            FAMILY,
            group=kernel,
        )

    def _own(self) -> None:
        self.services = self.gauge("services", "Services that are proxied", prefix="vipwire")
        self.endpoints = self.gauge("endpoints", "Endpoints that are known", prefix="vipwire")
        self.object_problems = self.gauge(
            "object_problems", "Problems of objects, by kind", ("kind",), prefix="vipwire"
        )
        self.frontend_conflicts = self.gauge(
            "frontend_conflicts", "Addresses and ports that more than one Service claims", prefix="vipwire"
        )
        self.isolated_services = self.gauge(
            "isolated_services", "Services left out because the kernel refuses them", FAMILY, prefix="vipwire"
        )
        self.config_last_reload_successful = self.gauge(
            "config_last_reload_successful", "Whether the configuration file can be used; 1 is yes", prefix="vipwire"
        )
        self.config_last_reload_success_timestamp_seconds = self.gauge(
            "config_last_reload_success_timestamp_seconds",
            "When the configuration was last read well, in seconds since the epoch",
            prefix="vipwire",
        )
        self.config_fields_awaiting_restart = self.gauge(
            "config_fields_awaiting_restart",
            "Fields of the configuration file whose new value counts after a restart",
            prefix="vipwire",
        )
        self.drained_endpoints = self.gauge(
            "drained_endpoints", "Endpoints that are drained by `vipwire drain`", prefix="vipwire"
        )
        self.kernel_drift_repairs_total = self.counter(
            "kernel_drift_repairs_total", "Times that somebody else's change was undone", FAMILY, prefix="vipwire"
        )
        self.source_errors_total = self.counter(
            "source_errors_total", "Failures to list or watch a resource", ("resource",), prefix="vipwire"
        )
        self.sync_transaction_bytes = BatchHistogram(
            "vipwire_sync_transaction_bytes",
            "[ALPHA] Size of a transaction, in bytes",
            FAMILY,
            buckets=_TRANSACTION_BUCKETS,
            registry=self.registry,
        )

    def _of_ejection(self) -> None:
        self.ejected_endpoints = self.gauge(
            "ejected_endpoints",
            "Endpoints of Service ports that are ejected, for they do not answer",
            prefix="vipwire",
        )
        self.ejections_total = self.counter(
            "ejections_total", "Ejections, by how the last connection failed", ("failure",), prefix="vipwire"
        )
        self.conntrack_events_lost_total = self.counter(
            "conntrack_events_lost_total",
            "Times that events of new connections were lost, since there were too many",
            prefix="vipwire",
        )

    def _about_the_mode(self) -> None:
        self.proxy_mode = self.gauge(
            "proxy_mode",
            "The mode that runs and the one that was configured; they differ after a fallback",
            ("mode", "configured"),
            prefix="vipwire",
        )
        self.leftovers_removed_total = self.counter(
            "leftovers_removed_total",
            "Things that another mode, or kube-proxy in one, had left and that were removed",
            ("mode", "ip_family"),
            prefix="vipwire",
        )

    def _process(self, version: str, features: Mapping[str, tuple[str, bool]]) -> None:
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        build = _build(version)
        labels = tuple(build)
        Gauge("kubernetes_build_info", "[ALPHA] What is running; always 1", labels, registry=self.registry).labels(
            **build
        ).set(1)
        self.feature_enabled = Gauge(
            "kubernetes_feature_enabled", "[BETA] Feature gates; 1 is on", ("name", "stage"), registry=self.registry
        )
        for name, (stage, on) in features.items():
            self.feature_enabled.labels(name=name, stage=stage).set(int(on))
        self.rest_client_requests_total = Counter(
            "rest_client_requests_total",
            "[ALPHA] Requests to the API server, by status, method and host",
            ("code", "method", "host"),
            registry=self.registry,
        )
        self.rest_client_request_duration_seconds = Histogram(
            "rest_client_request_duration_seconds",
            "[ALPHA] Duration of requests to the API server, in seconds",
            ("verb", "host"),
            buckets=_REQUEST_BUCKETS,
            registry=self.registry,
        )
        self.healthcheck = Gauge(
            "kubernetes_healthcheck",
            "[STABLE] Last result of a check; 1 is good",
            ("name", "type"),
            registry=self.sli_registry,
        )
        self.healthchecks_total = Counter(
            "kubernetes_healthchecks_total",
            "[STABLE] Results of checks",
            ("name", "status", "type"),
            registry=self.sli_registry,
        )


def _build(version: str) -> dict[str, str]:
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
