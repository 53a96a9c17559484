"""Who may write objects of the Gateway API in one namespace takes neither HAProxy's memory nor our time for it."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.l7.gateway.test_gateway_policies import policy
from tests.l7.gateway.test_gateway_statuses import GATEWAY, NOW, SERVICE, drawn, planned, reasons, snapshot_of, status
from tests.l7.plans import count_steps

from vipwire.model.names import ObjectName
from vipwire_l7.gateway.plan.kinds.objects import GatewaySetting
from vipwire_l7.gateway.plan.matching.matches import PathMatch, RequestMatch
from vipwire_l7.gateway.plan.matching.precedence import Entry, HostSteps, count_matches
from vipwire_l7.gateway.plan.planner import GatewayPlanner
from vipwire_l7.gateway.watch.wire import HttpRouteSpec
from vipwire_l7.plan.budget import MOST_TRIED, MOST_TRIED_OF_ALL
from vipwire_l7.plan.policy import Policy
from vipwire_l7.plan.sites import Aspect, Comparison, Match, make_choice, name_pool
from vipwire_l7.watch.objects import GatewayObject, IngressKind

pytestmark = pytest.mark.slow

ROUTE = GatewayObject(IngressKind.HTTP_ROUTE, ObjectName("infra", "web"), HttpRouteSpec())
WHEN = (Comparison(Aspect.METHOD, "GET"),)
OPEN = "allowedRoutes: {namespaces: {from: All}}"
HTTP = f"{{name: http, port: 80, protocol: HTTP, {OPEN}}}"
LETS_IN = GATEWAY.replace("LISTENERS", f"listeners: [{HTTP}]\n  allowedListeners: {{namespaces: {{from: All}}}}")


def entry(match: Match, path: str, *conditions: Comparison) -> Entry:
    return Entry(ROUTE, RequestMatch(PathMatch(match, path), conditions, (True, 0, 0)), (0, 0), "to")


@pytest.mark.parametrize(
    ("before", "more", "cost"),
    [
        ([], [entry(Match.PREFIX, f"/{n}") for n in range(9)], 0),
        ([], [entry(Match.PREFIX, f"/{n}", *WHEN) for n in range(9)], 9),
        ([], [entry(Match.PREFIX, "/a" * n, *WHEN) for n in range(1, 10)], 45),
        (
            [entry(Match.PREFIX, f"/{n}") for n in range(9)],
            [entry(Match.EXPRESSION, f"/x{n}") for n in range(5)],
            50,
        ),
        ([entry(Match.EXPRESSION, "/x")], [entry(Match.PREFIX, f"/{n}") for n in range(9)], 9),
        ([], [entry(Match.EXPRESSION, f"/x{n}") for n in range(9)], 9),
        ([entry(Match.PREFIX, "", *WHEN)], [entry(Match.PREFIX, f"/{n}") for n in range(9)], 0),
        ([entry(Match.EXPRESSION, "/x")], [entry(Match.EXACT, f"/{n}") for n in range(9)], 0),
    ],
)
def test_rules_are_counted_before_they_are_written(before: list[Entry], more: list[Entry], cost: int) -> None:
    host = HostSteps()
    host.add_matches(count_matches(before))
    assert host.estimate_more_rules(count_matches(more)) == cost


def route(name: str, namespace: str, rules: str) -> str:
    return f"""
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: {name}, namespace: {namespace}, generation: 1}}
spec: {{parentRefs: [{{name: edge, namespace: infra}}], hostnames: [{namespace}.org], rules: [{rules}]}}
"""


def test_a_namespace_has_so_many_rules_and_the_routes_beyond_say_it() -> None:
    to = "backendRefs: [{name: web, port: 80}]"
    paths = ", ".join(f"{{matches: [{{path: {{value: /p{n}}}}}], {to}}}" for n in range(230))
    odd = "path: {type: RegularExpression, value: '/r%d[a-z]'}"
    expressions = ", ".join(f"{{matches: [{{{odd % n}}}], {to}}}" for n in range(230))
    made = [GATEWAY.replace("LISTENERS", f"listeners: [{HTTP}]"), SERVICE]
    made += [route("a-paths", "evil", paths), route("b-expressions", "evil", expressions)]
    made += [route("web", "good", f"{{matches: [{{{odd % 1}}}], {to}}}")]
    planner, plan = drawn(*made)

    def accepted(name: str, namespace: str) -> str:
        return reasons(status(planner, IngressKind.HTTP_ROUTE, name, namespace)["parents"][0])["Accepted"]

    assert [accepted(name, "evil") for name in ("a-paths", "b-expressions")] == ["Accepted", "not UnsupportedValue"]
    assert accepted("web", "good") == "Accepted"
    assert {each.site for each in plan.routes} == {"evil.org:80", "good.org:80"}
    assert sum(len(each.steps) for each in plan.all_choices) < MOST_TRIED


def test_all_namespaces_have_so_many_rules_together() -> None:
    rule = "{matches: [{path: {type: RegularExpression, value: '/%s[a-z]'}}], backendRefs: [{name: web, port: 80}]}"
    made = [GATEWAY.replace("LISTENERS", f"listeners: [{HTTP}]"), SERVICE]
    made += [
        route(f"r{number}", f"ns{space}", ", ".join(rule % f"{space}x{number}x{n}" for n in range(230)))
        for space in range(5)
        for number in range(4)
    ]
    planner, plan = drawn(*made)
    found = [
        reasons(status(planner, IngressKind.HTTP_ROUTE, f"r{number}", f"ns{space}")["parents"][0])["Accepted"]
        for space in range(5)
        for number in range(4)
    ]
    assert sum(len(each.steps) for each in plan.all_choices) <= MOST_TRIED_OF_ALL
    assert found.count("Accepted") == MOST_TRIED_OF_ALL // 230
    refused = planner.statuses[IngressKind.HTTP_ROUTE, ObjectName("ns4", "r3")]
    assert f"all namespaces exceed {MOST_TRIED_OF_ALL} " in str(refused)


def listener_sets(number: int, protocol: str = "HTTP") -> str:
    """Write ListenerSets of 32 listeners each."""
    made = ""
    for each in range(number):
        listeners = ", ".join(
            f"{{name: l{n}-{'x' * 50}, port: 80, protocol: {protocol}, hostname: h{n}.s{each}.org}}"
            for n in range(32)
        )
        spec = f"{{parentRef: {{name: edge, namespace: infra}}, listeners: [{listeners}]}}"
        head = "apiVersion: gateway.networking.k8s.io/v1\nkind: ListenerSet"
        made += f"---\n{head}\nmetadata: {{name: s{each}, namespace: evil, generation: 1}}\nspec: {spec}\n"
    return made


def test_what_many_listeners_say_is_no_longer_than_a_status_may_be() -> None:
    found: Any = status(planned(LETS_IN, listener_sets(12, "odd")), IngressKind.GATEWAY, "edge")
    assert max(len(each["message"]) for each in found["conditions"]) == 4096


def many(form: str, number: int) -> str:
    return ", ".join(form.replace("N", str(n)) for n in range(number))


def edge(listener: str, number: int, name: str = "edge") -> str:
    text = GATEWAY.replace("LISTENERS", f"listeners: [{many(listener, number)}]")
    return text.replace("name: edge", f"name: {name}") + "---\n"


UDP_ROUTE = """
apiVersion: gateway.networking.k8s.io/v1
kind: UDPRoute
metadata: {name: web, namespace: infra, generation: 1}
spec: {parentRefs: [{name: edge}], rules: [{backendRefs: [{name: web, port: 80}]}]}
---
"""
TO = "backendRefs: [{name: web, port: 80}]"
SHAPES: dict[str, Callable[[int], tuple[str, ...]]] = {
    "listeners of sets": lambda n: (LETS_IN, listener_sets(n // 10)),
    "ports": lambda n: (
        edge(f"{{name: lN, port: 1N, protocol: HTTP, {OPEN}}}", n),
        SERVICE,
        route("r", "evil", "{" + TO + "}"),
    ),
    "ports of UDP": lambda n: (edge(f"{{name: lN, port: 1N, protocol: UDP, {OPEN}}}", n), SERVICE, UDP_ROUTE),
    "Gateways": lambda n: tuple(edge(HTTP, 1, f"edge{each}") for each in range(n)),
    "sections of one policy": lambda n: (
        route("web", "infra", many("{name: sN, " + TO + "}", n)).replace("name: edge", "name: other"),
        policy("TrafficPolicy", "p", "denySources: [192.0.2.0/24]", *(f"HTTPRoute/web/s{k}" for k in range(n))),
    ),
    "routes": lambda n: (edge(HTTP, 1), SERVICE, *(route(f"r{each}", "evil", "{" + TO + "}") for each in range(n))),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_planning_grows_with_the_number_of_things_alone(shape: str) -> None:
    def steps(number: int) -> int:
        snapshot = snapshot_of(*SHAPES[shape](number))
        planner = GatewayPlanner(GatewaySetting(addresses=("192.0.2.1",)))
        return count_steps(lambda: planner.update(snapshot, NOW))

    assert steps(200) < 2.2 * steps(100)


def test_nobody_can_aim_at_the_names_that_all_share() -> None:
    """A name that another namespace's content could be made to have would lead its requests there."""
    for name in (make_choice(()).name, name_pool(ObjectName("a", "b"), 80, Policy(body_size=1))):
        assert max(map(len, name.split(":"))) * 4 >= 80, "the digest"
