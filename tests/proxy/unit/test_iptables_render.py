"""Rules have kube-proxy's text: the example of its documentation, its counts, each kind of chain in each policy."""

from typing import Any

from tests.fakes.iptables_world import World
from tests.fakes.values import HERE, cidr, endpoint, ips, node_plan, port, service, slice_of

from vipwire.model.names import ObjectName
from vipwire.model.net import Family, Protocol
from vipwire.model.service import EndpointPort, Service
from vipwire.modes.iptables.mode import find_shortcomings
from vipwire.modes.iptables.rules.settings import RuleSettings
from vipwire.plan.frontends import plan_service


def suffix(world: World, kind: str) -> str:
    """Find the one chain of a kind."""
    (found,) = (chain for chain in world.tables.tables["nat"] if chain.startswith(f"KUBE-{kind}-"))
    return found


def world_of(subject: Service, *endpoints: str, **fields: Any) -> World:
    world = World(node=node_plan(**fields))
    world.put(subject, slice_of("web", *(endpoint(text, HERE) for text in endpoints)))
    world.sync()
    return world


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
        return [str(problem) for problem in find_shortcomings(settings, plan)]

    by = {each: (("vipwire.io/algorithm", each),) for each in ("round-robin", "source-hash", "maglev")}
    assert not lacking(RuleSettings(), annotations=by["source-hash"])
    assert not lacking(RuleSettings(), annotations=by["round-robin"])
    assert "iptables mode does not support 'maglev'" in lacking(RuleSettings(), annotations=by["maglev"])[0]
    assert "needs the match 'bpf'" in lacking(RuleSettings(source_hash=False), annotations=by["source-hash"])[0]
    assert "needs the match 'recent'" in lacking(RuleSettings(affinity=False), affinity_seconds=60)[0]
