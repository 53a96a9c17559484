"""What becomes of a packet: the matrix that kube-proxy tests masquerading with, for both families, and the rest."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from tests.fakes.values import ELSEWHERE, HERE, cidr, endpoint, ip, ips, named, node_plan, port, service, slice_of

from vipwire.model.endpoint import EndpointSlice
from vipwire.model.net import Address, Family, Protocol
from vipwire.model.service import Service, TrafficPolicy
from vipwire.plan.frontends import plan_service
from vipwire.plan.node import NodePlan, PodBridge, PodInterfaces
from vipwire.plan.resolve import Answered, Dropped, Outcome, Packet, Plan, Rejected, Untouched, resolve

LOCAL = TrafficPolicy.LOCAL


class Addresses(NamedTuple):
    """Every address of the matrix, in one family."""

    family: Family
    pod: str
    node: str
    second: str
    outside: str
    loopback: str
    here: str
    elsewhere: str
    prefix: str

    def cluster_ip(self, number: int) -> str:
        return f"{self.prefix}96{self.separator}{number}"

    def balancer(self, number: int) -> str:
        return f"{self.prefix}77{self.separator}{number}"

    @property
    def separator(self) -> str:
        return ".0." if self.family is Family.IPV4 else "::"


FOUR = Addresses(
    Family.IPV4,
    "10.1.0.9",
    "192.168.0.2",
    "192.168.1.2",
    "203.0.113.2",
    "127.0.0.1",
    "10.1.0.1",
    "10.2.0.1",
    "172.",
)
SIX = Addresses(
    Family.IPV6,
    "fd00:10::9",
    "2001:db8::1",
    "2001:db8::2",
    "2001:db8:f::2",
    "::1",
    "fd00:10::1",
    "fd00:10::2",
    "fd00:",
)
both_families = pytest.mark.parametrize("at", [FOUR, SIX], ids=["IPv4", "IPv6"])


def planned(services: Sequence[Service], slices: Sequence[EndpointSlice], node: NodePlan) -> Plan:
    plans = [
        plan_service(node, subject, [piece for piece in slices if piece.service == subject.name])
        for subject in services
    ]
    return Plan(node, {plan.name: plan for plan in plans})


def matrix(at: Addresses, **settings: Any) -> Plan:
    """Plan the three Services of the matrix, each with an endpoint here and one elsewhere."""
    policies: list[dict[str, Any]] = [{}, {"external_policy": LOCAL}, {"internal_policy": LOCAL}]
    services = [
        service(
            f"svc{number}",
            at.cluster_ip(number),
            port(80, node_port=3000 + number),
            load_balancer_ips=ips(at.balancer(number)),
            **fields,
        )
        for number, fields in enumerate(policies, 1)
    ]
    slices = [
        slice_of(
            f"svc{number}",
            endpoint(at.here, HERE),
            endpoint(at.elsewhere, ELSEWHERE),
            family=at.family,
        )
        for number in (1, 2, 3)
    ]
    return planned(services, slices, node_plan(at.family, **settings))


def sent(at: Addresses, client: str, destination: str, number: int) -> Packet:
    source = {"pod": at.pod, "node": at.node, "outside": at.outside}[client]
    interface = {"pod": "veth1", "node": "", "outside": "eth0"}[client]
    return Packet(
        ip(source),
        ip(destination),
        Protocol.TCP,
        number,
        interface,
        from_node=client == "node",
        to_node=destination in (at.node, at.second),
    )


def told(at: Addresses, outcome: Outcome) -> str:
    """Put an outcome into two words: who answers, and whether the client's address is replaced."""
    if not isinstance(outcome, Answered):
        return type(outcome).__name__.lower()
    pool = {target.address for target in outcome.pool}
    who = {frozenset(ips(at.here)): "local", frozenset(ips(at.here, at.elsewhere)): "both"}[frozenset(pool)]
    assert outcome.masqueraded in (frozenset(), frozenset(pool))
    return f"{who} {'masq' if outcome.masqueraded else 'plain'}"


# Columns: client pod, node, outside. Rows: the Service's number and how it is reached.
BASE = {
    (1, "cluster ip"): ["both plain", "both masq", "both masq"],
    (1, "node port"): ["both masq", "both masq", "both masq"],
    (1, "balancer"): ["both masq", "both masq", "both masq"],
    (2, "cluster ip"): ["both plain", "both masq", "both masq"],
    (2, "node port"): ["both plain", "both masq", "local plain"],
    (2, "balancer"): ["both plain", "both masq", "local plain"],
    (3, "cluster ip"): ["local plain", "local masq", "local masq"],
    (3, "node port"): ["both masq", "both masq", "both masq"],
    (3, "balancer"): ["both masq", "both masq", "both masq"],
}
NO_DETECTOR = {
    (1, "cluster ip"): ["both plain", "both plain", "both plain"],
    (2, "cluster ip"): ["both plain", "both plain", "both plain"],
    (2, "node port"): ["local plain", "both masq", "local plain"],
    (2, "balancer"): ["local plain", "both masq", "local plain"],
    (3, "cluster ip"): ["local plain", "local plain", "local plain"],
}
MASQUERADE_ALL = {
    (1, "cluster ip"): ["both masq", "both masq", "both masq"],
    (2, "cluster ip"): ["both masq", "both masq", "both masq"],
    (3, "cluster ip"): ["local masq", "local masq", "local masq"],
}


@both_families
@pytest.mark.parametrize(
    ("settings", "changes"),
    [
        ({}, {}),
        ({"pod_traffic": None}, NO_DETECTOR),
        ({"masquerade_all": True}, MASQUERADE_ALL),
        ({"pod_traffic": None, "masquerade_all": True}, NO_DETECTOR | MASQUERADE_ALL),
        ({"pod_traffic": PodBridge("veth1")}, {}),
        ({"pod_traffic": PodInterfaces("veth")}, {}),
    ],
    ids=["base", "no detector", "masquerade all", "neither", "bridge", "interface prefix"],
)
def test_the_masquerade_matrix(
    at: Addresses, settings: dict[str, Any], changes: dict[tuple[int, str], list[str]]
) -> None:
    plan = matrix(at, **settings)
    found = {}
    for number, way in BASE:
        where = {"cluster ip": at.cluster_ip(number), "node port": at.node, "balancer": at.balancer(number)}[way]
        to = 3000 + number if way == "node port" else 80
        found[number, way] = [
            told(at, resolve(plan, sent(at, client, where, to))) for client in ("pod", "node", "outside")
        ]
    assert found == BASE | changes


@both_families
def test_loopback_serves_no_node_ports_and_a_second_address_only_where_it_is_allowed(at: Addresses) -> None:
    everywhere, primary = matrix(at), matrix(at, node_port_addresses=(cidr(f"{at.node}/{at.family.bits}"),))
    second = sent(at, "outside", at.second, 3001)
    loopback = Packet(
        ip(at.loopback), ip(at.loopback), Protocol.TCP, 3001, interface="lo", from_node=True, to_node=True
    )
    assert isinstance(resolve(everywhere, second), Answered)
    assert resolve(everywhere, loopback) == Untouched()
    assert resolve(primary, second) == Untouched()
    assert isinstance(resolve(primary, sent(at, "outside", at.node, 3001)), Answered)


@both_families
def test_a_node_port_is_none_on_addresses_of_others(at: Addresses) -> None:
    assert resolve(matrix(at), sent(at, "pod", at.outside, 3001)) == Untouched()


@both_families
def test_a_cluster_ip_without_the_port_is_rejected_and_one_of_nobody_dropped(at: Addresses) -> None:
    prefix = "172.96.0.0/16" if at.family is Family.IPV4 else "fd00:96::/64"
    plan = matrix(at, service_cidrs=(cidr(prefix),))
    assert resolve(plan, sent(at, "pod", at.cluster_ip(1), 81)) == Rejected("the ClusterIP has no such port")
    assert resolve(plan, sent(at, "pod", at.cluster_ip(1), 80)._replace(protocol=Protocol.UDP)) == Rejected(
        "the ClusterIP has no such port"
    )
    assert resolve(plan, sent(at, "pod", at.cluster_ip(50), 80)) == Dropped("no Service has this ClusterIP")
    assert resolve(matrix(at), sent(at, "pod", at.cluster_ip(50), 80)) == Untouched()


@both_families
def test_a_pod_that_reaches_itself_is_masqueraded_there_only(at: Addresses) -> None:
    plan = matrix(at)
    outcome = resolve(plan, sent(at._replace(pod=at.here), "pod", at.cluster_ip(1), 80))
    assert isinstance(outcome, Answered)
    assert outcome.masqueraded == {ip(at.here)}
    elsewhere = resolve(plan, sent(at._replace(pod=at.elsewhere), "pod", at.cluster_ip(1), 80))
    assert isinstance(elsewhere, Answered)
    assert elsewhere.masqueraded == {ip(at.elsewhere)}, "whatever node its endpoint names"


@both_families
def test_an_external_client_that_is_its_own_local_endpoint_is_masqueraded_despite_a_local_policy(
    at: Addresses,
) -> None:
    plan = matrix(at, pod_traffic=None)
    outcome = resolve(plan, sent(at._replace(outside=at.here), "outside", at.balancer(2), 80))
    assert isinstance(outcome, Answered)
    assert outcome.masqueraded == {ip(at.here)}


RANGED = service(
    "web",
    "10.96.0.1",
    port(80, node_port=30080),
    load_balancer_ips=ips("1.2.3.4"),
    external_ips=ips("5.6.7.8"),
    source_ranges=(cidr("192.168.0.0/24"), cidr("203.0.113.0/25")),
)
ONE = [slice_of("web", endpoint("10.2.0.1"))]


def from_to(source: str, destination: str, number: int = 80) -> Packet:
    return Packet(ip(source), ip(destination), Protocol.TCP, number, "eth0", to_node=destination == "192.168.0.2")


@pytest.mark.parametrize(
    ("source", "destination", "number", "let_in"),
    [
        ("203.0.113.2", "1.2.3.4", 80, True),
        ("203.0.113.130", "1.2.3.4", 80, False),
        ("10.1.0.1", "1.2.3.4", 80, False),
        ("192.168.0.2", "1.2.3.4", 80, True),
        ("1.2.3.4", "1.2.3.4", 80, True),
        ("203.0.113.130", "192.168.0.2", 30080, True),
        ("203.0.113.130", "5.6.7.8", 80, True),
        ("203.0.113.130", "10.96.0.1", 80, True),
    ],
)
def test_source_ranges_guard_the_load_balancer_ip_and_nothing_else(
    source: str, destination: str, number: int, *, let_in: bool
) -> None:
    outcome = resolve(planned([RANGED], ONE, node_plan()), from_to(source, destination, number))
    assert isinstance(outcome, Answered if let_in else Dropped)
    if isinstance(outcome, Dropped):
        assert outcome.why == "the source is not in loadBalancerSourceRanges"


def test_source_ranges_are_asked_before_it_is_told_that_nobody_answers() -> None:
    plan = planned([RANGED], [], node_plan())
    assert isinstance(resolve(plan, from_to("203.0.113.130", "1.2.3.4")), Dropped)
    assert isinstance(resolve(plan, from_to("203.0.113.2", "1.2.3.4")), Rejected)


def test_a_refusal_names_the_service_port_and_the_reason() -> None:
    plan = planned([RANGED], [], node_plan())
    local = service("web", "10.96.0.1", internal_policy=LOCAL)
    rejected, dropped = (
        resolve(item, from_to("10.1.0.1", "10.96.0.1")) for item in (plan, planned([local], ONE, node_plan()))
    )
    assert isinstance(rejected, Rejected)
    assert rejected.why == "default/web has no endpoints"
    assert isinstance(dropped, Dropped)
    assert dropped.why == "default/web has no local endpoints"


@pytest.mark.parametrize(
    ("external", "by_port", "answering"),
    [(True, True, "external"), (False, True, "by-port"), (True, False, "external"), (False, False, None)],
)
def test_an_external_ip_of_the_node_goes_before_its_node_ports_unless_nobody_answers_there(
    *, external: bool, by_port: bool, answering: str | None
) -> None:
    services = [
        service("external", "10.96.0.1", port(30080), external_ips=ips("192.168.0.2")),
        service("by-port", "10.96.0.2", port(80, node_port=30080)),
    ]
    slices = [
        slice_of(name, endpoint("10.2.0.1"))
        for name, there in (("external", external), ("by-port", by_port))
        if there
    ]
    outcome = resolve(planned(services, slices, node_plan()), from_to("203.0.113.2", "192.168.0.2", 30080))
    if answering is None:
        assert isinstance(outcome, Rejected)
        assert outcome.why == "default/external has no endpoints"
    else:
        assert isinstance(outcome, Answered)
        assert outcome.frontend.port_name.service == named(answering)


def test_a_plan_without_services_touches_nothing() -> None:
    packet = Packet(Address(bytes(4)), Address(b"\xff" * 4), Protocol.SCTP, 65535)
    assert resolve(Plan(node_plan(), {}), packet) == Untouched()


@both_families
def test_what_comes_from_outside_and_ends_on_the_node_itself_is_not_masqueraded(at: Addresses) -> None:
    plan = planned(
        [service("web", at.cluster_ip(1), port(80, node_port=30080))],
        [slice_of("web", endpoint(at.node, HERE), endpoint(at.elsewhere), family=at.family)],
        node_plan(at.family),
    )
    arriving = resolve(plan, sent(at, "outside", at.node, 30080))
    starting = resolve(plan, sent(at, "node", at.cluster_ip(1), 80))
    assert isinstance(arriving, Answered)
    assert isinstance(starting, Answered)
    assert arriving.masqueraded == {ip(at.elsewhere)}
    assert starting.masqueraded == {ip(at.node), ip(at.elsewhere)}
