"""Metrics of Services and endpoints: which series there are, and how many at most."""

import asyncio

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from vipwire.config.sections import Series
from vipwire.model.names import ObjectName, ServicePortName
from vipwire.model.net import Protocol, parse_address
from vipwire.proxy_daemon.serve.metrics import Metrics
from vipwire.proxy_daemon.serve.service_metrics import ServiceMetrics
from vipwire.reconcile.counts import Counts, EndpointName, Measure, Owner, Refusal

Labels = dict[str, str]


def port(name: str) -> ServicePortName:
    return ServicePortName(ObjectName("default", name), "http", Protocol.TCP)


class Scraped:
    """Metrics whose counts a test sets."""

    def __init__(self, series: Series, limit: int = 100) -> None:
        self._counts = Counts()
        self._metrics = Metrics("nftables", counted=ServiceMetrics(series, limit, self._read))

    async def _read(self) -> Counts:
        return self._counts

    def told(self, *numbers: tuple[Measure | Refusal, Owner, int]) -> list[tuple[str, Labels, float]]:
        """Scrape, with these counts."""
        self._counts = Counts()
        for number in numbers:
            self._counts.add(*number)
        asyncio.run(self._metrics.counted.refresh())
        return [
            (sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families(generate_latest(self._metrics.registry).decode())
            for sample in family.samples
            if sample.name.startswith(
                ("vipwire_service_", "vipwire_endpoint_", "vipwire_refused", "vipwire_counters")
            )
        ]


WEB = port("web")
ONE = EndpointName(WEB, parse_address("10.0.0.1"), 80)
SIX = EndpointName(WEB, parse_address("fd00::1"), 80)
OF_WEB = {"namespace": "default", "service": "web", "port": "http", "protocol": "tcp"}


def test_without_series_nothing_is_read_or_told() -> None:
    assert Scraped(Series.NONE).told((Measure.CONNECTIONS, WEB, 1)) == []


def test_services_add_up_their_families_and_leave_out_what_is_not_known() -> None:
    found = Scraped(Series.SERVICES).told(
        *((Measure.CONNECTIONS, owner, 2) for owner in (WEB, ONE)),
        *((Measure.CONNECTIONS, owner, 3) for owner in (WEB, SIX)),
        *((Measure.PACKETS, owner, 7) for owner in (WEB, SIX)),
    )
    assert ("vipwire_service_connections_total", OF_WEB, 5.0) in found
    assert ("vipwire_service_packets_total", OF_WEB, 7.0) in found
    assert {name for name, _, _ in found} == {
        "vipwire_service_connections_total",
        "vipwire_service_packets_total",
        "vipwire_counters_left_out",
    }


def test_endpoints_have_an_address_and_a_port() -> None:
    found = Scraped(Series.ENDPOINTS).told(
        *((Measure.CONNECTIONS, owner, number) for owner, number in ((WEB, 5), (ONE, 2), (SIX, 3)))
    )
    assert ("vipwire_endpoint_connections_total", OF_WEB | {"endpoint": "10.0.0.1:80"}, 2.0) in found
    assert ("vipwire_endpoint_connections_total", OF_WEB | {"endpoint": "[fd00::1]:80"}, 3.0) in found


def test_refusals_say_what_was_done_and_may_belong_to_nobody() -> None:
    found = Scraped(Series.SERVICES).told((Refusal.NO_ENDPOINTS, WEB, 4), (Refusal.UNALLOCATED_CLUSTER_IP, None, 6))
    rejected = {"reason": "no-endpoints", "action": "reject", **OF_WEB}
    dropped = {"reason": "unallocated-cluster-ip", "action": "drop", **dict.fromkeys(OF_WEB, "")}
    assert ("vipwire_refused_packets_total", rejected, 4.0) in found
    assert ("vipwire_refused_packets_total", dropped, 6.0) in found


def test_beyond_the_limit_those_with_the_most_are_told_and_the_rest_is_counted() -> None:
    found = Scraped(Series.SERVICES, limit=2).told(*((Measure.CONNECTIONS, port(f"s{n}"), n) for n in range(5)))
    assert [labels["service"] for name, labels, _ in found if name == "vipwire_service_connections_total"] == [
        "s4",
        "s3",
    ]
    assert ("vipwire_counters_left_out", {}, 3.0) in found


def test_a_series_that_was_told_goes_on_though_others_overtake_it() -> None:
    scraped, first, second = Scraped(Series.SERVICES, limit=1), port("first"), port("second")
    scraped.told((Measure.CONNECTIONS, first, 1))
    found = scraped.told((Measure.CONNECTIONS, first, 2), (Measure.CONNECTIONS, second, 100))
    assert [labels["service"] for name, labels, _ in found if name == "vipwire_service_connections_total"] == [
        "first"
    ]
    found = scraped.told((Measure.CONNECTIONS, second, 101))
    assert ("vipwire_counters_left_out", {}, 0.0) in found
