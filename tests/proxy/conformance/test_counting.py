"""What is counted, on packets: connections to each endpoint, traffic, and whom nobody answers, by reason."""

import json
from collections import Counter
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.fakes.waiting import until
from tests.proxy.conformance.cluster import POD_CIDRS, Cluster
from tests.proxy.conformance.conftest import ClusterWith
from tests.proxy.conformance.packets import BLOCKED, NODE, OUTSIDE, POD, Caller
from tests.proxy.conformance.sentences import sentence
from tests.proxy.conformance.services import CLUSTER_IP, FRONTENDS, LOAD_BALANCER, NODE_PORT, LabService

from vipwire.model.net import Family, Protocol, format_endpoint, parse_address
from vipwire.plan.plan import FrontendKind
from vipwire_lab.cluster.manifests import Port
from vipwire_lab.cluster.outcome import ProbeResult, Target

pytestmark = pytest.mark.conformance

PODS = ("pod-1a", "pod-2a")
CALLERS = pytest.mark.parametrize("caller", [POD, NODE, OUTSIDE], ids=str)
COUNTING = [POD_CIDRS, "--counters=endpoints", "--count-traffic"]
METRICS = 10249


@pytest.fixture
def counting(cluster_with: ClusterWith) -> Cluster:
    """A cluster whose proxy counts all that its mode can."""
    return cluster_with(COUNTING)


def sample(cluster: Cluster, name: str, **labels: str) -> float:
    """Read a metric: the sum of its series with these labels, 0 where there is none."""
    if cluster.mode.tardy and not name.startswith("vipwire_refused"):
        add_up(cluster)
    return shown(cluster, name, **labels)


def shown(cluster: Cluster, name: str, **labels: str) -> float:
    page = cluster.proxy.page("/metrics", METRICS)
    assert page.status == 200, page
    return sum(
        each.value
        for family in text_string_to_metric_families(page.body)
        for each in family.samples
        if each.name == name and labels.items() <= each.labels.items()
    )


_added_up: dict[Cluster, int] = {}


def add_up(cluster: Cluster) -> None:
    """Wait until the kernel has added up all that went before: then one more connection, of ours, counts as well."""
    if _added_up.get(cluster) == cluster.sent:
        return
    clock = cluster.service("clock", cluster.pods(PODS[0]))
    before = shown(cluster, "vipwire_service_connections_total", service="clock")
    cluster.probe(POD, clock.vip(Family.IPV4))
    until(lambda: shown(cluster, "vipwire_service_connections_total", service="clock") > before, "it is counted")
    _added_up[cluster] = cluster.sent


def endpoint(cluster: Cluster, pod: str, family: Family, port: int = 80) -> str:
    return format_endpoint(parse_address(cluster.lab.address_of(pod, family)), port)


def by_endpoint(cluster: Cluster, service: str, what: str, family: Family) -> dict[str, float]:
    """Read what was counted for each Pod of a Service."""
    if cluster.mode.tardy:
        add_up(cluster)
    return {
        pod: shown(
            cluster, f"vipwire_endpoint_{what}_total", service=service, endpoint=endpoint(cluster, pod, family)
        )
        for pod in PODS
    }


def status(cluster: Cluster, service: str) -> Any:
    """Read `vipwire status` on the node, as a program would."""
    if cluster.mode.tardy:
        add_up(cluster)
    options = [f"--manifests={cluster.manifests}", f"--hostname-override={cluster.node_name}", *COUNTING]
    said = cluster.proxy.vipwire("status", service, "-o", "json", f"--proxy-mode={cluster.mode.name}", *options)
    document, _ = json.JSONDecoder().raw_decode(said)  # warnings of the mode may follow
    (found,) = document["services"]
    return found


def dealt(results: list[ProbeResult]) -> dict[str, int]:
    """Count connections: a datagram from a port that was used seconds ago belongs to the flow of that time."""
    found = Counter(pod for pod, _ in {(result.pod, result.answer and result.answer.saw) for result in results})
    return {pod: found[pod] for pod in PODS}


def grown(before: dict[str, float], after: dict[str, float]) -> dict[str, int]:
    return {pod: int(after[pod] - before[pod]) for pod in PODS}


@sentence("S131")
@CALLERS
@FRONTENDS
def test_every_connection_counts_for_its_endpoint(
    counting: Cluster, family: Family, kind: FrontendKind, caller: Caller
) -> None:
    web = counting.service("counted", counting.pods(*PODS))
    before = by_endpoint(counting, "counted", "connections", family)
    all_before = sample(counting, "vipwire_service_connections_total", service="counted")
    results = counting.answered(caller, web.at(kind, family), PODS)
    assert grown(before, by_endpoint(counting, "counted", "connections", family)) == dealt(results)
    after = sample(counting, "vipwire_service_connections_total", service="counted")
    assert after - all_before == len(results)


@sentence("S131")
@pytest.mark.parametrize("protocol", list(Protocol), ids=lambda protocol: protocol.label)
def test_connections_count_in_every_protocol(counting: Cluster, family: Family, protocol: Protocol) -> None:
    name = f"counted-{protocol.label}"
    service = counting.service(name, counting.pods(*PODS), [Port(80, protocol=protocol)])
    before = by_endpoint(counting, name, "connections", family)
    results = counting.answered(POD, service.vip(family), PODS)
    assert grown(before, by_endpoint(counting, name, "connections", family)) == dealt(results)


@sentence("S131")
@CALLERS
def test_an_endpoint_on_the_node_itself_counts_once(counting: Cluster, family: Family, caller: Caller) -> None:
    counting.lab.stop_echo_servers("node-1", [9200])
    counting.lab.start_echo_servers("node-1", [9200], [Protocol.TCP])
    service = counting.service("counted-host", [counting.node("node-1")], [Port(80, 9200)])
    before = sample(counting, "vipwire_endpoint_connections_total", service="counted-host")
    results = counting.answered(caller, service.vip(family), ["node-1"])
    assert sample(counting, "vipwire_endpoint_connections_total", service="counted-host") - before == len(results)


@sentence("S131")
def test_status_says_what_the_metrics_say(counting: Cluster, family: Family) -> None:
    web = counting.service("counted", counting.pods(*PODS))
    counting.answered(POD, web.vip(family), PODS)
    (port,) = status(counting, "counted")["ports"]
    assert port["counts"]["connections"] == sample(counting, "vipwire_service_connections_total", service="counted")
    shown = {
        format_endpoint(parse_address(each["address"]), each["port"]): each["counts"] for each in port["endpoints"]
    }
    told = by_endpoint(counting, "counted", "connections", family)
    assert {pod: shown[endpoint(counting, pod, family)]["connections"] for pod in PODS} == told


@sentence("S132")
@CALLERS
def test_packets_and_bytes_are_counted_both_ways(counting: Cluster, family: Family, caller: Caller) -> None:
    web = counting.service("counted", counting.pods(*PODS))
    before = {
        what: by_endpoint(counting, "counted", what, family)
        for what in ("packets", "bytes", "reply_packets", "reply_bytes")
    }
    connections = dealt(counting.answered(caller, web.vip(family), PODS))
    header = 20 if family is Family.IPV4 else 40
    for what, old in before.items():
        new = grown(old, by_endpoint(counting, "counted", what, family))
        for pod in PODS:
            # To open, be answered and close takes three packets at least each way, with a TCP header in each.
            least = 3 * connections[pod] * (header + 20 if what.endswith("bytes") else 1)
            assert least <= new[pod] <= 20 * least, f"{what} of {pod}: {new[pod]} for {connections[pod]} connections"


@sentence("S133")
def test_a_change_of_endpoints_resets_no_others(counting: Cluster, family: Family) -> None:
    web = counting.service("changing", counting.pods(*PODS))
    counting.answered(POD, web.vip(family), PODS)
    before = by_endpoint(counting, "changing", "connections", family)
    assert min(before.values()) > 0
    counting.service("changing", counting.pods(*PODS, "pod-1b"))
    counting.service("changing", counting.pods("pod-1a"))
    counting.service("changing", counting.pods(*PODS))
    assert by_endpoint(counting, "changing", "connections", family)["pod-1a"] == before["pod-1a"]


@sentence("S134")
def test_a_restart_resets_nothing(cluster_with: ClusterWith, family: Family) -> None:
    cluster = cluster_with(COUNTING, "restless")
    web = cluster.service("restarted", cluster.pods(*PODS))
    cluster.answered(POD, web.vip(family), PODS)
    before = by_endpoint(cluster, "restarted", "connections", family)
    cluster.proxy.stop()
    cluster.proxy.start()
    assert by_endpoint(cluster, "restarted", "connections", family) == before
    assert min(before.values()) > 0


def refused(cluster: Cluster, reason: str) -> float:
    return sample(cluster, "vipwire_refused_packets_total", reason=reason)


def guarded(cluster: Cluster) -> LabService:
    ranges = ["203.0.113.0/25", "2001:db8:113::/121"]
    return cluster.service("counted-guard", cluster.pods(*PODS), loadBalancerSourceRanges=ranges)


@sentence("S135")
@CALLERS
def test_who_is_refused_for_want_of_endpoints_counts(counting: Cluster, family: Family, caller: Caller) -> None:
    empty = counting.service("counted-empty", [])
    before = refused(counting, "no-endpoints")
    for kind in (CLUSTER_IP, NODE_PORT):
        counting.refused(caller, empty.at(kind, family))
    assert refused(counting, "no-endpoints") - before >= 6


@sentence("S135")
def test_who_is_dropped_for_want_of_local_endpoints_counts(counting: Cluster, family: Family) -> None:
    away = counting.service("counted-away", counting.pods("pod-2a"), externalTrafficPolicy="Local")
    before = refused(counting, "no-local-endpoints")
    counting.dropped(OUTSIDE, away.at(LOAD_BALANCER, family))
    assert refused(counting, "no-local-endpoints") - before >= 3


@sentence("S135")
def test_who_is_dropped_by_source_ranges_counts(counting: Cluster, family: Family) -> None:
    target = guarded(counting).at(LOAD_BALANCER, family)
    before = refused(counting, "source-range")
    counting.answered(OUTSIDE, target, PODS)
    assert refused(counting, "source-range") == before
    counting.dropped(BLOCKED, target)
    assert refused(counting, "source-range") - before >= 3


@sentence("S135")
@CALLERS
def test_who_asks_a_cluster_ip_for_another_port_counts(counting: Cluster, family: Family, caller: Caller) -> None:
    web = counting.service("counted", counting.pods(*PODS))
    before = refused(counting, "undefined-port")
    counting.refused(caller, Target(web.address(CLUSTER_IP, family), 8443))
    assert refused(counting, "undefined-port") - before >= 3


@sentence("S135")
@CALLERS
def test_who_asks_for_a_free_cluster_ip_counts(counting: Cluster, family: Family, caller: Caller) -> None:
    before = refused(counting, "unallocated-cluster-ip")
    counting.dropped(caller, counting.named("never-counted").vip(family))
    assert refused(counting, "unallocated-cluster-ip") - before >= 3
