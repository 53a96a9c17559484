"""The lab's values and pure functions: topologies that contradict themselves, destinations, manifests, wiring."""

import pytest

from vipwire.model.net import Protocol
from vipwire_lab.cluster import manifests
from vipwire_lab.cluster.outcome import Outcome, ProbeOptions, ProbeResult, Target, count_pods
from vipwire_lab.namespaces import links
from vipwire_lab.namespaces.errors import LabError
from vipwire_lab.namespaces.topology import (
    DEFAULT,
    UNDERLAY,
    Client,
    Node,
    Pod,
    Topology,
    make_node,
    make_pod,
    make_topology,
)


def test_the_default_has_the_addresses_that_the_scenarios_speak_of() -> None:
    addresses = {host.name: host.addresses for host in DEFAULT.list_hosts()}
    assert addresses["node-1"] == ("192.168.0.1", "192.168.1.1", "fd00:192:168::1", "fd00:192:168:1::1")
    assert addresses["pod-2b"] == ("10.244.2.12", "fd00:10:244:2::12")
    assert addresses["client"][:2] == ("203.0.113.2", "203.0.113.130")
    assert DEFAULT.host_names()[0] == UNDERLAY


def test_a_host_knows_its_node() -> None:
    assert [DEFAULT.node_of(name) for name in ("pod-2a", "node-1", "client")] == ["node-2", "node-1", ""]


@pytest.mark.parametrize(
    ("nodes", "pods", "clients", "complaint"),
    [
        ((make_node(1), make_node(1)), (), (), "two hosts are named 'node-1'"),
        ((make_node(1),), (make_pod(2, 1),), (), "pod pod-2a: node 'node-2' must be one of node-1"),
        ((make_node(1),), (), (Client("c", ("1.1.1.1",), "x"),), "client c: gateway 'x'"),
        ((make_node(1),), (), (Client("c", ("192.168.0.1",)),), "node-1 and c have the same address"),
        ((make_node(1),), (), (Client("c", ("300.1.1.1",)),), "host c: '300.1.1.1' is not an IP address"),
        ((make_node(1),), (), (Client("c", ()),), "host c has no address"),
        ((make_node(1),), (), (Client("a-name-of-16-let", ("1.1.1.1",)),), "at most 15"),
        ((make_node(1),), (), (Client(UNDERLAY, ("1.1.1.1",)),), "two hosts are named 'underlay'"),
        ((Node("n", ("1.1.1.1",), ("10.0.0.1/8",)),), (), (), "node n: '10.0.0.1/8' is not a CIDR"),
        ((Node("n", ("1.1.1.1",), ("fd00::/64",)),), (), (), "no IPv6 address"),
    ],
)
def test_a_topology_that_contradicts_itself_is_refused(
    nodes: tuple[Node, ...], pods: tuple[Pod, ...], clients: tuple[Client, ...], complaint: str
) -> None:
    with pytest.raises(LabError) as caught:
        Topology(nodes, pods, clients)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("10.0.0.1:80", Target("10.0.0.1", 80)),
        ("[fd00:0::1]:53/udp", Target("fd00::1", 53, Protocol.UDP)),
        ("10.0.0.1:1/SCTP", Target("10.0.0.1", 1, Protocol.SCTP)),
    ],
)
def test_a_destination_is_read_as_a_person_writes_it(text: str, target: Target) -> None:
    assert Target.parse(text) == target
    assert Target.parse(str(target)) == target


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("fd00::1:80", "needs brackets"),
        ("10.0.0.1", "write ADDRESS:PORT"),
        ("10.0.0.1:", "write ADDRESS:PORT"),
        ("10.0.0.1:65536", "from 1 to 65535"),
        ("10.0.0.1:80/icmp", "'icmp' must be tcp, udp or sctp"),
        ("web:80", "'web' is not an IP address"),
        (":80", "write ADDRESS:PORT"),
    ],
)
def test_a_bad_destination_is_refused_with_what_is_wrong(text: str, complaint: str) -> None:
    with pytest.raises(LabError) as caught:
        Target.parse(text)
    assert complaint in str(caught.value)


@pytest.mark.parametrize("manner", [{"count": 0}, {"count": 10**6}, {"timeout": 0.0}, {"parallel": 0}])
def test_probing_without_bounds_is_refused(manner: dict[str, float]) -> None:
    with pytest.raises(LabError):
        ProbeOptions(**manner)  # type: ignore[arg-type]  # each is of its field's type


def test_results_are_counted_by_who_answered() -> None:
    results = [ProbeResult(Outcome.REFUSED, 0.1), ProbeResult(Outcome.REFUSED, 0.1)]
    assert count_pods(results) == {"(refused)": 2}


def test_every_host_has_one_wire_and_every_namespace_its_loopback() -> None:
    plan = links.plan_wiring(make_topology(pods=(1, 1, 1)))
    assert sorted(wire.host for wire in plan.wires) == sorted(set(plan.requests) - {UNDERLAY})
    assert {requests[0].text for requests in plan.requests.values()} == {"ip link set 1 up"}
    for router in {wire.router for wire in plan.wires}:
        indexes = [wire.index for wire in plan.wires if wire.router == router]
        assert len(set(indexes)) == len(indexes)


def test_a_service_has_a_slice_for_each_family_with_the_nodes_of_its_pods() -> None:
    leaving = manifests.Backend(DEFAULT.pods[3], ready=False, serving=True, terminating=True)
    ports = [manifests.Port(80, 8080, name="http")]
    service, four, six = manifests.build_service_with_slices(
        DEFAULT, "web", ["10.96.0.9"], ports, [DEFAULT.pods[0], leaving], externalTrafficPolicy="Local"
    )
    assert service["spec"]["externalTrafficPolicy"] == "Local"
    assert service["spec"]["ports"] == [{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}]
    assert [endpoint["addresses"] for endpoint in four["endpoints"]] == [["10.244.1.11"], ["10.244.2.11"]]
    assert [endpoint["nodeName"] for endpoint in six["endpoints"]] == ["node-1", "node-2"]
    assert four["endpoints"][1]["conditions"] == {"ready": False, "serving": True, "terminating": True}
    assert four["ports"] == [{"name": "http", "port": 8080, "protocol": "TCP"}]
    assert four["metadata"]["labels"]["kubernetes.io/service-name"] == "web"


def test_hints_are_written_only_if_there_are_any() -> None:
    hinted = manifests.Backend(DEFAULT.pods[0], for_zones=("a",))
    slices = manifests.build_endpoint_slices(DEFAULT, "web", [hinted, DEFAULT.nodes[1]], [manifests.Port(80)])
    first, second = slices[0]["endpoints"]
    assert first["hints"] == {"forZones": [{"name": "a"}]}
    assert "hints" not in second
    assert second["addresses"] == ["192.168.0.2"]
    assert "targetRef" not in second
