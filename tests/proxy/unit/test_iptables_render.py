"""Rules have kube-proxy's text: the example of its documentation, its counts, each kind of chain in each policy."""

from typing import Any

import pytest
from tests.fakes.iptables_world import PLAIN, World
from tests.fakes.values import HERE, cidr, endpoint, ips, node_plan, port, service, slice_of

from vipwire.model.endpoint import EndpointPort
from vipwire.model.names import ObjectName
from vipwire.model.net import Family, Protocol
from vipwire.model.service import Service, TrafficPolicy
from vipwire.modes.iptables.mode import shortcomings
from vipwire.modes.iptables.rules.settings import RuleSettings
from vipwire.plan.frontends import plan_service

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
    assert "iptables mode does not support 'maglev'" in lacking(RuleSettings(), annotations=by["maglev"])[0]
    assert "needs the match 'bpf'" in lacking(RuleSettings(source_hash=False), annotations=by["source-hash"])[0]
    assert "needs the match 'recent'" in lacking(RuleSettings(affinity=False), affinity_seconds=60)[0]
