"""Choosing endpoints: those that terminate, and topology hints."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.proxy.conformance.cluster import Cluster
from tests.proxy.conformance.packets import NODE, OUTSIDE, POD
from tests.proxy.conformance.sentences import sentence
from tests.proxy.conformance.services import CLUSTER_IP, EXTERNAL, FRONTENDS, LabService

from vipwire.model.net import Family, Protocol
from vipwire.plan.plan import FrontendKind
from vipwire_lab.cluster.manifests import Backend, Port

pytestmark = pytest.mark.conformance

READY, LEAVING, GONE = "ready", "serves while terminating", "terminates"
ZONE = "topology.kubernetes.io/zone"


def mixed(cluster: Cluster, name: str, states: dict[str, str], **spec: Any) -> LabService:
    """Write a Service whose Pods are in these states."""
    hosts = [
        Backend(
            pod,
            ready=states[pod.name] == READY,
            serving=states[pod.name] != GONE,
            terminating=states[pod.name] != READY,
        )
        for pod in cluster.pods(*states)
    ]
    return cluster.service(name, hosts, **spec)


@sentence("S22")
@FRONTENDS
def test_terminating_endpoints_get_nothing_while_one_is_ready(
    cluster: Cluster, family: Family, kind: FrontendKind
) -> None:
    states = {"pod-1a": READY, "pod-1b": LEAVING, "pod-1c": GONE, "pod-2a": LEAVING, "pod-2b": READY}
    service = mixed(cluster, "some-ready", states)
    cluster.answered(OUTSIDE, service.at(kind, family), ["pod-1a", "pod-2b"])


@sentence("S21")
@FRONTENDS
def test_those_that_serve_while_terminating_answer_last(cluster: Cluster, family: Family, kind: FrontendKind) -> None:
    service = mixed(cluster, "none-ready", {"pod-1a": LEAVING, "pod-1b": GONE, "pod-2a": LEAVING, "pod-2b": GONE})
    for caller in (POD, NODE, OUTSIDE):
        cluster.answered(caller, service.at(kind, family), ["pod-1a", "pod-2a"])


@sentence("S25")
@pytest.mark.parametrize("policy", ["Cluster", "Local"])
@FRONTENDS
def test_those_that_no_longer_serve_never_answer(
    cluster: Cluster, family: Family, kind: FrontendKind, policy: str
) -> None:
    service = mixed(cluster, f"gone-{policy}".lower(), {"pod-1a": GONE, "pod-2a": GONE}, externalTrafficPolicy=policy)
    for caller in (POD, NODE, OUTSIDE):
        cluster.refused(caller, service.at(kind, family))


@sentence("S23", "S22")
def test_a_local_policy_decides_among_local_endpoints(cluster: Cluster, family: Family) -> None:
    states = {"pod-1a": LEAVING, "pod-1b": LEAVING, "pod-1c": GONE, "pod-2a": READY}
    service = mixed(cluster, "local-leaving", states, externalTrafficPolicy="Local")
    for kind in EXTERNAL:
        cluster.answered(OUTSIDE, service.at(kind, family), ["pod-1a", "pod-1b"], masqueraded=False)
        cluster.answered(POD, service.at(kind, family), ["pod-2a"], masqueraded=False)
    cluster.answered(OUTSIDE, service.vip(family), ["pod-2a"])


@sentence("S23")
def test_a_local_internal_policy_decides_among_local_endpoints(cluster: Cluster, family: Family) -> None:
    states = {"pod-1a": LEAVING, "pod-1b": GONE, "pod-2a": READY}
    service = mixed(cluster, "internal-leaving", states, internalTrafficPolicy="Local")
    for caller in (POD, NODE, OUTSIDE):
        cluster.answered(caller, service.vip(family), ["pod-1a"])
        for kind in EXTERNAL:
            cluster.answered(caller, service.at(kind, family), ["pod-2a"])


@sentence("S22")
def test_a_local_policy_prefers_ready_local_endpoints(cluster: Cluster, family: Family) -> None:
    states = {"pod-1a": READY, "pod-1b": READY, "pod-1c": LEAVING, "pod-2a": READY}
    service = mixed(cluster, "local-ready", states, externalTrafficPolicy="Local")
    for kind in EXTERNAL:
        cluster.answered(OUTSIDE, service.at(kind, family), ["pod-1a", "pod-1b"], masqueraded=False)
    cluster.answered(OUTSIDE, service.vip(family), ["pod-1a", "pod-1b", "pod-2a"])


@sentence("S24")
def test_terminating_endpoints_elsewhere_do_not_answer_a_local_policy(cluster: Cluster, family: Family) -> None:
    states = {"pod-1a": GONE, "pod-2a": LEAVING, "pod-2b": GONE}
    service = mixed(cluster, "leaving-elsewhere", states, externalTrafficPolicy="Local")
    for kind in EXTERNAL:
        cluster.dropped(OUTSIDE, service.at(kind, family))
        cluster.answered(POD, service.at(kind, family), ["pod-2a"])
    for caller in (POD, NODE, OUTSIDE):
        cluster.answered(caller, service.at(CLUSTER_IP, family), ["pod-2a"])


def hinted(cluster: Cluster, name: str, hints: dict[str, tuple[str, str]], **spec: Any) -> LabService:
    """Write a Service whose Pods have hints: (zone, node), "" for none."""
    hosts = [
        Backend(
            pod,
            for_zones=(hints[pod.name][0],) if hints[pod.name][0] else (),
            for_nodes=(hints[pod.name][1],) if hints[pod.name][1] else (),
        )
        for pod in cluster.pods(*hints)
    ]
    return cluster.service(name, hosts, **spec)


@sentence("S81")
@FRONTENDS
def test_endpoints_for_our_zone_are_used(cluster: Cluster, family: Family, kind: FrontendKind) -> None:
    hints = {"pod-1a": ("zone-a", ""), "pod-1b": ("zone-b", ""), "pod-2a": ("zone-a", ""), "pod-2b": ("zone-b", "")}
    service = hinted(cluster, "zones", hints)
    for caller in (POD, NODE, OUTSIDE):
        cluster.answered(caller, service.at(kind, family), ["pod-1a", "pod-2a"])


@sentence("S82")
def test_one_endpoint_without_a_hint_makes_hints_void(cluster: Cluster, family: Family) -> None:
    service = hinted(cluster, "part", {"pod-1a": ("zone-a", ""), "pod-1b": ("", ""), "pod-2a": ("zone-b", "")})
    cluster.answered(POD, service.vip(family), ["pod-1a", "pod-1b", "pod-2a"])


@sentence("S82")
def test_an_endpoint_that_is_not_ready_needs_no_hint(cluster: Cluster, family: Family) -> None:
    one, two, three = cluster.pods("pod-1a", "pod-1b", "pod-2a")
    hosts = [Backend(one, for_zones=("zone-a",)), Backend(two, ready=False), Backend(three, for_zones=("zone-b",))]
    service = cluster.service("unready-unhinted", hosts)
    cluster.answered(POD, service.vip(family), ["pod-1a"])


@sentence("S83")
def test_hints_for_other_zones_only_are_void(cluster: Cluster, family: Family) -> None:
    service = hinted(cluster, "far", {"pod-1a": ("zone-b", ""), "pod-2a": ("zone-c", "")})
    cluster.answered(POD, service.vip(family), ["pod-1a", "pod-2a"])


@sentence("S84")
@FRONTENDS
def test_endpoints_for_our_node_come_before_those_for_our_zone(
    cluster: Cluster, family: Family, kind: FrontendKind
) -> None:
    hints = {"pod-1a": ("zone-a", "node-2"), "pod-1b": ("zone-b", "node-1"), "pod-2a": ("zone-a", "node-1")}
    service = hinted(cluster, "near", hints)
    cluster.answered(OUTSIDE, service.at(kind, family), ["pod-1b", "pod-2a"])


@sentence("S85")
def test_node_hints_for_others_leave_the_choice_to_zones(cluster: Cluster, family: Family) -> None:
    hints = {"pod-1a": ("zone-a", "node-2"), "pod-1b": ("zone-b", "node-2"), "pod-2a": ("zone-a", "node-3")}
    service = hinted(cluster, "not-so-near", hints)
    cluster.answered(OUTSIDE, service.vip(family), ["pod-1a", "pod-2a"])


@sentence("S86")
def test_a_local_policy_knows_no_hints(cluster: Cluster, family: Family) -> None:
    hints = {"pod-1a": ("zone-b", "node-2"), "pod-1b": ("zone-a", "node-1"), "pod-2a": ("zone-a", "node-1")}
    service = hinted(cluster, "hinted-local", hints, internalTrafficPolicy="Local", externalTrafficPolicy="Local")
    for kind in FrontendKind:
        cluster.answered(OUTSIDE, service.at(kind, family), ["pod-1a", "pod-1b"])


@sentence("S87")
def test_a_node_that_moves_to_another_zone_follows_its_hints(cluster: Cluster, family: Family) -> None:
    service = hinted(cluster, "moving", {"pod-1a": ("zone-a", ""), "pod-2a": ("zone-b", "")})
    cluster.answered(POD, service.vip(family), ["pod-1a"])
    with zone(cluster, "zone-b"):
        cluster.answered(POD, service.vip(family), ["pod-2a"])
    with zone(cluster, ""):
        cluster.answered(POD, service.vip(family), ["pod-1a", "pod-2a"])
    cluster.answered(POD, service.vip(family), ["pod-1a"])


@contextmanager
def zone(cluster: Cluster, name: str) -> Iterator[None]:
    """Have node 1 in another zone, or in none, for a while."""
    labels = cluster.nodes["node-1"]["metadata"]["labels"]
    before = labels.pop(ZONE)
    labels |= {ZONE: name} if name else {}
    try:
        cluster.write()
        yield
    finally:
        labels[ZONE] = before
        cluster.write()


@sentence("S91")
@pytest.mark.parametrize("protocol", list(Protocol), ids=lambda protocol: protocol.label)
@FRONTENDS
def test_every_protocol_is_served_at_every_frontend(
    cluster: Cluster, family: Family, kind: FrontendKind, protocol: Protocol
) -> None:
    service = cluster.service(
        f"speaks-{protocol.label}", cluster.pods("pod-1a", "pod-2a"), [Port(80, protocol=protocol)]
    )
    for caller in (POD, NODE, OUTSIDE):
        results = cluster.answered(caller, service.at(kind, family), ["pod-1a", "pod-2a"])
        assert {result.answer.protocol for result in results if result.answer} == {protocol.name}


@sentence("S92")
@FRONTENDS
def test_one_port_leads_elsewhere_by_protocol(cluster: Cluster, family: Family, kind: FrontendKind) -> None:
    numbers = {Protocol.TCP: 80, Protocol.UDP: 8080, Protocol.SCTP: 80}
    ports = [Port(53, numbers[each], each, each.label, node_port=31953) for each in Protocol]
    service = cluster.service("by-protocol", cluster.pods("pod-1a", "pod-2a"), ports)
    for index, protocol in enumerate(Protocol):
        results = cluster.answered(OUTSIDE, service.at(kind, family, index), ["pod-1a", "pod-2a"])
        seen = {(result.answer.protocol, result.answer.local.port) for result in results if result.answer}
        assert seen == {(protocol.name, numbers[protocol])}


@sentence("S93")
@FRONTENDS
def test_a_connection_carries_any_amount(cluster: Cluster, family: Family, kind: FrontendKind) -> None:
    data = bytes(range(256)) * 4096
    service = cluster.service("large", cluster.pods("pod-2a"))
    for caller in (POD, NODE, OUTSIDE):
        with cluster.connect(caller, service.at(kind, family)) as connection:
            assert connection.exchange(data) == data


@sentence("S88")
@FRONTENDS
def test_a_dual_stack_service_is_served_in_each_family_by_its_own(
    cluster: Cluster, family: Family, kind: FrontendKind
) -> None:
    dual = cluster.named("dual")
    slices = dual.slices(cluster.pods("pod-1a", "pod-2a"))
    for piece in slices:
        piece["endpoints"] = piece["endpoints"][:1] if piece["addressType"] == "IPv4" else piece["endpoints"][1:]
    cluster.put("dual", [dual.service(reversed(Family)), *slices])
    cluster.answered(OUTSIDE, dual.at(kind, family), ["pod-1a" if family is Family.IPV4 else "pod-2a"])


@sentence("S89")
def test_a_service_of_one_family_has_no_frontend_of_the_other(cluster: Cluster, family: Family) -> None:
    (other,) = set(Family) - {family}
    single = cluster.named(f"only-{family.value.lower()}")
    cluster.put(single.name, single.objects(cluster.pods("pod-1a"), [family]))
    for kind in FrontendKind:
        cluster.answered(OUTSIDE, single.at(kind, family), ["pod-1a"])
    cluster.dropped(OUTSIDE, single.vip(other))
    cluster.refused(OUTSIDE, single.at(FrontendKind.NODE_PORT, other))
    cluster.passed_on(OUTSIDE, single.at(FrontendKind.EXTERNAL_IP, other))
    cluster.passed_on(OUTSIDE, single.at(FrontendKind.LOAD_BALANCER, other))


@sentence("S90")
@FRONTENDS
def test_a_family_without_endpoints_refuses_alone(cluster: Cluster, family: Family, kind: FrontendKind) -> None:
    (other,) = set(Family) - {family}
    half = cluster.named(f"half-empty-{family.value.lower()}")
    slices = [each for each in half.slices(cluster.pods("pod-1a")) if each["addressType"] == family.value]
    cluster.put(half.name, [half.service(), *slices])
    cluster.answered(OUTSIDE, half.at(kind, family), ["pod-1a"])
    cluster.refused(OUTSIDE, half.at(kind, other))
