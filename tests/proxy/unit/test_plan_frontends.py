"""What a Service's plan says: which frontends, which action, who is let in."""

from typing import Any

import pytest
from tests.fakes.values import (
    HERE,
    cidr,
    endpoint,
    ip,
    ips,
    key,
    node_plan,
    port,
    service,
    slice_of,
)

from vipwire.model.net import Protocol
from vipwire.model.service import EndpointPort, EndpointSlice, Service, TrafficPolicy
from vipwire.plan.frontends import plan_service
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import (
    Frontend,
    FrontendKind,
    HealthCheck,
)

LOCAL, CLUSTER = TrafficPolicy.LOCAL, TrafficPolicy.CLUSTER
CLUSTER_IP, EXTERNAL_IP = FrontendKind.CLUSTER_IP, FrontendKind.EXTERNAL_IP
LOAD_BALANCER, NODE_PORT = FrontendKind.LOAD_BALANCER, FrontendKind.NODE_PORT
BOTH = [slice_of("web", endpoint("10.1.0.1", HERE), endpoint("10.2.0.1"))]


def exposed(cluster_ip: str = "10.96.0.1", **fields: Any) -> Service:
    addresses = {"external_ips": ips("1.1.1.1"), "load_balancer_ips": ips("2.2.2.2")}
    return service("web", cluster_ip, port(node_port=30080), **{**addresses, **fields})


def by_kind(
    subject: Service, slices: list[EndpointSlice] | None = None, node: NodePlan | None = None
) -> dict[FrontendKind, Frontend]:
    plan = plan_service(node or node_plan(), subject, BOTH if slices is None else slices)
    return {frontend.kind: frontend for frontend in plan.frontends}


@pytest.mark.parametrize(
    ("ranges", "allowed"),
    [
        ((), None),
        (("203.0.113.0/24",), ["203.0.113.0/24"]),
        (("203.0.113.0/24", "203.0.113.0/24"), ["203.0.113.0/24"]),
        (("203.0.113.0/24", "203.0.113.64/26", "203.0.112.0/24"), ["203.0.112.0/24", "203.0.113.0/24"]),
        (("203.0.113.64/26", "203.0.112.0/23"), ["203.0.112.0/23"]),
        (("203.0.113.0/24", "0.0.0.0/0"), None),
        (("fd00::/8",), None),
        (("::/0", "203.0.113.0/24"), ["203.0.113.0/24"]),
        (("192.168.0.0/24",), ["2.2.2.2/32", "192.168.0.0/24"]),
        (("192.168.0.2/32", "2.2.2.0/24"), ["2.2.2.0/24", "192.168.0.2/32"]),
        (("192.168.1.0/24",), ["192.168.1.0/24"]),
    ],
)
def test_a_load_balancer_ip_lets_in_its_source_ranges(ranges: tuple[str, ...], allowed: list[str] | None) -> None:
    found = by_kind(exposed(source_ranges=tuple(map(cidr, ranges))))
    let_in = found[LOAD_BALANCER].allowed_sources
    assert (None if let_in is None else [str(prefix) for prefix in let_in]) == allowed
    assert {found[kind].allowed_sources for kind in (CLUSTER_IP, EXTERNAL_IP, NODE_PORT)} == {None}


def test_a_node_without_an_address_adds_no_source() -> None:
    found = by_kind(exposed(source_ranges=(cidr("192.168.0.0/24"),)), node=node_plan(address=None))
    assert found[LOAD_BALANCER].allowed_sources == (cidr("192.168.0.0/24"),)


def test_an_address_both_external_and_load_balancer_ip_is_guarded_where_there_are_ranges() -> None:
    twice: dict[str, Any] = {"external_ips": ips("2.2.2.2"), "load_balancer_ips": ips("2.2.2.2")}
    free = plan_service(node_plan(), exposed(**twice), BOTH)
    guarded = plan_service(node_plan(), exposed(**twice, source_ranges=(cidr("203.0.113.0/24"),)), BOTH)
    assert [f.kind for f in free.frontends if f.key == key("2.2.2.2")] == [EXTERNAL_IP]
    assert [f.allowed_sources for f in guarded.frontends if f.key == key("2.2.2.2")] == [(cidr("203.0.113.0/24"),)]


def test_a_cluster_ip_stays_one_whatever_else_names_it() -> None:
    subject = exposed(
        external_ips=ips("10.96.0.1"), load_balancer_ips=ips("10.96.0.1"), source_ranges=(cidr("203.0.113.0/24"),)
    )
    found = [f for f in plan_service(node_plan(), subject, BOTH).frontends if f.key == key("10.96.0.1")]
    assert [(f.kind, f.allowed_sources) for f in found] == [(CLUSTER_IP, None)]


def test_two_ports_with_one_node_port_leave_it_to_the_first() -> None:
    subject = service("web", "10.96.0.1", port(80, "a", node_port=30080), port(81, "b", node_port=30080))
    found = [f for f in plan_service(node_plan(), subject, []).frontends if f.kind is NODE_PORT]
    assert [f.port_name.port for f in found] == ["a"]


def test_udp_frontends_know_who_may_still_answer_old_flows() -> None:
    piece = slice_of(
        "dns",
        endpoint("10.1.0.1"),
        endpoint("10.1.0.2", ready=False),
        endpoint("10.1.0.3", ready=False, terminating=True),
        endpoint("10.1.0.4", ready=False, serving=False, terminating=True),
        ports=[EndpointPort("", Protocol.UDP, 53), EndpointPort("", Protocol.TCP, 53)],
    )
    subject = service("dns", "10.96.0.10", port(53, protocol=Protocol.UDP), port(53))
    found = {f.key.protocol: f.serving for f in plan_service(node_plan(), subject, [piece]).frontends}
    assert found[Protocol.UDP] == {(ip(f"10.1.0.{octet}"), 53) for octet in (1, 2, 3)}
    assert found[Protocol.TCP] == frozenset()


def test_the_health_check_counts_ready_addresses_here_over_all_ports() -> None:
    ports = [port(80, "a"), port(81, "b")]
    subject = service("web", "10.96.0.1", *ports, health_check_node_port=32000, external_policy=LOCAL)
    here = [endpoint(f"10.1.0.{octet}", HERE) for octet in (1, 2, 3)]
    pieces = [
        slice_of("web", here[0], here[1], name="a", ports=[EndpointPort("a", Protocol.TCP, 80)]),
        slice_of("web", here[1], here[2], name="b", ports=[EndpointPort("b", Protocol.TCP, 80)]),
        slice_of("web", endpoint("10.1.0.9"), name="c", ports=[EndpointPort("b", Protocol.TCP, 80)]),
    ]
    assert plan_service(node_plan(), subject, pieces).health_check == HealthCheck(32000, 3)
    assert plan_service(node_plan(), exposed(), BOTH).health_check is None
