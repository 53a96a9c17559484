"""From configuration, Node object and machine to the plan of the node."""

from dataclasses import replace
from typing import Any

import pytest
from tests.fakes.values import cidr, endpoint, ip, ips, slice_of

from vipwire.config.configuration import Config
from vipwire.config.sections import DetectLocal, NFTables
from vipwire.model.net import Family
from vipwire.model.node import Node, ServiceCIDR
from vipwire.plan.node import NodePlan, PodBridge, PodInterfaces, PodPrefixes
from vipwire.proxy_daemon.sync.node_plan import build_node_plan, choose_primary_address, plan_node
from vipwire.watched_objects.event import Upserted
from vipwire.watched_objects.store import Store

FOUR, SIX = Family.IPV4, Family.IPV6
NODE = Node(
    "node-1",
    ips("192.168.0.2", "2001:db8::2", "203.0.113.2"),
    (cidr("10.1.0.0/24"), cidr("fd00:10:1::/64")),
    zone="a",
)
MACHINE = ips("172.16.0.9", "fd00::9")


def made(
    family: Family = FOUR, node: Node | None = NODE, cidrs: tuple[ServiceCIDR, ...] = (), **fields: Any
) -> NodePlan:
    return build_node_plan(Config(**fields), family, "node-1", node, cidrs, MACHINE)


@pytest.mark.parametrize("node", [None, Node("node-1")])
def test_an_api_server_s_node_without_addresses_has_no_primary_address(node: Node | None) -> None:
    assert [choose_primary_address(Config(), family, node, MACHINE) for family in Family] == [None, None]


@pytest.mark.parametrize(
    ("bind", "node", "four", "six"),
    [
        ("0.0.0.0", NODE, "192.168.0.2", "2001:db8::2"),
        ("::", NODE, "192.168.0.2", "2001:db8::2"),
        ("192.168.7.7", NODE, "192.168.7.7", "2001:db8::2"),
        ("2001:db8::7", NODE, "192.168.0.2", "2001:db8::7"),
        ("0.0.0.0", None, "172.16.0.9", "fd00::9"),
        ("0.0.0.0", Node("node-1"), "172.16.0.9", "fd00::9"),
        ("0.0.0.0", Node("node-1", ips("192.168.0.2")), "192.168.0.2", None),
    ],
)
def test_the_primary_address(bind: str, node: Node | None, four: str, six: str | None) -> None:
    config = Config(bind_address=bind, manifests=("/etc/vipwire/services",))
    assert choose_primary_address(config, FOUR, node, MACHINE) == ip(four)
    assert choose_primary_address(config, SIX, node, MACHINE) == (None if six is None else ip(six))


def test_name_and_zone_are_the_nodes() -> None:
    assert (made().name, made().zone) == ("node-1", "a")
    assert (made(node=None).name, made(node=None).zone) == ("node-1", "")


@pytest.mark.parametrize(
    ("fields", "node", "four", "six"),
    [
        ({}, NODE, None, None),
        ({"cluster_cidr": "10.0.0.0/8"}, NODE, PodPrefixes((cidr("10.0.0.0/8"),)), None),
        (
            {"cluster_cidr": "10.0.0.0/8, fd00:10::/32"},
            NODE,
            PodPrefixes((cidr("10.0.0.0/8"),)),
            PodPrefixes((cidr("fd00:10::/32"),)),
        ),
        (
            {"detect_local_mode": "NodeCIDR"},
            NODE,
            PodPrefixes((cidr("10.1.0.0/24"),)),
            PodPrefixes((cidr("fd00:10:1::/64"),)),
        ),
        ({"detect_local_mode": "NodeCIDR"}, None, None, None),
        (
            {"cluster_cidr": "10.0.0.0/8, fd00:99::/32", "mode": "userspace"},  # only this node's are a relay's Pods
            NODE,
            PodPrefixes((cidr("10.1.0.0/24"),)),
            PodPrefixes((cidr("fd00:99::/32"),)),
        ),
        ({"cluster_cidr": "10.0.0.0/8", "mode": "userspace"}, None, PodPrefixes((cidr("10.0.0.0/8"),)), None),
        (
            {"detect_local_mode": "BridgeInterface", "detect_local": DetectLocal(bridge_interface="cni0")},
            NODE,
            PodBridge("cni0"),
            PodBridge("cni0"),
        ),
        (
            {"detect_local_mode": "InterfaceNamePrefix", "detect_local": DetectLocal(interface_name_prefix="cali")},
            NODE,
            PodInterfaces("cali"),
            PodInterfaces("cali"),
        ),
    ],
)
def test_how_pods_are_told(fields: dict[str, Any], node: Node | None, four: object, six: object) -> None:
    assert made(FOUR, node, **fields).pod_traffic == four
    assert made(SIX, node, **fields).pod_traffic == six


@pytest.mark.parametrize(
    ("addresses", "four", "six"),
    [
        ((), ["192.168.0.2/32"], ["2001:db8::2/128"]),
        (("primary",), ["192.168.0.2/32"], ["2001:db8::2/128"]),
        (("192.168.0.0/16", "10.9.0.0/16"), ["192.168.0.0/16", "10.9.0.0/16"], []),
        (("0.0.0.0/0", "::/0"), ["0.0.0.0/0"], ["::/0"]),
    ],
)
def test_where_node_ports_are_served(addresses: tuple[str, ...], four: list[str], six: list[str]) -> None:
    for family, wanted in ((FOUR, four), (SIX, six)):
        assert [str(prefix) for prefix in made(family, node_port_addresses=addresses).node_port_addresses] == wanted


def test_other_modes_serve_node_ports_everywhere_unless_told() -> None:
    assert [str(prefix) for prefix in made(mode="iptables").node_port_addresses] == ["0.0.0.0/0"]
    assert [str(prefix) for prefix in made(SIX, mode="iptables").node_port_addresses] == ["::/0"]


def test_a_node_without_an_address_of_the_family_serves_no_node_ports_on_its_primary_one() -> None:
    assert made(SIX, Node("node-1", ips("192.168.0.2"))).node_port_addresses == ()


def test_the_masquerade_settings_are_those_of_the_mode() -> None:
    plan = made(mode="nftables", nftables=NFTables(masquerade_bit=7, masquerade_all=True))
    assert (plan.masquerade_all, plan.masquerade_bit, plan.masquerade_mark) == (True, 7, 0x80)
    assert made().masquerade_mark == 0x4000


def test_the_service_ranges_are_each_familys_own_sorted_and_once() -> None:
    second = ServiceCIDR("second", (cidr("10.98.0.0/16"), cidr("fd00:98::/112")))
    cidrs = (second, ServiceCIDR("first", (cidr("10.96.0.0/16"),)), replace(second, name="again"))
    assert [str(prefix) for prefix in made(cidrs=cidrs).service_cidrs] == ["10.96.0.0/16", "10.98.0.0/16"]
    assert [str(prefix) for prefix in made(SIX, cidrs=cidrs).service_cidrs] == ["fd00:98::/112"]


@pytest.mark.parametrize("on", [True, False])
def test_the_gate_decides_about_external_ips(*, on: bool) -> None:
    assert made(feature_gates=(("AllowServiceExternalIPs", on),)).external_ips is on


@pytest.mark.parametrize(("mode", "crowded"), [("iptables", True), ("nftables", False)])
def test_a_mode_that_says_less_of_very_many_endpoints_is_told_of_them(mode: str, *, crowded: bool) -> None:
    store = Store()
    config = replace(Config(), mode=mode)
    pieces = [slice_of(f"s{at}", *(endpoint(f"10.{at}.0.{last}") for last in range(1, 252))) for at in range(4)]
    for piece in pieces:
        assert not plan_node(config, Family.IPV4, "here", store, ()).crowded
        store.apply(Upserted(piece))
    assert plan_node(config, Family.IPV4, "here", store, ()).crowded is crowded
    assert not plan_node(config, Family.IPV6, "here", store, ()).crowded
