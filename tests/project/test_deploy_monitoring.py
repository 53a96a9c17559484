"""Dashboard and alerts ask for metrics and labels that there are; kube-proxy's dashboards find theirs."""

import asyncio
import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import yaml
from prometheus_client.metrics import MetricWrapperBase
from tests.project.deployed import DEPLOY, OVERLAYS, ROOT
from tests.project.described_metrics import labels_of

from vipwire.config.sections import Series
from vipwire.model.names import ObjectName, ServicePortName
from vipwire.model.net import Protocol, parse_address
from vipwire.proxy_daemon.serve.metrics import Metrics
from vipwire.proxy_daemon.serve.service_metrics import ServiceMetrics
from vipwire.reconcile.counts import Counts, EndpointName, Measure, Refusal

DASHBOARD = json.loads((DEPLOY / "monitoring/dashboard.json").read_text(encoding="utf-8"))
RULES = yaml.safe_load((DEPLOY / "monitoring/alerts.yaml").read_text(encoding="utf-8"))
GRAFANAS = {"$job": "job", "$instance": "node", "$__rate_interval": "5m"}
OF_PROMETHEUS = {"job", "instance", "pod", "le"}
WORDS = {
    "sum",
    "max",
    "by",
    "without",
    "or",
    "rate",
    "increase",
    "time",
    "absent",
    "count",
    "topk",
    "histogram_quantile",
}
UP = {"up": frozenset[str]()}

# What Grafana's and kubernetes-mixin's dashboards for kube-proxy ask for.
KUBE_PROXYS = (
    "kubeproxy_sync_proxy_rules_duration_seconds_count",
    "kubeproxy_sync_proxy_rules_duration_seconds_bucket",
    "kubeproxy_network_programming_duration_seconds_count",
    "kubeproxy_network_programming_duration_seconds_bucket",
    "rest_client_requests_total",
    "rest_client_request_duration_seconds_bucket",
    "process_resident_memory_bytes",
    "process_cpu_seconds_total",
)


def filled(mode: str) -> Metrics:
    """Make a mode's metrics with everything counted once, so that every series is there."""
    name = ServicePortName(ObjectName("default", "web"), "http", Protocol.TCP)
    endpoint = EndpointName(name, parse_address("10.0.0.1"), 80)
    counts = Counts()
    counts.add(Refusal.NO_ENDPOINTS, name, 1)
    for measure in Measure:
        counts.add_endpoint(measure, endpoint, 1)

    async def read() -> Counts:
        return counts

    metrics = Metrics(mode, counted=ServiceMetrics(Series.ENDPOINTS, 10, read))
    asyncio.run(metrics.counted.refresh())
    return metrics


@cache
def exposed(*modes: str) -> dict[str, frozenset[str]]:
    """Name every series of these modes, with its labels, as Prometheus stores them."""
    found: dict[str, frozenset[str]] = {}
    for mode in modes:
        metrics = filled(mode)
        labels = {
            next(iter(metric.describe())).name: frozenset(labels_of(metric))
            for metric in vars(metrics).values()
            if isinstance(metric, MetricWrapperBase)
        }
        for family in metrics.registry.collect():
            of_samples = frozenset(name for sample in family.samples for name in sample.labels)
            for name in _series(family.name, family.type):
                found[name] = labels.get(family.name, of_samples)
    return found


def _series(name: str, kind: str) -> tuple[str, ...]:
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(kind, ("",))
    return tuple(name + suffix for suffix in suffixes)


def names_in(expression: str) -> set[str]:
    """Name the metrics of an expression: words that are no function, label, label's value or duration."""
    bare = re.sub(r"\{[^}]*\}|\[[^]]*\]|(?:by|without) \([^)]*\)", "", expression)
    return set(re.findall(r"[a-z_][a-z0-9_]*", bare)) - WORDS


def labels_in(expression: str) -> set[str]:
    grouped = re.findall(r"(?:by|without) \(([^)]*)\)", expression)
    chosen = re.findall(r"([a-z_]+)(?:=~|!=|!~|=)\"", expression)
    return {label.strip() for group in grouped for label in group.split(",")} | set(chosen)


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def alerts() -> list[dict[str, Any]]:
    return [rule for group in RULES["spec"]["groups"] for rule in group["rules"]]


def expressions() -> Iterator[str]:
    yield from (target["expr"] for panel in panels() for target in panel["targets"])
    yield from (rule["expr"] for rule in alerts())


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_an_expression_asks_for_what_there_is(expression: str) -> None:
    for variable, value in GRAFANAS.items():
        expression = expression.replace(variable, value)
    there = exposed(*OVERLAYS) | UP
    names = names_in(expression)
    assert names
    assert names <= there.keys()
    assert labels_in(expression) <= OF_PROMETHEUS | frozenset().union(*(there[name] for name in names))
    assert all(expression.count(a) == expression.count(b) for a, b in ("()", "{}", "[]"))


def test_a_counter_is_asked_for_its_growth_and_nothing_else_is() -> None:
    for expression in expressions():
        for name in names_in(expression):
            of_time = re.search(rf"(?:rate|increase)\(\s*{name}\b", expression) is not None
            counts = re.search(r"_(total|bucket|sum|count)$", name) is not None
            assert of_time == (counts and name != "kubeproxy_sync_proxy_rules_no_local_endpoints_total"), expression


@pytest.mark.parametrize("mode", OVERLAYS)
def test_kube_proxys_dashboards_find_their_metrics(mode: str) -> None:
    assert exposed(mode).keys() >= set(KUBE_PROXYS)


def test_every_metric_of_our_own_is_on_the_dashboard() -> None:
    shown = {name for panel in panels() for target in panel["targets"] for name in names_in(target["expr"])}
    ours = {name for name in exposed(*OVERLAYS) if name.startswith("vipwire_")}
    missing = {name for name in ours if not any(name.startswith(each.removesuffix("_bucket")) for each in shown)}
    assert missing == set()


def test_every_alert_leads_to_its_section_of_the_page() -> None:
    page = (ROOT / "docs/alerts.md").read_text(encoding="utf-8")
    rules = [rule for group in RULES["spec"]["groups"] for rule in group["rules"]]
    links = [rule["annotations"]["runbook_url"] for rule in rules]
    names = [rule["alert"] for rule in rules]
    assert links == [f"https://docs.example/vipwire/alerts/#{name.lower()}" for name in names]
    assert re.findall(r"^## (\w+)$", page, re.MULTILINE) == names
