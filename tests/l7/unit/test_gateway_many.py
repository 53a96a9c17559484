"""Who may write objects of the Gateway API in one namespace takes neither HAProxy's memory nor our time for it."""

import sys
from typing import Any

import pytest
from tests.l7.gateway.test_gateway_statuses import GATEWAY, NOW, SERVICE, drawn, planned, reasons, snapshot_of, status

from vipwire.model.names import ObjectName
from vipwire_l7.gateway.plan.kinds.objects import GatewaySetting, Item, world_of
from vipwire_l7.gateway.plan.ladders import Entry
from vipwire_l7.gateway.plan.matches import PathMatch, RequestMatch
from vipwire_l7.gateway.plan.planner import plan_gateways
from vipwire_l7.gateway.plan.steps import HostSteps, rules_of
from vipwire_l7.ingress.plan.budget import MOST_TRIED, MOST_TRIED_OF_ALL
from vipwire_l7.ingress.plan.policy import Policy
from vipwire_l7.ingress.plan.sites import Aspect, Compared, Match, choice_of, pool_name
from vipwire_l7.ingress.watch.objects import IngressKind

pytestmark = pytest.mark.slow

ROUTE = Item(IngressKind.HTTP_ROUTE, ObjectName("infra", "web"), None)
WHEN = (Compared(Aspect.METHOD, "GET"),)
OPEN = "allowedRoutes: {namespaces: {from: All}}"
HTTP = f"{{name: http, port: 80, protocol: HTTP, {OPEN}}}"
LETS_IN = GATEWAY.replace("LISTENERS", f"listeners: [{HTTP}]\n  allowedListeners: {{namespaces: {{from: All}}}}")


def entry(match: Match, path: str, *conditions: Compared) -> Entry:
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
    host.add(rules_of(before))
    assert host.cost(rules_of(more)) == cost


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
    assert "more than 4000" in str(planner.statuses[IngressKind.HTTP_ROUTE, ObjectName("ns4", "r3")])


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


def test_the_work_for_listeners_grows_with_their_number_alone() -> None:
    def calls(number: int) -> int:
        world = world_of(snapshot_of(LETS_IN, listener_sets(number)), NOW)
        count = 0

        def note(*_: object) -> None:
            nonlocal count
            count += 1

        sys.setprofile(note)
        try:
            made = plan_gateways(world, GatewaySetting(addresses=("192.0.2.1",)))
        finally:
            sys.setprofile(None)
        assert len(made.statuses) == number + 2
        return count

    assert calls(12) < 3 * calls(6)


def test_nobody_can_aim_at_the_names_that_all_share() -> None:
    """A name that another namespace's content could be made to have would lead its requests there."""
    for name in (choice_of(()).name, pool_name(ObjectName("a", "b"), 80, Policy(body_size=1))):
        assert len(name.rpartition(":")[2]) * 4 >= 80
