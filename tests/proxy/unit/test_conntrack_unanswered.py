"""Flows that wait for an ejected endpoint: exactly these go, and only where a Service wants ejection."""

import pytest
from tests.fakes.values import endpoint, ip, named, node_plan, port, service, slice_of

from vipwire.linux.conntrack.stale import Unanswered, find_unanswered
from vipwire.linux.netlink.conntrack import STATUS_SEEN_REPLY, Flow
from vipwire.model.net import Family, Protocol
from vipwire.plan.ejection import EndpointKey, Tally
from vipwire.plan.planner import PlanChange, Planner

CLIENT, VIP, SILENT, GOOD = ip("10.0.0.1"), ip("10.96.0.1"), ip("10.0.0.7"), ip("10.0.0.8")
FLOW = Flow(6, CLIENT, 4000, VIP, 80, SILENT, 8080, CLIENT, 4000)
JUDGE = Unanswered(frozenset({(6, SILENT, 8080)}))
EJECTING = (("vipwire.io/eject-after", "3"),)


@pytest.mark.parametrize(
    ("flow", "goes"),
    [
        (FLOW, True),
        (FLOW._replace(status=STATUS_SEEN_REPLY), False),
        (FLOW._replace(reply_source=GOOD), False),
        (FLOW._replace(reply_source_port=8081), False),
        (FLOW._replace(protocol=17), False),
        (FLOW._replace(zone=5), False),
        (FLOW._replace(destination=SILENT, destination_port=8080), False),
    ],
    ids=["waits", "answered", "another's", "another port's", "another protocol's", "in a zone", "past the Service"],
)
def test_which_flows_go(flow: Flow, *, goes: bool) -> None:
    assert JUDGE(flow) is goes


def test_where_they_are_looked_for() -> None:
    both = Unanswered(frozenset({(17, ip("fd00::1"), 53), (6, SILENT, 8080)}), frozenset({53}))
    assert both.list_families() == (Family.IPV4, Family.IPV6)
    assert both.list_protocols() == (Protocol.TCP, Protocol.UDP)
    assert both.list_ports() == frozenset({53})


def change(annotations: tuple[tuple[str, str], ...] = EJECTING) -> PlanChange:
    """Plan a Service of which an endpoint falls silent, or goes where nobody ejects."""
    asked = service("web", "10.96.0.1", port(80, node_port=30080), annotations=annotations)
    pods = [endpoint("10.0.0.7"), endpoint("10.0.0.8")]
    planner, view = Planner(node_plan(port_ranges=True)), (lambda name: (asked, (slice_of(name.name, *pods),)))
    (first,) = planner.update([named("web")], view).values()
    planner.ejections.take_tallies({EndpointKey(Protocol.TCP, SILENT, 8080): Tally(failures=3)}, 1.0)
    if not annotations:
        del pods[0]
    (second,) = planner.update([named("web")], view, 1.0).values()
    return PlanChange(first.new, second.new)


def test_what_an_ejection_leaves_out_of_the_pools_is_waited_for_in_vain() -> None:
    ejected = change()
    assert find_unanswered([ejected]) == Unanswered(frozenset({(6, SILENT, 8080)}), frozenset({80, 30080}))
    assert not find_unanswered([PlanChange(ejected.new, ejected.old)]).endpoints
    assert not find_unanswered([PlanChange(None, ejected.new), PlanChange(ejected.old, None)]).endpoints


def test_with_a_range_of_ports_every_flow_is_looked_at() -> None:
    waiting = find_unanswered([change((*EJECTING, ("vipwire.io/port-range", "70-90")))])
    assert (waiting.endpoints, waiting.list_ports()) == (frozenset({(6, SILENT, 8080)}), None)


def test_where_nobody_ejects_nothing_is_deleted() -> None:
    assert not find_unanswered([change(())]).endpoints
