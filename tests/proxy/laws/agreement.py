"""Shared by laws that compare a mode with the plan: the rendered objects and the plan's verdict."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from hypothesis import strategies as st
from tests.proxy.laws.worlds import World, packets_for

from vipwire.model.net import Address
from vipwire.plan.plan import Action, Frontend, FrontendKey, ServicePlan
from vipwire.plan.resolve import Answered, Dropped, Packet, Plan, Rejected, is_from_pod, resolve_packet
from vipwire.reconcile.steps import End


class Pair(NamedTuple):
    """A plan and its rendered objects."""

    world: World
    plan: Plan
    objects: Mapping[Any, Any]

    @property
    def own(self) -> frozenset[Address]:
        return frozenset(map(Address, self.world.space.local))

    def packets(self) -> st.SearchStrategy[Packet]:
        """Generate packets, mostly to the plan's frontends."""
        return packets_for(self.world, self.plan.frontends)


def planned(world: World) -> tuple[Plan, list[ServicePlan]]:
    services: dict[object, ServicePlan] = dict(world.planner().plans.items())
    return Plan(world.node, services), list(services.values())


def with_addresses(world: World) -> World:
    """Plan as for a mode that knows the machine's addresses."""
    return replace(world, node=replace(world.node, addresses=world.space.node))


def expected(plan: Plan, packet: Packet) -> End:
    """Return the plan's end of the packet."""
    match resolve_packet(plan, packet):
        case Answered():
            return End.ANSWERED
        case Dropped():
            return End.DROPPED
        case Rejected():
            return End.REJECTED
    return End.UNTOUCHED


def taken(outcome: Answered, packet: Packet, plan: Plan) -> Action:
    """Return the frontend's action behind an answer."""
    short = outcome.frontend.short_circuit
    is_near = packet.from_node or is_from_pod(plan.node, packet)
    return short if short is not None and is_near else outcome.frontend.action


def at_address(plan: Plan, packet: Packet) -> list[Frontend]:
    """Return the claims to a packet by address: a frontend, and port ranges."""
    found = plan.frontends.get(FrontendKey(packet.destination, packet.protocol, packet.port))
    wide = plan.ranges.get((packet.destination, packet.protocol), ())
    ranges = [each.frontend for each in wide if each.key.first <= packet.port <= each.key.last]
    return ranges if found is None else [found, *ranges]


def contended(plan: Plan, packet: Packet) -> Frontend | None:
    """Return the node port that claims a packet of an external IP of this node too.

    There the rules may refuse packets that the plan forwards or refuses otherwise, because filters ignore precedence.
    """
    there = packet.to_node and at_address(plan, packet)
    return plan.frontends.get(FrontendKey(None, packet.protocol, packet.port)) if there else None
