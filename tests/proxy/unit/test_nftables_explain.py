"""A packet's way through the table that nftables mode renders, without a kernel."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from tests.proxy.unit.inspected import PODS, example, make_config

from vipwire.inspect.node.situation import plan_family
from vipwire.inspect.node.source import list_once, make_source
from vipwire.linux.netlink.nftables.elements import Element
from vipwire.model.net import Family, Protocol, parse_address
from vipwire.modes.nftables.explain.explainer import walk_table
from vipwire.modes.nftables.explain.jhash import choose_slot, compute_jhash
from vipwire.modes.nftables.explain.table import Table
from vipwire.modes.nftables.table.names import CHAIN, Chain, Object, ObjectKey
from vipwire.modes.nftables.table.render import render_service
from vipwire.modes.nftables.table.skeleton import build_node_objects
from vipwire.plan.resolve import Packet
from vipwire.reconcile.explainer import BY_ADDRESS, BY_ADDRESS_AND_PORT, BY_CHANCE, IN_TURN
from vipwire.reconcile.steps import End, ObjectState
from vipwire_lab.cluster import manifests
from vipwire_lab.cluster.manifests import Port
from vipwire_lab.namespaces.topology import DEFAULT

Objects = dict[ObjectKey, Object]
CLIENT = parse_address("203.0.113.9")
ENDPOINTS = [(parse_address(PODS[name].addresses[0]), 8080) for name in ("pod-1a", "pod-2a")]


def annotated(name: str, address: str, algorithm: str) -> list[Any]:
    pods = [PODS[name] for name in ("pod-1a", "pod-1b", "pod-2a")]
    made = manifests.build_service_with_slices(DEFAULT, name, [address], [Port(80)], pods)
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
    made: Objects = build_node_objects(side.node)
    for plan in side.plans.values():
        rendered = render_service(Family.IPV4, plan)
        made |= {**rendered.own, **rendered.shared}
    return made


def packet(destination: str, port: int, source: bytes = CLIENT) -> Packet:
    return Packet(type(CLIENT)(source), parse_address(destination), Protocol.TCP, port, "eth0")


def test_a_missing_element_is_named_and_its_slot_leads_nowhere(objects: Objects) -> None:
    key = next(key for key in objects if key[0] == "service-affinity-slots")
    observed = {other: value for other, value in objects.items() if other != key}
    way = walk_table(Table(Family.IPV4, observed, objects), packet("10.96.0.10", 80))
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
    way = walk_table(Table(Family.IPV4, observed, objects), packet("10.96.0.10", 80))
    assert way.end is End.UNKNOWN
    assert any(step.state is ObjectState.DIFFERENT for step in way.steps)


def test_an_emptied_chain_is_certain_and_its_rules_are_missing(objects: Objects) -> None:
    key = (CHAIN, b"nat-prerouting")
    ours = objects[key]
    assert isinstance(ours, Chain)
    way = walk_table(Table(Family.IPV4, {**objects, key: Chain((), ours.hook)}, objects), packet("10.96.0.10", 80))
    assert way.end is End.REJECTED
    assert any(step.text == "jump services" and step.state is ObjectState.MISSING for step in way.steps)


def test_a_chain_that_is_gone_is_named_once(objects: Objects) -> None:
    observed = {key: value for key, value in objects.items() if key != (CHAIN, b"nat-prerouting")}
    way = walk_table(Table(Family.IPV4, observed, objects), packet("10.96.0.10", 80))
    missing = [step.object for step in way.steps if step.state is ObjectState.MISSING]
    assert (way.end, missing) == (End.REJECTED, ["chain nat-prerouting"])


def test_without_a_table_nothing_happens(objects: Objects) -> None:
    way = walk_table(Table(Family.IPV4, {}, objects), packet("10.96.0.10", 80))
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
    way = walk_table(Table(Family.IPV4, objects, objects), to, memory)
    assert way.remembered == (*ENDPOINTS[1], 12.0)
    assert way.shares == dict.fromkeys(ENDPOINTS, Fraction(1, 2))


@pytest.mark.parametrize(
    ("data", "expected"),
    # lookup3.c's own check: hashlittle of these bytes, whose start value is what the kernel adds to the seed
    [(b"", 0xDEADBEEF), (b"Four score and seven years ago", 0x17770551)],
)
def test_the_hash_is_lookup3(data: bytes, expected: int) -> None:
    assert compute_jhash(data, 0) == expected


def test_slots_cover_what_they_are_scaled_to() -> None:
    assert {choose_slot(bytes((10, 0, 0, last)), 7, 5) for last in range(100)} == set(range(5))


def test_how_a_slot_is_chosen_is_what_the_table_does(objects: Objects) -> None:
    found = [
        walk_table(Table(Family.IPV4, objects, objects), packet(address, 80)).choice
        for address in ("10.96.0.10", "10.96.1.0", "10.96.1.1", "10.96.1.2")
    ]
    assert found == [
        BY_CHANCE,
        f"{BY_ADDRESS}, the same on every node",
        IN_TURN,
        f"{BY_ADDRESS_AND_PORT} (Maglev), the same on every node",
    ]
