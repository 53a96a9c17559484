"""Changes while traffic flows: what comes counts at once, what is open stays open."""

from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from tests.fakes.waiting import until
from tests.proxy.conformance.cluster import Cluster
from tests.proxy.conformance.packets import NODE, OUTSIDE, POD, Caller
from tests.proxy.conformance.sentences import sentence
from tests.proxy.conformance.services import CLUSTER_IP, EXTERNAL_IP, FRONTENDS, LOAD_BALANCER, NODE_PORT

from vipwire.model.net import Family
from vipwire.plan.plan import FrontendKind
from vipwire_lab.cluster.manifests import Backend, Port
from vipwire_lab.cluster.outcome import Target
from vipwire_lab.namespaces.topology import Pod

pytestmark = pytest.mark.conformance

PODS = ("pod-1a", "pod-2a")
CALLERS = pytest.mark.parametrize("caller", [POD, NODE, OUTSIDE], ids=str)


@sentence("S94", "S95", "S96")
@CALLERS
def test_a_service_comes_goes_and_comes_back(cluster: Cluster, family: Family, caller: Caller) -> None:
    name = f"coming-{caller}-{family.value}".lower()
    service = cluster.named(name)
    cluster.dropped(caller, service.vip(family))
    cluster.passed_on(caller, service.at(EXTERNAL_IP, family))
    for _ in range(2):
        cluster.service(name, cluster.pods(*PODS))
        for kind in FrontendKind:
            cluster.answered(caller, service.at(kind, family), PODS)
        cluster.put(name, [])
        cluster.dropped(caller, service.vip(family))
        cluster.passed_on(caller, service.at(EXTERNAL_IP, family))
        cluster.passed_on(caller, service.at(LOAD_BALANCER, family))
        cluster.refused(caller, service.at(NODE_PORT, family))


@sentence("S97")
@FRONTENDS
def test_a_port_that_changes_is_served_anew(cluster: Cluster, family: Family, kind: FrontendKind) -> None:
    name = f"port-{kind.name}-{family.value}".lower().replace("_", "-")
    old = cluster.service(name, cluster.pods(*PODS), [Port(80, node_port=31780)]).at(kind, family)
    cluster.answered(OUTSIDE, old, PODS)
    new = cluster.service(name, cluster.pods(*PODS), [Port(81, 80, node_port=31781)]).at(kind, family)
    cluster.answered(OUTSIDE, new, PODS)
    if kind in (CLUSTER_IP, NODE_PORT):
        cluster.refused(OUTSIDE, old)
    else:
        cluster.passed_on(OUTSIDE, old)
    cluster.put(name, [])


@sentence("S97")
def test_a_port_that_is_added_or_removed_leaves_the_others(cluster: Cluster, family: Family) -> None:
    name = f"port-added-{family.value}".lower()
    one, two = Port(80, name="one"), Port(81, 8080, name="two")
    service = cluster.service(name, cluster.pods(*PODS), [one])
    cluster.refused(OUTSIDE, cluster.named(name, [one, two]).vip(family, 1))
    for ports, open_, closed in (([one, two], [0, 1], []), ([two], [1], [0]), ([one], [0], [1])):
        cluster.service(name, cluster.pods(*PODS), ports)
        service = cluster.named(name, [one, two])
        for index in open_:
            cluster.answered(OUTSIDE, service.vip(family, index), PODS)
        for index in closed:
            cluster.refused(OUTSIDE, service.vip(family, index))


@sentence("S98")
def test_a_service_becomes_another_type(cluster: Cluster, family: Family) -> None:
    name = f"typed-{family.value}".lower()
    service = cluster.named(name)

    def become(type_: str, **spec: Any) -> None:
        made, *slices = service.objects(cluster.pods(*PODS), type=type_, externalIPs=None, **spec)
        if type_ != "LoadBalancer":
            del made["status"]
        cluster.put(name, [made, *slices])

    external_name = {"clusterIP": None, "clusterIPs": None, "externalName": "example.com"}
    for _ in range(2):
        become("ClusterIP")
        cluster.answered(OUTSIDE, service.vip(family), PODS)
        cluster.refused(OUTSIDE, service.at(NODE_PORT, family))
        become("NodePort")
        cluster.answered(OUTSIDE, service.vip(family), PODS)
        cluster.answered(OUTSIDE, service.at(NODE_PORT, family), PODS)
        cluster.passed_on(OUTSIDE, service.at(LOAD_BALANCER, family))
        become("LoadBalancer")
        cluster.answered(OUTSIDE, service.at(NODE_PORT, family), PODS)
        cluster.answered(OUTSIDE, service.at(LOAD_BALANCER, family), PODS)
        become("ExternalName", **external_name)
        cluster.dropped(OUTSIDE, service.vip(family))
        cluster.refused(OUTSIDE, service.at(NODE_PORT, family))
        cluster.passed_on(OUTSIDE, service.at(LOAD_BALANCER, family))


@sentence("S99")
def test_endpoints_come_and_go(cluster: Cluster, family: Family) -> None:
    name = f"scaled-{family.value}".lower()
    for pods in (["pod-1a"], ["pod-1a", "pod-2a", "pod-1b"], ["pod-2a", "pod-2b"], [], ["pod-1a"]):
        service = cluster.service(name, cluster.pods(*pods))
        for caller in (POD, OUTSIDE):
            for kind in FrontendKind:
                if pods:
                    cluster.answered(caller, service.at(kind, family), pods)
                else:
                    cluster.refused(caller, service.at(kind, family))


@pytest.mark.parametrize(
    "left",
    [
        pytest.param(["pod-2b"], marks=sentence("S100"), id="its endpoint goes"),
        pytest.param([], marks=sentence("S100"), id="all endpoints go"),
        pytest.param(None, marks=sentence("S101"), id="the Service goes"),
    ],
)
def test_open_connections_live_on(cluster: Cluster, family: Family, left: list[str] | None) -> None:
    name = f"open-{family.value}".lower()
    service = cluster.service(name, cluster.pods("pod-1a", "pod-2a"))
    with ExitStack() as stack:
        connections = [
            stack.enter_context(cluster.connect(caller, service.at(kind, family)))
            for caller in (POD, NODE, OUTSIDE) * 3
            for kind in FrontendKind
        ]
        cluster.put(name, service.objects(cluster.pods(*left)) if left is not None else [])
        for connection in connections:
            assert connection.exchange(b"still there?\n") == b"still there?\n"


@sentence("S102")
def test_no_connection_fails_while_endpoints_come_and_go(cluster: Cluster, family: Family) -> None:
    name = f"rolling-{family.value}".lower()
    service = cluster.service(name, cluster.pods("pod-1a", "pod-2a"))
    target = service.vip(family)
    steps = [("pod-1b", "pod-2a"), ("pod-1b",), ("pod-1b", "pod-2b", "pod-1c"), ("pod-1c",), ("pod-1a", "pod-2a")]
    before = cluster.answering(OUTSIDE, target)
    with cluster.lab.connect_continuously(OUTSIDE.host, target.address, target.port, interval=0.002) as stream:
        for pods in steps * 2:
            seen = stream.report.pods
            cluster.service(name, cluster.pods(*pods))
            stream.wait_for(2)  # the second one has begun after the change
            after, changed = cluster.answering(OUTSIDE, target), stream.report.pods
            assert after == set(pods)
            assert set(changed - seen) <= before | after, "those answer that explain names before or after a change"
            stream.wait_for(10)
            assert set(stream.report.pods - changed) <= after, "and only those that it names while nothing changes"
            before = after
    assert stream.report.failures == ()
    assert set(stream.report.pods) == {"pod-1a", "pod-1b", "pod-1c", "pod-2a", "pod-2b"}


@sentence("S109")
@pytest.mark.parametrize("text", ["{", "kind: [Service\n", "- \0"], ids=["JSON", "YAML", "no text"])
def test_a_file_that_cannot_be_read_changes_nothing(cluster: Cluster, family: Family, text: str) -> None:
    name = f"lasting-{len(text)}-{family.value}".lower()
    service = cluster.service(name, cluster.pods(*PODS))
    since, file = len(cluster.proxy.log), cluster.manifests / f"{name}.json"
    good = file.read_text()
    file.write_text(text)
    cluster.proxy.said(since, file.name)
    cluster.answered(OUTSIDE, service.vip(family), PODS)
    file.write_text(good.replace('"port": 80', '"port": 8088', 1))
    until(lambda: cluster.probe(OUTSIDE, Target(service.vip(family).address, 8088))[0].answer, "it is read again")


@sentence("S119")
def test_the_health_check_port_tells_of_local_endpoints(cluster: Cluster, family: Family) -> None:
    name, target = (
        f"checked-{family.value}".lower(),
        Target(cluster.lab.address_of("node-1", family), 32000 + family.bits),
    )
    here, near, far = cluster.pods("pod-1a", "pod-1b", "pod-2a")
    spec: dict[str, Any] = {"externalTrafficPolicy": "Local", "healthCheckNodePort": target.port}

    def says(status: int, weight: str) -> bool:
        page = cluster.proxy.page("/any", target.port, target.address, OUTSIDE.host)
        return (page.status, page.headers.get("X-Load-Balancing-Endpoint-Weight")) == (status, weight)

    leaving = Backend(near, ready=False, serving=True, terminating=True)
    steps: list[tuple[list[Backend | Pod], tuple[int, str]]] = [
        ([here, near, far], (200, "2")),
        ([here, leaving, far], (200, "1")),
        ([leaving, far], (503, "0")),
        ([far], (503, "0")),
        ([here], (200, "1")),
    ]
    for hosts, expected in steps:
        cluster.service(name, hosts, **spec)
        until(partial(says, *expected), f"{name} says {expected}")
        for caller in (POD, NODE, OUTSIDE):
            assert cluster.health_check(caller, target).status == expected[0]
    for kind in (CLUSTER_IP, EXTERNAL_IP, LOAD_BALANCER):
        vip = Target(cluster.named(name).address(kind, family), target.port)
        bound = cluster.mode.name == "ipvs" and kind is CLUSTER_IP
        assert cluster.health_check(OUTSIDE, vip).status == (200 if bound else 0)


@sentence("S120")
def test_the_health_check_port_is_closed_when_it_is_no_longer_asked_for(cluster: Cluster, family: Family) -> None:
    name, port = f"unchecked-{family.value}".lower(), 32001 + family.bits
    target = Target(cluster.lab.address_of("node-1", family), port)
    for left in ([], cluster.named(name).objects(cluster.pods("pod-1a"), externalTrafficPolicy="Cluster")):
        cluster.service(name, cluster.pods("pod-1a"), externalTrafficPolicy="Local", healthCheckNodePort=port)
        until(lambda: cluster.proxy.page("/", port).status, "it is open")
        assert cluster.health_check(OUTSIDE, target).status == 200
        cluster.put(name, left)
        until(lambda: not cluster.proxy.page("/", port).status, "it is closed")
        assert cluster.health_check(OUTSIDE, target).status == 0
        cluster.refused(OUTSIDE, target)
