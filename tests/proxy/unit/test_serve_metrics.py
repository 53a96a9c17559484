"""Names, types, labels and buckets of all metrics, recorded for every mode."""

import pytest
from prometheus_client import Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics import MetricWrapperBase
from tests.fakes.golden_text import matches_golden
from tests.project.described_metrics import buckets_of, labelled, labels_of

from vipwire.config.modes import list_mode_names
from vipwire.proxy_daemon.serve.metrics import SYNC_BUCKETS, BatchHistogram, Metrics

MODES = list_mode_names()


def _described(metrics: Metrics) -> str:
    """Describe what is exposed, a line each: name, type, labels, and a histogram's buckets."""
    lines = []
    exposed = {family.name for family in metrics.registry.collect()}
    for attribute in vars(metrics).values():
        if not isinstance(attribute, MetricWrapperBase):
            continue
        (family,) = attribute.describe()
        if family.name in exposed:
            suffix = "_total" if isinstance(attribute, Counter) else ""
            buckets = f" buckets={buckets_of(attribute)}" if isinstance(attribute, Histogram) else ""
            lines.append(f"{family.name}{suffix} {family.type} labels={list(labels_of(attribute))}{buckets}\n")
    return "".join(sorted(lines))


@pytest.mark.parametrize("mode", MODES)
def test_the_metrics_of_a_mode_are_the_recorded_ones(mode: str) -> None:
    assert matches_golden(f"metrics-{mode}.txt", _described(Metrics(mode)))


@pytest.mark.parametrize("mode", MODES)
def test_every_metric_can_be_counted_in_every_mode(mode: str) -> None:
    metrics = Metrics(mode)
    for metric in vars(metrics).values():
        if isinstance(metric, MetricWrapperBase):
            child = labelled(metric)
            if isinstance(child, Counter | Gauge):
                child.inc()
            elif isinstance(child, Histogram):
                child.observe(1.0)
    text = generate_latest(metrics.registry).decode()
    assert 'kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="x"} 1.0\n' in text
    assert "_created" not in text


def test_two_sets_of_metrics_do_not_know_each_other() -> None:
    first, second = Metrics("nftables"), Metrics("nftables")
    first.services.set(1)
    assert second.registry.get_sample_value("vipwire_services") == 0.0


def test_build_and_features_are_told() -> None:
    metrics = Metrics("nftables", version="0.1.0", features={"A": ("BETA", True), "B": ("", False)})
    text = generate_latest(metrics.registry).decode()
    assert 'git_version="v0.1.0"' in text
    assert 'kubernetes_feature_enabled{name="A",stage="BETA"} 1.0\n' in text
    assert 'kubernetes_feature_enabled{name="B",stage=""} 0.0\n' in text
    assert "\nprocess_resident_memory_bytes " in text


def test_a_counter_of_the_kernel_is_read_when_asked_for_and_absent_without_one() -> None:
    values: list[float | None] = [None, 5.0]
    metrics = Metrics(
        "iptables", kernel_counters={"iptables_ct_state_invalid_dropped_packets_total": lambda: values.pop(0)}
    )
    name = "kubeproxy_iptables_ct_state_invalid_dropped_packets_total"
    assert metrics.registry.get_sample_value(name) is None
    assert metrics.registry.get_sample_value(name) == 5.0


def test_observations_taken_together_count_as_those_taken_one_by_one() -> None:
    amounts = [0.0, 0.001, 0.0011, 3.0, 1e6, 3.0]
    together, single = (BatchHistogram("a", "a", buckets=SYNC_BUCKETS, registry=None) for _ in range(2))
    together.observe_all(amounts)
    for amount in amounts:
        single.observe(amount)
    one, other = (
        [each for each in family.samples if each.name != "a_created"]
        for histogram in (together, single)
        for family in histogram.collect()
    )
    assert one == other
