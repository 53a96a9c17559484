"""Metrics of Services and endpoints: which series there are, and how many at most."""

import asyncio
from collections.abc import Sequence

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from vipwire.config.sections import Series
from vipwire.model.names import ObjectName, ServicePortName
from vipwire.model.net import Protocol, parse_address
from vipwire.proxy.serve.metrics import Metrics
from vipwire.reconcile.counts import Count, Counts, EndpointName, Refusal

Labels = dict[str, str]


def port(name: str) -> ServicePortName:
    return ServicePortName(ObjectName("default", name), "http", Protocol.TCP)


def told(metrics: Metrics, *parts: Counts) -> list[tuple[str, Labels, float]]:
    """Scrape, with these counts."""

    async def read() -> Sequence[Counts]:
        return parts

    metrics.counted.read = read
    asyncio.run(metrics.counted.refresh())
    return [
        (sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(generate_latest(metrics.registry).decode())
        for sample in family.samples
        if sample.name.startswith(("vipwire_service_", "vipwire_endpoint_", "vipwire_refused", "vipwire_counters"))
    ]


def made(series: Series, limit: int = 100) -> Metrics:
    metrics = Metrics("nftables")
    metrics.counted.series, metrics.counted.limit = series, limit
    return metrics


WEB = port("web")
ONE = EndpointName(WEB, parse_address("10.0.0.1"), 80)
SIX = EndpointName(WEB, parse_address("fd00::1"), 80)
OF_WEB = {"namespace": "default", "service": "web", "port": "http", "protocol": "tcp"}


def test_without_series_nothing_is_read_or_told() -> None:
    metrics = made(Series.NONE)
    assert told(metrics, Counts({WEB: Count(1)})) == []


def test_services_add_up_their_families_and_leave_out_what_is_not_known() -> None:
    found = told(
        made(Series.SERVICES),
        Counts({WEB: Count(2)}, {ONE: Count(2)}),
        Counts({WEB: Count(3, packets=7)}, {SIX: Count(3, packets=7)}),
    )
    assert ("vipwire_service_connections_total", OF_WEB, 5.0) in found
    assert ("vipwire_service_packets_total", OF_WEB, 7.0) in found
    assert {name for name, _, _ in found} == {
        "vipwire_service_connections_total",
        "vipwire_service_packets_total",
        "vipwire_counters_left_out",
    }


def test_endpoints_have_an_address_and_a_port() -> None:
    found = told(made(Series.ENDPOINTS), Counts({WEB: Count(5)}, {ONE: Count(2), SIX: Count(3)}))
    assert ("vipwire_endpoint_connections_total", OF_WEB | {"endpoint": "10.0.0.1:80"}, 2.0) in found
    assert ("vipwire_endpoint_connections_total", OF_WEB | {"endpoint": "[fd00::1]:80"}, 3.0) in found


def test_refusals_say_what_was_done_and_may_belong_to_nobody() -> None:
    refusals = {(Refusal.NO_ENDPOINTS, WEB): 4, (Refusal.UNALLOCATED_CLUSTER_IP, None): 6}
    found = told(made(Series.SERVICES), Counts(refusals=refusals))
    rejected = {"reason": "no-endpoints", "action": "reject", **OF_WEB}
    dropped = {"reason": "unallocated-cluster-ip", "action": "drop", **dict.fromkeys(OF_WEB, "")}
    assert ("vipwire_refused_packets_total", rejected, 4.0) in found
    assert ("vipwire_refused_packets_total", dropped, 6.0) in found


def test_beyond_the_limit_those_with_the_most_are_told_and_the_rest_is_counted() -> None:
    found = told(made(Series.SERVICES, limit=2), Counts({port(f"s{n}"): Count(n) for n in range(5)}))
    assert [labels["service"] for name, labels, _ in found if name == "vipwire_service_connections_total"] == [
        "s4",
        "s3",
    ]
    assert ("vipwire_counters_left_out", {}, 3.0) in found


def test_a_series_that_was_told_goes_on_though_others_overtake_it() -> None:
    metrics = made(Series.SERVICES, limit=1)
    told(metrics, Counts({port("first"): Count(1)}))
    found = told(metrics, Counts({port("first"): Count(2), port("second"): Count(100)}))
    assert [labels["service"] for name, labels, _ in found if name == "vipwire_service_connections_total"] == [
        "first"
    ]
    found = told(metrics, Counts({port("second"): Count(101)}))
    assert ("vipwire_counters_left_out", {}, 0.0) in found
