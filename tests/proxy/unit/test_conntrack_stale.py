from collections.abc import Iterator
from typing import NamedTuple

import pytest
from tests.fakes import values

from vipwire.linux.conntrack.stale import Staleness, UdpEndpoint, UdpFrontends, udp_frontends
from vipwire.linux.netlink.conntrack import Flow
from vipwire.model.net import Family, Prefix, Protocol, parse_address
from vipwire.model.service import EndpointPort
from vipwire.plan.frontends import plan_service
from vipwire.plan.resolve import at_port

CLIENT = "10.240.7.7"
NODE = "192.168.0.10"
ELSEWHERE = "192.168.0.11"
CLUSTER_IP, LOAD_BALANCER_IP, EXTERNAL_IP = VIPS = ("172.30.1.1", "1.2.3.4", "192.168.99.100")
SERVING, NOT_SERVING, DELETED = ("10.240.0.4", "10.240.1.5", "10.240.2.6")
SERVICE_PORT, OTHER_PORT, NODE_PORT = 8000, 3000, 32000
ENDPOINT_PORT, OLD_ENDPOINT_PORT = 9090, 8080


def flow(destination: str, port: int, answers: str, answers_port: int, protocol: int = Protocol.UDP) -> Flow:
    client = parse_address(CLIENT)
    return Flow(
        protocol,
        client,
        40000,
        parse_address(destination),
        port,
        parse_address(answers),
        answers_port,
        client,
        40000,
    )


def endpoints(*pairs: tuple[str, int]) -> frozenset[UdpEndpoint]:
    return frozenset((parse_address(address), port) for address, port in pairs)


def frontends(serving: frozenset[UdpEndpoint]) -> UdpFrontends:
    return {**{(parse_address(vip), SERVICE_PORT): serving for vip in VIPS}, (None, NODE_PORT): serving}


NODE_ADDRESSES = frozenset({parse_address(NODE)})
NOW = Staleness(frontends(endpoints((SERVING, ENDPOINT_PORT))), NODE_ADDRESSES)


class Row(NamedTuple):
    name: str
    flow: Flow
    stale: bool


def rows() -> Iterator[Row]:
    """Yield the 72 flows of kube-proxy's own table: what it deletes of them, and what it leaves."""
    for vip in VIPS:
        moved = flow(vip, SERVICE_PORT, SERVING, OLD_ENDPOINT_PORT)
        yield Row(f"{vip}: the endpoint has another port now", moved, stale=True)
    for endpoint, serves in ((SERVING, True), (NOT_SERVING, False), (DELETED, False)):
        for protocol in Protocol:
            about = f"{protocol.label} by {endpoint}"
            for vip in VIPS:
                for port in (SERVICE_PORT, OTHER_PORT):
                    stale = protocol is Protocol.UDP and port == SERVICE_PORT and not serves
                    yield Row(f"{vip}:{port} {about}", flow(vip, port, endpoint, ENDPOINT_PORT, protocol), stale)
            at_node = flow(NODE, NODE_PORT, endpoint, ENDPOINT_PORT, protocol)
            yield Row(f"node port {about}", at_node, protocol is Protocol.UDP and not serves)
    for vip in VIPS:
        for port in (SERVICE_PORT, OTHER_PORT):
            yield Row(f"{vip}:{port} untranslated", flow(vip, port, vip, port), port == SERVICE_PORT)


TABLE = list(rows())


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_a_flow_is_stale_exactly_if_kube_proxy_deletes_it(row: Row) -> None:
    assert NOW(row.flow) is row.stale


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_without_any_endpoint_every_udp_flow_to_the_service_is_stale(row: Row) -> None:
    gone = Staleness(frontends(frozenset()), NODE_ADDRESSES)
    assert gone(row.flow) is (
        row.flow.protocol == Protocol.UDP and row.flow.destination_port in (SERVICE_PORT, NODE_PORT)
    )


def test_the_number_of_a_node_port_on_another_machine_is_none_of_ours() -> None:
    assert NOW(flow(NODE, NODE_PORT, DELETED, ENDPOINT_PORT))
    assert not NOW(flow(ELSEWHERE, NODE_PORT, DELETED, ENDPOINT_PORT))
    assert not NOW(flow(ELSEWHERE, NODE_PORT, ELSEWHERE, NODE_PORT))


def test_a_node_port_flow_from_before_there_was_a_rule_is_stale() -> None:
    assert NOW(flow(NODE, NODE_PORT, NODE, NODE_PORT))


def test_an_endpoint_in_the_host_network_may_have_the_frontends_own_address() -> None:
    host = Staleness({(None, NODE_PORT): endpoints((NODE, NODE_PORT))}, NODE_ADDRESSES)
    assert not host(flow(NODE, NODE_PORT, NODE, NODE_PORT))


def test_what_an_external_ip_and_a_node_port_share_may_go_to_the_endpoints_of_either() -> None:
    key = parse_address(NODE)
    both = Staleness(
        {(key, NODE_PORT): endpoints((SERVING, 1)), (None, NODE_PORT): endpoints((SERVING, 2))}, NODE_ADDRESSES
    )
    assert [both(flow(NODE, NODE_PORT, SERVING, port)) for port in (1, 2, 3)] == [False, False, True]


def test_a_flow_in_a_zone_belongs_to_somebody_else() -> None:
    assert not NOW(flow(CLUSTER_IP, SERVICE_PORT, CLUSTER_IP, SERVICE_PORT)._replace(zone=7))


def test_a_translated_flow_into_the_service_range_without_a_frontend_is_stale_only_if_the_range_is_given() -> None:
    orphan = flow("172.30.1.99", 53, DELETED, 53)
    at_start = Staleness(NOW.frontends, NODE_ADDRESSES, (Prefix.parse("fd00::/112"), Prefix.parse("172.30.0.0/16")))
    assert not NOW(orphan)
    assert at_start(orphan)
    assert not at_start(flow("172.30.1.99", 53, "172.30.1.99", 53))
    assert not at_start(flow("172.31.1.99", 53, DELETED, 53))
    assert not at_start(flow(CLUSTER_IP, SERVICE_PORT, SERVING, ENDPOINT_PORT))


def test_ipv6_is_judged_alike() -> None:
    vip, pod, gone = "fd00:10:96::a", "fd00::1", "fd00::2"
    now = Staleness({(parse_address(vip), 53): endpoints((pod, 53))})
    assert [now(flow(vip, 53, answers, 53)) for answers in (pod, gone, vip)] == [False, True, True]


def test_only_the_families_and_ports_of_what_is_given_are_looked_at() -> None:
    vip4, vip6 = (parse_address("10.96.0.1"), 53), (parse_address("fd00::1"), 54)
    nodes = frozenset({parse_address("fd00::aa")})
    some = endpoints(("10.0.0.1", 53))
    assert Staleness({}, nodes).families() == ()
    assert Staleness({vip4: some}, nodes).families() == (Family.IPV4,)
    assert Staleness({vip4: some, vip6: some}).families() == (Family.IPV4, Family.IPV6)
    assert Staleness({(None, 30000): some}, nodes).families() == (Family.IPV6,)
    assert Staleness({}, service_cidrs=(Prefix.parse("10.96.0.0/12"),)).families() == (Family.IPV4,)
    assert Staleness({vip4: some, vip6: some}).ports() == frozenset({53, 54})
    assert Staleness({vip4: some}, service_cidrs=(Prefix.parse("10.96.0.0/12"),)).ports() is None


def test_each_port_of_a_range_has_the_endpoints_that_packets_to_it_reach() -> None:
    ports = (values.port(53, "dns", protocol=Protocol.UDP), values.port(80, "web"))
    asked = values.service("dns", "10.96.0.1", *ports, annotations=(("vipwire.io/port-range", "dns=50-60"),))
    piece = values.slice_of(
        "dns", values.endpoint("10.1.0.1"), values.endpoint("10.1.0.2"), ports=[EndpointPort("dns", Protocol.UDP, 53)]
    )
    other = values.slice_of(
        "dns", values.endpoint("10.1.0.3"), name="b", ports=[EndpointPort("dns", Protocol.UDP, 5353)]
    )
    plan = plan_service(values.node_plan(port_ranges=True), asked, [piece, other])
    (wide,) = plan.ranges
    expected = {(wide.frontend.key.address, number): at_port(wide, number).serving for number in range(50, 61)}
    expected |= {(each.key.address, each.key.port): each.serving for each in plan.frontends if each.key.port == 53}
    assert len(expected) == 11
    assert udp_frontends([plan, None]) == expected
