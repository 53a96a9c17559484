"""Explaining ipvs mode without a kernel: rules as data, shares by scheduler, templates, commands, a packet's way."""

from typing import Any

import pytest
from tests.fakes.values import cidr, endpoint, ip, ips, node_plan, service, slice_of

from vipwire.linux.netlink.ipset import IpsetEntry
from vipwire.linux.netlink.ipvs import Forwarding, RealServer, Scheduling, ServiceFlag, VirtualServer
from vipwire.model.net import Address, Family, Protocol, format_endpoint
from vipwire.modes.ipvs.explain.explainer import IpvsExplainer, find_template
from vipwire.modes.ipvs.marks import Marks
from vipwire.modes.ipvs.objects.names import (
    Object,
    ObjectKey,
    SetEntry,
    Vip,
    set_name,
)
from vipwire.modes.ipvs.objects.names import Set as Which
from vipwire.modes.ipvs.render import render_service
from vipwire.modes.ipvs.skeleton import build_node_objects
from vipwire.modes.xtables.save import ChainName
from vipwire.plan.frontends import plan_service
from vipwire.plan.resolve import Packet
from vipwire.reconcile.explainer import BY_ADDRESS, BY_ADDRESS_AND_PORT, IN_TURN, Walk
from vipwire.reconcile.steps import End, ObjectState, Verdict

WEB = VirtualServer(6, ip("10.96.0.1"), 80)
MARKED = VirtualServer(0, Address(b""), 0, 7)
CLIENT = ip("203.0.113.9")
PODS = [RealServer(WEB, ip(f"10.0.0.{number}"), 8080) for number in (1, 2)]


def objects(**fields: Any) -> dict[ObjectKey, Object]:
    """Make all objects of a node with one Service of two endpoints."""
    node = node_plan(service_cidrs=(cidr("10.96.0.0/16"),))
    plan = plan_service(
        node, service(**fields), [slice_of("web", endpoint("10.0.0.1", "node-1"), endpoint("10.0.0.2"))]
    )
    rendered = render_service(Family.IPV4, "rr", Marks(node.masquerade_mark), plan)
    return {**build_node_objects(node), **rendered.own, **rendered.shared}


def walked(
    held: dict[ObjectKey, Object], wanted: dict[ObjectKey, Object], address: str = "10.96.0.1", port: int = 80
) -> Walk:
    packet = Packet(CLIENT, ip(address), Protocol.TCP, port, "eth0")
    return IpvsExplainer(Family.IPV4).walk(held, wanted, packet)


def test_templates() -> None:
    lines = [
        "Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData",
        "TCP CB007109 D431 0A600001 0050 0A000002 1F90 ESTABLISHED     899",
        "TCP CB007109 0000 0A600001 0051 0A000001 1F90 NONE             10",
        "TCP CB007109 0000 0A600001 0050 0A000002 1F90 NONE             97",
        "IP  CB007109 0000 00000007 0000 0A000001 0000 NONE             55",
    ]
    taking = {real.address: real.port for real in PODS}
    assert find_template(lines, WEB, CLIENT, taking) == (ip("10.0.0.2"), 8080, 97.0)
    assert find_template(lines, MARKED, CLIENT, taking) == (ip("10.0.0.1"), 8080, 55.0)
    assert find_template(lines, WEB, ip("203.0.113.8"), taking) is None
    assert find_template(lines, WEB, CLIENT, {}) is None, "a server that drains binds nobody"


def test_templates_of_ipv6() -> None:
    line = (
        "UDP 2001:0db8:0000:0000:0000:0000:0000:0009 0000 fd00:0096:0000:0000:0000:0000:0000:0001 0035 "
        "fd00:0010:0000:0000:0000:0000:0000:0001 0035 NONE 12"
    )
    server = VirtualServer(17, ip("fd00:96::1"), 53)
    found = find_template([line], server, ip("2001:db8::9"), {ip("fd00:10::1"): 53})
    assert found == (ip("fd00:10::1"), 53, 12.0)


@pytest.mark.parametrize(
    ("missing", "end", "said"),
    [
        (WEB, End.UNTOUCHED, "TCP 10.96.0.1:80"),
        (PODS[0], End.ANSWERED, "-> 10.0.0.1:8080"),
        (Vip(ip("10.96.0.1")), End.UNTOUCHED, "kube-ipvs0"),
        (
            SetEntry(set_name(Family.IPV4, Which.CLUSTER_IP), IpsetEntry(ip("10.96.0.1"), 6, 80)),
            End.REJECTED,
            "ipset KUBE-CLUSTER-IP",
        ),
        (ChainName("nat", "KUBE-SERVICES"), End.ANSWERED, "nat PREROUTING: KUBE-SERVICES"),
    ],
)
def test_what_is_missing_is_named(missing: ObjectKey, end: End, said: str) -> None:
    wanted = objects()
    held = {key: value for key, value in wanted.items() if key != missing}
    walk = walked(held, wanted)
    assert walk.end is end
    assert said in {step.place for step in walk.steps if step.state is ObjectState.MISSING}


def test_what_others_have_put_behind_a_service_is_named() -> None:
    wanted = objects()
    stranger = RealServer(WEB, ip("10.0.0.9"), 8080)
    walk = walked({**wanted, stranger: Forwarding(1)}, wanted)
    assert walk.shares is not None
    assert (stranger.address, 8080) in walk.shares
    assert [step.object for step in walk.steps if step.state is ObjectState.FOREIGN] == ["-> 10.0.0.9:8080"]


@pytest.mark.parametrize(
    ("scheduling", "said"),
    [
        (Scheduling("rr"), IN_TURN),
        (Scheduling("wlc"), "each new connection goes to the endpoint with the fewest connections for its weight"),
        (Scheduling("sh", ServiceFlag.SCHEDULER_1), BY_ADDRESS),
        (Scheduling("mh", ServiceFlag.SCHEDULER_1 | ServiceFlag.SCHEDULER_2), BY_ADDRESS_AND_PORT),
        (Scheduling("mh", ServiceFlag.SCHEDULER_1), BY_ADDRESS),
        (Scheduling("another"), ""),
    ],
)
def test_how_a_server_is_chosen_is_what_its_scheduler_does(scheduling: Scheduling, said: str) -> None:
    wanted = objects()
    found = walked({**wanted, WEB: scheduling}, wanted)
    assert found.choice == said
    assert "remembers no clients" in found.affinity
    assert walked({**wanted, WEB: Scheduling("rr", ServiceFlag.PERSISTENT, 300)}, wanted).affinity == ""


@pytest.mark.parametrize("persistence", [0, 300])
def test_a_virtual_server_without_its_servers_refuses_and_they_are_named(persistence: int) -> None:
    """As it is for a moment while a Service comes, or where somebody has deleted them."""
    scheduling = Scheduling("rr", ServiceFlag.PERSISTENT if persistence else ServiceFlag(0), persistence)
    wanted: dict[ObjectKey, Object] = {**objects(), WEB: scheduling}
    held: dict[ObjectKey, Object] = {key: each for key, each in wanted.items() if not isinstance(key, RealServer)}
    packet = Packet(CLIENT, ip("10.96.0.1"), Protocol.TCP, 80, "eth0")
    finishing: dict[VirtualServer, dict[RealServer, Forwarding]] = {WEB: {PODS[0]: Forwarding(0)}}
    for resting, lacking in (({}, ips("10.0.0.1", "10.0.0.2")), (finishing, ips("10.0.0.2"))):
        found = IpvsExplainer(Family.IPV4, lambda: resting).walk(held, wanted, packet)  # noqa: B023 - asked at once
        assert (found.end, found.shares) == (End.REJECTED, None)
        said = {(step.object, step.state, step.verdicts) for step in found.steps}
        assert {(f"-> {format_endpoint(pod, 8080)}", ObjectState.MISSING, ()) for pod in lacking} <= said
        assert ("TCP 10.96.0.1:80", ObjectState.DIFFERENT, (Verdict.EMPTY,)) in said


def test_nothing_in_the_kernel() -> None:
    walk = walked({}, objects())
    assert (walk.end, walk.steps[0].state) == (End.UNTOUCHED, ObjectState.MISSING)
