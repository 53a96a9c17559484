"""Who shares what is remembered of a client, and who may go by it."""

import pytest
from tests.fakes.values import ELSEWHERE, HERE, endpoint, ip, ips, node_plan, port, service, slice_of

from vipwire.model.names import ServicePortName
from vipwire.model.net import Address, Protocol
from vipwire.model.service import Service, TrafficPolicy
from vipwire.plan.affinity import Memory
from vipwire.plan.frontends import plan_service
from vipwire.plan.plan import Target
from vipwire.plan.resolve import Answered, Packet, Plan, resolve

WEB = service("web", "10.96.0.1", port(80, node_port=30080), external_ips=ips("198.51.100.1"), affinity_seconds=60)
NEAR, FAR = Target(ip("10.1.0.1"), 8080, local=True), Target(ip("10.2.0.1"), 8080, local=False)
PLACES = ((ip("10.96.0.1"), 80), (ip("198.51.100.1"), 80), (ip("192.168.0.2"), 30080))


def whither(subject: Service, place: tuple[Address, int], remembered: dict[Memory, Target]) -> set[Target]:
    pods = slice_of("web", endpoint("10.1.0.1", HERE), endpoint("10.2.0.1", ELSEWHERE))
    plan = Plan(node_plan(), {subject.name: plan_service(node_plan(), subject, [pods])})
    packet = Packet(ip("203.0.113.1"), place[0], Protocol.TCP, place[1], "eth0", to_node=place[1] == 30080)
    found = resolve(plan, packet, remembered)
    assert isinstance(found, Answered)
    return set(found.pool)


def memory(policy: TrafficPolicy = TrafficPolicy.CLUSTER) -> Memory:
    return Memory(ServicePortName(WEB.name, "", Protocol.TCP), policy)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("target", [NEAR, FAR])
def test_all_frontends_go_by_one_memory(place: tuple[Address, int], target: Target) -> None:
    assert whither(WEB, place, {}) == {NEAR, FAR}
    assert whither(WEB, place, {memory(): target}) == {target}
    assert whither(WEB, place, {Memory(WEB.name, TrafficPolicy.CLUSTER): target}) == {NEAR, FAR}, "not the Service's"


@pytest.mark.parametrize("place", PLACES[1:])
def test_a_local_policy_goes_by_it_only_where_it_may_and_by_its_own_first(place: tuple[Address, int]) -> None:
    local = service(
        "web",
        "10.96.0.1",
        port(80, node_port=30080),
        external_ips=ips("198.51.100.1"),
        affinity_seconds=60,
        external_policy=TrafficPolicy.LOCAL,
    )
    assert whither(local, place, {memory(): FAR}) == {NEAR}
    both = {memory(): FAR, memory(TrafficPolicy.LOCAL): NEAR}
    assert whither(local, PLACES[0], both) == {FAR}, "the ClusterIP keeps what it had"
    assert whither(local, PLACES[0], {memory(TrafficPolicy.LOCAL): NEAR}) == {NEAR}


def test_with_the_scope_of_a_service_a_pod_counts_whichever_its_port() -> None:
    whole = service(
        "web",
        "10.96.0.1",
        port(80, node_port=30080),
        affinity_seconds=60,
        annotations=(("vipwire.io/affinity-scope", "service"),),
    )
    at_another_port = FAR._replace(port=9999)
    assert whither(whole, PLACES[0], {Memory(WEB.name, TrafficPolicy.CLUSTER): at_another_port}) == {FAR}
    assert whither(WEB, PLACES[0], {memory(): at_another_port}) == {NEAR, FAR}


def test_without_affinity_nobody_is_remembered() -> None:
    plain = service("web", "10.96.0.1", port(80, node_port=30080))
    assert whither(plain, PLACES[0], {memory(): FAR}) == {NEAR, FAR}
