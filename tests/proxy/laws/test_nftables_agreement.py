"""What the rendered table does to a packet is what the plan says, for any plan and any packet."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import pytest
from hypothesis import assume, given, seed, settings
from hypothesis import strategies as st
from tests.fakes.values import HERE, endpoint, ip, ips, node_plan, service, slice_of
from tests.proxy.laws.agreement import contended, planned, taken
from tests.proxy.laws.nftables_interpreter import Arrival, Objects, Result, Table, UnknownRuleError
from tests.proxy.laws.worlds import FOUR, World, packets_for, worlds

from vipwire.model.endpoint import EndpointPort, EndpointSlice
from vipwire.model.net import Protocol
from vipwire.model.service import Service, TrafficPolicy
from vipwire.modes.nftables.table.names import CHAIN, Chain, Hook
from vipwire.modes.nftables.table.render import render
from vipwire.modes.nftables.table.skeleton import node_objects
from vipwire.plan.affinity import memory_of
from vipwire.plan.plan import Forward, FrontendKind
from vipwire.plan.resolve import Answered, Dropped, Packet, Plan, Rejected, resolve

Memory: TypeAlias = dict[bytes, bytes]
REFUSALS = {Result("dropped"), Result("rejected")}


class Both(NamedTuple):
    """A plan, and the table that is rendered from it."""

    world: World
    plan: Plan
    table: Table

    def packets(self) -> st.SearchStrategy[Packet]:
        return packets_for(self.world, self.plan.frontends)

    def outcomes(self, packet: Packet, memory: Memory | None = None) -> dict[Result, Memory]:
        arrival = Arrival(packet.source, packet.destination, packet.protocol, packet.port, packet.interface)
        return self.table.outcomes(arrival, self.world.space.local, memory)


def both(world: World) -> Both:
    plan, services = planned(world)
    objects = dict(node_objects(world.node))
    for each in services:
        rendered = render(world.space.family, each)
        objects |= {**rendered.own, **rendered.shared}
    return Both(world, plan, Table(objects, world.space.family.bits // 8))


pairs = worlds(ranges=True).map(both)


def expected(plan: Plan, packet: Packet) -> set[Result]:
    match resolve(plan, packet):
        case Answered(_, pool, masqueraded):
            return {Result("answered", (t.address, t.port), t.address in masqueraded) for t in pool}
        case Dropped():
            return {Result("dropped")}
        case Rejected():
            return {Result("rejected")}
    return {Result("untouched")}


@given(data=st.data(), pair=pairs)
def test_the_table_does_what_the_plan_says(data: st.DataObject, pair: Both) -> None:
    for packet in data.draw(st.lists(pair.packets(), min_size=1, max_size=8)):
        found, wanted = set(pair.outcomes(packet)), expected(pair.plan, packet)
        rival = contended(pair.plan, packet)
        if rival is not None and (wanted <= REFUSALS or rival.allowed_sources is not None):
            assert found == wanted or found <= REFUSALS
        else:
            assert found == wanted


@given(data=st.data(), pair=pairs)
def test_a_client_is_remembered_where_the_plan_has_affinity_and_then_goes_where_it_went(
    data: st.DataObject, pair: Both
) -> None:
    packet = data.draw(pair.packets())
    outcome = resolve(pair.plan, packet)
    action = taken(outcome, packet, pair.plan) if isinstance(outcome, Answered) else None
    assume(contended(pair.plan, packet) is None)
    sticks = isinstance(action, Forward) and action.affinity_seconds is not None
    first = pair.outcomes(packet)
    for result, memory in first.items():
        assert bool(memory) is sticks
        assert set(pair.outcomes(packet, memory)) == ({result} if sticks else set(first))


@given(data=st.data(), pair=pairs)
def test_what_is_remembered_counts_at_the_frontends_that_share_it_and_at_no_other(
    data: st.DataObject, pair: Both
) -> None:
    """What one packet leaves in the memory decides the way of another of the same client, as the plan says."""
    packet = data.draw(pair.packets())
    other = data.draw(pair.packets())._replace(source=packet.source, interface=packet.interface)
    other = other._replace(from_node=packet.from_node)
    seen, here = (resolve(pair.plan, each) for each in (packet, other))
    assume(contended(pair.plan, packet) is None and contended(pair.plan, other) is None)
    assume(isinstance(here, Answered))
    before, action = taken_of(pair, seen, packet), taken_of(pair, here, other)
    assume(not any(each is not None and each.shared_affinity and _twins(each) for each in (before, action)))
    for result, memory in pair.outcomes(packet).items():
        found = {each.target for each in pair.outcomes(other, memory)}
        known = {}
        if before is not None and before.affinity_seconds is not None and isinstance(seen, Answered):
            target = next(each for each in before.pool if (each.address, each.port) == result.target)
            known = {memory_of(seen.frontend, before): target}
        bound = resolve(pair.plan, other, known)
        assert isinstance(bound, Answered)
        assert found == {(each.address, each.port) for each in bound.pool}


def _twins(action: Forward) -> bool:
    """Tell whether two endpoints of a pool have one address: which of them is meant at another port is open."""
    return len({each.address for each in action.pool}) < len(action.pool)


def taken_of(pair: Both, outcome: object, packet: Packet) -> Forward | None:
    """Tell what was done for a packet that was answered."""
    action = taken(outcome, packet, pair.plan) if isinstance(outcome, Answered) else None
    return action if isinstance(action, Forward) else None


@given(data=st.data(), pair=pairs)
def test_a_client_remembered_for_an_endpoint_that_is_gone_goes_to_any(data: st.DataObject, pair: Both) -> None:
    packet = data.draw(pair.packets())
    first = pair.outcomes(packet)
    for memory in first.values():
        stale = dict.fromkeys(memory, b"\xff\xff\xff\xfe")
        assert set(pair.outcomes(packet, stale)) == set(first)


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
            outcome = resolve(pair.plan, packet)
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


def to(address: str, *, interface: str = "eth0") -> Packet:
    return Packet(ip("203.0.113.2"), ip(address), Protocol.TCP, 80, interface)


def test_a_service_that_takes_turns_reaches_the_pools_of_both_its_policies() -> None:
    subject = service(
        internal_policy=TrafficPolicy.LOCAL,
        external_ips=ips("1.1.1.1"),
        annotations=(("vipwire.io/algorithm", "round-robin"),),
    )
    pair = small(subject, slices=[slice_of("web", endpoint("10.1.0.1", HERE), endpoint("10.2.0.1"))])
    for packet in (to("10.96.0.1"), to("1.1.1.1")):
        assert set(pair.outcomes(packet)) == expected(pair.plan, packet)


def test_a_service_that_nobody_serves_is_not_in_the_way_of_a_process_on_the_same_address() -> None:
    empty = service("empty", "10.96.0.2", external_ips=ips("192.168.0.2"))
    process = slice_of("web", endpoint("192.168.0.2", HERE), ports=[EndpointPort("", Protocol.TCP, 80)])
    pair = small(service("web"), empty, slices=[process])
    assert set(pair.outcomes(to("10.96.0.1"))) == expected(pair.plan, to("10.96.0.1"))


def table_of(*rules: str) -> Table:
    objects: Objects = {(CHAIN, b"x"): Chain(rules, Hook("filter", "prerouting", 0))}
    return Table(objects, 4)


@pytest.mark.parametrize(
    "rule",
    [
        "accept",
        "log drop",
        "drop; drop",
        "tcp dport 80 drop",
        "ip daddr @missing drop",
        "ip6 daddr ::1 drop",
        "jump missing",
        "meta mark set 0x1",
        "meta priority set 1:1",
        "dnat ip to 10.0.0.1:80",
        "masquerade",
        "dropped",
    ],
)
def test_the_interpreter_refuses_what_it_does_not_know(rule: str) -> None:
    packet = Arrival(b"\1\1\1\1", b"\2\2\2\2", 6, 80, "eth0")
    with pytest.raises(UnknownRuleError):
        table_of(rule).outcomes(packet, frozenset())


def test_the_interpreter_stops_at_the_first_match_only() -> None:
    packet = Arrival(bytes((10, 0, 0, 1)), bytes((10, 0, 0, 2)), 6, 80, "eth0")

    def fate(*rules: str) -> set[str]:
        return {result.fate for result in table_of(*rules).outcomes(packet, frozenset())}

    assert fate("ip saddr 10.0.0.0/8 drop", "reject") == {"dropped"}
    assert fate("ip saddr != 10.0.0.0/8 drop", "reject") == {"rejected"}
    assert fate('iifname "veth*" drop') == {"untouched"}
    assert fate('iifname "eth*" counter drop') == {"dropped"}
    assert fate() == {"untouched"}


def test_policies_ask_each_others_memory_and_go_by_it_where_they_may() -> None:
    """Both ways, step by step: random worlds seldom hold a client that meets both policies of one port."""
    subject = service(affinity_seconds=60, external_ips=ips("1.1.1.1"), external_policy=TrafficPolicy.LOCAL)
    pair = small(subject, slices=[slice_of("web", endpoint("10.1.0.1", HERE), endpoint("10.2.0.1"))])
    inside, outside = to("10.96.0.1"), to("1.1.1.1")
    near, far = (ip("10.1.0.1"), 8080), (ip("10.2.0.1"), 8080)

    def step(packet: Packet, memory: Memory) -> dict[tuple[bytes, int] | None, Memory]:
        return {result.target: after for result, after in pair.outcomes(packet, memory).items()}

    assert set(step(inside, {})) == {near, far}
    assert set(step(outside, {})) == {near}
    assert set(step(inside, step(outside, {})[near])) == {near}, "the ClusterIP goes where the other has led"
    at_both = step(outside, step(inside, {})[far])
    assert set(at_both) == {near}, "a Local policy may not go there"
    assert set(step(inside, at_both[near])) == {far}, "and the ClusterIP keeps what it had"
    assert set(step(outside, step(inside, at_both[near])[far])) == {near}
