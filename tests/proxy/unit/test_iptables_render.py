"""Rules have kube-proxy's text: the example of its documentation, its counts, each kind of chain in each policy."""

from typing import Any

import pytest
from tests.fakes.iptables_world import PLAIN, World
from tests.fakes.values import HERE, cidr, endpoint, ip, ips, node_plan, port, service, slice_of

from vipwire.model.endpoint import EndpointPort
from vipwire.model.names import ObjectName
from vipwire.model.net import Family, Protocol
from vipwire.model.service import Service, TrafficPolicy
from vipwire.modes.iptables.explain import RuleTables, walk
from vipwire.modes.iptables.mode import shortcomings
from vipwire.modes.iptables.rules.render import render
from vipwire.modes.iptables.rules.settings import RuleSettings
from vipwire.modes.iptables.rules.skeleton import node_objects
from vipwire.modes.iptables.rules.words import chance
from vipwire.plan.frontends import plan_service
from vipwire.plan.node import PodBridge, PodInterfaces, PodPrefixes
from vipwire.plan.resolve import Packet
from vipwire.reconcile.steps import End

LOCAL = TrafficPolicy.LOCAL
FLAT = RuleSettings(counters=False, tree=False)


def suffix(world: World, kind: str) -> str:
    """Find the one chain of a kind."""
    (found,) = (chain for chain in world.tables.tables["nat"] if chain.startswith(f"KUBE-{kind}-"))
    return found


def world_of(subject: Service, *endpoints: str, **fields: Any) -> World:
    world = World(node=node_plan(**fields))
    world.put(subject, slice_of("web", *(endpoint(text, HERE) for text in endpoints)))
    world.sync()
    return world


def test_the_example_of_one_service_with_one_endpoint() -> None:
    world = World()
    name = ObjectName("ns1", "svc1")
    subject = Service(name, (port(80, "p80"),), ips("172.30.0.41"))
    piece = slice_of("svc1", endpoint("10.180.0.1"), ports=(EndpointPort("p80", Protocol.TCP, 80),))
    world.put(subject, piece)
    world.sync()
    assert world.chain("KUBE-SERVICES") == [
        (
            '-d 172.30.0.41/32 -p tcp -m comment --comment "ns1/svc1:p80 cluster IP" -m tcp --dport 80 '
            "-j KUBE-SVC-XPGD46QRK7WJZT7O"
        ),
        (
            '-m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" '
            "-m addrtype --dst-type LOCAL -j KUBE-NODEPORTS"
        ),
    ]
    assert world.chain("KUBE-SVC-XPGD46QRK7WJZT7O") == [
        (
            '! -s 10.0.0.0/8 -d 172.30.0.41/32 -p tcp -m comment --comment "ns1/svc1:p80 cluster IP" -m tcp '
            "--dport 80 -j KUBE-MARK-MASQ"
        ),
        '-m comment --comment "ns1/svc1:p80 -> 10.180.0.1:80" -j KUBE-SEP-SXIVWICOYRO3J4NJ',
    ]
    assert world.chain("KUBE-SEP-SXIVWICOYRO3J4NJ") == [
        '-s 10.180.0.1/32 -m comment --comment "ns1/svc1:p80" -j KUBE-MARK-MASQ',
        '-p tcp -m comment --comment "ns1/svc1:p80" -m tcp -j DNAT --to-destination 10.180.0.1:80',
    ]


@pytest.mark.parametrize(
    ("services", "endpoints", "counts"),
    [
        (0, 0, (4, 5)),
        (1, 0, (5, 5)),
        (1, 1, (4, 10)),
        (1, 2, (4, 13)),
        (1, 10, (4, 37)),
        (10, 0, (14, 5)),
        (10, 10, (4, 325)),
    ],
)
def test_there_are_as_many_rules_as_kube_proxy_has_for_cluster_ips(
    services: int, endpoints: int, counts: tuple[int, int]
) -> None:
    world = World(settings=FLAT)
    for number in range(services):
        addresses = [endpoint(f"10.180.{number}.{at + 1}") for at in range(endpoints)]
        world.put(service(f"s{number}", f"172.30.0.{number + 1}"), slice_of(f"s{number}", *addresses))
    world.sync()
    assert (world.count("filter"), world.count("nat")) == counts


@pytest.mark.parametrize(
    ("services", "endpoints", "counts"),
    [(1, 0, (8, 5)), (1, 1, (5, 18)), (1, 2, (5, 21)), (10, 0, (44, 5)), (10, 1, (14, 135)), (10, 10, (14, 405))],
)
def test_there_are_as_many_rules_as_kube_proxy_has_for_load_balancers(
    services: int, endpoints: int, counts: tuple[int, int]
) -> None:
    world = World(settings=RuleSettings(tree=False))
    for number in range(services):
        addresses = [endpoint(f"10.180.{number}.{at + 1}") for at in range(endpoints)]
        subject = service(
            f"s{number}",
            f"172.30.0.{number + 1}",
            port(node_port=3000 + number),
            external_ips=ips(f"1.2.3.{number}"),
            load_balancer_ips=ips(f"1.2.4.{number}"),
            source_ranges=(cidr("203.0.113.0/25"),),
        )
        world.put(subject, slice_of(f"s{number}", *addresses))
    world.sync()
    assert (world.count("filter"), world.count("nat")) == counts


def test_chances_are_printed_as_the_kernel_keeps_them() -> None:
    assert [chance(options).rpartition(" ")[2] for options in (2, 3, 7)] == [
        "0.50000000000",
        "0.33333333349",
        "0.14285714272",
    ]


def test_among_very_many_endpoints_theirs_are_rules_without_comments_as_kube_proxy_has_them() -> None:
    world = world_of(service("web", "10.96.0.1", affinity_seconds=60), "10.1.0.1", "10.1.0.2", crowded=True)
    assert [rule for rule in world.chain(suffix(world, "SVC")) if "KUBE-SEP" in rule] == [
        rule.replace("@", chain)
        for rule in (
            "-m recent --rcheck --seconds 60 --reap --name @ --mask 255.255.255.255 --rsource -j @",
            "-m statistic --mode random --probability 0.50000000000 -j @",
        )
        for chain in _choices(world)
        if rule.startswith("-m recent") or chain == _choices(world)[0]
    ] + [f"-j {_choices(world)[1]}"]
    first = world.chain(_choices(world)[0])
    assert first == [
        "-s 10.1.0.1/32 -j KUBE-MARK-MASQ",
        (
            f"-p tcp -m recent --set --name {_choices(world)[0]} --mask 255.255.255.255 --rsource "
            "-m tcp -j DNAT --to-destination 10.1.0.1:8080"
        ),
    ]
    assert all("--comment" in rule for rule in world.chain("KUBE-SERVICES")), "those of Services stay"


def _choices(world: World) -> list[str]:
    """Name the endpoints' chains in the order in which they are chosen."""
    rules = world.chain(suffix(world, "SVC"))
    return list(dict.fromkeys(rule.rpartition(" ")[2] for rule in rules if "KUBE-SEP" in rule))


def test_without_the_match_recent_there_is_no_affinity() -> None:
    world = World(settings=RuleSettings(counters=False, affinity=False))
    world.put(service(affinity_seconds=60), slice_of("web", endpoint("10.1.0.1")))
    world.sync()
    assert "recent" not in world.tables.save("nat")


@pytest.mark.parametrize(
    ("traffic", "first"),
    [
        (PodPrefixes((cidr("10.0.0.0/8"),)), "! -s 10.0.0.0/8 -d 10.96.0.1/32 -p tcp"),
        (PodBridge("cbr0"), "-d 10.96.0.1/32 ! -i cbr0 -p tcp"),
        (PodInterfaces("veth"), "-d 10.96.0.1/32 ! -i veth+ -p tcp"),
    ],
)
def test_who_is_no_pod_is_masqueraded_at_a_cluster_ip(traffic: object, first: str) -> None:
    world = world_of(service(), "10.1.0.1", pod_traffic=traffic)
    rule = world.chain(suffix(world, "SVC"))[0]
    assert rule.startswith(first)
    assert rule.endswith("-j KUBE-MARK-MASQ")


def test_several_prefixes_of_pods_share_a_chain_that_says_who_is_none() -> None:
    prefixes = PodPrefixes((cidr("10.0.0.0/9"), cidr("10.128.0.0/9")))
    world = world_of(service(), "10.1.0.1", pod_traffic=prefixes)
    assert world.chain(suffix(world, "SVC"))[0].endswith("-j KUBE-NOT-POD-MASQ")
    assert world.chain("KUBE-NOT-POD-MASQ") == [
        "-s 10.0.0.0/9 -j RETURN",
        "-s 10.128.0.0/9 -j RETURN",
        "-j KUBE-MARK-MASQ",
    ]


def test_masquerade_all_has_no_exception_and_no_detector_has_no_rule() -> None:
    everything = world_of(service(), "10.1.0.1", masquerade_all=True)
    assert everything.chain(suffix(everything, "SVC"))[0].startswith("-d 10.96.0.1/32 -p tcp")
    nobody = world_of(service(), "10.1.0.1", pod_traffic=None)
    assert "MASQ" not in "".join(nobody.chain(suffix(nobody, "SVC")))


def test_an_endpoint_at_a_node_port_that_is_for_some_sources_only_is_reached_by_way_of_another_service() -> None:
    node = node_plan(Family.IPV4)
    here = "192.168.0.2"
    guarded = service(
        "guarded",
        "10.96.0.2",
        port(node_port=30080),
        annotations=(("vipwire.io/nodeport-source-ranges", "203.0.113.0/25"),),
    )
    behind = slice_of("web", endpoint(here, "node-1"), ports=[EndpointPort("", Protocol.TCP, 30080)])
    plans = [
        plan_service(node, service(), [behind]),
        plan_service(node, guarded, [slice_of("guarded", endpoint("10.2.0.1"))]),
    ]
    objects = dict(node_objects(node, FLAT))
    for plan in plans:
        objects.update(render(node, FLAT, plan).own)
    table = RuleTables(Family.IPV4, objects, objects, frozenset({ip(here)}))
    packet = Packet(ip("10.1.0.9"), ip("10.96.0.1"), Protocol.TCP, 80, "eth0")
    assert walk(table, packet).end is End.ANSWERED
    past = packet._replace(destination=ip(here), port=30080, to_node=True)
    assert walk(table, past).end is End.DROPPED


def test_a_health_check_port_is_accepted_once_for_every_port_of_the_service() -> None:
    world = World()
    subject = service(
        "web",
        "10.96.0.1",
        port(80, "a"),
        port(81, "b"),
        load_balancer_ips=ips("1.2.3.4"),
        external_policy=LOCAL,
        health_check_node_port=30000,
    )
    world.put(subject)
    world.sync()
    assert world.chain("KUBE-NODEPORTS", "filter") == [
        f'-p tcp -m comment --comment "default/web:{name} health check node port" -m tcp --dport 30000 -j ACCEPT'
        for name in ("a", "b")
    ]


@pytest.mark.parametrize(
    ("family", "addresses", "settings", "rules"),
    [
        (Family.IPV4, ["0.0.0.0/0"], PLAIN, ["-m comment"]),
        (Family.IPV4, ["0.0.0.0/0"], RuleSettings(localhost_node_ports=False), ["! -d 127.0.0.0/8"]),
        (Family.IPV6, ["::/0"], PLAIN, ["! -d ::1/128"]),
        (Family.IPV4, ["192.168.0.2/32"], PLAIN, ["-d 192.168.0.2/32"]),
        (Family.IPV4, ["192.168.0.0/16", "127.0.0.0/8"], PLAIN, ["-d 192.168.0.0/16", "-d 127.0.0.0/8"]),
        (Family.IPV4, ["127.0.0.0/8"], RuleSettings(localhost_node_ports=False), []),
        (Family.IPV4, [], PLAIN, []),
    ],
)
def test_node_ports_are_served_where_the_operator_says(
    family: Family, addresses: list[str], settings: RuleSettings, rules: list[str]
) -> None:
    node = node_plan(family, node_port_addresses=tuple(cidr(text) for text in addresses))
    world = World(node=node, settings=settings)
    world.sync()
    found = world.chain("KUBE-SERVICES")
    assert [rule[: len(start)] for rule, start in zip(found, rules, strict=True)] == rules


@pytest.mark.parametrize(
    ("family", "settings", "guarded"),
    [
        (Family.IPV4, PLAIN, True),
        (Family.IPV4, RuleSettings(localhost_node_ports=False), False),
        (Family.IPV6, PLAIN, False),
    ],
)
def test_loopback_is_guarded_where_it_is_opened(family: Family, settings: RuleSettings, guarded: bool) -> None:  # noqa: FBT001 - a case
    world = World(node=node_plan(family), settings=settings)
    world.sync()
    assert ("KUBE-FIREWALL" in world.tables.tables["filter"]) is guarded
    assert ("-j KUBE-FIREWALL" in world.chain("INPUT", "filter")) is guarded


def test_jumps_stand_in_kube_proxys_order() -> None:
    world = World()
    world.sync()
    targets = {
        chain: [rule.rpartition(" ")[2] for rule in world.chain(chain, "filter")]
        for chain in ("INPUT", "FORWARD", "OUTPUT")
    }
    assert targets == {
        "INPUT": ["KUBE-FIREWALL", "KUBE-PROXY-FIREWALL", "KUBE-NODEPORTS", "KUBE-EXTERNAL-SERVICES"],
        "FORWARD": ["KUBE-PROXY-FIREWALL", "KUBE-FORWARD", "KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES"],
        "OUTPUT": ["KUBE-FIREWALL", "KUBE-PROXY-FIREWALL", "KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES"],
    }


def test_ipv6_has_the_same_rules_in_its_own_words() -> None:
    world = World(node=node_plan(Family.IPV6))
    subject = service("web", "fd00::1", affinity_seconds=5, external_ips=ips("2001:db8::9"))
    world.put(subject, slice_of("web", endpoint("fd00:10::7"), family=Family.IPV6))
    world.put(service("none", "fd00::2"))
    world.sync()
    assert '-d fd00::1/128 -p tcp -m comment --comment "default/web cluster IP"' in world.tables.save("nat")
    assert "-j DNAT --to-destination [fd00:10::7]:8080" in world.tables.save("nat")
    assert "--mask ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff --rsource" in world.tables.save("nat")
    assert "--reject-with icmp6-port-unreachable" in world.tables.save("filter")


def test_the_longest_names_make_comments_that_fit() -> None:
    name = ObjectName("n" * 63, "s" * 63)
    world = World(node=node_plan(Family.IPV6))
    long_port = port(80, "p" * 15, node_port=30000)
    subject = Service(
        name,
        (long_port,),
        ips("fd00::1"),
        load_balancer_ips=ips("2001:db8::9"),
        source_ranges=(cidr("2001:db8::/32"),),
    )
    world.put(
        subject,
        slice_of(
            "x",
            endpoint("fd00:1111:2222:3333:4444:5555:6666:7777"),
            family=Family.IPV6,
            ports=(EndpointPort("p" * 15, Protocol.TCP, 8080),),
        ),
    )
    world.sync()
    rules = [rule for chains in world.tables.tables.values() for rules in chains.values() for rule in rules]
    comments = [rule.split('"')[1] for rule in rules if '"' in rule]
    assert max(map(len, comments)) <= 255
    assert any("p" * 15 in text for text in comments)


def test_what_is_asked_for_in_vain_is_said() -> None:
    def lacking(settings: RuleSettings, **more: Any) -> list[str]:
        subject = service("web", "10.96.0.1", **more)
        plan = plan_service(node_plan(), subject, [slice_of("web", endpoint("10.1.0.1"))])
        return [str(problem) for problem in shortcomings(settings, plan)]

    by = {each: (("vipwire.io/algorithm", each),) for each in ("round-robin", "source-hash", "maglev")}
    assert not lacking(RuleSettings(), annotations=by["source-hash"])
    assert not lacking(RuleSettings(), annotations=by["round-robin"])
    assert "'maglev' is not in iptables mode" in lacking(RuleSettings(), annotations=by["maglev"])[0]
    assert "needs the match 'bpf'" in lacking(RuleSettings(source_hash=False), annotations=by["source-hash"])[0]
    assert "needs the match 'recent'" in lacking(RuleSettings(affinity=False), affinity_seconds=60)[0]
