"""Where the programs of ebpf mode lead a socket, a packet of it would have gone as well, for any plan and any client.

`explain` is asked about the same: it says that programs lead, and where, if they do; and it tells which of the two is
damaged where somebody has changed maps or rules.
"""

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from tests.proxy.laws.agreement import Pair, planned, taken, with_addresses
from tests.proxy.laws.worlds import FEW, World, worlds

from vipwire.linux.bpf.programs import HOOKS
from vipwire.model.names import ServicePortName
from vipwire.model.net import Address, Protocol
from vipwire.modes.ebpf.explain import EbpfExplainer
from vipwire.modes.ebpf.layout import (
    FRONTENDS,
    HEAD,
    PROGRAMS,
    Flag,
    Head,
    endpoint_slot,
    endpoints,
    frontend_key,
    read_endpoint,
    read_frontend_key,
    select_rules,
)
from vipwire.modes.ebpf.render import list_map_keys, render_service
from vipwire.modes.nftables.explain.explainer import NftablesExplainer
from vipwire.modes.nftables.table.render import render_service as render_rules
from vipwire.modes.nftables.table.skeleton import build_node_objects
from vipwire.plan.plan import Forward, FrontendKey, list_sticky_actions
from vipwire.plan.resolve import Answered, Packet, is_from_pod, resolve_packet
from vipwire.reconcile.explainer import Walk
from vipwire.reconcile.steps import End, ObjectState

ALL = Flag.NODE | Flag.POD
QUICK = settings(max_examples=500, phases=[Phase.generate], database=None)
Ends = dict[tuple[Address, int], Fraction]


class Both(Pair):
    """A plan, and what is rendered from it: rules, frontends for the programs, and these."""

    def __repr__(self) -> str:
        return repr(self.world)

    def walk(self, packet: Packet, observed: Mapping[Any, Any] | None = None) -> Walk:
        family = self.world.space.family
        held = self.objects if observed is None else observed
        return EbpfExplainer(family, NftablesExplainer(family)).walk(held, self.objects, packet, self.own)


def both(world: World, remembered: frozenset[Protocol] = frozenset()) -> Both:
    plan, services = planned(world)
    objects: dict[Any, Any] = dict(build_node_objects(world.node))
    objects.update(((PROGRAMS, hook.encode()), b"as wanted") for hook in HOOKS)
    for each in services:
        rules, ours = render_rules(world.space.family, each), render_service(world.space.family, each, remembered)
        assert not ours.keys() & objects.keys(), "no two Services have one object"
        objects |= {**rules.own, **rules.shared, **ours}
    return Both(world, plan, objects)


remembering = st.sampled_from([frozenset[Protocol](), frozenset({Protocol.TCP}), frozenset({*Protocol})])
pairs = st.builds(both, worlds(ranges=True).map(with_addresses), remembering)


def frontend_of(packet: Packet) -> tuple[str, bytes]:
    return FRONTENDS, frontend_key(packet.destination, packet.protocol, packet.port)


def role(pair: Both, packet: Packet) -> Flag:
    """Say who sends: the node, from an address that it has chosen, a Pod, or one that nobody can tell from a Pod."""
    if packet.from_node:
        return Flag.NODE if packet.source in pair.world.space.node else Flag(0)
    known = pair.world.node.pod_traffic is not None
    return Flag.POD if is_from_pod(pair.world.node, packet) or not known else Flag(0)


def led(pair: Both, packet: Packet, objects: Mapping[Any, Any]) -> Ends | None:
    """Do what the programs do: the endpoints of an unbound socket, by share; None where it is left to the rules."""
    held = objects.get(frontend_of(packet))
    if held is None or not Head.read(held).flags & role(pair, packet):
        return None
    dealt = Counter(map(read_endpoint, endpoints(pair.world.space.family, held)))
    if packet.source in {address for address, _ in dealt}:
        return None  # it may be meeting itself
    return {end: Fraction(number, dealt.total()) for end, number in dealt.items()}


def led_packets(pair: Both) -> list[Packet]:
    """Make packets of all sockets that are led, from the node, from its Pods and from elsewhere."""
    space, found = pair.world.space, list[Packet]()
    for place, data in pair.objects:
        if place == FRONTENDS:
            destination, protocol, port = read_frontend_key(data)
            local = destination in space.local
            for source, own in ((space.node[0], True), (space.elsewhere[0], False), (space.here[0], False)):
                packet = Packet(source, destination, Protocol(protocol), port, "" if own else "veth1", own, local)
                found += [packet] if led(pair, packet, pair.objects) else []
    return found


@pytest.mark.parametrize("whose", [Flag.NODE, Flag.POD])
def test_the_worlds_have_sockets_that_are_led(whose: Flag) -> None:
    find(pairs, lambda pair: any(role(pair, each) is whose for each in led_packets(pair)), settings=QUICK)


def to_node_ports(pair: Both) -> list[Packet]:
    """Make the packets of sockets that are led at an address of this node, where nobody claims it by the address."""
    frontends = pair.plan.frontends
    found = [each for each in led_packets(pair) if each.to_node]
    return [each for each in found if FrontendKey(each.destination, each.protocol, each.port) not in frontends]


def has_contested_node_port(pair: Both) -> bool:
    return bool(to_node_ports(pair)) and any(plan.contested for plan in pair.plan.services.values())


@pytest.mark.slow
@pytest.mark.parametrize("whose", [Flag.NODE, Flag.POD])
def test_the_worlds_have_node_ports_that_are_led_and_others_that_are_contested(whose: Flag) -> None:
    find(pairs, lambda pair: any(role(pair, each) is whose for each in to_node_ports(pair)), settings=QUICK)
    find(pairs, has_contested_node_port, settings=QUICK)


def shares_of(pair: Both, packet: Packet) -> Ends:
    """Return the endpoints of a client, by share, and see that a Pod's address is kept."""
    outcome = resolve_packet(pair.plan, packet)
    assert isinstance(outcome, Answered), (packet, outcome)
    action = taken(outcome, packet, pair.plan)
    assert isinstance(action, Forward)
    assert packet.from_node or not outcome.masqueraded & {each.address for each in action.pool}
    total = sum(action.weights)
    weighted = zip(action.pool, action.weights, strict=True)
    return {(each.address, each.port): Fraction(weight, total) for each, weight in weighted if weight}


@FEW
@given(data=st.data(), pair=pairs)
def test_programs_lead_where_the_plan_says(data: st.DataObject, pair: Both) -> None:
    for packet in data.draw(st.lists(pair.packets(), min_size=1, max_size=8)):
        ends = led(pair, packet, pair.objects)
        if ends is not None:
            assert ends == shares_of(pair, packet)


def staying(pair: Both) -> dict[ServicePortName, list[bytes | None]]:
    """List what programs have of the frontends of each Service port with affinity."""
    found: dict[ServicePortName, list[bytes | None]] = {}
    for plan in pair.plan.services.values():
        for frontend in plan.frontends:
            if any(list_sticky_actions(frontend)):
                held = [pair.objects.get((FRONTENDS, key)) for key in list_map_keys(plan, frontend.key)]
                found.setdefault(frontend.port_name, []).extend(held)
    return found


@pytest.mark.slow
def test_the_worlds_have_pods_that_are_remembered() -> None:
    known = worlds(ranges=True).map(with_addresses).map(lambda world: both(world, frozenset({*Protocol})))
    find(
        known,
        lambda pair: any(held and all(held) for held in staying(pair).values()),
        settings=settings(QUICK, max_examples=5000),
    )


@FEW
@given(pair=pairs)
def test_programs_remember_pods_at_all_frontends_of_a_service_port_or_at_none(pair: Both) -> None:
    for held in staying(pair).values():
        known = [each for each in held if each is not None]
        assert known in ([], held)
        assert len(set(known)) <= 1, "one memory, and the same endpoints"
        assert all(Head.read(each).seconds and Head.read(each).flags & ALL == Flag.POD for each in known)


@FEW
@given(data=st.data(), pair=pairs)
def test_explain_says_what_programs_do_and_rules(data: st.DataObject, pair: Both) -> None:
    packet = data.draw(pair.packets())
    found, ends = pair.walk(packet), led(pair, packet, pair.objects)
    assert found.direct is None or not found.direct.difference
    assert {step.state for step in found.steps} <= {ObjectState.PLANNED}
    if ends is not None:
        assert found.direct is not None
        assert found.direct.node if packet.from_node else found.direct.pods
        assert found.end is End.ANSWERED, "who is not led meets rules that do the same"
        assert found.shares == ends


@FEW
@given(data=st.data(), pair=pairs)
def test_explain_tells_which_of_the_two_is_damaged(data: st.DataObject, pair: Both) -> None:
    packets = led_packets(pair)
    if not packets:
        return
    packet = data.draw(st.sampled_from(packets))
    whole = pair.walk(packet)
    programs_only = {key: value for key, value in pair.objects.items() if key not in select_rules(pair.objects)}
    without_rules = pair.walk(packet, programs_only)
    assert (without_rules.direct, without_rules.end) == (whole.direct, End.UNTOUCHED)
    key = frontend_of(packet)
    without_maps = pair.walk(packet, {each: value for each, value in pair.objects.items() if each != key})
    assert (without_maps.direct, without_maps.end, without_maps.shares) == (None, whole.end, whole.shares)
    assert ObjectState.MISSING in {step.state for step in without_maps.steps}
    nobody = endpoint_slot(Address(packet.destination), 9)
    misled = pair.walk(packet, {**pair.objects, key: pair.objects[key][: HEAD.size] + nobody})
    assert misled.direct is not None
    assert "which are not in the plan" in misled.direct.difference
    assert misled.shares == whole.shares
