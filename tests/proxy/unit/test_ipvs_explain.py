"""Explaining ipvs mode without a kernel: rules as data, shares by scheduler, templates, commands, a packet's way."""

from typing import Any

import pytest
from tests.fakes.values import cidr, endpoint, ip, ips, node_plan, service, slice_of

from vipwire.linux.netlink.ipset import IpsetEntry
from vipwire.linux.netlink.ipvs import Forwarding, Method, RealServer, Scheduling, ServiceFlag, VirtualServer
from vipwire.model.net import Address, Family, Protocol, format_endpoint
from vipwire.modes.ipvs.explain.explainer import IpvsExplainer, find_template
from vipwire.modes.ipvs.marks import Marks
from vipwire.modes.ipvs.objects.commands import commands
from vipwire.modes.ipvs.objects.names import (
    Ipset,
    MarkRule,
    Object,
    ObjectKey,
    Receiver,
    SetEntry,
    Vip,
    VipRoute,
    set_name,
    set_spec,
)
from vipwire.modes.ipvs.objects.names import Set as Which
from vipwire.modes.ipvs.render import render
from vipwire.modes.ipvs.skeleton import node_objects
from vipwire.modes.xtables.rule_text import parse_rule
from vipwire.modes.xtables.save import ChainName
from vipwire.plan.frontends import plan_service
from vipwire.plan.resolve import Packet
from vipwire.reconcile.delta import Delta
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
    rendered = render(Family.IPV4, "rr", Marks(node.masquerade_mark), plan)
    return {**node_objects(node), **rendered.own, **rendered.shared}


def walked(
    held: dict[ObjectKey, Object], wanted: dict[ObjectKey, Object], address: str = "10.96.0.1", port: int = 80
) -> Walk:
    packet = Packet(CLIENT, ip(address), Protocol.TCP, port, "eth0")
    return IpvsExplainer(Family.IPV4).walk(held, wanted, packet)


def test_every_rule_of_ours_is_understood() -> None:
    for family in Family:
        for key, value in node_objects(node_plan(family)).items():
            if isinstance(key, ChainName) and isinstance(value, tuple):
                for text in value:
                    assert isinstance(text, str)
                    assert not parse_rule(text).unknown, text


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


def test_commands_of_every_kind_of_object() -> None:
    place = IpsetEntry(ip("10.96.0.1"), 6, 80)
    marked = RealServer(MARKED, ip("10.0.0.1"), 80)
    added: dict[ObjectKey, Object] = {
        Ipset("KUBE-CLUSTER-IP"): set_spec(Which.CLUSTER_IP),
        Ipset("KUBE-NODE-PORT-TCP"): set_spec(Which.NODE_PORT_TCP),
        SetEntry("KUBE-CLUSTER-IP", place): 0,
        SetEntry("KUBE-LOCAL-POOL", place): 7,
        ChainName("nat", "PREROUTING"): ("-j KUBE-SERVICES",),
        ChainName("nat", "KUBE-SERVICES"): ("-j RETURN",),
        WEB: Scheduling("mh", ServiceFlag.PERSISTENT | ServiceFlag.SCHEDULER_1 | ServiceFlag.SCHEDULER_2, 300),
        PODS[0]: Forwarding(3),
        MARKED: Scheduling("rr"),
        marked: Forwarding(1, Method.TUNNEL),
        Vip(ip("10.96.0.1")): None,
        VipRoute(ip("198.51.100.1")): None,
        MarkRule(7): None,
        Receiver(ip("10.0.0.1"), ip("10.96.0.1")): Method.TUNNEL,
    }
    assert list(commands(Family.IPV4, Delta(added=added))) == [
        "ipset create KUBE-CLUSTER-IP hash:ip,port family inet",
        "ipset create KUBE-NODE-PORT-TCP bitmap:port range 0-65535",
        "ipset add KUBE-CLUSTER-IP 10.96.0.1,tcp:80",
        "ipset add KUBE-LOCAL-POOL 10.96.0.1,tcp:80 skbmark 0x7",
        "iptables -t nat -N KUBE-SERVICES",
        "iptables -t nat -I PREROUTING 1 -j KUBE-SERVICES",
        "iptables -t nat -A KUBE-SERVICES -j RETURN",
        "ipvsadm -A -t 10.96.0.1:80 -s mh -p 300 -b flag-1,flag-2",
        "ipvsadm -A -f 7 -s rr",
        "ipvsadm -a -t 10.96.0.1:80 -r 10.0.0.1:8080 -m -w 3",
        "ipvsadm -a -f 7 -r 10.0.0.1:80 -i -w 1",
        "# in the network namespace of the Pod 10.0.0.1: ip address add 10.96.0.1/32 dev vipwire-tunnel4",
        "ip route replace local 198.51.100.1 dev lo table 78",
        "ip rule add fwmark 0x7 lookup 78 priority 32764",
        "ip link show kube-ipvs0 >/dev/null 2>&1 || ip link add kube-ipvs0 type dummy",
        "ip address add 10.96.0.1/32 dev kube-ipvs0 scope link",
    ]
    gone = list(commands(Family.IPV4, Delta(removed=added)))
    assert gone[0] == "ip address del 10.96.0.1/32 dev kube-ipvs0"
    assert gone[-2:] == ["ipset destroy KUBE-CLUSTER-IP", "ipset destroy KUBE-NODE-PORT-TCP"]
    assert not any(line.startswith("ipvsadm -d") for line in gone), "real servers go with their virtual servers"


def test_commands_of_changes() -> None:
    changed: dict[ObjectKey, tuple[Object, Object]] = {
        WEB: (Scheduling("rr"), Scheduling("wrr")),
        PODS[0]: (Forwarding(1), Forwarding(2)),
        ChainName("nat", "PREROUTING"): (("-j OLD",), ("-j NEW",)),
        SetEntry("KUBE-LOCAL-POOL", IpsetEntry(ip("10.96.0.1"), 6, 80)): (7, 8),
    }
    assert list(commands(Family.IPV4, Delta(changed=changed))) == [
        "ipset del KUBE-LOCAL-POOL 10.96.0.1,tcp:80",
        "ipset add KUBE-LOCAL-POOL 10.96.0.1,tcp:80 skbmark 0x8",
        "iptables -t nat -D PREROUTING -j OLD",
        "iptables -t nat -I PREROUTING 1 -j NEW",
        "ipvsadm -E -t 10.96.0.1:80 -s wrr",
        "ipvsadm -e -t 10.96.0.1:80 -r 10.0.0.1:8080 -m -w 2",
    ]


def test_commands_of_ipv6() -> None:
    server = VirtualServer(17, ip("fd00:96::1"), 53)
    added: dict[ObjectKey, Object] = {server: Scheduling("rr"), MARKED: Scheduling("rr"), Vip(ip("fd00:96::1")): None}
    lines = list(commands(Family.IPV6, Delta(added=added)))
    assert lines[:2] == ["ipvsadm -A -u [fd00:96::1]:53 -s rr", "ipvsadm -A -f 7 -6 -s rr"]
    assert lines[-1] == "ip -6 address add fd00:96::1/128 dev kube-ipvs0 nodad preferred_lft 0"


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
