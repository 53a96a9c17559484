"""A packet's way through the table that nftables mode renders, without a kernel."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from tests.proxy.unit.inspected import PODS, example, make_config

from vipwire.config.sections import CounterLevel
from vipwire.inspect.node.situation import plan_family
from vipwire.inspect.node.source import list_once, make_source
from vipwire.linux.netlink.nftables.elements import Element
from vipwire.model.net import Family, Protocol, parse_address
from vipwire.model.spread import jhash, slot_of
from vipwire.modes.nftables.explain.explainer import walk
from vipwire.modes.nftables.explain.table import Table
from vipwire.modes.nftables.table.names import CHAIN, Chain, Object, ObjectKey
from vipwire.modes.nftables.table.render import render
from vipwire.modes.nftables.table.skeleton import node_objects
from vipwire.plan.plan import Target
from vipwire.plan.resolve import Packet
from vipwire.reconcile.explainer import BY_ADDRESS, BY_ADDRESS_AND_PORT, BY_CHANCE, IN_TURN
from vipwire.reconcile.steps import End, ObjectState
from vipwire_lab.lab import manifests
from vipwire_lab.lab.manifests import Port
from vipwire_lab.net.topology import DEFAULT

Objects = dict[ObjectKey, Object]
CLIENT = parse_address("203.0.113.9")
ENDPOINTS = [(parse_address(PODS[name].addresses[0]), 8080) for name in ("pod-1a", "pod-2a")]


def annotated(name: str, address: str, algorithm: str) -> list[Any]:
    pods = [PODS[name] for name in ("pod-1a", "pod-1b", "pod-2a")]
    made = manifests.service_manifest(DEFAULT, name, [address], [Port(80)], pods)
    made[0]["metadata"]["annotations"] = {"vipwire.io/algorithm": algorithm}
    return made


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    extra = [
        each
        for number, algorithm in enumerate(("source-hash", "round-robin", "maglev"))
        for each in annotated(algorithm, f"10.96.1.{number}", algorithm)
    ]
    config = make_config(tmp_path, [*example(), *extra])
    side = plan_family(config, list_once(make_source(config)), Family.IPV4, ())
    made: Objects = node_objects(side.node)
    for plan in side.plans.values():
        rendered = render(Family.IPV4, plan)
        made |= {**rendered.own, **rendered.shared}
    return made


def packet(destination: str, port: int, source: bytes = CLIENT) -> Packet:
    return Packet(type(CLIENT)(source), parse_address(destination), Protocol.TCP, port, "eth0")


def test_what_is_as_planned_is_followed_to_both_endpoints(objects: Objects) -> None:
    way = walk(Table(Family.IPV4, objects, objects), packet("10.96.0.10", 80))
    assert way.end is End.ANSWERED
    assert way.shares == dict.fromkeys(ENDPOINTS, Fraction(1, 2))
    assert way.masqueraded == {address for address, _ in ENDPOINTS}
    assert {step.state for step in way.steps} == {ObjectState.PLANNED}
    assert any('"default/web:http"' in step.text for step in way.steps)


@pytest.mark.parametrize(
    ("address", "port", "end"),
    [("10.96.0.3", 80, End.REJECTED), ("10.96.0.10", 81, End.REJECTED), ("10.9.9.9", 80, End.UNTOUCHED)],
)
def test_what_is_not_answered_ends_at_its_rule(objects: Objects, address: str, port: int, end: End) -> None:
    assert walk(Table(Family.IPV4, objects, objects), packet(address, port)).end is end


def test_a_missing_element_is_named_and_its_slot_leads_nowhere(objects: Objects) -> None:
    key = next(key for key in objects if key[0] == "service-affinity-slots")
    observed = {other: value for other, value in objects.items() if other != key}
    way = walk(Table(Family.IPV4, observed, objects), packet("10.96.0.10", 80))
    assert way.shares is not None
    assert way.shares[None] == Fraction(1, 2)
    assert [step.object for step in way.steps if step.state is ObjectState.MISSING] == [
        "element of service-affinity-slots"
    ]


def test_a_rule_that_is_not_ours_makes_the_end_uncertain(objects: Objects) -> None:
    key = (CHAIN, b"services")
    ours = objects[key]
    assert isinstance(ours, Chain)
    observed = {**objects, key: Chain(("# meta cmp immediate", *ours.rules))}
    way = walk(Table(Family.IPV4, observed, objects), packet("10.96.0.10", 80))
    assert way.end is End.UNKNOWN
    assert any(step.state is ObjectState.DIFFERENT for step in way.steps)


def test_an_emptied_chain_is_certain_and_its_rules_are_missing(objects: Objects) -> None:
    key = (CHAIN, b"nat-prerouting")
    ours = objects[key]
    assert isinstance(ours, Chain)
    way = walk(Table(Family.IPV4, {**objects, key: Chain((), ours.hook)}, objects), packet("10.96.0.10", 80))
    assert way.end is End.REJECTED
    assert any(step.text == "jump services" and step.state is ObjectState.MISSING for step in way.steps)


def test_a_chain_that_is_gone_is_named_once(objects: Objects) -> None:
    observed = {key: value for key, value in objects.items() if key != (CHAIN, b"nat-prerouting")}
    way = walk(Table(Family.IPV4, observed, objects), packet("10.96.0.10", 80))
    missing = [step.object for step in way.steps if step.state is ObjectState.MISSING]
    assert (way.end, missing) == (End.REJECTED, ["chain nat-prerouting"])


def test_without_a_table_nothing_happens(objects: Objects) -> None:
    way = walk(Table(Family.IPV4, {}, objects), packet("10.96.0.10", 80))
    assert (way.end, [step.object for step in way.steps]) == (End.UNTOUCHED, ["table ip vipwire"])


def test_what_is_remembered_of_a_client_is_found(objects: Objects) -> None:
    to = packet("10.96.0.10", 80)
    identity = next(
        key[1][-4:]
        for key, value in objects.items()
        if key[0] == "service-affinity-endpoints" and value == ENDPOINTS[1][0] + (8080).to_bytes(2) + bytes(2)
    )
    where: tuple[str, bytes] = ("affinity/default/web/tcp/http", to.source)
    memory = {where: Element(to.source, identity, expiration=12_000)}
    way = walk(Table(Family.IPV4, objects, objects), to, memory)
    assert way.remembered == (*ENDPOINTS[1], 12.0)
    assert way.shares == dict.fromkeys(ENDPOINTS, Fraction(1, 2))


def test_a_hash_of_the_address_gives_each_client_one_endpoint(objects: Objects) -> None:
    table = Table(Family.IPV4, objects, objects)
    chosen: set[object] = set()
    for last in range(1, 60):
        shares = walk(table, packet("10.96.1.0", 80, bytes((203, 0, 113, last)))).shares
        assert shares is not None
        assert list(shares.values()) == [1]
        chosen.update(shares)
    assert len(chosen) == 3


def test_turns_and_maglev_reach_every_endpoint(objects: Objects) -> None:
    table = Table(Family.IPV4, objects, objects)
    turns, maglev = (walk(table, packet(address, 80)).shares for address in ("10.96.1.1", "10.96.1.2"))
    assert turns is not None
    assert maglev is not None
    assert set(turns.values()) == {Fraction(1, 3)}
    assert set(maglev) == set(turns)
    assert all(abs(share - Fraction(1, 3)) < Fraction(1, 100) for share in maglev.values())


def test_targets_are_those_of_the_plan(objects: Objects) -> None:
    shares = walk(Table(Family.IPV4, objects, objects), packet("10.96.0.2", 53)).shares
    assert shares is not None
    assert [str(Target(*target, local=False)) for target in shares if target] == ["10.244.2.11:53"]


@pytest.mark.parametrize(
    ("data", "expected"),
    # lookup3.c's own check: hashlittle of these bytes, whose start value is what the kernel adds to the seed
    [(b"", 0xDEADBEEF), (b"Four score and seven years ago", 0x17770551)],
)
def test_the_hash_is_lookup3(data: bytes, expected: int) -> None:
    assert jhash(data, 0) == expected


def test_slots_cover_what_they_are_scaled_to() -> None:
    assert {slot_of(bytes((10, 0, 0, last)), 7, 5) for last in range(100)} == set(range(5))


@pytest.mark.parametrize(("target_port", "arrives_at"), [(10000, 10123), (8080, 8080)])
def test_a_range_is_followed_by_its_port_and_counters_do_not_stand_in_the_way(
    tmp_path: Path, target_port: int, arrives_at: int
) -> None:
    pods = [PODS[name] for name in ("pod-1a", "pod-2a")]
    made = manifests.service_manifest(DEFAULT, "rtp", ["10.96.0.7"], [Port(10000, target_port)], pods)
    made[0]["metadata"]["annotations"] = {"vipwire.io/port-range": "10000-20000"}
    config = make_config(tmp_path, made)
    side = plan_family(config, list_once(make_source(config)), Family.IPV4, ())
    (plan,) = side.plans.values()
    rendered = render(Family.IPV4, plan)
    table = {**node_objects(side.node, CounterLevel.TRAFFIC), **rendered.own, **rendered.shared}
    way = walk(Table(Family.IPV4, table, table), packet("10.96.0.7", 10123))
    assert way.end is End.ANSWERED
    assert way.shares == {(parse_address(pod.addresses[0]), arrives_at): Fraction(1, 2) for pod in pods}
    assert all(step.state is ObjectState.PLANNED for step in way.steps)
    assert walk(Table(Family.IPV4, table, table), packet("10.96.0.7", 20001)).end is End.REJECTED


def test_how_a_slot_is_chosen_is_what_the_table_does(objects: Objects) -> None:
    found = [
        walk(Table(Family.IPV4, objects, objects), packet(address, 80)).choice
        for address in ("10.96.0.10", "10.96.1.0", "10.96.1.1", "10.96.1.2")
    ]
    assert found == [
        BY_CHANCE,
        f"{BY_ADDRESS}, the same on every node",
        IN_TURN,
        f"{BY_ADDRESS_AND_PORT} (Maglev), the same on every node",
    ]
