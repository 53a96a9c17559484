from tests.fakes import values

from vipwire.linux.conntrack.stale import Staleness, UdpEndpoint, collect_udp_frontends
from vipwire.model.net import Family, Prefix, Protocol, parse_address
from vipwire.model.service import EndpointPort
from vipwire.plan.frontends import plan_service
from vipwire.plan.resolve import narrow_to_port


def endpoints(*pairs: tuple[str, int]) -> frozenset[UdpEndpoint]:
    return frozenset((parse_address(address), port) for address, port in pairs)


def test_only_the_families_and_ports_of_what_is_given_are_looked_at() -> None:
    vip4, vip6 = (parse_address("10.96.0.1"), 53), (parse_address("fd00::1"), 54)
    nodes = frozenset({parse_address("fd00::aa")})
    some = endpoints(("10.0.0.1", 53))
    assert Staleness({}, nodes).list_families() == ()
    assert Staleness({vip4: some}, nodes).list_families() == (Family.IPV4,)
    assert Staleness({vip4: some, vip6: some}).list_families() == (Family.IPV4, Family.IPV6)
    assert Staleness({(None, 30000): some}, nodes).list_families() == (Family.IPV6,)
    assert Staleness({}, service_cidrs=(Prefix.parse("10.96.0.0/12"),)).list_families() == (Family.IPV4,)
    assert Staleness({vip4: some, vip6: some}).list_ports() == frozenset({53, 54})
    assert Staleness({vip4: some}, service_cidrs=(Prefix.parse("10.96.0.0/12"),)).list_ports() is None


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
    expected = {(wide.frontend.key.address, number): narrow_to_port(wide, number).serving for number in range(50, 61)}
    expected |= {(each.key.address, each.key.port): each.serving for each in plan.frontends if each.key.port == 53}
    assert len(expected) == 11
    assert collect_udp_frontends([plan, None]) == expected
