"""What the rendered objects of ipvs mode do to a packet is what the plan says, for any plan and any packet.

`explain` follows chains, sets and virtual servers, so this is its law, too.
"""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from tests.proxy.laws.worlds import FEW, World, packets_for, worlds

from vipwire.model.net import Address, is_loopback
from vipwire.model.spread import Algorithm
from vipwire.modes.ipvs.explain.explainer import IpvsExplainer
from vipwire.modes.ipvs.marks import Marks
from vipwire.modes.ipvs.objects.names import Object, ObjectKey
from vipwire.modes.ipvs.render import RenderSettings, render
from vipwire.modes.ipvs.skeleton import node_objects
from vipwire.plan.plan import Action, Forward, Frontend, FrontendKey, Reject, ServicePlan
from vipwire.plan.resolve import Answered, Dropped, Packet, Plan, Rejected, from_pod, resolve
from vipwire.reconcile.explainer import Walk
from vipwire.reconcile.steps import End, ObjectState


class Both(NamedTuple):
    """A plan, and what is rendered from it."""

    world: World
    plan: Plan
    objects: Mapping[ObjectKey, Object]

    def packets(self) -> st.SearchStrategy[Packet]:
        return packets_for(self.world, self.plan.frontends)

    def walk(self, packet: Packet) -> Walk:
        explainer = IpvsExplainer(self.world.space.family)
        return explainer.walk(self.objects, self.objects, packet, frozenset(map(Address, self.world.space.local)))


def both(world: World) -> Both:
    services: dict[object, ServicePlan] = dict(world.planner().plans.items())
    objects = dict(node_objects(world.node))
    manner, marks = RenderSettings(world.space.family, "rr"), Marks(world.node.masquerade_mark)
    for plan in services.values():
        rendered = render(manner, marks, plan)
        objects.update(rendered.own)
        objects.update(rendered.shared)
    return Both(world, Plan(world.node, services), objects)


def as_for_ipvs(world: World) -> World:
    """Plan as for this mode: with the machine's addresses."""
    return replace(world, node=replace(world.node, addresses=world.space.node))


pairs = worlds().map(as_for_ipvs).map(both)


def expected(plan: Plan, packet: Packet) -> End:
    match resolve(plan, packet):
        case Answered():
            return End.ANSWERED
        case Dropped():
            return End.DROPPED
        case Rejected():
            return End.REJECTED
    return End.UNTOUCHED


def rivals(pair: Both, packet: Packet) -> bool:
    """Tell whether an external IP of this node and a node port claim the packet: the filters know no precedence."""
    node_port = FrontendKey(None, packet.protocol, packet.port)
    return packet.to_node and node_port in pair.plan.frontends and bool(at_address(pair, packet))


def at_address(pair: Both, packet: Packet) -> list[Frontend]:
    """Find what claims a packet by its address: a frontend, or a range of ports."""
    found = pair.plan.frontends.get(FrontendKey(packet.destination, packet.protocol, packet.port))
    wide = pair.plan.ranges.get((packet.destination, packet.protocol), ())
    ranges = [each.frontend for each in wide if each.key.first <= packet.port <= each.key.last]
    return ranges if found is None else [found, *ranges]


def left_to_the_node(pair: Both, packet: Packet) -> bool:
    """Tell whether nobody answers at an external IP that is this node's own: what listens there is left alone."""
    return packet.to_node and any(isinstance(each.action, Reject) for each in at_address(pair, packet))


@FEW
@given(data=st.data(), pair=pairs)
def test_the_objects_do_what_the_plan_says(data: st.DataObject, pair: Both) -> None:
    for packet in data.draw(st.lists(pair.packets(), min_size=1, max_size=8)):
        if rivals(pair, packet) or left_to_the_node(pair, packet):
            continue
        found, wanted = pair.walk(packet), expected(pair.plan, packet)
        if found.refuses_strays and not at_address(pair, packet):
            continue
        assert found.end is wanted, (packet, found)
        outcome = resolve(pair.plan, packet)
        if isinstance(outcome, Answered):
            same_answer(pair, packet, outcome, found)


def taken(outcome: Answered, packet: Packet, plan: Plan) -> Action:
    """Tell which of a frontend's actions was taken."""
    short = outcome.frontend.short_circuit
    return (
        short if short is not None and (packet.from_node or from_pod(plan.node, packet)) else outcome.frontend.action
    )


def same_answer(pair: Both, packet: Packet, outcome: Answered, found: Walk) -> None:
    """Compare shares and who sees this node; what is delivered on this node itself passes no POSTROUTING.

    Where the client's address decides, which endpoint it has is computed from the kernel's own table.
    """
    shares, action = found.shares or {}, taken(outcome, packet, pair.plan)
    assert isinstance(action, Forward)
    weights = dict(zip(((each.address, each.port) for each in outcome.pool), action.weights, strict=True))
    assert shares.keys() <= weights.keys()
    assert sum(shares.values()) == 1
    if action.spread.algorithm is not Algorithm.SOURCE_HASH and len(shares) > 1:
        total = sum(weights.values())
        assert shares == {target: Fraction(weight, total) for target, weight in weights.items()}
    if is_loopback(packet.source):  # the rules leave it alone, as kube-proxy's do: it cannot come from elsewhere
        return
    reached = outcome.masqueraded & {target[0] for target in shares if target}
    aside = set(pair.world.space.local)
    assert found.masqueraded - aside == reached - aside, (packet, found)


@FEW
@given(data=st.data(), pair=pairs)
def test_every_step_is_as_planned_and_every_rule_is_understood(data: st.DataObject, pair: Both) -> None:
    found = pair.walk(data.draw(pair.packets()))
    assert {step.state for step in found.steps} <= {ObjectState.PLANNED}
    assert found.end is not End.UNKNOWN
