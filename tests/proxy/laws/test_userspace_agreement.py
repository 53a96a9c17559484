"""What the rendered fronts and rules do to a packet is what the plan says, for any plan and any packet.

Two things a relay cannot do otherwise: every endpoint sees the node, and SCTP is refused.
"""

from hypothesis import given
from hypothesis import strategies as st
from tests.proxy.laws.agreement import Pair, contended, expected, planned, with_addresses
from tests.proxy.laws.worlds import FEW, World, worlds

from vipwire.model.net import Protocol
from vipwire.modes.userspace.explain import UserspaceExplainer
from vipwire.modes.userspace.names import Front, Rule
from vipwire.modes.userspace.render import render_service
from vipwire.modes.userspace.settings import Choices
from vipwire.modes.userspace.skeleton import build_node_objects
from vipwire.plan.resolve import Answered, Packet, resolve_packet
from vipwire.reconcile.explainer import Walk
from vipwire.reconcile.steps import End, ObjectState

CHOICES = Choices(localhost_node_ports=False)


class Both(Pair):
    """A plan, and the fronts and rules that are rendered from it."""

    def walk(self, packet: Packet) -> Walk:
        return UserspaceExplainer(self.world.space.family).walk(self.objects, self.objects, packet, self.own)


def both(world: World) -> Both:
    plan, services = planned(world)
    objects = dict(build_node_objects(world.node, CHOICES))
    for each in services:
        objects |= render_service(world.node, CHOICES, each).own
    return Both(world, plan, objects)


pairs = worlds().map(with_addresses).map(both)


@FEW
@given(data=st.data(), pair=pairs)
def test_rules_and_fronts_do_what_the_plan_says(data: st.DataObject, pair: Both) -> None:
    for packet in data.draw(st.lists(pair.packets(), min_size=1, max_size=8)):
        if contended(pair.plan, packet) or packet.protocol is Protocol.SCTP:
            continue
        found, outcome = pair.walk(packet), resolve_packet(pair.plan, packet)
        assert found.end is expected(pair.plan, packet), (packet, found)
        if isinstance(outcome, Answered):
            assert set(found.shares or ()) == {(target.address, target.port) for target in outcome.pool}
            assert found.masqueraded == {target.address for target in outcome.pool}


@FEW
@given(data=st.data(), pair=pairs)
def test_sctp_is_never_answered(data: st.DataObject, pair: Both) -> None:
    packet = data.draw(pair.packets())._replace(protocol=Protocol.SCTP)
    assert pair.walk(packet).end in (End.REJECTED, End.DROPPED, End.UNTOUCHED)


@FEW
@given(data=st.data(), pair=pairs)
def test_every_step_is_as_planned(data: st.DataObject, pair: Both) -> None:
    found = pair.walk(data.draw(pair.packets()))
    assert {step.state for step in found.steps} <= {ObjectState.PLANNED}


@FEW
@given(pair=pairs)
def test_every_rule_leads_to_a_front_that_is_there(pair: Both) -> None:
    fronts = {key.front for key in pair.objects if isinstance(key, Front)}
    assert {key.front for key in pair.objects if isinstance(key, Rule) and key.front} <= fronts
