"""What userspace mode's rules and listeners do to a packet, as they are observed."""

from collections.abc import Callable

from tests.fakes.values import endpoint, ip, node_plan, port, service, slice_of

from vipwire.model.net import Family, Protocol
from vipwire.modes.userspace.explain import UserspaceExplainer
from vipwire.modes.userspace.names import Front, Key, Rule, Value
from vipwire.modes.userspace.render import render_service
from vipwire.modes.userspace.settings import Choices
from vipwire.modes.userspace.skeleton import build_node_objects
from vipwire.plan.frontends import plan_service
from vipwire.plan.resolve import Packet
from vipwire.reconcile.delta import Delta, compute_delta
from vipwire.reconcile.explainer import IN_TURN, Walk
from vipwire.reconcile.steps import End, ObjectState

NODE = ip("192.168.0.2")
TO_WEB = Packet(ip("203.0.113.9"), ip("10.96.0.1"), Protocol.TCP, 80, "eth0")
FRONT = "default/web cluster IP 10.96.0.1:80/tcp"


def objects() -> dict[Key, Value]:
    node, choices = node_plan(), Choices()
    pods = slice_of("web", endpoint("10.0.0.1", "node-1"), endpoint("10.0.0.2"))
    plan = plan_service(node, service("web", "10.96.0.1", port(node_port=30080)), [pods])
    return {**build_node_objects(node, choices), **render_service(node, choices, plan).own}


def walked(
    change: Callable[[dict[Key, Value]], None] = lambda _: None,
    packet: Packet = TO_WEB,
    port_of: Callable[[str], int] = lambda _: 40123,
) -> Walk:
    wanted = objects()
    seen = dict(wanted)
    change(seen)
    return UserspaceExplainer(Family.IPV4, port_of).walk(seen, wanted, packet, frozenset({NODE}))


def test_the_rule_is_told_with_the_port_that_the_relay_has() -> None:
    found = walked()
    assert (found.end, found.choice) == (End.ANSWERED, IN_TURN)
    assert any(step.text.endswith("--to-destination 192.168.0.2:40123") for step in found.steps)
    unknown = walked(port_of=lambda _: 0)
    assert unknown.end is End.ANSWERED
    assert any(step.text.endswith(f"--to-destination 192.168.0.2:<port of {FRONT}>") for step in unknown.steps)
    assert not any("{" in step.text for walk in (found, unknown) for step in walk.steps)


def test_what_is_missing_is_named() -> None:
    def without_rules(seen: dict[Key, Value]) -> None:
        for key in [key for key in seen if isinstance(key, Rule) and key.front == FRONT]:
            del seen[key]

    def without_listener(seen: dict[Key, Value]) -> None:
        del seen[Front(FRONT)]

    for change, end in ((without_rules, End.REJECTED), (without_listener, End.REJECTED)):
        found = walked(change)
        assert found.end is end
        assert ObjectState.MISSING in {step.state for step in found.steps}


def test_a_difference_names_a_port_where_it_is_known() -> None:
    wanted = objects()
    rules: dict[Key, Value] = {
        key: value for key, value in wanted.items() if isinstance(key, Rule) and key.front == FRONT
    }
    explainer = UserspaceExplainer(Family.IPV4, lambda _: 40123)
    assert all(":40123" in line for line in explainer.write_script(Delta(removed=rules)) if "DNAT" in line)
    lines = list(UserspaceExplainer(Family.IPV4).write_script(compute_delta({}, wanted)))
    assert any(f":<port of {FRONT}>" in line for line in lines)
    assert not any("{port}" in line for line in lines)
