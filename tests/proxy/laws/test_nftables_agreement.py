"""What the rendered table does to a packet is what the plan says, for any plan and any packet.

`explain` evaluates the rules, so this is its law, too.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

import pytest
from hypothesis import assume, given, seed, settings
from hypothesis import strategies as st
from tests.fakes.values import HERE, endpoint, ip, ips, node_plan, service, slice_of
from tests.proxy.laws.agreement import Pair, contended, expected, planned, taken
from tests.proxy.laws.worlds import FEW, FOUR, World, packets_for, worlds

from vipwire.linux.netlink.nftables.elements import Element
from vipwire.model.net import Protocol
from vipwire.model.service import EndpointPort, EndpointSlice, Service, TrafficPolicy
from vipwire.model.spread import Algorithm
from vipwire.modes.nftables.explain.explainer import walk_table
from vipwire.modes.nftables.explain.table import Table
from vipwire.modes.nftables.table.render import render_service
from vipwire.modes.nftables.table.skeleton import build_node_objects
from vipwire.plan.plan import Forward, FrontendKind, Memory, Target, choose_memory, list_sticky_actions
from vipwire.plan.resolve import Answered, Packet, resolve_packet
from vipwire.reconcile.explainer import Walk
from vipwire.reconcile.steps import End, ObjectState, Verdict

REFUSALS = {End.DROPPED, End.REJECTED}


class Both(Pair):
    """A plan, and the table that is rendered from it."""

    def walk(self, packet: Packet, memory: Mapping[tuple[str, bytes], Element] | None = None) -> Walk:
        return walk_table(Table(self.world.space.family, self.objects, self.objects, self.own), packet, memory or {})

    def identity(self, outcome: Answered, target: Target) -> bytes:
        """Return what the table remembers of a client of this endpoint."""
        key = outcome.frontend.key
        place = (key.address or b"") + bytes((key.protocol, 0, 0, 0)) + key.port.to_bytes(2) + bytes(2)
        end = target.address + target.port.to_bytes(2) + bytes(2)
        found: set[bytes] = {
            each[-4:]
            for (name, each), value in self.objects.items()
            if name.endswith("affinity-endpoints") and each[:-4] == place and getattr(value, "data", value) == end
        }
        return found.pop()


def both(world: World) -> Both:
    plan, services = planned(world)
    objects = dict(build_node_objects(world.node))
    for each in services:
        rendered = render_service(world.space.family, each)
        objects |= {**rendered.own, **rendered.shared}
    return Both(world, plan, objects)


pairs = worlds(ranges=True).map(both)


def check(pair: Both, packet: Packet) -> None:
    """Compare the end, the share of each endpoint, and who sees this node."""
    found, wanted = pair.walk(packet), expected(pair.plan, packet)
    rival = contended(pair.plan, packet)
    if rival is not None and (wanted in REFUSALS or rival.allowed_sources is not None) and found.end in REFUSALS:
        return
    assert found.end is wanted, (packet, found)
    outcome = resolve_packet(pair.plan, packet)
    if isinstance(outcome, Answered):
        action, shares = taken(outcome, packet, pair.plan), found.shares or {}
        assert isinstance(action, Forward)
        total = sum(action.weights)
        weights = {(t.address, t.port): weight for t, weight in zip(outcome.pool, action.weights, strict=True)}
        if action.spread.algorithm is Algorithm.SOURCE_HASH:
            assert shares.keys() <= weights.keys()
            assert len(shares) == 1
        else:
            assert shares == {target: Fraction(weight, total) for target, weight in weights.items()}
        assert found.masqueraded == outcome.masqueraded & {target[0] for target in shares if target}


@given(data=st.data(), pair=pairs)
def test_the_table_does_what_the_plan_says(data: st.DataObject, pair: Both) -> None:
    for packet in data.draw(st.lists(pair.packets(), min_size=1, max_size=8)):
        check(pair, packet)


@FEW
@given(data=st.data(), pair=pairs)
def test_every_step_is_as_planned_and_every_rule_is_understood(data: st.DataObject, pair: Both) -> None:
    found = pair.walk(data.draw(pair.packets()))
    assert {step.state for step in found.steps} <= {ObjectState.PLANNED}
    assert found.end is not End.UNKNOWN


def memory_map(found: Walk) -> str | None:
    """Return the map in which the rules remember the client; None if they do not."""
    texts = {step.text for step in found.steps if Verdict.REMEMBER in step.verdicts}
    names = {word[1:] for text in texts for word in text.split() if word.startswith("@")}
    assert len(names) <= 1
    return names.pop() if names else None


@FEW
@given(data=st.data(), pair=pairs)
def test_a_client_is_remembered_where_the_plan_has_affinity(data: st.DataObject, pair: Both) -> None:
    packet = data.draw(pair.packets())
    outcome = resolve_packet(pair.plan, packet)
    assume(contended(pair.plan, packet) is None)
    action = taken(outcome, packet, pair.plan) if isinstance(outcome, Answered) else None
    sticks = isinstance(action, Forward) and action.affinity_seconds is not None
    assert (memory_map(pair.walk(packet)) is not None) is sticks


@given(data=st.data(), pair=pairs)
def test_what_is_remembered_counts_at_the_frontends_that_share_it_and_at_no_other(
    data: st.DataObject, pair: Both
) -> None:
    """What one packet leaves in the memory decides the way of another of the same client, as the plan says."""
    sticky = [key for key, frontend in pair.plan.frontends.items() if any(list_sticky_actions(frontend))]
    packet = data.draw(packets_for(pair.world, sticky))
    other = data.draw(st.one_of(packets_for(pair.world, sticky), pair.packets()))
    other = other._replace(source=packet.source, interface=packet.interface, from_node=packet.from_node)
    seen, here = (resolve_packet(pair.plan, each) for each in (packet, other))
    if contended(pair.plan, packet) or contended(pair.plan, other):
        return
    if isinstance(seen, Answered) and isinstance(here, Answered):
        action = taken(seen, packet, pair.plan)
        assert isinstance(action, Forward)
        name, addresses = memory_map(pair.walk(packet)), {each.address for each in action.pool}
        # Which of two endpoints at one address is meant at another port is open.
        if name is not None and not (action.shared_affinity and len(addresses) < len(action.pool)):
            target = data.draw(st.sampled_from(action.pool))
            check_bound(pair, other, name, pair.identity(seen, target), choose_memory(seen.frontend, action), target)


def check_bound(pair: Both, packet: Packet, name: str, identity: bytes, memory: Memory, target: Target) -> None:
    """Compare where a client goes whose memory holds an endpoint."""
    found = pair.walk(packet, {(name, packet.source): Element(packet.source, identity, expiration=1000)}).remembered
    free, bound = (resolve_packet(pair.plan, packet, known) for known in ({}, {memory: target}))
    assert isinstance(bound, Answered)
    (only, *others) = bound.pool
    if bound != free:
        assert found == (only.address, only.port, 1.0)
        assert not others
    elif others:
        assert found is None


def features(outcome: Answered, action: Forward) -> Iterator[str]:
    yield outcome.frontend.kind.name
    yield "masqueraded" if outcome.masqueraded else "plain"
    found = {
        "several": len(action.pool) > 1,
        "short circuit": action is outcome.frontend.short_circuit,
        "affinity": action.affinity_seconds is not None,
        "shared affinity": action.shared_affinity,
        "weighted": bool(action.spread.weights),
        "guarded": outcome.frontend.allowed_sources is not None,
        "port of a range": outcome.frontend.key.port in (79, 85),
        "port kept": outcome.frontend.key.port in (79, 85) and action.pool[0].port == outcome.frontend.key.port,
    }
    yield from (name for name, there in found.items() if there)


@pytest.mark.slow
def test_the_worlds_hold_what_the_laws_are_about() -> None:
    """A hundred examples may lack the rarest; what they are depends on the modules that other tests have loaded."""
    seen: Counter[str] = Counter()

    @settings(max_examples=100, database=None)
    @given(data=st.data(), pair=pairs)
    def look(data: st.DataObject, pair: Both) -> None:
        for packet in data.draw(st.lists(pair.packets(), min_size=8, max_size=16)):
            outcome = resolve_packet(pair.plan, packet)
            seen[type(outcome).__name__] += 1
            if isinstance(outcome, Answered):
                action = taken(outcome, packet, pair.plan)
                assert isinstance(action, Forward)
                seen.update(features(outcome, action))

    kinds = [kind.name for kind in FrontendKind]
    rest = ["masqueraded", "plain", "several", "short circuit", "affinity", "shared affinity", "weighted", "guarded"]
    rest += ["port of a range", "port kept"]
    wanted = {"Answered", "Dropped", "Rejected", "Untouched", *kinds, *rest}
    for number in range(50):
        if seen.keys() >= wanted:
            break
        seed(number)(look)()
    assert wanted - seen.keys() == set(), seen


def small(*services: Service, slices: Sequence[EndpointSlice]) -> Both:
    """Make a world of few things, by hand."""
    by_name = {item.name: item for item in services}
    return both(World(FOUR, node_plan(), by_name, {piece.name: piece for piece in slices}))


def to(address: str) -> Packet:
    return Packet(ip("203.0.113.2"), ip(address), Protocol.TCP, 80, "eth0")


def test_a_service_that_takes_turns_reaches_the_pools_of_both_its_policies() -> None:
    subject = service(
        internal_policy=TrafficPolicy.LOCAL,
        external_ips=ips("1.1.1.1"),
        annotations=(("vipwire.io/algorithm", "round-robin"),),
    )
    pair = small(subject, slices=[slice_of("web", endpoint("10.1.0.1", HERE), endpoint("10.2.0.1"))])
    for packet in (to("10.96.0.1"), to("1.1.1.1")):
        check(pair, packet)


def test_a_service_that_nobody_serves_is_not_in_the_way_of_a_process_on_the_same_address() -> None:
    empty = service("empty", "10.96.0.2", external_ips=ips("192.168.0.2"))
    process = slice_of("web", endpoint("192.168.0.2", HERE), ports=[EndpointPort("", Protocol.TCP, 80)])
    check(small(service("web"), empty, slices=[process]), to("10.96.0.1"))


@pytest.mark.parametrize(
    ("asked", "known", "expected"),
    [
        ("10.96.0.1", {"affinity-local": "10.1.0.1"}, "10.1.0.1"),
        ("1.1.1.1", {"affinity": "10.2.0.1"}, None),
        ("10.96.0.1", {"affinity": "10.2.0.1", "affinity-local": "10.1.0.1"}, "10.2.0.1"),
    ],
    ids=["the ClusterIP goes where the other has led", "a Local policy may not", "each has its own first"],
)
def test_policies_ask_each_others_memory_and_go_by_it_where_they_may(
    asked: str, known: dict[str, str], expected: str | None
) -> None:
    """Random worlds seldom hold a client that meets both policies of one port."""
    subject = service(affinity_seconds=60, external_ips=ips("1.1.1.1"), external_policy=TrafficPolicy.LOCAL)
    pair = small(subject, slices=[slice_of("web", endpoint("10.1.0.1", HERE), endpoint("10.2.0.1"))])
    packet, inside = to(asked), resolve_packet(pair.plan, to("10.96.0.1"))
    assert isinstance(inside, Answered)
    by_address = {each.address: each for each in inside.pool}
    memory: dict[tuple[str, bytes], Element] = {
        (f"{name}/default/web/tcp/", packet.source): Element(
            packet.source, pair.identity(inside, by_address[ip(address)]), expiration=1000
        )
        for name, address in known.items()
    }
    found = pair.walk(packet, memory).remembered
    assert found == (None if expected is None else (ip(expected), 8080, 1.0))
