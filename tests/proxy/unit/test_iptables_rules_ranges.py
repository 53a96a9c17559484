"""Ranges of ports in rules: chains of their own, a DNAT that keeps the port, refusals, and the way of packets."""

from dataclasses import replace
from typing import Any

import pytest
from tests.fakes.iptables_world import World
from tests.fakes.values import endpoint, ips, node_plan, service, slice_of

from vipwire.model.net import Family, Protocol, parse_address
from vipwire.model.service import EndpointPort, Service, ServicePort
from vipwire.modes.iptables.counts import Ledger, RuleCounter, count_by_service, map_endpoints_by_port
from vipwire.modes.iptables.explain import RuleTables, walk_rules
from vipwire.modes.iptables.rules.names import FILTER, NAT
from vipwire.modes.iptables.rules.tree import LEAF
from vipwire.plan.frontends import plan_service
from vipwire.plan.resolve import Packet
from vipwire.reconcile.counts import Measure
from vipwire.reconcile.explainer import Walk

NODE = replace(node_plan(), port_ranges=True)
CLIENT, POD = "203.0.113.2", "10.1.0.9"
PODS = ("10.1.0.1", "10.2.0.1")


def ranged(name: str = "rtp", vip: str = "10.96.0.1", *, node_port: int = 0, **fields: Any) -> Service:
    made = service(name, vip, annotations=(("vipwire.io/port-range", "10000-20000"),), **fields)
    return replace(made, ports=(ServicePort("", Protocol.TCP, 10000, node_port),))


def world_of(subject: Service, *pods: str, port: int = 10000) -> World:
    world = World(node=NODE)
    pieces = [slice_of(subject.name.name, *map(endpoint, pods), ports=(EndpointPort("", Protocol.TCP, port),))]
    world.put(subject, *pieces)
    world.sync()
    return world


def read(world: World) -> RuleTables:
    seen = world.backend.observe()
    return RuleTables(Family.IPV4, seen, seen)


def way(table: RuleTables, to: str, port: int, source: str = CLIENT) -> Walk:
    return walk_rules(table, Packet(parse_address(source), parse_address(to), Protocol.TCP, port, "eth0"))


def targets(found: Walk) -> set[tuple[str, int]]:
    assert found.shares is not None
    return {(str(place), port) for place, port in map(_words, found.shares)}


def _words(target: object) -> tuple[str, int]:
    assert isinstance(target, tuple)
    return ".".join(map(str, target[0])), target[1]


def test_what_is_read_back_is_what_was_written_and_goes_without_a_trace() -> None:
    world = world_of(ranged(external_ips=ips("1.2.3.4")), *PODS)
    bare = World(node=NODE)
    bare.sync()
    again = World(world.tables, node=NODE)
    again.put(
        ranged(external_ips=ips("1.2.3.4")),
        slice_of("rtp", *map(endpoint, PODS), ports=(EndpointPort("", Protocol.TCP, 10000),)),
    )
    report = again.sync()
    assert (report.added, report.changed, report.removed) == (0, 0, 0)
    again.drop(ranged().name)
    again.sync()
    assert world.tables.tables == bare.tables.tables


@pytest.mark.slow
def test_a_tree_of_ranges_never_branches_at_ports() -> None:
    """Ranges of many Services at one address stand in one chain, however many; others are told by address."""
    world = World(node=NODE)
    numbers = [*range(1, 4 * LEAF)]
    numbers.sort(key=lambda number: number * 37 % 64)  # in no order that a tree could rely on
    for number in numbers:
        first = 10000 + number * 100
        text = f"{first}-{first + 99}"
        made = service(
            f"s{number}",
            f"10.96.1.{number}",
            annotations=(("vipwire.io/port-range", text),),
            external_ips=ips("1.2.3.4"),
        )
        made = replace(made, ports=(ServicePort("", Protocol.TCP, first),))
        world.put(made, slice_of(f"s{number}", endpoint("10.1.0.1"), ports=(EndpointPort("", Protocol.TCP, first),)))
        world.sync()
    table = read(world)
    for number in numbers:
        port = 10000 + number * 100 + 57
        for vip in ("1.2.3.4", f"10.96.1.{number}"):
            assert targets(way(table, vip, port)) == {("10.1.0.1", port)}
    chains = world.tables.tables[NAT]
    assert not any("--dport" in rule and "-g KUBE-RNGS" in rule for rules in chains.values() for rule in rules)


def test_connections_by_the_port_and_by_the_range_are_one_count() -> None:
    subject = ranged()
    plan = plan_service(
        NODE, subject, [slice_of("rtp", endpoint("10.1.0.1"), ports=(EndpointPort("", Protocol.TCP, 10000),))]
    )
    ends = map_endpoints_by_port([plan])
    ((name, chains),) = ends.items()
    assert len(chains) == 2
    rules = [RuleCounter(chain, 1, "", 3 + place) for place, chain in enumerate(sorted(chains))]
    counts = count_by_service(ends, {NAT: rules, FILTER: []}, Ledger(), endpoints=True)
    (end,) = set(chains.values())
    assert counts[Measure.CONNECTIONS] == {name: 7, end: 7}
