"""The dashboard's queries, asked of a real Prometheus that scrapes a real proxy: each panel has data."""

import contextlib
import json
import re
import signal
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from tests.fakes.waiting import until
from tests.proxy.conformance.cluster import POD_CIDRS, Cluster
from tests.proxy.conformance.conftest import ClusterWith
from tests.proxy.conformance.packets import POD

from vipwire.model.net import Family

pytestmark = pytest.mark.conformance
ROOT: Final = Path(__file__).parents[3]
DASHBOARD = json.loads((ROOT / "deploy/monitoring/dashboard.json").read_text(encoding="utf-8"))
PODS = ("pod-1a", "pod-2a")
PORT = 9090
GRAFANAS = {"$job": ".*", "$instance": ".*", "$__rate_interval": "1m"}
MODES: Final = frozenset({"nftables", "iptables", "ipvs", "userspace", "ebpf"})
ELSEWHERE: Final = {
    "kubeproxy_sync_proxy_rules_nftables_sync_failures_total": {"nftables", "ebpf"},
    "kubeproxy_sync_proxy_rules_iptables_restore_failures_total": {"iptables", "ipvs"},
    "kubeproxy_sync_full_proxy_rules_duration_seconds_bucket": {"nftables", "ebpf", "iptables"},
    "kubeproxy_sync_partial_proxy_rules_duration_seconds_bucket": {"nftables", "ebpf", "iptables"},
    "kubeproxy_conntrack_reconciler": {"nftables", "ebpf", "iptables", "ipvs"},
    "vipwire_endpoint_open_connections": {"ipvs", "userspace"},
    "vipwire_(service|endpoint)_(reply_)?bytes_total": {"nftables", "ebpf", "ipvs", "userspace"},
    "vipwire_(service|endpoint)_(reply_)?packets_total": {"nftables", "ebpf", "ipvs"},
    "vipwire_leftovers_removed_total": set[str](),
}
"""Metrics that only some modes have (leftovers: where another mode was before). All others are in all modes."""


@contextlib.contextmanager
def prometheus(cluster: Cluster, folder: Path) -> Iterator[None]:
    """Have a Prometheus on the proxy's node scrape it every second."""
    scraped = {"job_name": "kube-proxy", "static_configs": [{"targets": ["127.0.0.1:10249"]}]}
    config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [scraped]}
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    command = [
        str(ROOT / ".venv/tools/prometheus"),
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{PORT}",
    ]
    with (folder / "log").open("wb") as log:
        process = cluster.lab.popen(cluster.node_name, command, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def asked(cluster: Cluster, query: str) -> list[Any]:
    page = cluster.proxy.page(f"/api/v1/query?query={urllib.parse.quote(query)}", PORT)
    if page.status in (0, 503):  # it starts
        return []
    answer = json.loads(page.body)
    assert answer["status"] == "success", f"{query}: {answer}"
    result: list[Any] = answer["data"]["result"]
    return result


def queries() -> Iterator[tuple[str, str]]:
    """Give each panel's queries, without the limit below which a graph shows nothing."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            text = target["expr"]
            for name, value in GRAFANAS.items():
                text = text.replace(name, value)
            yield panel["title"], text.removesuffix(" > 0")


def test_every_panel_has_data(cluster_with: ClusterWith, family: Family, tmp_path: Path) -> None:
    cluster = cluster_with([POD_CIDRS, "--counters=endpoints", "--count-traffic"])
    web, nobody = cluster.service("dashboard", cluster.pods(*PODS)), cluster.service("dashboard-empty", [])
    with prometheus(cluster, tmp_path):
        until(lambda: asked(cluster, 'up{job="kube-proxy"} == 1'), "Prometheus reaches the proxy")
        cluster.answered(POD, web.vip(family), PODS)
        cluster.refused(POD, nobody.vip(family))
        scrapes = 'count_over_time(vipwire_service_connections_total{service="dashboard"}[1m]) > 2'
        until(lambda: asked(cluster, scrapes), "it was scraped again", 60)
        empty = [f"{title}: {query}" for title, query in queries() if not asked(cluster, query)]
    unexcused = [line for line in empty if cluster.mode.name in where(line)]
    assert not unexcused, "\n".join(unexcused)


def where(query: str) -> frozenset[str]:
    """Name the modes that have all metrics of a query."""
    return MODES.intersection(*(modes for name, modes in ELSEWHERE.items() if re.search(name, query)))
