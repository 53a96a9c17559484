"""What the rendered objects of ipvs mode do to a packet is what the plan says, for any plan and any packet.

`explain` follows chains, sets and virtual servers, so this is its law, too.
"""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st
from tests.proxy.laws.agreement import Pair, at_address, contended, expected, planned, taken, with_addresses
from tests.proxy.laws.worlds import FEW, World, worlds

from vipwire.model.net import is_loopback
from vipwire.model.spread import Algorithm
from vipwire.modes.ipvs.explain.explainer import IpvsExplainer
from vipwire.modes.ipvs.marks import Marks
from vipwire.modes.ipvs.render import render_service
from vipwire.modes.ipvs.skeleton import build_node_objects
from vipwire.plan.plan import Forward, Reject
from vipwire.plan.resolve import Answered, Packet, resolve_packet
from vipwire.reconcile.explainer import Walk
from vipwire.reconcile.steps import End, ObjectState


class Both(Pair):
    """A plan, and the objects that are rendered from it."""

    def walk(self, packet: Packet) -> Walk:
        return IpvsExplainer(self.world.space.family).walk(self.objects, self.objects, packet, self.own)


def both(world: World) -> Both:
    plan, services = planned(world)
    objects = dict(build_node_objects(world.node))
    marks = Marks(world.node.masquerade_mark)
    for each in services:
        rendered = render_service(world.space.family, "rr", marks, each)
        objects |= {**rendered.own, **rendered.shared}
    return Both(world, plan, objects)


pairs = worlds().map(with_addresses).map(both)


def left_to_the_node(pair: Both, packet: Packet) -> bool:
    """Tell whether nobody answers at an external IP that is this node's own: what listens there is left alone."""
    return packet.to_node and any(isinstance(each.action, Reject) for each in at_address(pair.plan, packet))


@FEW
@given(data=st.data(), pair=pairs)
def test_the_objects_do_what_the_plan_says(data: st.DataObject, pair: Both) -> None:
    for packet in data.draw(st.lists(pair.packets(), min_size=1, max_size=8)):
        if contended(pair.plan, packet) or left_to_the_node(pair, packet):
            continue
        found, wanted = pair.walk(packet), expected(pair.plan, packet)
        if found.refuses_strays and not at_address(pair.plan, packet):
            continue
        assert found.end is wanted, (packet, found)
        outcome = resolve_packet(pair.plan, packet)
        if isinstance(outcome, Answered):
            same_answer(pair, packet, outcome, found)


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
