"""`vipwire.io/port-range`: a Service port that is served at many ports, on packets."""

from typing import Any

import pytest
from tests.fakes.waiting import until
from tests.proxy.conformance.cluster import POD_CIDRS, Cluster
from tests.proxy.conformance.conftest import ClusterWith
from tests.proxy.conformance.packets import BLOCKED, NODE, OUTSIDE, POD, Caller
from tests.proxy.conformance.sentences import sentence
from tests.proxy.conformance.services import CLUSTER_IP, EXTERNAL_IP, LOAD_BALANCER, NODE_PORT, LabService
from tests.proxy.conformance.test_changes_udp import ask
from tests.proxy.conformance.test_conflicts import NEW, OLD

from vipwire.model.net import Family, Protocol
from vipwire.plan.plan import FrontendKind
from vipwire_lab.cluster.manifests import Manifest, Port
from vipwire_lab.cluster.outcome import Target

pytestmark = pytest.mark.conformance

PODS = ("pod-1a", "pod-2a")
FIRST, WITHIN, LAST = 10000, 10123, 20000
RANGE = f"{FIRST}-{LAST}"
CALLERS = pytest.mark.parametrize("caller", [POD, NODE, OUTSIDE], ids=str)
ADDRESSES = pytest.mark.parametrize("kind", [CLUSTER_IP, EXTERNAL_IP, LOAD_BALANCER], ids=lambda kind: kind.value)


@pytest.fixture
def ranging(cluster_with: ClusterWith) -> Cluster:
    """A cluster whose Pods answer on some ports of a range."""
    return cluster_with([POD_CIDRS], "ranges")


@pytest.fixture(autouse=True)
def _open_ports(ranging: Cluster) -> None:
    for pod in (*PODS, "pod-1c"):
        ranging.lab.stop_echo_servers(pod, [FIRST, WITHIN, LAST])
        ranging.lab.start_echo_servers(pod, [FIRST, WITHIN, LAST])


def ranged(cluster: Cluster, name: str, ports: list[Port], *pods: str, text: str = RANGE, **spec: Any) -> LabService:
    """Write a Service with the annotation."""
    service = cluster.named(name, ports)
    cluster.put(name, annotated(service.objects(cluster.pods(*pods), **spec), text))
    return service


def annotated(objects: list[Manifest], text: str) -> list[Manifest]:
    objects[0]["metadata"]["annotations"] = {"vipwire.io/port-range": text}
    return objects


def at(service: LabService, kind: FrontendKind, family: Family, port: int) -> Target:
    return Target(service.address(kind, family), port, service.ports[0].protocol)


@sentence("S146")
@CALLERS
@ADDRESSES
@pytest.mark.parametrize("protocol", [Protocol.TCP, Protocol.UDP], ids=lambda protocol: protocol.label)
def test_every_port_of_a_range_leads_to_that_port_of_an_endpoint(
    ranging: Cluster, family: Family, kind: FrontendKind, caller: Caller, protocol: Protocol
) -> None:
    rtp = ranged(ranging, f"rtp-{protocol.label}", [Port(FIRST, protocol=protocol)], *PODS)
    for port in (FIRST, WITHIN, LAST):
        for result in ranging.answered(caller, at(rtp, kind, family, port), PODS):
            assert result.answer is not None
            assert result.answer.local.port == port


@sentence("S146")
def test_a_pod_reaches_itself_at_a_range(ranging: Cluster, family: Family) -> None:
    rtp = ranged(ranging, "rtp-self", [Port(FIRST)], "pod-1c")
    ranging.answered(POD, at(rtp, CLUSTER_IP, family, WITHIN), ["pod-1c"], masqueraded=True)


@sentence("S147")
@CALLERS
def test_a_range_with_another_target_port_arrives_there(ranging: Cluster, family: Family, caller: Caller) -> None:
    funnel = ranged(ranging, "funnel", [Port(FIRST, 80)], *PODS)
    for port in (FIRST, WITHIN, LAST):
        for result in ranging.answered(caller, at(funnel, CLUSTER_IP, family, port), PODS):
            assert result.answer is not None
            assert result.answer.local.port == 80


@sentence("S148")
def test_ports_outside_of_a_range_are_as_without_it(ranging: Cluster, family: Family) -> None:
    rtp = ranged(ranging, "rtp-tcp", [Port(FIRST)], *PODS)
    for port in (FIRST - 1, LAST + 1):
        ranging.refused(POD, at(rtp, CLUSTER_IP, family, port))
        ranging.passed_on(POD, at(rtp, EXTERNAL_IP, family, port))
    ranging.refused(POD, Target(rtp.address(CLUSTER_IP, family), WITHIN, Protocol.UDP))
    ranging.answered(OUTSIDE, rtp.at(NODE_PORT, family), PODS)
    ranging.refused(OUTSIDE, Target(rtp.address(NODE_PORT, family), rtp.node_port() + 1))


@sentence("S149")
def test_policies_and_source_ranges_count_at_a_range(ranging: Cluster, family: Family) -> None:
    empty = ranged(ranging, "rtp-empty", [Port(FIRST)])
    for kind in (CLUSTER_IP, EXTERNAL_IP):
        ranging.refused(OUTSIDE, at(empty, kind, family, WITHIN))
    local = ranged(ranging, "rtp-local", [Port(FIRST)], *PODS, externalTrafficPolicy="Local")
    ranging.answered(OUTSIDE, at(local, EXTERNAL_IP, family, WITHIN), ["pod-1a"], masqueraded=False)
    ranging.answered(POD, at(local, EXTERNAL_IP, family, WITHIN), PODS)
    away = ranged(ranging, "rtp-away", [Port(FIRST)], "pod-2a", externalTrafficPolicy="Local")
    ranging.dropped(OUTSIDE, at(away, EXTERNAL_IP, family, WITHIN))
    sources = ["203.0.113.0/25", "2001:db8:113::/121"]
    guarded = ranged(ranging, "rtp-guarded", [Port(FIRST)], *PODS, loadBalancerSourceRanges=sources)
    ranging.answered(OUTSIDE, at(guarded, LOAD_BALANCER, family, WITHIN), PODS)
    ranging.dropped(BLOCKED, at(guarded, LOAD_BALANCER, family, WITHIN))
    ranging.answered(BLOCKED, at(guarded, CLUSTER_IP, family, WITHIN), PODS)


@sentence("S150")
def test_the_older_claim_of_a_port_or_a_range_wins(ranging: Cluster, family: Family) -> None:
    shared: dict[str, Any] = {"externalIPs": ["198.18.210.1", "2001:db8:e:fe::1"]}
    address = shared["externalIPs"][family is Family.IPV6]
    one = ranging.named("one-port", [Port(WITHIN, 80)])
    wide = ranging.named("wide", [Port(FIRST)])

    def put(service: LabService, created: str, pod: str, text: str) -> None:
        objects = annotated(service.objects(ranging.pods(pod), **shared), text)
        objects[0]["metadata"]["creationTimestamp"] = created
        ranging.put(service.name, objects)

    put(wide, NEW, "pod-2a", RANGE)
    put(one, OLD, "pod-1a", "")
    ranging.answered(OUTSIDE, Target(address, WITHIN), ["pod-1a"])
    ranging.answered(OUTSIDE, Target(address, FIRST), ["pod-2a"])
    ranging.passed_on(OUTSIDE, Target(address, LAST))
    ranging.put("one-port", [])
    ranging.answered(OUTSIDE, Target(address, LAST), ["pod-2a"])
    put(one, "2026-01-01T00:00:00Z", "pod-1a", "")
    ranging.answered(OUTSIDE, Target(address, WITHIN), ["pod-2a"])
    ranging.put("one-port", [])
    ranging.put("wide", [])


@sentence("S151")
@pytest.mark.parametrize("text", ["20000-10000", "1-70000", "10000", "10001-20000", "other=10000-20000"])
def test_a_range_that_cannot_be_served_is_said_and_the_port_is_served(
    ranging: Cluster, family: Family, text: str
) -> None:
    since = len(ranging.proxy.log)
    name = f"rtp-{family.value.lower()}-{text.replace('=', '-')}"
    wrong = ranged(ranging, name, [Port(FIRST)], *PODS, text=text)
    ranging.proxy.said(since, "invalid object", f"default/{name}", "port-range")
    ranging.answered(POD, at(wrong, CLUSTER_IP, family, FIRST), PODS)
    ranging.refused(POD, at(wrong, CLUSTER_IP, family, WITHIN))
    ranging.put(name, [])


@sentence("S152")
def test_udp_clients_of_a_range_follow_when_their_endpoint_goes(ranging: Cluster, family: Family) -> None:
    port = [Port(FIRST, protocol=Protocol.UDP)]
    rtp = ranged(ranging, "rtp-moving", port, "pod-1a")
    with ranging.connect(POD, at(rtp, CLUSTER_IP, family, WITHIN)) as flow:
        assert flow.answer.pod == "pod-1a"
        ranged(ranging, "rtp-moving", port, "pod-2a")
        until(lambda: ask(flow) == "pod-2a", "the flow goes to the new endpoint")
        ranged(ranging, "rtp-moving", port, *PODS)
        assert ask(flow) == "pod-2a", "a flow whose endpoint serves is left alone"
