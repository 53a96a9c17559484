"""What leaving kube-proxy's ipvs mode changes here, judged from recorded situations."""

from dataclasses import replace
from typing import Any

import pytest
from tests.fakes.values import cidr, ip, ips, port, service

from vipwire.config.configuration import Config
from vipwire.config.file import read_config
from vipwire.inspect.check.ipvs_facts import owned_frontends
from vipwire.inspect.check.leave_ipvs import (
    SCHEDULERS,
    Consequence,
    IpvsServer,
    IpvsState,
    Leaving,
    judge_leaving,
    leave_document,
    leave_exit,
    leave_view,
)
from vipwire.inspect.command.show import build_console
from vipwire.linux.netlink.ipset import IpsetEntry
from vipwire.linux.netlink.ipvs import Scheduling, ServiceFlag, Timeouts, VirtualServer
from vipwire.model.net import Family
from vipwire.modes.ipvs.objects.names import SetEntry
from vipwire.proxy_daemon.handover.configured import Configured

CONF = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: ipvs\n"
USUAL = Timeouts(900, 120, 300)
NETWORKS = (cidr("192.168.0.0/24"), cidr("10.9.0.0/24"))
NFTABLES, IPVS = Config(mode="nftables"), Config(mode="ipvs")


def server(text: str, number: int = 80, scheduler: str = "rr", **fields: Any) -> IpvsServer:
    persistence = fields.pop("persistence", 0)
    flags = ServiceFlag.PERSISTENT if persistence else ServiceFlag.NONE
    how = Scheduling(scheduler, flags, persistence)
    return IpvsServer(
        VirtualServer(fields.pop("protocol", 6), ip(text), number), how, fields.pop("ours", True), **fields
    )


def leaving(config: Config = NFTABLES, conf: str = CONF, **kernel: Any) -> Leaving:
    """Make a node with one Service as kube-proxy leaves it; `kernel` is what is otherwise there."""
    usual: dict[str, Any] = {
        "servers": (server("10.96.0.1"),),
        "vips": frozenset(ips("10.96.0.1")),
        "cluster_ips": frozenset(ips("10.96.0.1")),
        "networks": NETWORKS,
        "sets": ("KUBE-CLUSTER-IP",),
        "chains": 14,
        "timeouts": USUAL,
    }
    found = Configured("/configz", read_config(conf).config)
    services = (service("web", "10.96.0.1", port(80, "http", node_port=30080)),)
    at = {Family.IPV4: (cidr("192.168.0.2/32"),)}
    return Leaving(config, IpvsState(**{**usual, **kernel}), found, services, at)


def found(what: Leaving) -> dict[str, Consequence]:
    return {each.area: each for each in judge_leaving(what)}


def test_a_plain_node_loses_pings_and_objects_and_says_what_to_use_instead() -> None:
    changes = found(leaving())
    assert {area for area, each in changes.items() if each.level == "otherwise"} == {"ping", "objects"}
    assert changes["ping"].now == "1 ClusterIP answers ping, on kube-ipvs0: 10.96.0.1"
    assert changes["ping"].then == "refused (ICMP port unreachable)"
    assert changes["objects"].now.startswith("1 virtual server, 1 address on kube-ipvs0, 1 ipset, 14 chains")
    assert "vipwire status" in changes["objects"].todo


def test_staying_with_ipvs_changes_nothing() -> None:
    document = leave_document(leaving(IPVS), judge_leaving(leaving(IPVS)), ())
    assert (document["otherwise"], leave_exit(document)) == (0, 0)


@pytest.mark.parametrize(
    ("scheduler", "level", "todo"),
    [
        ("rr", "note", "vipwire.io/algorithm: round-robin"),
        ("sh", "otherwise", "vipwire.io/algorithm: source-hash"),
        ("mh", "otherwise", "vipwire.io/algorithm: maglev"),
        ("lc", "otherwise", "--proxy-mode=ipvs"),
        ("dh", "otherwise", "--proxy-mode=ipvs"),
        ("twos", "otherwise", "--proxy-mode=ipvs"),
    ],
)
def test_each_scheduler_has_a_nearest_algorithm_or_another_way(scheduler: str, level: str, todo: str) -> None:
    change = found(leaving(servers=(server("10.96.0.1", scheduler=scheduler),)))["scheduler"]
    assert change.level == level
    assert change.now.startswith(f"{scheduler} for default/web:http: ")
    assert todo in change.todo


def test_a_service_that_has_an_algorithm_already_is_left_out() -> None:
    chosen = service("web", "10.96.0.1", port(80), annotations=(("vipwire.io/algorithm", "maglev"),))
    assert "scheduler" not in found(replace(leaving(), services=(chosen,)))


def test_every_scheduler_of_the_kernel_is_known() -> None:
    assert set(SCHEDULERS) == {"rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "sed", "nq", "mh", "fo", "ovf"}
    assert all(todo for *_, todo in SCHEDULERS.values())


def test_node_ports_at_addresses_that_will_not_serve_them_are_named_with_the_flag_that_keeps_them() -> None:
    servers = tuple(server(str(each), 30080, node_port=True) for each in ("192.168.0.2", "10.9.0.2"))
    change = found(leaving(servers=servers))["node ports"]
    assert change.level == "otherwise"
    assert change.now == "1 node port (default/web:http) answers at 10.9.0.2, 192.168.0.2"
    assert change.then == "they answer at 192.168.0.2"
    assert change.todo.startswith("--nodeport-addresses=10.9.0.2/32,192.168.0.2/32")
    everywhere = replace(leaving(servers=servers), node_ports={Family.IPV4: (cidr("0.0.0.0/0"),)})
    assert found(everywhere)["node ports"].level == "same"


def test_an_external_address_of_the_nodes_own_network_loses_its_arp_answers() -> None:
    vips = frozenset(ips("10.96.0.1", "192.168.0.77", "203.0.113.1"))
    changes = found(leaving(vips=vips))
    assert changes["ARP"].level == "otherwise"
    assert changes["ARP"].now.startswith("the node answers ARP for 192.168.0.77 on every interface")
    assert [each.now for each in judge_leaving(leaving(vips=vips)) if each.area == "ping"][1] == (
        "2 external addresses answer ping, on kube-ipvs0: 192.168.0.77, 203.0.113.1"
    )
    strict = found(leaving(vips=vips, sysctls={"net/ipv4/conf/all/arp_ignore": 1}))["ARP"]
    assert (strict.level, "arp_ignore=0" in strict.todo) == ("note", True)


def test_virtual_servers_of_others_stay_those_of_excluded_cidrs_by_name() -> None:
    conf = f"{CONF}ipvs: {{excludeCIDRs: [192.168.99.0/24]}}\n"
    servers = (server("192.168.99.1", 7777, ours=False), server("172.16.0.1", 53, protocol=17, ours=False))
    foreign = [each for each in judge_leaving(leaving(conf=conf, servers=servers)) if each.area == "foreign"]
    assert [each.now for each in foreign] == [
        "1 virtual server in excludeCIDRs 192.168.99.0/24: tcp 192.168.99.1:7777",
        "1 virtual server in no ipset of kube-proxy: udp 172.16.0.1:53",
    ]
    assert {each.level for each in foreign} == {"note"}


def test_masquerading_that_only_the_old_section_has_is_otherwise() -> None:
    conf = f"{CONF}iptables: {{masqueradeAll: true, masqueradeBit: 15}}\n"
    changes = [each for each in judge_leaving(leaving(conf=conf)) if each.area == "masquerading"]
    assert [each.todo for each in changes] == [
        "write nftables.masqueradeAll: true",
        "write nftables.masqueradeBit: 15",
    ]
    kept = read_config(f"{conf}nftables: {{masqueradeAll: true, masqueradeBit: 15}}\n".replace("ipvs", "nftables"))
    assert "masquerading" not in found(leaving(kept.config, conf))
    assert "masquerading" not in found(leaving(read_config(conf).config, conf))


def test_timeouts_affinity_connections_sctp_and_settings_are_told() -> None:
    servers = (
        server("10.96.0.1", persistence=10800, connections=7, draining=1),
        server("10.96.0.1", 9000, protocol=132),
    )
    sysctls = {"net/netfilter/nf_conntrack_tcp_timeout_established": 86400, "net/ipv4/vs/conntrack": 1}
    changes = judge_leaving(leaving(servers=servers, timeouts=Timeouts(7200, 120, 300), sysctls=sysctls))
    said = {each.now: each for each in changes}
    timeouts = said["IPVS forgets an idle TCP connection after 7200 s, UDP after 300 s"]
    assert (timeouts.level, timeouts.then) == ("otherwise", "after 86400 s (connection tracking)")
    assert timeouts.todo == "--conntrack-tcp-timeout-established=7200s keeps it"
    areas = {each.area: each for each in changes}
    assert "10800 s" in areas["affinity"].now
    assert "net.ipv4.vs.conntrack=1" in areas["settings"].now
    assert "sctp 10.96.0.1:9000" in areas["SCTP"].now
    connections = [each.now for each in changes if each.area == "connections"]
    assert connections[0].startswith("7 connections are open in IPVS, to default/web:http")
    assert connections[1].startswith("1 endpoints with weight 0")


def test_a_mode_that_cannot_run_here_comes_first() -> None:
    first, *_ = judge_leaving(replace(leaving(), lacks="the kernel has no nf_tables"))
    assert (first.area, first.level) == ("mode", "otherwise")
    assert "the kernel has no nf_tables" in first.then


def test_without_ipvs_there_is_nothing_to_leave_and_what_nobody_can_see_is_status_2() -> None:
    empty = Leaving(
        NFTABLES, IpvsState(), Configured("/configz", read_config(CONF.replace("ipvs", "iptables")).config)
    )
    document = leave_document(empty, judge_leaving(empty), ())
    assert leave_exit(document) == 0
    assert [each["then"] for each in document["changes"]] == ["there are no objects of ipvs mode"]
    blind = Leaving(NFTABLES, IpvsState(obstacle="IPVS: Operation not permitted"))
    document = leave_document(blind, judge_leaving(blind), ["the kernel: IPVS: Operation not permitted"])
    assert leave_exit(document) == 2


@pytest.mark.parametrize("wide", [False, True])
def test_the_table_says_now_and_then_and_what_to_do(*, wide: bool) -> None:
    screen = build_console()
    made = leave_document(leaving(), judge_leaving(leaving()), ["Services: nobody answers"])
    with screen.capture() as capture:
        screen.print(leave_view(made, wide=wide))
    said = capture.get()
    for words in (
        "kube-proxy is configured for ipvs mode (/configz).",
        "IN NFTABLES MODE",
        "1 ClusterIP answers ping",
        "→ watch Services by their ports",
        "not examined: Services: nobody answers",
        "2 things will change",
    ):
        assert words in said
    assert leave_exit(made) == 1


def test_ipsets_say_which_virtual_servers_are_services() -> None:
    entries = [
        SetEntry("KUBE-CLUSTER-IP", IpsetEntry(ip("10.96.0.1"), 6, 80)),
        SetEntry("KUBE-NODE-PORT-UDP", IpsetEntry(port=30081)),
        SetEntry("KUBE-NODE-PORT-SCTP-HASH", IpsetEntry(ip("192.168.0.2"), 132, 30082)),
        SetEntry("KUBE-LOOP-BACK", IpsetEntry(ip("10.1.0.1"), 6, 8080)),
    ]
    places, ports = owned_frontends(Family.IPV4, entries)
    assert places == {(ip("10.96.0.1"), 6, 80)}
    assert ports == {(17, 30081), (132, 30082)}
