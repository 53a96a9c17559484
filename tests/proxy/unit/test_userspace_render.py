"""From plans to fronts and rules, and from rules to text and back."""

from typing import Any

from tests.fakes.values import cidr, endpoint, ip, node_plan, port, service, slice_of

from vipwire.model.net import Protocol
from vipwire.model.service import EndpointPort, Service, ServicePort, TrafficPolicy
from vipwire.modes.userspace import names
from vipwire.modes.userspace.mode import find_shortcomings
from vipwire.modes.userspace.names import FILTER, NAT, Front, Key, Rule, Value
from vipwire.modes.userspace.render import render_service
from vipwire.modes.userspace.script import read_rules, write_script
from vipwire.modes.userspace.settings import Bind, Choices
from vipwire.modes.userspace.skeleton import build_node_objects
from vipwire.modes.xtables.save import BUILT_IN, ChainName
from vipwire.plan.frontends import plan_service
from vipwire.plan.node import NodePlan
from vipwire.reconcile.delta import Delta, compute_delta
from vipwire.relay.messages import Listener

LOCAL, REMOTE = endpoint("10.1.0.1", "node-1"), endpoint("10.1.0.2")
RULES = Choices()


def rendered(subject: Service, *endpoints: Any, choices: Choices = RULES, **fields: Any) -> dict[Key, Value]:
    node = node_plan(**fields)
    wired = [EndpointPort(each.name, each.protocol, 8080) for each in subject.ports]
    plan = plan_service(node, subject, [slice_of("web", *endpoints, ports=wired)])
    return dict(render_service(node, choices, plan).own)


def fronts(objects: dict[Key, Value]) -> dict[str, Listener]:
    pairs = ((key, value) for key, value in objects.items() if isinstance(value, Listener))
    return {key.front: value for key, value in pairs if isinstance(key, Front)}


def everything(node: NodePlan | None = None) -> dict[Key, Value]:
    """Every kind of object at once."""
    subject = service(
        "web",
        "10.96.0.1",
        port(80, "http", node_port=30080),
        port(53, "dns", Protocol.UDP, node_port=30053),
        external_ips=(ip("198.18.0.1"),),
        load_balancer_ips=(ip("198.19.0.1"),),
        source_ranges=(cidr("203.0.113.0/24"),),
        external_policy=TrafficPolicy.LOCAL,
    )
    node = node or node_plan(service_cidrs=(cidr("10.96.0.0/16"),))
    objects = build_node_objects(node, RULES)
    wired = [EndpointPort(each.name, each.protocol, 8080) for each in subject.ports]
    for endpoints in ((LOCAL, REMOTE), (REMOTE,), ()):
        objects |= render_service(
            node, RULES, plan_service(node, subject, [slice_of("web", *endpoints, ports=wired)])
        ).own
    return objects


def saved(objects: dict[Key, Value], ports: dict[str, int]) -> str:
    """Print objects as iptables-save prints them, each chain's `first` rules before others."""
    lines = []
    for table in names.TABLES:
        lines.append(f"*{table}")
        lines += [f":{chain} ACCEPT [0:0]" for chain in sorted(BUILT_IN)]
        lines += [f":{key.chain} - [0:0]" for key in objects if isinstance(key, ChainName) and key.table == table]
        for first in (True, False):
            for key, value in objects.items():
                if isinstance(key, ChainName) and key.table == table and isinstance(value, tuple) and first:
                    lines += [f"-A {key.chain} {words}" for words in value]
                if isinstance(key, Rule) and key.table == table and key.first is first and isinstance(value, int):
                    lines += [f"-A {key.chain} {key.words.replace('{port}', str(ports.get(key.front)))}"] * value
        lines.append("COMMIT")
    return "\n".join(lines)


def test_rules_that_lead_to_no_front_of_ours_are_foreign() -> None:
    objects = everything()
    ports = {name: 40000 + number for number, name in enumerate(fronts(objects))}
    found = read_rules(saved(objects, ports), {})
    wanted: dict[Key, Value] = {key: value for key, value in objects.items() if not isinstance(key, Front)}
    delta: Delta[Key, Value] = compute_delta(found, wanted)
    assert {key.table for key in delta.added if not isinstance(key, Front)} == {NAT}
    assert len(delta.added) == len(delta.removed) > 0


def test_copies_foreign_rules_and_wrong_order_are_put_right() -> None:
    wanted = build_node_objects(node_plan(), RULES)
    text = saved(wanted, {})
    pods = "-A KUBE-PORTALS-CONTAINER -s 10.0.0.0/8 -j KUBE-PORTALS-POD"
    jump = next(line for line in text.splitlines() if line.startswith("-A OUTPUT") and "KUBE-PORTALS-HOST" in line)
    harmed = text.replace(jump, f"{jump}\n{jump}").replace(pods, f"-A KUBE-PORTALS-CONTAINER -j ACCEPT\n{pods}")
    harm: Delta[Key, Value] = compute_delta(read_rules(harmed, {}), wanted)
    written = write_script(harm, lambda _: 0, lambda _: 0).splitlines()
    assert written == [
        "*nat",
        "-D KUBE-PORTALS-CONTAINER -j ACCEPT",
        "-D KUBE-PORTALS-CONTAINER -s 10.0.0.0/8 -j KUBE-PORTALS-POD",
        f"-D{jump[2:]}",
        "-I KUBE-PORTALS-CONTAINER 1 -s 10.0.0.0/8 -j KUBE-PORTALS-POD",
        "COMMIT",
    ]


def tables(delta: Delta[Key, Value]) -> list[str]:
    return [line for line in write_script(delta, lambda _: 1, lambda _: 1).splitlines() if line.startswith("*")]


def test_what_only_comes_is_translated_before_the_filter_refuses_what_is_not() -> None:
    objects = everything()
    assert tables(Delta(added=objects)) == ["*nat", "*filter"]
    refusals: dict[Key, Value] = {each: 1 for each in objects if isinstance(each, Rule) and each.table == FILTER}
    nat: dict[Key, Value] = {each: 1 for each in objects if isinstance(each, Rule) and each.table == NAT}
    assert tables(Delta(added=nat, removed=refusals)) == ["*nat", "*filter"]


def test_the_filter_refuses_before_the_translation_goes() -> None:
    objects = everything()
    rule = next(key for key in objects if isinstance(key, Rule) and key.table == NAT)
    assert tables(Delta(added={key: objects[key] for key in objects if key != rule}, removed={rule: 1})) == [
        "*filter",
        "*nat",
    ]
    assert tables(Delta(removed=objects)) == ["*filter", "*nat"]


def ranging(text: str, *ports: ServicePort, **fields: Any) -> Service:
    return service("web", "10.96.0.1", *ports, annotations=(("vipwire.io/port-range", text),), **fields)


def problems(asked: Service, choices: Choices = RULES, **fields: Any) -> list[str]:
    node = node_plan(port_ranges=True, **fields)
    plan = plan_service(node, asked, [])
    return [each.message for each in find_shortcomings(node, choices, plan)]


def test_without_rules_or_where_datagrams_come_to_any_address_ranges_are_reported() -> None:
    datagrams = ranging("80-90", port(80, protocol=Protocol.UDP))
    assert problems(datagrams) == problems(ranging("80-90"), address=None) == []
    (without,) = problems(ranging("80-90"), Choices(bind=Bind.VIP))
    assert "--userspace-bind" in without
    (nowhere,) = problems(datagrams, address=None)
    assert "UDP" in nowhere
    assert not any(
        each.span[1] for each in fronts(rendered(datagrams, LOCAL, port_ranges=True, address=None)).values()
    )
