"""Ranges of ports in rules: chains of their own, a DNAT that keeps the port, refusals, and the way of packets."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from tests.fakes.iptables_world import World
from tests.fakes.values import HERE, cidr, endpoint, ips, node_plan, service, slice_of

from vipwire.model.endpoint import EndpointPort
from vipwire.model.net import Family, Protocol, parse_address
from vipwire.model.service import Service, ServicePort, TrafficPolicy
from vipwire.modes.iptables.counts import Ledger, RuleCounter, count, endpoints_of
from vipwire.modes.iptables.explain import RuleTables, walk
from vipwire.modes.iptables.rules.names import FILTER, NAT
from vipwire.modes.iptables.rules.tree import LEAF
from vipwire.plan.frontends import plan_service
from vipwire.plan.resolve import Packet
from vipwire.reconcile.counts import Measure
from vipwire.reconcile.explainer import Walk
from vipwire.reconcile.steps import End

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
    return walk(table, Packet(parse_address(source), parse_address(to), Protocol.TCP, port, "eth0"))


def targets(found: Walk) -> set[tuple[str, int]]:
    assert found.shares is not None
    return {(str(place), port) for place, port in map(_words, found.shares)}


def _words(target: object) -> tuple[str, int]:
    assert isinstance(target, tuple)
    return ".".join(map(str, target[0])), target[1]


@pytest.mark.parametrize("port", [10000, 10123, 20000])
def test_the_clients_port_is_kept_where_the_endpoints_is_the_services(port: int) -> None:
    world = world_of(ranged(external_ips=ips("1.2.3.4")), *PODS)
    for vip in ("10.96.0.1", "1.2.3.4"):
        found = way(read(world), vip, port)
        assert targets(found) == {(pod, port) for pod in PODS}
        assert set((found.shares or {}).values()) == {Fraction(1, 2)}
        assert found.masqueraded


def test_a_pod_is_not_masqueraded_at_a_range() -> None:
    assert not way(read(world_of(ranged(), *PODS)), "10.96.0.1", 10123, POD).masqueraded


def test_a_node_port_in_the_range_goes_to_the_port_of_the_endpoint() -> None:
    world = world_of(ranged(node_port=15000), *PODS)
    seen = world.backend.observe()
    at = parse_address("192.168.0.2")
    packet = Packet(parse_address(CLIENT), at, Protocol.TCP, 15000, "eth0", to_node=True)
    assert targets(walk(RuleTables(Family.IPV4, seen, seen, frozenset({at})), packet)) == {
        (pod, 10000) for pod in PODS
    }


EXTERNAL: dict[str, Any] = {"external_ips": ips("1.2.3.4")}
BALANCER: dict[str, Any] = {"load_balancer_ips": ips("1.2.3.4")}


@pytest.mark.parametrize(
    ("fields", "pods", "vip", "end"),
    [
        ({}, (), "10.96.0.1", End.REJECTED),
        (EXTERNAL, (), "1.2.3.4", End.REJECTED),
        (EXTERNAL | {"external_policy": TrafficPolicy.LOCAL}, ("10.2.0.1",), "1.2.3.4", End.DROPPED),
        (BALANCER | {"source_ranges": (cidr("192.168.0.0/24"),)}, PODS, "1.2.3.4", End.DROPPED),
        (BALANCER | {"source_ranges": (cidr("203.0.113.0/24"),)}, PODS, "1.2.3.4", End.ANSWERED),
    ],
)
def test_nobody_local_nobody_at_all_and_sources_that_may_not(
    fields: dict[str, Any], pods: Sequence[str], vip: str, end: End
) -> None:
    subject = ranged(**fields)
    world = World(node=NODE)
    elsewhere = (endpoint(pod, "node-2" if pod.startswith("10.2.") else HERE) for pod in pods)
    world.put(subject, slice_of("rtp", *elsewhere, ports=(EndpointPort("", Protocol.TCP, 10000),)))
    world.sync()
    assert way(read(world), vip, 10123).end is end
    assert way(read(world), vip, 10123).end is way(read(world), vip, 10000).end


def test_no_port_outside_of_the_range_is_touched() -> None:
    world = world_of(ranged(external_ips=ips("1.2.3.4")), *PODS)
    for port in (9999, 20001):
        assert way(read(world), "1.2.3.4", port).end is End.UNTOUCHED
        assert way(read(world), "10.96.0.1", port).end is End.REJECTED


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
    ends = endpoints_of([plan])
    ((name, chains),) = ends.items()
    assert len(chains) == 2
    rules = [RuleCounter(chain, 1, "", 3 + place) for place, chain in enumerate(sorted(chains))]
    counts = count(ends, {NAT: rules, FILTER: []}, Ledger(), endpoints=True)
    (end,) = set(chains.values())
    assert counts[Measure.CONNECTIONS] == {name: 7, end: 7}
