"""What the rendered fronts and rules do to a packet is what the plan says, for any plan and any packet.

Two things a relay cannot do otherwise: every endpoint sees the node, and SCTP is refused.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from tests.proxy.laws.worlds import FEW, World, packets_for, worlds

from vipwire.model.net import Address, Protocol
from vipwire.modes.userspace.explainer import UserspaceExplainer
from vipwire.modes.userspace.names import Front, Key, Rule, Value
from vipwire.modes.userspace.render import render
from vipwire.modes.userspace.settings import Choices
from vipwire.modes.userspace.skeleton import node_objects
from vipwire.plan.plan import FrontendKey, ServicePlan
from vipwire.plan.resolve import Answered, Dropped, Packet, Plan, Rejected, resolve
from vipwire.reconcile.explainer import Walk
from vipwire.reconcile.steps import End, ObjectState

CHOICES = Choices(localhost_node_ports=False)


class Both(NamedTuple):
    """A plan, and what is rendered from it."""

    world: World
    plan: Plan
    objects: Mapping[Key, Value]

    def packets(self) -> st.SearchStrategy[Packet]:
        return packets_for(self.world, self.plan.frontends)

    def walk(self, packet: Packet) -> Walk:
        explainer = UserspaceExplainer(self.world.space.family)
        return explainer.walk(self.objects, self.objects, packet, frozenset(map(Address, self.world.space.local)))


def both(world: World) -> Both:
    services: dict[object, ServicePlan] = dict(world.planner().plans.items())
    objects = dict(node_objects(world.node, CHOICES))
    for plan in services.values():
        objects.update(render(world.node, CHOICES, plan).own)
    return Both(world, Plan(world.node, services), objects)


def as_for_a_relay(world: World) -> World:
    """Plan as for this mode: with the machine's addresses, as it has sockets there."""
    return replace(world, node=replace(world.node, addresses=world.space.node))


pairs = worlds().map(as_for_a_relay).map(both)


def rivals(pair: Both, packet: Packet) -> bool:
    """Tell whether an external IP of this node and a node port claim the packet: the filters know no precedence."""
    key = FrontendKey(None, packet.protocol, packet.port)
    wide = pair.plan.ranges.get((packet.destination, packet.protocol), ())
    at_address = key._replace(address=packet.destination) in pair.plan.frontends or any(
        each.key.first <= packet.port <= each.key.last for each in wide
    )
    return packet.to_node and key in pair.plan.frontends and at_address


@FEW
@given(data=st.data(), pair=pairs)
def test_rules_and_fronts_do_what_the_plan_says(data: st.DataObject, pair: Both) -> None:
    for packet in data.draw(st.lists(pair.packets(), min_size=1, max_size=8)):
        if rivals(pair, packet) or packet.protocol is Protocol.SCTP:
            continue
        found = pair.walk(packet)
        match resolve(pair.plan, packet):
            case Answered(_, pool, _):
                assert found.end is End.ANSWERED, (packet, found)
                assert set(found.shares or ()) == {(target.address, target.port) for target in pool}
                assert found.masqueraded == {target.address for target in pool}
            case Dropped():
                assert found.end is End.DROPPED, (packet, found)
            case Rejected():
                assert found.end is End.REJECTED, (packet, found)
            case _:
                assert found.end is End.UNTOUCHED, (packet, found)


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
