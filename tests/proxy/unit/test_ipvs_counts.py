"""What IPVS has counted, as counts of Services."""

from typing import Any

from tests.fakes.values import endpoint, ip, ips, node_plan, port, service, slice_of

from vipwire.linux.netlink.ipvs import Forwarding, Method, RealServerState, TrafficStats, VirtualServer
from vipwire.model.net import Address, Protocol
from vipwire.model.service import TrafficPolicy
from vipwire.modes.ipvs.counts import Origin, list_origins_by_server, service_counts
from vipwire.modes.ipvs.marks import Marks
from vipwire.plan.frontends import plan_service
from vipwire.plan.plan import FrontendKey, ServicePlan
from vipwire.reconcile.counts import EndpointName, Measure, Owner

NODE = ips("192.168.0.2", "192.168.1.2")
POD = ip("10.0.0.1")
EXTERNAL = ip("198.51.100.1")


def planned(**fields: Any) -> ServicePlan:
    of = service("web", "10.96.0.1", port(80, node_port=30080), external_ips=(EXTERNAL,), **fields)
    return plan_service(node_plan(addresses=NODE), of, [slice_of("web", endpoint("10.0.0.1", "node-1"))])


def marks_for(*keys: FrontendKey) -> Marks:
    marks = Marks(0x4000)
    for key in keys:
        marks.mark(key)
    return marks


def traffic(owner: Owner, *numbers: int) -> dict[Any, dict[Owner, int]]:
    """Count connections, packets, bytes and, if the answers pass this node, their packets and bytes."""
    return {measure: {owner: number} for measure, number in zip(Measure, numbers, strict=False)}


def connections(endpoint: EndpointName, active: int, inactive: int) -> dict[Any, dict[Owner, int]]:
    return {Measure.ACTIVE: {endpoint: active}, Measure.INACTIVE: {endpoint: inactive}}


NAME = planned().frontends[0].port_name
EXTERNAL_KEY = FrontendKey(EXTERNAL, Protocol.TCP, 80)


def test_the_second_pool_counts_too() -> None:
    marks = marks_for(EXTERNAL_KEY)
    named = list_origins_by_server([planned(external_policy=TrafficPolicy.LOCAL)], marks)
    for mark in (marks.mark(EXTERNAL_KEY), marks.mark(EXTERNAL_KEY) | 0x4000):
        assert named[VirtualServer(0, Address(b""), 0, mark)] == Origin(NAME, both_ways=True, port=80)


def test_what_returns_directly_is_not_known() -> None:
    marks = marks_for(EXTERNAL_KEY)
    named = list_origins_by_server([planned(annotations=(("vipwire.io/forwarding", "dsr"),))], marks)
    marked = VirtualServer(0, Address(b""), 0, marks.mark(EXTERNAL_KEY))
    assert named[marked] == Origin(NAME, both_ways=False, port=80)
    state = RealServerState(POD, 80, Forwarding(1, Method.ROUTE), 1, 0, TrafficStats(2, 20, 0, 200, 0))
    of_port = service_counts(named, {marked: TrafficStats(2, 20, 0, 200, 0)}, {})
    assert of_port == traffic(NAME, 2, 20, 200)
    endpoint_name = EndpointName(NAME, POD, 80)
    of_endpoint = service_counts(named, {}, {marked: [state]})
    assert of_endpoint == traffic(endpoint_name, 2, 20, 200) | connections(endpoint_name, 1, 0)
