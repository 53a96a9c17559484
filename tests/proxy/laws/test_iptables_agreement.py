"""What the rendered rules do to a packet is what the plan says, for any plan and any packet.

`explain` follows the rules, so this is its law, too: what it tells of rules that are as planned is what is planned.
"""

from fractions import Fraction

from hypothesis import assume, given
from hypothesis import strategies as st
from tests.proxy.laws.agreement import Pair, contended, expected, planned, taken
from tests.proxy.laws.worlds import FEW, World, worlds

from vipwire.modes.iptables.explain import RuleTables, run_once, walk_rules
from vipwire.modes.iptables.rules.render import render_service
from vipwire.modes.iptables.rules.settings import RuleSettings
from vipwire.modes.iptables.rules.skeleton import node_objects
from vipwire.plan.plan import Forward, FrontendKey, Target
from vipwire.plan.resolve import Answered, Packet, Plan, resolve_packet, serves_node_ports
from vipwire.reconcile.explainer import Walk
from vipwire.reconcile.steps import End, ObjectState, Step, Verdict

SETTINGS = RuleSettings(localhost_node_ports=False)
REFUSALS = {End.DROPPED, End.REJECTED}
NEARLY = Fraction(1, 1_000_000)
"""Chances are written with eleven digits, and have 31 bits in the kernel."""


class Both(Pair):
    """A plan, and the rules that are rendered from it."""

    @property
    def table(self) -> RuleTables:
        return RuleTables(self.world.space.family, self.objects, self.objects, self.own)

    def walk(self, packet: Packet) -> Walk:
        return walk_rules(self.table, packet)


def both(world: World) -> Both:
    plan, services = planned(world)
    objects = dict(node_objects(world.node, SETTINGS))
    for each in services:
        objects |= render_service(world.node, SETTINGS, each).own
    return Both(world, plan, objects)


pairs = worlds(ranges=True).map(both)


def from_another_vip(plan: Plan, packet: Packet) -> bool:
    """Tell whether the client has a load balancer IP of a guarded Service as its own address.

    The chain KUBE-FW of a Service port is one for all its load balancer IPs, as kube-proxy's is, and lets them in.
    """
    addresses = {key.address for key, frontend in plan.frontends.items() if frontend.allowed_sources is not None}
    return packet.source in addresses


def beside_node_ports(plan: Plan, packet: Packet) -> bool:
    """Tell whether the packet goes to a node port's number, at an address of this node that serves none.

    The filters refuse and drop there, too, as kube-proxy's do: they match any address of the node.
    """
    there = packet.to_node and not serves_node_ports(plan.node, packet.destination)
    return there and FrontendKey(None, packet.protocol, packet.port) in plan.frontends


def external_in_service_cidr(plan: Plan, packet: Packet) -> bool:
    """Tell whether an external address of a Service lies among the ClusterIPs, and nobody answers there.

    What goes to a ClusterIP that no Service has is dropped before external addresses are looked at.
    """
    among = any(packet.destination in prefix for prefix in plan.node.service_cidrs)
    return among and packet.destination not in plan.cluster_ips


def at_a_frontend(plan: Plan, packet: Packet) -> bool:
    """Tell whether an endpoint of the pool is itself at an address and port of a Service that answers nobody.

    The filters see the destination after it was translated, as kube-proxy's do, and take it for the other's where
    that one answers nobody.
    """
    outcome = resolve_packet(plan, packet)
    if not isinstance(outcome, Answered):
        return False
    return any(caught(plan, packet, at) for at in outcome.pool)


def caught(plan: Plan, packet: Packet, at: Target) -> bool:
    """Tell whether the filters refuse what goes to an endpoint."""
    keys = [FrontendKey(each, packet.protocol, at.port) for each in (at.address, None)]
    frontends = [plan.frontends[key] for key in keys if key in plan.frontends]
    refusing = [each for each in frontends if not isinstance(each.action, Forward)]
    return bool(refusing or (at.address, packet.protocol) in plan.ranges)


APART = (from_another_vip, beside_node_ports, external_in_service_cidr, at_a_frontend)


@FEW
@given(data=st.data(), pair=pairs)
def test_the_rules_do_what_the_plan_says(data: st.DataObject, pair: Both) -> None:
    for packet in data.draw(st.lists(pair.packets(), min_size=1, max_size=8)):
        found, wanted = pair.walk(packet), expected(pair.plan, packet)
        if contended(pair.plan, packet) is not None and (found.end in REFUSALS or wanted in REFUSALS):
            continue
        if any(apart(pair.plan, packet) for apart in APART):
            continue
        assert found.end is wanted, (packet, found)
        outcome = resolve_packet(pair.plan, packet)
        if isinstance(outcome, Answered):
            same_answer(pair, packet, outcome, found)


def same_answer(pair: Both, packet: Packet, outcome: Answered, found: Walk) -> None:
    """Compare shares and who sees this node.

    What is delivered on this node itself passes no POSTROUTING. An endpoint elsewhere whose own packet comes here and
    is sent back to it sees this node in iptables mode, as with kube-proxy: otherwise it would hear from itself.
    """
    shares = found.shares or {}
    action = taken(outcome, packet, pair.plan)
    assert isinstance(action, Forward)
    weights = dict(zip(((each.address, each.port) for each in outcome.pool), action.weights, strict=True))
    if action.spread.algorithm.value == "source-hash":
        assert len(shares) == 1
        assert shares.keys() <= weights.keys()
    else:
        assert shares.keys() == weights.keys()
        total = sum(weights.values())
        assert all(
            abs(share - Fraction(weights[target], total)) < NEARLY for target, share in shares.items() if target
        )
    reached = outcome.masqueraded & {target[0] for target in shares if target}
    aside = {*pair.world.space.local, *({each.address for each in outcome.pool if not each.local} & {packet.source})}
    assert found.masqueraded - aside == reached - aside


@FEW
@given(data=st.data(), pair=pairs)
def test_every_step_is_as_planned_and_every_rule_is_understood(data: st.DataObject, pair: Both) -> None:
    found = pair.walk(data.draw(pair.packets()))
    assert {step.state for step in found.steps} <= {ObjectState.PLANNED}
    assert found.end is not End.UNKNOWN


@FEW
@given(data=st.data(), pair=pairs)
def test_a_client_that_is_remembered_goes_where_it_went(data: st.DataObject, pair: Both) -> None:
    packet = data.draw(pair.packets())
    outcome = resolve_packet(pair.plan, packet)
    assume(isinstance(outcome, Answered) and contended(pair.plan, packet) is None)
    assert isinstance(outcome, Answered)
    action = taken(outcome, packet, pair.plan)
    assert isinstance(action, Forward)
    lists = {word for step in pair.walk(packet).steps for word in remembering(step)}
    assert bool(lists) is (action.affinity_seconds is not None)
    for name in lists:

        def recall(each: str, name: str = name) -> float | None:
            return 1.0 if each == name else None

        bound, again = (run_once(pair.table, packet, skipped, recall) for skipped in (0, 1))
        assert bound.met == (action.affinity_seconds or 0) - 1.0
        assert (bound.target, bound.more) == (again.target, False), "nothing is left to chance"


def remembering(step: Step) -> list[str]:
    return [str(each.detail).rpartition(" in ")[2] for each in step.effects if each.verdict is Verdict.REMEMBER]
