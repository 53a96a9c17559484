"""Session affinity: who stays where, how long, and what it outlives."""

import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.fakes.waiting import until
from tests.proxy.conformance.cluster import Cluster
from tests.proxy.conformance.packets import BLOCKED, NODE, OTHER_POD, OUTSIDE, POD, Caller
from tests.proxy.conformance.sentences import sentence
from tests.proxy.conformance.services import FRONTENDS, LabService

from vipwire.model.net import Family, Protocol
from vipwire.plan.plan import FrontendKind
from vipwire_lab.cluster.manifests import Backend, Port

pytestmark = pytest.mark.conformance

PODS = ("pod-1a", "pod-1b", "pod-1c", "pod-2a", "pod-2b")
MANY = tuple(Port(8000 + number, 80, name=f"p{number}") for number in range(12))
"""So many that no client is sent to one endpoint at all of them by chance (five to the power of minus 11)."""


def sticky(
    cluster: Cluster,
    name: str,
    pods: Sequence[str] = PODS,
    ports: Sequence[Port] = (Port(80),),
    seconds: int = 600,
    **spec: str,
) -> LabService:
    config = {"clientIP": {"timeoutSeconds": seconds}}
    hosts = cluster.pods(*pods)
    return cluster.service(name, hosts, ports, sessionAffinity="ClientIP", sessionAffinityConfig=config, **spec)


@sentence("S72")
@FRONTENDS
@pytest.mark.parametrize("caller", [POD, NODE, OUTSIDE], ids=str)
def test_a_client_stays_with_its_endpoint(
    cluster: Cluster, family: Family, kind: FrontendKind, caller: Caller
) -> None:
    cluster.sticks(caller, sticky(cluster, "sticky").at(kind, family))


@sentence("S74")
@pytest.mark.parametrize("protocol", list(Protocol), ids=lambda protocol: protocol.label)
def test_every_protocol_can_stay(cluster: Cluster, family: Family, protocol: Protocol) -> None:
    service = sticky(cluster, f"sticky-{protocol.label}", ports=[Port(80, protocol=protocol)])
    for caller in (POD, OUTSIDE):
        cluster.sticks(caller, service.vip(family))


@sentence("S72")
def test_a_local_policy_keeps_each_client_where_it_may_go(cluster: Cluster, family: Family) -> None:
    service = sticky(cluster, "sticky-local", externalTrafficPolicy="Local")
    for kind in (FrontendKind.LOAD_BALANCER, FrontendKind.NODE_PORT):
        assert cluster.sticks(OUTSIDE, service.at(kind, family)) in PODS[:3]
        cluster.sticks(POD, service.at(kind, family))


# Where endpoints are dealt in turn, whoever comes first to a port gets the first one. So the callers, or another one
# before them, come in another order at each port.


@sentence("S72")
def test_clients_and_ports_are_kept_apart(cluster: Cluster, family: Family) -> None:
    service = sticky(cluster, "sticky-ports", ports=MANY)
    where: dict[Caller, list[str]] = {caller: [] for caller in (OUTSIDE, BLOCKED, POD, OTHER_POD)}
    for index in range(len(MANY)):
        for caller in rotated(tuple(where), index):
            where[caller].append(cluster.sticks(caller, service.vip(family, index), 4))
    assert all(len(set(pods)) > 1 for pods in where.values()), "one endpoint for all ports"
    assert len(set(map(tuple, where.values()))) == len(where), "one endpoint for two clients, at every port"


def rotated(callers: tuple[Caller, ...], by: int) -> tuple[Caller, ...]:
    by %= len(callers)
    return callers[by:] + callers[:by]


@sentence("S73")
@pytest.mark.parametrize("protocol", [Protocol.TCP, Protocol.UDP], ids=lambda protocol: protocol.label)
def test_frontends_share_what_is_remembered(cluster: Cluster, family: Family, protocol: Protocol) -> None:
    """Whichever a client comes to first: it finds the same endpoint at all of them."""
    ports = [replace(each, protocol=protocol) for each in MANY[:4]]
    service = sticky(cluster, f"sharing-{family.value}-{protocol.label}".lower(), ports=ports)
    for index, first in enumerate(FrontendKind):
        for caller in (OUTSIDE, POD):
            pod = cluster.sticks(caller, service.at(first, family, index), 2)
            for kind in FrontendKind:
                assert cluster.sticks(caller, service.at(kind, family, index), 2) == pod, kind


@sentence("S73")
def test_a_local_policy_goes_by_what_is_remembered_only_where_it_may(cluster: Cluster, family: Family) -> None:
    """Of twelve ports chance takes an endpoint of another node at some, and one of this node at others."""
    name = f"sharing-local-{family.value}".lower()
    service = sticky(cluster, name, ports=MANY, externalTrafficPolicy="Local")
    outside = (FrontendKind.LOAD_BALANCER, FrontendKind.NODE_PORT)
    seen: set[bool] = set()
    for index in range(len(MANY)):
        for _ in range(index % len(PODS)):  # where endpoints are dealt in turn, another one is the next
            cluster.probe(OTHER_POD, service.vip(family, index))
        pod = cluster.sticks(OUTSIDE, service.vip(family, index), 2)
        there = {cluster.sticks(OUTSIDE, service.at(kind, family, index), 2) for kind in outside}
        assert len(there) == 1
        assert there <= set(PODS[:3])
        assert there == {pod} or pod not in PODS[:3]
        # iptables, ours and kube-proxy's, asks the endpoints in their order: the client may be in two lists now.
        assert cluster.sticks(OUTSIDE, service.vip(family, index), 2) in {pod, *there}
        seen.add(pod in PODS[:3])
    assert seen == {True, False}


@sentence("S75")
def test_who_stays_away_is_forgotten(cluster: Cluster, family: Family) -> None:
    service = sticky(cluster, f"forgetful-{family.value.lower()}", ports=MANY, seconds=1)
    before = visit(cluster, service, family)
    away = time.monotonic() + 1.3
    until(lambda: time.monotonic() > away, "time passes")
    assert visit(cluster, service, family) != before, "at twelve ports the same endpoints by chance?"


@sentence("S76")
def test_each_connection_starts_the_time_anew(cluster: Cluster, family: Family) -> None:
    service = sticky(cluster, f"renewed-{family.value.lower()}", ports=MANY[:5], seconds=6)
    since = last = time.monotonic()
    before = visit(cluster, service, family)

    def stayed_so_long() -> bool:
        nonlocal before, since, last
        begun = time.monotonic()
        seen = visit(cluster, service, family)
        if time.monotonic() - last > 5:  # the machine stood still: they may have been forgotten
            before, since = seen, begun
        assert seen == before
        last = begun
        return begun - since > 7

    until(stayed_so_long, "time passes")


def visit(cluster: Cluster, service: LabService, family: Family) -> list[str]:
    """Connect once to each port; tell who answered."""
    return [cluster.sticks(OUTSIDE, service.vip(family, index), 1) for index in range(len(service.ports))]


@sentence("S77")
def test_clients_stay_while_other_endpoints_come_and_go(cluster: Cluster, family: Family) -> None:
    name = f"staying-{family.value.lower()}"
    service = sticky(cluster, name, PODS[:4])
    for kind in FrontendKind:
        pod = cluster.sticks(OUTSIDE, service.at(kind, family), 3)
        sticky(cluster, name, (pod, "pod-2b"))
        assert cluster.sticks(OUTSIDE, service.at(kind, family)) == pod
        sticky(cluster, name, PODS)
        assert cluster.sticks(OUTSIDE, service.at(kind, family)) == pod
        sticky(cluster, name, PODS[:4])


@sentence("S78")
def test_who_loses_its_endpoint_is_given_another(cluster: Cluster, family: Family) -> None:
    name = f"losing-{family.value.lower()}"
    service = sticky(cluster, name)
    for kind in FrontendKind:
        pod = cluster.sticks(OUTSIDE, service.at(kind, family), 3)
        rest = [each for each in PODS if each != pod]
        sticky(cluster, name, rest)
        other = cluster.sticks(OUTSIDE, service.at(kind, family))
        assert other in rest
        sticky(cluster, name)
        assert cluster.sticks(OUTSIDE, service.at(kind, family)) == other, "it does not go back"


@sentence("S78")
def test_who_is_with_an_endpoint_that_terminates_is_given_another(cluster: Cluster, family: Family) -> None:
    name = f"ending-{family.value.lower()}"
    service = sticky(cluster, name)
    pod = cluster.sticks(OUTSIDE, service.vip(family), 3)
    hosts = [
        Backend(each, ready=each.name != pod, serving=True, terminating=each.name == pod)
        for each in cluster.pods(*PODS)
    ]
    cluster.service(name, hosts, sessionAffinity="ClientIP")
    assert cluster.sticks(OUTSIDE, service.vip(family)) != pod


@sentence("S80")
def test_affinity_is_switched_on_and_off(cluster: Cluster, family: Family) -> None:
    name = f"switching-{family.value.lower()}"
    for _ in range(2):
        target = cluster.service(name, cluster.pods(*PODS)).vip(family)
        cluster.answered(OUTSIDE, target, PODS)
        target = sticky(cluster, name).vip(family)
        cluster.sticks(OUTSIDE, target)


@sentence("S79")
def test_a_restart_forgets_no_client(restless: Cluster, family: Family) -> None:
    service = sticky(restless, "sticky-ports", ports=MANY)
    callers = (OUTSIDE, BLOCKED, POD, NODE)

    def visits() -> list[str]:
        return [
            restless.sticks(caller, service.at(kind, family, index), 1)
            for caller in callers
            for kind in (FrontendKind.CLUSTER_IP, FrontendKind.NODE_PORT)
            for index in range(4)
        ]

    before = visits()
    restless.proxy.stop()
    assert visits() == before
    restless.proxy.start()
    assert visits() == before
