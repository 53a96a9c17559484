"""What a plan becomes in ipvs mode: virtual servers, real servers, elements, VIPs; and the rules of the node."""

from typing import Any

import pytest
from tests.fakes.values import cidr, endpoint, ip, ips, node_plan, port, service, slice_of

from vipwire.linux.netlink.ipset import Element
from vipwire.linux.netlink.ipvs import Flag, Forwarding, Method, RealServer, Scheduling, VirtualServer
from vipwire.model.net import Address, Family, Protocol
from vipwire.model.service import Service, TrafficPolicy
from vipwire.modes.ipvs.hints import Hints, hints
from vipwire.modes.ipvs.marks import Marks, is_among, routing_mark
from vipwire.modes.ipvs.objects.chains import parse_save, restore_text
from vipwire.modes.ipvs.objects.names import (
    ChainName,
    Entry,
    MarkRule,
    ObjectKey,
    Receiver,
    Route,
    Rules,
    Set,
    Vip,
    set_name,
)
from vipwire.modes.ipvs.render import RenderSettings, render
from vipwire.modes.ipvs.skeleton import node_objects
from vipwire.modes.ipvs.start import ipvs_sysctls
from vipwire.modes.xtables.save import BUILT_IN
from vipwire.plan.annotations import read_wishes
from vipwire.plan.frontends import plan_service
from vipwire.plan.plan import FrontendKey
from vipwire.reconcile.backend import Rendered
from vipwire.reconcile.delta import Delta

NODE = ips("192.168.0.2", "192.168.1.2")
WEB = VirtualServer(6, ip("10.96.0.1"), 80)


def rendered(of: Service, *endpoints: Any, **node: Any) -> Rendered[ObjectKey, Any]:
    plan = plan_service(node_plan(addresses=NODE, **node), of, [slice_of("web", *endpoints)])
    return render(RenderSettings(Family.IPV4, "rr"), Marks(0x4000), plan)


def entries(objects: Rendered[ObjectKey, Any], which: Set) -> set[Element]:
    both = {**objects.own, **objects.shared}
    return {key.element for key in both if isinstance(key, Entry) and key.set == set_name(Family.IPV4, which)}


def test_a_cluster_ip() -> None:
    objects = rendered(service(), endpoint("10.0.0.1", "node-1"), endpoint("10.0.0.2"))
    assert objects.own[WEB] == Scheduling("rr")
    assert objects.own[RealServer(WEB, ip("10.0.0.1"), 8080)] == Forwarding(1)
    assert objects.own[RealServer(WEB, ip("10.0.0.2"), 8080)] == Forwarding(1)
    assert Vip(ip("10.96.0.1")) in objects.shared
    assert entries(objects, Set.CLUSTER_IP) == {Element(ip("10.96.0.1"), 6, 80)}
    assert entries(objects, Set.IPVS_IPS) == {Element(ip("10.96.0.1"))}
    assert entries(objects, Set.LOOP_BACK) == {Element(pod, 6, 8080, pod) for pod in ips("10.0.0.1", "10.0.0.2")}


def test_a_node_port_has_a_virtual_server_on_each_address() -> None:
    objects = rendered(service("web", "10.96.0.1", port(80, node_port=30080)), endpoint("10.0.0.1"))
    servers = {key for key in objects.own if isinstance(key, VirtualServer)}
    assert servers == {WEB, *(VirtualServer(6, address, 30080) for address in NODE)}
    assert entries(objects, Set.NODE_PORT_TCP) == {Element(port=30080)}
    assert entries(objects, Set.NODE_PORT_LOCAL_TCP) == set()


@pytest.mark.parametrize(
    ("protocol", "which", "elements"),
    [
        (Protocol.UDP, Set.NODE_PORT_UDP, {Element(port=30080)}),
        (Protocol.SCTP, Set.NODE_PORT_SCTP, {Element(address, 132, 30080) for address in NODE}),
    ],
)
def test_node_ports_of_other_protocols(protocol: Protocol, which: Set, elements: set[Element]) -> None:
    objects = rendered(service("web", "10.96.0.1", port(80, "", protocol, 30080)))
    assert entries(objects, which) == elements


def test_external_policy_local_gives_clients_outside_a_pool_of_their_own() -> None:
    of = service("web", external_ips=ips("198.51.100.1"), external_policy=TrafficPolicy.LOCAL)
    objects = rendered(of, endpoint("10.0.0.1", "node-1"), endpoint("10.0.0.2"))
    place = Element(ip("198.51.100.1"), 6, 80)
    mark = Marks(0x4000).mark(FrontendKey(ip("198.51.100.1"), Protocol.TCP, 80))
    assert objects.own[Entry("KUBE-LOCAL-POOL", place)] == mark
    marked = VirtualServer(0, Address(b""), 0, mark)
    behind = {
        server: {key.address for key in objects.own if isinstance(key, RealServer) and key.server == server}
        for server in (marked, VirtualServer(6, ip("198.51.100.1"), 80))
    }
    assert list(behind.values()) == [{ip("10.0.0.1")}, {ip("10.0.0.1"), ip("10.0.0.2")}]
    assert entries(objects, Set.EXTERNAL_IP_LOCAL) == {place}
    assert entries(objects, Set.EXTERNAL_IP) == set()


def test_at_an_address_of_the_node_policy_local_leaves_the_node_ports_place_alone() -> None:
    """Both pools go by marks: the virtual server of the place is the node port's."""
    of = service("web", external_ips=(NODE[0],), external_policy=TrafficPolicy.LOCAL)
    objects = rendered(of, endpoint("10.0.0.1", "node-1"), endpoint("10.0.0.2"))
    place = Element(NODE[0], 6, 80)
    assert VirtualServer(6, NODE[0], 80) not in objects.own
    outside = objects.own[Entry("KUBE-LOCAL-POOL-NODE", place)]
    inside = objects.own[Entry("KUBE-DIRECT-RETURN", place)]
    behind = {
        mark: {each.address for each in objects.own if isinstance(each, RealServer) and each.server.mark == mark}
        for mark in (outside, inside, inside | 0x4000)
    }
    everybody = {ip("10.0.0.1"), ip("10.0.0.2")}
    assert behind == {outside: {ip("10.0.0.1")}, inside: everybody, inside | 0x4000: everybody}
    assert entries(objects, Set.EXTERNAL_IP_LOCAL) == {place}
    assert entries(objects, Set.LOCAL_POOL) == set()
    marks = {outside, inside}
    assert all(is_among(key.mark, marks) for key in objects.own if isinstance(key, VirtualServer) and key.mark)
    assert not is_among(outside ^ 0x4001, marks)


def test_at_an_address_of_the_node_without_endpoints_here_only_those_outside_are_dropped() -> None:
    of = service("web", external_ips=(NODE[0],), external_policy=TrafficPolicy.LOCAL)
    objects = rendered(of, endpoint("10.0.0.2"))
    place = Element(NODE[0], 6, 80)
    assert entries(objects, Set.NO_LOCAL_ENDPOINTS) == {place}
    assert entries(objects, Set.LOCAL_POOL_NODE) == {place}, "for connections that are still open"
    assert entries(objects, Set.DIRECT_RETURN) == {place}


def test_policy_local_without_local_endpoints_drops() -> None:
    of = service("web", internal_policy=TrafficPolicy.LOCAL)
    objects = rendered(of, endpoint("10.0.0.2"))
    assert entries(objects, Set.NO_LOCAL_ENDPOINTS) == {Element(ip("10.96.0.1"), 6, 80)}
    assert not any(isinstance(key, RealServer) for key in objects.own)


def test_nobody_to_answer_rejects() -> None:
    of = service("web", "10.96.0.1", port(80), port(53, "dns", Protocol.UDP))
    objects = rendered(of)
    assert entries(objects, Set.NO_ENDPOINTS) == {
        Element(ip("10.96.0.1"), 6, 80),
        Element(ip("10.96.0.1"), 17, 53),
    }
    assert {key for key in objects.own if isinstance(key, VirtualServer)} == {WEB}, "the rules reject UDP better"


def test_source_ranges() -> None:
    of = service("web", load_balancer_ips=ips("198.51.100.1"), source_ranges=(cidr("192.168.0.0/16"),))
    objects = rendered(of, endpoint("10.0.0.2"))
    place = Element(ip("198.51.100.1"), 6, 80)
    assert entries(objects, Set.LOAD_BALANCER_FW) == {place}
    assert entries(objects, Set.SOURCE_CIDR) == {place._replace(other=cidr("192.168.0.0/16"))}
    assert entries(objects, Set.SOURCE_IP) == {place._replace(other=ip("198.51.100.1"))}, "the node is admitted"


def test_an_address_of_the_node_is_not_bound_again() -> None:
    objects = rendered(service("web", external_ips=NODE[:1]), endpoint("10.0.0.2"))
    assert Vip(NODE[0]) not in objects.shared
    assert Element(NODE[0]) not in entries(objects, Set.IPVS_IPS)


def test_at_an_address_of_the_node_a_mark_comes_before_a_node_port() -> None:
    objects = rendered(service("web", external_ips=NODE[:1]), endpoint("10.0.0.2"))
    place = Element(NODE[0], 6, 80)
    mark = objects.own[Entry("KUBE-DIRECT-RETURN", place)]
    assert mark & 0x4000, "the bit that masquerades is in it from the first packet on"
    assert RealServer(VirtualServer(0, Address(b""), 0, mark), ip("10.0.0.2"), 8080) in objects.own
    assert VirtualServer(6, NODE[0], 80) not in objects.own
    assert place in entries(objects, Set.EXTERNAL_IP)


def test_where_nobody_answers_an_address_of_the_node_is_left_to_its_node_ports() -> None:
    objects = rendered(service("web", external_ips=NODE[:1]))
    assert not any(isinstance(key, VirtualServer) and key.address == NODE[0] for key in objects.own)
    assert Element(NODE[0], 6, 80) not in entries(objects, Set.NO_ENDPOINTS)


@pytest.mark.parametrize(("number", "expected"), [(8080, "rr"), (80, "mh")])
def test_affinity_in_the_pool_of_a_mark(number: int, expected: str) -> None:
    """The kernel keeps the port of a persistent connection that goes by a mark: where ports differ, a hash binds."""
    of = service(
        "web",
        "10.96.0.1",
        port(number),
        external_ips=ips("198.51.100.1"),
        external_policy=TrafficPolicy.LOCAL,
        affinity_seconds=300,
    )
    objects = rendered(of, endpoint("10.0.0.1", "node-1"), endpoint("10.0.0.2"))
    mark = objects.own[Entry("KUBE-LOCAL-POOL", Element(ip("198.51.100.1"), 6, number))]
    scheduling = objects.own[VirtualServer(0, Address(b""), 0, mark)]
    assert scheduling.scheduler == expected
    assert bool(scheduling.flags & Flag.PERSISTENT) == (expected == "rr")


def test_affinity_is_persistence() -> None:
    objects = rendered(service("web", affinity_seconds=300), endpoint("10.0.0.2"))
    assert objects.own[WEB] == Scheduling("rr", Flag.PERSISTENT, 300)


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ((("vipwire.io/algorithm", "round-robin"),), Scheduling("rr")),
        ((("vipwire.io/algorithm", "source-hash"),), Scheduling("sh", Flag.SCHEDULER_1)),
        ((("vipwire.io/algorithm", "maglev"),), Scheduling("mh", Flag.SCHEDULER_1 | Flag.SCHEDULER_2)),
        ((("vipwire.io/weights", '{"10.0.0.2": 3}'),), Scheduling("wrr")),
        ((("vipwire.io/weights", "{}"),), Scheduling("wrr")),
        ((("vipwire.io/scheduler", "lc"), ("vipwire.io/algorithm", "maglev")), Scheduling("lc")),
        ((("vipwire.io/algorithm", "random"),), Scheduling("rr")),
        ((("vipwire.io/algorithm", "least-connections"),), Scheduling("lc")),
        (
            (("vipwire.io/algorithm", "least-connections"), ("vipwire.io/weights", '{"10.0.0.1": 2}')),
            Scheduling("wlc"),
        ),
        ((("vipwire.io/slow-start", "30s"),), Scheduling("wrr")),
        ((("vipwire.io/scheduler", "lc"), ("vipwire.io/slow-start", "30s")), Scheduling("wlc")),
        ((("vipwire.io/scheduler", "sed"), ("vipwire.io/weights", '{"10.0.0.1": 2}')), Scheduling("sed")),
    ],
)
def test_annotations_choose_the_scheduler(pairs: tuple[tuple[str, str], ...], expected: Scheduling) -> None:
    objects = rendered(service("web", annotations=pairs), endpoint("10.0.0.1"), endpoint("10.0.0.2"))
    assert objects.own[WEB] == expected


def test_a_virtual_server_has_its_scheduler_whatever_becomes_of_the_endpoints() -> None:
    of = service("web", annotations=(("vipwire.io/algorithm", "maglev"), ("vipwire.io/weights", '{"10.0.0.2": 3}')))
    found = {
        rendered(of, *map(endpoint, present)).own[WEB] for present in ((), ("10.0.0.2",), ("10.0.0.1", "10.0.0.2"))
    }
    assert {each.scheduler for each in found} == {"mh"}


def test_weights() -> None:
    of = service("web", annotations=(("vipwire.io/weights", '{"10.0.0.2": 3}'),))
    objects = rendered(of, endpoint("10.0.0.1"), endpoint("10.0.0.2"))
    weights = {key.address: value.weight for key, value in objects.own.items() if isinstance(key, RealServer)}
    assert weights == {ip("10.0.0.1"): 1, ip("10.0.0.2"): 3}


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ((), Hints("rr", Flag.NONE)),
        ((("kube-router.io/service.scheduler", "lc"),), Hints("lc", Flag.NONE)),
        ((("kube-router.io/service.scheduler", "bogus"),), Hints("rr", Flag.NONE)),
        (
            (("kube-router.io/service.scheduler", "lc"), ("vipwire.io/scheduler", "wlc")),
            Hints("wlc", Flag.NONE),
        ),
        (
            (("kube-router.io/service.schedflags", "flag-1"), ("kube-router.io/service.scheduler", "mh")),
            Hints("mh", Flag.SCHEDULER_1),
        ),
        ((("vipwire.io/scheduler-flags", "ops"),), Hints("rr", Flag.ONE_PACKET)),
        ((("kube-router.io/service.dsr", "tunnel"),), Hints("rr", Flag.NONE, Method.TUNNEL)),
        ((("vipwire.io/forwarding", "DSR"),), Hints("rr", Flag.NONE, Method.ROUTE)),
        ((("vipwire.io/drain-seconds", "30"),), Hints("rr", Flag.NONE, drain_seconds=30)),
        ((("vipwire.io/drain-seconds", "soon"),), Hints("rr", Flag.NONE)),
    ],
)
def test_hints(pairs: tuple[tuple[str, str], ...], expected: Hints) -> None:
    assert hints(read_wishes(service("web", annotations=pairs)), "rr") == expected


def test_what_returns_directly_has_no_vip_and_its_own_source() -> None:
    pairs = (("vipwire.io/forwarding", "tunnel"),)
    of = service("web", "10.96.0.1", port(8080), external_ips=ips("198.51.100.1"), annotations=pairs)
    objects = rendered(of, endpoint("10.0.0.1", "node-1"), endpoint("10.0.0.2"))
    external = VirtualServer(6, ip("198.51.100.1"), 8080)
    for address in ips("10.0.0.1", "10.0.0.2"):
        assert objects.own[RealServer(external, address, 8080)] == Forwarding(1, Method.TUNNEL)
    internal = RealServer(VirtualServer(6, ip("10.96.0.1"), 8080), ip("10.0.0.2"), 8080)
    assert objects.own[internal] == Forwarding(1, Method.MASQUERADE), "a ClusterIP is translated as ever"
    assert {MarkRule(routing_mark(0x4000)), Route(ip("198.51.100.1"))} <= objects.shared.keys()
    assert entries(objects, Set.ROUTED) == {Element(ip("198.51.100.1"), 6, 8080)}
    assert entries(objects, Set.DIRECT_RETURN) == {Element(ip("198.51.100.1"), 6, 8080)}
    assert entries(objects, Set.EXTERNAL_IP) == set()
    assert Vip(ip("198.51.100.1")) not in objects.shared
    receivers = {key: value for key, value in objects.shared.items() if isinstance(key, Receiver)}
    assert receivers == {Receiver(ip("10.0.0.1"), ip("198.51.100.1")): Method.TUNNEL}, "those of this node only"


def test_where_ports_differ_nothing_returns_directly() -> None:
    pairs = (("vipwire.io/forwarding", "dsr"),)
    of = service("web", external_ips=ips("198.51.100.1"), annotations=pairs)
    objects = rendered(of, endpoint("10.0.0.2"))
    external = RealServer(VirtualServer(6, ip("198.51.100.1"), 80), ip("10.0.0.2"), 8080)
    assert objects.own[external] == Forwarding(1, Method.MASQUERADE)
    assert Vip(ip("198.51.100.1")) not in objects.shared
    assert Route(ip("198.51.100.1")) in objects.shared


def test_marks_last_and_are_told_apart() -> None:
    key = FrontendKey(ip("198.51.100.1"), Protocol.TCP, 80)
    assert Marks(0x4000).mark(key) == Marks(0x4000).mark(key)
    narrow = Marks(0xFFFFFFF0)
    keys = [FrontendKey(None, Protocol.TCP, number) for number in range(1, 15)]
    taken = [*map(narrow.mark, keys), routing_mark(0xFFFFFFF0)]
    assert sorted(taken) == list(range(1, 16)), "the mark that only leads to IPVS is no virtual server's"
    moved = Marks(0)
    before = moved.mark(key)
    moved.avoid = before
    assert moved.mark(key) & before == 0


def test_names_of_ipv6_sets_are_kube_proxys() -> None:
    assert set_name(Family.IPV6, Set.SOURCE_CIDR) == "KUBE-6-LOAD-BALANCER-SOURCE-CID"
    assert set_name(Family.IPV6, Set.NODE_PORT_LOCAL_SCTP) == "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS"
    assert all(len(set_name(family, which)) <= 31 for family in Family for which in Set)


def test_the_rules_come_and_go_as_one_restore() -> None:
    names = [key for key in node_objects(node_plan()) if isinstance(key, ChainName) and key.chain not in BUILT_IN]
    chains: dict[ChainName, Rules] = dict.fromkeys(names, ("-j RETURN",))
    chains[ChainName("nat", "PREROUTING")] = ('-m comment --comment "kubernetes service portals" -j KUBE-SERVICES',)
    text = restore_text(Delta(added=chains))
    assert text.count("COMMIT") == 3
    assert ":KUBE-SERVICES - [0:0]\n" in text
    assert '-I PREROUTING 1 -m comment --comment "kubernetes service portals" -j KUBE-SERVICES\n' in text
    undone = restore_text(Delta(removed=chains))
    assert '-D PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES\n' in undone
    assert undone.index("-F KUBE-SERVICES") < undone.index("-X KUBE-SERVICES")
    assert restore_text(Delta()) == ""


def test_of_built_in_chains_only_our_jumps_are_read() -> None:
    text = (
        "*nat\n:PREROUTING ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n:THEIRS - [0:0]\n"
        "-A PREROUTING -j THEIRS\n-A PREROUTING -j KUBE-SERVICES\n-A KUBE-SERVICES -j RETURN\n-A THEIRS -j RETURN\n"
        "COMMIT\n"
    )
    ours = frozenset({ChainName("nat", "KUBE-SERVICES"), ChainName("nat", "PREROUTING")})
    assert parse_save(text, ours) == {
        ChainName("nat", "PREROUTING"): ("-j KUBE-SERVICES",),
        ChainName("nat", "KUBE-SERVICES"): ("-j RETURN",),
    }


def test_settings_follow_the_kernels_release() -> None:
    old, new = ipvs_sysctls((4, 19), strict_arp=True), ipvs_sysctls((5, 9), strict_arp=False)
    assert {each.name for each in old} - {each.name for each in new} == {
        "net.ipv4.vs.conn_reuse_mode",
        "net.ipv4.conf.all.arp_ignore",
        "net.ipv4.conf.all.arp_announce",
    }
