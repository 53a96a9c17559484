"""What a plan becomes in ipvs mode: virtual servers, real servers, elements, VIPs; and the rules of the node."""

from typing import Any

import pytest
from tests.fakes.values import endpoint, ip, ips, node_plan, service, slice_of

from vipwire.linux.netlink.ipvs import Forwarding, Method, RealServer, Scheduling, ServiceFlag, VirtualServer
from vipwire.model.net import Family, Protocol
from vipwire.model.service import Service
from vipwire.modes.ipvs.driver import ipvs_sysctls
from vipwire.modes.ipvs.marks import Marks, choose_routing_mark
from vipwire.modes.ipvs.objects.chains import parse_save, restore_text
from vipwire.modes.ipvs.objects.names import ObjectKey, Rules, Set, Vip, VipRoute, set_name
from vipwire.modes.ipvs.render import render_service
from vipwire.modes.ipvs.skeleton import build_node_objects
from vipwire.modes.xtables.save import BUILT_IN, ChainName
from vipwire.plan.frontends import plan_service
from vipwire.plan.plan import FrontendKey
from vipwire.reconcile.backend import Rendered
from vipwire.reconcile.delta import Delta

NODE = ips("192.168.0.2", "192.168.1.2")
WEB = VirtualServer(6, ip("10.96.0.1"), 80)


def rendered(of: Service, *endpoints: Any, **node: Any) -> Rendered[ObjectKey, Any]:
    plan = plan_service(node_plan(addresses=NODE, **node), of, [slice_of("web", *endpoints)])
    return render_service(Family.IPV4, "rr", Marks(0x4000), plan)


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ((("vipwire.io/algorithm", "round-robin"),), Scheduling("rr")),
        ((("vipwire.io/algorithm", "source-hash"),), Scheduling("sh", ServiceFlag.SCHEDULER_1)),
        ((("vipwire.io/algorithm", "maglev"),), Scheduling("mh", ServiceFlag.SCHEDULER_1 | ServiceFlag.SCHEDULER_2)),
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


def test_where_ports_differ_nothing_returns_directly() -> None:
    pairs = (("vipwire.io/forwarding", "dsr"),)
    of = service("web", external_ips=ips("198.51.100.1"), annotations=pairs)
    objects = rendered(of, endpoint("10.0.0.2"))
    external = RealServer(VirtualServer(6, ip("198.51.100.1"), 80), ip("10.0.0.2"), 8080)
    assert objects.own[external] == Forwarding(1, Method.MASQUERADE)
    assert Vip(ip("198.51.100.1")) not in objects.shared
    assert VipRoute(ip("198.51.100.1")) in objects.shared


def test_marks_last_and_are_told_apart() -> None:
    key = FrontendKey(ip("198.51.100.1"), Protocol.TCP, 80)
    assert Marks(0x4000).mark(key) == 0x1D3F160F, "a later process finds the same"
    narrow = Marks(0xFFFFFFF0)
    keys = [FrontendKey(None, Protocol.TCP, number) for number in range(1, 15)]
    taken = [*map(narrow.mark, keys), choose_routing_mark(0xFFFFFFF0)]
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
    names = [
        key for key in build_node_objects(node_plan()) if isinstance(key, ChainName) and key.chain not in BUILT_IN
    ]
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
