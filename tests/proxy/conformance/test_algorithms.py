"""What annotations ask for: algorithms, weights, the scope of affinity, who may use node ports. Bad ones too."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from ipaddress import ip_network
from itertools import islice
from typing import Any

import pytest
from tests.proxy.conformance.cluster import POD_CIDRS, Cluster
from tests.proxy.conformance.conftest import ClusterWith
from tests.proxy.conformance.packets import BLOCKED, NODE, OTHER_POD, OUTSIDE, POD, Caller
from tests.proxy.conformance.sentences import sentence
from tests.proxy.conformance.services import CLUSTER_IP, EXTERNAL_IP, FRONTENDS, LOAD_BALANCER, NODE_PORT, LabService

from vipwire.model.net import Family, Protocol
from vipwire.plan.plan import FrontendKind
from vipwire_lab.cluster.manifests import Port
from vipwire_lab.cluster.outcome import Target, count_pods
from vipwire_lab.namespaces.topology import UNDERLAY

pytestmark = pytest.mark.conformance

ALGORITHM, WEIGHTS = "vipwire.io/algorithm", "vipwire.io/weights"
SCOPE, SOURCES = "vipwire.io/affinity-scope", "vipwire.io/nodeport-source-ranges"
FOUR = ("pod-1a", "pod-1b", "pod-2a", "pod-2b")
FIVE = ("pod-1a", "pod-1b", "pod-1c", "pod-2a", "pod-2b")
CROWDS = {Family.IPV4: "203.0.113.64/26", Family.IPV6: "2001:db8:113:0:1::/122"}
"""Addresses outside beside those that the client has; none is in a range that a test lets in."""
FLOWS = 600


def asking(
    cluster: Cluster,
    name: str,
    pods: Sequence[str],
    annotations: dict[str, str],
    ports: Sequence[Port] = (),
    **spec: Any,
) -> LabService:
    """Write a Service with annotations."""
    service = cluster.named(name, ports or (Port(80),))
    made, *slices = service.objects(cluster.pods(*pods), **spec)
    made["metadata"]["annotations"] = annotations
    cluster.put(name, [made, *slices])
    return service


def weights(cluster: Cluster, given: dict[str, int]) -> dict[str, str]:
    """Write the annotation that weighs Pods, at their addresses of both families."""
    return {
        WEIGHTS: json.dumps(
            {cluster.lab.address_of(pod, each): number for pod, number in given.items() for each in Family}
        )
    }


def in_turn(cluster: Cluster, caller: Caller, target: Target, count: int) -> list[str]:
    """Connect again and again, one after the other; tell who answered."""
    return [result.pod for result in cluster.probe(caller, target, count, parallel=1)]


def repeats(pods: Sequence[str], every: int) -> bool:
    """Tell whether the same comes again after so many."""
    return all(one == other for one, other in zip(pods, islice(pods, every, None), strict=False))


@sentence("S153")
@FRONTENDS
def test_connections_are_dealt_in_turn(cluster: Cluster, family: Family, kind: FrontendKind) -> None:
    service = asking(cluster, "in-turn", FOUR, {ALGORITHM: "round-robin"})
    for caller in (OUTSIDE, POD):
        dealt = in_turn(cluster, caller, service.at(kind, family), 3 * len(FOUR))
        assert set(dealt[: len(FOUR)]) == set(FOUR), dealt
        assert repeats(dealt, len(FOUR)), dealt


@sentence("S153")
def test_turns_go_on_whoever_connects(cluster: Cluster, family: Family) -> None:
    service = asking(cluster, "in-turn-udp", FOUR, {ALGORITHM: "round-robin"}, [Port(80, protocol=Protocol.UDP)])
    callers = (OUTSIDE, POD, NODE, BLOCKED)
    dealt = [pod for _ in range(3) for caller in callers for pod in in_turn(cluster, caller, service.vip(family), 1)]
    assert set(dealt[: len(FOUR)]) == set(FOUR), dealt
    assert repeats(dealt, len(FOUR)), dealt


@sentence("S154")
@FRONTENDS
def test_a_clients_address_decides(cluster: Cluster, family: Family, kind: FrontendKind) -> None:
    service = asking(cluster, "by-address", FOUR, {ALGORITHM: "source-hash"})
    for caller in (OUTSIDE, BLOCKED, POD, OTHER_POD, NODE):
        cluster.sticks(caller, service.at(kind, family))


@contextmanager
def crowd(cluster: Cluster, family: Family) -> Iterator[list[Caller]]:
    """Have many clients outside for a while: addresses that the client answers for, though it has them not."""
    cluster.lab.run(OUTSIDE.host, ["sh", "-c", "echo 1 > /proc/sys/net/ipv6/ip_nonlocal_bind"])
    word, range_, gateway = f"-{family.value[3]}", CROWDS[family], cluster.address(OUTSIDE, family)
    here, there = ["local", range_, "dev", "lo"], [range_, "via", gateway, "dev", OUTSIDE.host, "onlink"]
    with ExitStack() as stack:
        for host, route in ((OUTSIDE.host, here), (UNDERLAY, there)):
            cluster.lab.run(host, ["ip", word, "route", "add", *route])
            stack.callback(cluster.lab.run, host, ["ip", word, "route", "del", *route])
        yield [Caller(OUTSIDE.host, address=str(address)) for address in islice(ip_network(range_).hosts(), 60)]


@sentence("S154")
def test_many_clients_are_spread_over_all(cluster: Cluster, family: Family) -> None:
    target = asking(cluster, "by-address", FOUR, {ALGORITHM: "source-hash"}).at(NODE_PORT, family)
    with crowd(cluster, family) as callers:
        chosen = Counter(cluster.sticks(caller, target, 2) for caller in callers)
    # Of 60 each has 15, with a standard deviation of 3.4: it would take four of these to have fewer than 2.
    assert all(chosen[pod] >= 2 for pod in FOUR), chosen


def chosen_by_port(cluster: Cluster, target: Target, ports: Iterable[int]) -> dict[int, str]:
    """Connect from each of these ports; tell who answered."""
    found = {}
    for port in ports:
        with cluster.connect(OUTSIDE, target, port) as connection:
            found[port] = connection.answer.pod
    return found


@pytest.fixture
def roomy(cluster_with: ClusterWith) -> Iterator[Cluster]:
    """A cluster of its own for Maglev, whose tables are so large that every look at the kernel takes its time."""
    found = cluster_with([POD_CIDRS], "maglev")
    yield found
    found.put("table", [])


def table(cluster: Cluster, family: Family, pods: Sequence[str]) -> LabService:
    """Write a Service with Maglev that has no more frontends than it needs."""
    service, notes = cluster.named("table"), {ALGORITHM: "maglev"}
    made, *slices = service.objects(cluster.pods(*pods), [family], type="NodePort", externalIPs=None)
    made["metadata"]["annotations"] = notes
    del made["status"]
    cluster.put("table", [made, *slices])
    return service


@sentence("S155")
def test_two_nodes_choose_alike(roomy: Cluster, family: Family) -> None:
    ports = range(20000, 20060)
    here = table(roomy, family, FIVE)
    with roomy.beside("node-2") as other:
        there = table(other, family, FIVE)
        assert here.address(NODE_PORT, family) != there.address(NODE_PORT, family)
        mine = chosen_by_port(roomy, here.at(NODE_PORT, family), ports)
        assert set(mine.values()) == set(FIVE)
        assert chosen_by_port(other, there.at(NODE_PORT, family), ports) == mine
        other.put("table", [])


@sentence("S156")
def test_few_change_hands_when_an_endpoint_goes(roomy: Cluster, family: Family) -> None:
    ports = range(21000, 21000 + FLOWS)
    target = table(roomy, family, FIVE).vip(family)
    before = chosen_by_port(roomy, target, ports)
    table(roomy, family, FIVE[:-1])
    after = chosen_by_port(roomy, target, ports)
    assert FIVE[-1] not in after.values()
    lost = sum(pod == FIVE[-1] for pod in before.values())
    moved = sum(after[port] != pod for port, pod in before.items())
    # A fifth is 120, with a standard deviation of 9.8. One in a hundred more may move: 6, with one of 2.4.
    assert abs(lost - FLOWS / len(FIVE)) < 60, lost
    assert moved - lost <= FLOWS / 100 + 12, (moved, lost)


@sentence("S157")
@pytest.mark.parametrize("algorithm", ["random", "round-robin"])
def test_connections_are_dealt_by_weight(cluster: Cluster, family: Family, algorithm: str) -> None:
    notes = weights(cluster, {"pod-1a": 3}) | {ALGORITHM: algorithm}
    target = asking(cluster, f"weighed-{algorithm}", ("pod-1a", "pod-2a"), notes).vip(family)
    if algorithm == "round-robin":
        dealt = in_turn(cluster, OUTSIDE, target, 12)
        assert Counter(dealt[:4]) == {"pod-1a": 3, "pod-2a": 1}
        assert repeats(dealt, 4), dealt
    else:
        shares = count_pods(cluster.probe(OUTSIDE, target, 400))
        # 300, with a standard deviation of 8.7: seven of these are allowed.
        assert set(shares) == {"pod-1a", "pod-2a"}
        assert abs(shares["pod-1a"] - 300) < 61, shares


@sentence("S158")
@pytest.mark.parametrize("algorithm", ["random", "round-robin", "source-hash"])
def test_weight_0_drains(cluster: Cluster, family: Family, algorithm: str) -> None:
    name, notes = f"drained-{algorithm}-{family.value}".lower(), {ALGORITHM: algorithm}
    both = ("pod-1a", "pod-2a")
    service = asking(cluster, name, both[:1], notes)
    with ExitStack() as stack:
        open_ = [
            stack.enter_context(cluster.connect(caller, service.at(kind, family)))
            for caller in (POD, NODE, OUTSIDE)
            for kind in FrontendKind
        ]
        asking(cluster, name, both, notes | weights(cluster, {"pod-1a": 0}))
        for kind in FrontendKind:
            for caller in (POD, NODE, OUTSIDE):
                cluster.answered(caller, service.at(kind, family), ["pod-2a"])
        for connection in open_:
            assert connection.exchange(b"still there?\n") == b"still there?\n"
    asking(cluster, name, both, notes | weights(cluster, {"pod-1a": 0, "pod-2a": 0}))
    cluster.refused(OUTSIDE, service.vip(family))


@sentence("S159")
@pytest.mark.parametrize("kind", list(FrontendKind), ids=lambda kind: kind.value)
def test_a_client_is_remembered_at_all_ports(cluster: Cluster, family: Family, kind: FrontendKind) -> None:
    ports = [Port(8000 + number, 80, name=f"p{number}") for number in range(8)]
    service = asking(cluster, "shared", FIVE, {SCOPE: "service"}, ports, sessionAffinity="ClientIP")
    for caller in (OUTSIDE, BLOCKED, POD):
        chosen = {cluster.sticks(caller, service.at(kind, family, index), 3) for index in range(len(ports))}
        assert len(chosen) == 1, chosen


@sentence("S160")
@pytest.mark.parametrize("protocol", [Protocol.TCP, Protocol.UDP], ids=lambda protocol: protocol.label)
def test_node_ports_may_be_for_some_sources_only(cluster: Cluster, family: Family, protocol: Protocol) -> None:
    notes, ports = {SOURCES: "203.0.113.0/26, 2001:db8:113::/121"}, [Port(80, protocol=protocol)]
    pods = ("pod-1a", "pod-2a")
    service = asking(cluster, f"some-sources-{protocol.label}", pods, notes, ports)
    cluster.answered(OUTSIDE, service.at(NODE_PORT, family), pods, masqueraded=True)
    for caller in (BLOCKED, POD, NODE):
        cluster.dropped(caller, service.at(NODE_PORT, family))
        for kind in (CLUSTER_IP, EXTERNAL_IP, LOAD_BALANCER):
            cluster.answered(caller, service.at(kind, family), pods)


@sentence("S161")
@pytest.mark.parametrize(
    ("key", "value"),
    [
        (ALGORITHM, "fastest"),
        (WEIGHTS, '{"10.244.1.11": 101}'),
        (WEIGHTS, "three"),
        (SCOPE, "cluster"),
        (SOURCES, "203.0.113.0/33"),
    ],
)
def test_bad_values_are_reported_and_count_as_absent(cluster: Cluster, family: Family, key: str, value: str) -> None:
    since, name = len(cluster.proxy.log), f"badly-{len(value)}-{family.value}".lower()
    service = asking(cluster, name, FOUR, {key: value})
    cluster.proxy.said(since, f"default/{name}", key)
    for kind in FrontendKind:
        cluster.answered(OUTSIDE, service.at(kind, family), FOUR)
