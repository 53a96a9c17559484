"""A namespace over a limit has its youngest objects refused, and is told; a neighbour notices nothing."""

from types import MappingProxyType

import pytest
from tests.l7.gateway.site import now
from tests.l7.gateway.test_gateway_statuses import GATEWAY, NOW, reasons, snapshot_of, status
from tests.l7.plans import ToldPlan, plan_all, plan_ingresses
from tests.l7.unit.test_ingress_plan_unit import PORT
from tests.l7.unit.test_ingress_tenancy import certificate

from vipwire.model.names import ObjectName
from vipwire_l7.gateway.plan.kinds.objects import GatewaySetting
from vipwire_l7.gateway.plan.planner import GatewayPlanner
from vipwire_l7.plan.limits import MOST, Limited, parse_limits
from vipwire_l7.plan.plan import Setting
from vipwire_l7.plan.sites import CLOSED
from vipwire_l7.watch.objects import BackendService, Ingress, IngressKind, PathRule, PathType, ServiceRef, Tls


def site(of: str, number: int, *paths: str, host: str = "", to: str = "web", tls: str = "", **more: str) -> Ingress:
    """Write an Ingress; the higher the number, the younger."""
    name, host = ObjectName(of, f"i{number}"), host or f"h{number}.{of}.org"
    given = MappingProxyType({f"vipwire.io/{key.replace('_', '-')}": value for key, value in more.items()})
    backend, field = ServiceRef(ObjectName(of, to), 80), "spec.rules[0].http.paths[0].backend"
    rules = tuple(PathRule(host, path, PathType.PREFIX, backend, field) for path in paths or ("/",))
    asked = (Tls((host,), ObjectName(of, tls), "spec.tls[0]"),) if tls else ()
    return Ingress(name, "vipwire", rules, None, asked, given, str(2020 + number))


def planned(most: dict[Limited, int], *ingresses: Ingress) -> ToldPlan:
    backends = {rule.backend.service for each in ingresses for rule in each.rules}
    services = (BackendService(name, (PORT,)) for name in backends)
    asked = ((tls.secret, tls.hosts) for each in ingresses for tls in each.tls if tls.secret)
    secrets = (certificate(name, *hosts) for name, hosts in asked)
    setting = Setting(limits={**MOST, **most})
    return plan_ingresses(*ingresses, *services, *secrets, setting=setting, now=now().timestamp())


def told(plan: ToldPlan) -> dict[str, str]:
    return {str(each.object): each.message for each in plan.problems}


OVER = {
    Limited.HOSTS: [site("evil", number) for number in range(4)],
    Limited.PATHS: [site("evil", number, f"/{number}", host="evil.org") for number in range(4)],
    Limited.BACKENDS: [site("evil", number, to=f"s{number}") for number in range(4)],
    Limited.CERTIFICATES: [site("evil", number, tls=f"c{number}") for number in range(4)],
}


@pytest.mark.parametrize("kind", OVER)
def test_the_youngest_ingresses_of_the_namespace_are_refused_and_told(kind: Limited) -> None:
    good = [site("good", number, f"/{number}", to=f"s{number}", tls=f"c{number}") for number in (5, 6)]
    plan = planned({kind: 2}, *reversed(OVER[kind]), *good)
    kept = {"evil/i0", "evil/i1", "good/i5", "good/i6"}
    assert {str(route.owner) for route in plan.routes} == kept
    certified = {str(each.name) for each in (*OVER[kind], *good) if each.tls} & kept
    assert {str(asker.name) for each in plan.certificates for asker in each.askers} == certified
    assert told(plan).keys() == {"evil/i2", "evil/i3"}
    assert f"more than 2 {kind.value}: delete older ones" in told(plan)["evil/i2"]
    assert f"--namespace-limit {kind.value}=N" in told(plan)["evil/i2"]


def test_objects_that_name_the_same_host_backend_or_certificate_count_it_once() -> None:
    ones = [site("shop", number, f"/{number}", host="shop.org", tls="pair") for number in range(5)]
    few = {Limited.HOSTS: 1, Limited.BACKENDS: 1, Limited.CERTIFICATES: 1}
    assert not told(planned(few, *ones))


def test_a_namespace_of_5000_hosts_alone_is_under_the_limits() -> None:
    for kind in (Limited.HOSTS, Limited.PATHS, Limited.BACKENDS, Limited.CERTIFICATES):
        assert MOST[kind] >= 2 * 5_000


def test_an_older_ingress_that_grows_takes_room_from_younger_ones() -> None:
    young, neighbour = site("shop", 1, "/a", "/b"), site("good", 2, "/a", "/b")
    plan = planned({Limited.PATHS: 3}, site("shop", 0, "/a", "/b"), young, neighbour)
    assert told(plan).keys() == {"shop/i1"}
    assert {str(route.owner) for route in plan.routes} == {"shop/i0", "good/i2"}


def test_a_refused_ingress_opens_nothing_that_it_guards() -> None:
    front = site("shop", 0, host="shop.org")
    guarded = site("shop", 1, "/admin", host="shop.org", to="admin", allow_source_range="192.0.2.0/24")
    plan = planned({Limited.PATHS: 1}, front, guarded)
    assert {route.path: route.target for route in plan.routes if route.path} == {"/admin": CLOSED}
    assert [str(pool.service) for pool in plan.pools] == ["shop/web"]


def test_a_refused_canary_leaves_the_path_to_the_main_ingress() -> None:
    guard = {"deny_source_range": "192.0.2.0/24"}
    canary = site("shop", 1, host="shop.org", to="new", canary="true", canary_weight="50", **guard)
    plan = planned({Limited.BACKENDS: 1}, site("shop", 0, host="shop.org"), canary)
    assert told(plan).keys() == {"shop/i1"}
    assert not plan.choices
    assert [str(pool.service) for pool in plan.pools] == ["shop/web"]


def gateway(of: str, name: str, created: int, *ports: int) -> str:
    listeners = ", ".join(f"{{name: p{each}, port: {each}, protocol: HTTP}}" for each in ports)
    meta = f"{{name: {name}, namespace: {of}, generation: 1, creationTimestamp: '{created}-01-01T00:00:00Z'}}"
    made = GATEWAY.replace("{name: edge, namespace: infra, generation: 3}", meta)
    return made.replace("LISTENERS", f"listeners: [{listeners}]")


def route(of: str, name: str, created: int, host: str, rules: str, parent: str = "edge") -> str:
    meta = f"{{name: {name}, namespace: {of}, generation: 1, creationTimestamp: '{created}-01-01T00:00:00Z'}}"
    spec = f"{{parentRefs: [{{name: {parent}}}], hostnames: [{host}], rules: [{rules}]}}"
    return f"apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {meta}\nspec: {spec}\n"


def gateways(most: dict[Limited, int], *texts: str) -> tuple[GatewayPlanner, ToldPlan]:
    planner = GatewayPlanner(GatewaySetting(addresses=("192.0.2.1",), limits={**MOST, **most}))
    return planner, plan_all(planner, snapshot_of(*texts), NOW)


def accepted(planner: GatewayPlanner, kind: IngressKind, of: str, name: str) -> str:
    said = status(planner, kind, name, of)
    parts = said["listeners" if kind is IngressKind.GATEWAY else "parents"]
    return reasons(parts[0])["Accepted"]


def test_the_youngest_gateways_of_the_namespace_are_refused_and_told() -> None:
    planner, plan = gateways(
        {Limited.LISTENERS: 3},
        gateway("evil", "c-old", 2020, 8000, 8001),
        gateway("evil", "b-young", 2021, 8002, 8003),
        gateway("evil", "a-younger", 2022, 8004),
        gateway("good", "edge", 2023, 8005, 8006),
    )
    names = [("evil", "c-old"), ("evil", "b-young"), ("evil", "a-younger"), ("good", "edge")]
    said = [accepted(planner, IngressKind.GATEWAY, *each) for each in names]
    assert said == ["Accepted", "not LimitExceeded", "Accepted", "Accepted"]
    assert {each.name for each in plan.frontends} == {f"gateway:{port}" for port in (8000, 8001, 8004, 8005, 8006)}
    assert "more than 3 listeners: delete older ones" in told(plan)["evil/b-young"]


@pytest.mark.parametrize("kind", [Limited.HOSTS, Limited.PATHS, Limited.BACKENDS])
def test_the_youngest_routes_of_the_namespace_are_refused_and_told(kind: Limited) -> None:
    texts = []
    for of in ("evil", "good"):
        texts.append(gateway(of, "edge", 2020, 8000))
        for name in ("a", "b") if of == "good" else ("d", "c", "b", "a"):
            texts.append(f"--- Service {of}/{name}\nspec: {{ports: [{{port: 80}}]}}\n")
            host, rule = f"{name}.{of}.org", f"{{backendRefs: [{{name: {name}, port: 80}}]}}"
            texts.append(route(of, name, 2025 - ord(name) + ord("a"), host, rule))
    planner, plan = gateways({kind: 2}, *texts)
    assert {str(each.owner) for each in plan.routes} == {"evil/d", "evil/c", "good/a", "good/b"}
    assert {str(each.service) for each in plan.pools} == {"evil/d", "evil/c", "good/a", "good/b"}
    assert told(plan).keys() == {"evil/a", "evil/b"}
    assert f"more than 2 {kind.value}: delete older ones" in told(plan)["evil/a"]
    said = [accepted(planner, IngressKind.HTTP_ROUTE, *each) for each in (("evil", "a"), ("good", "a"))]
    assert said == ["not UnsupportedValue", "Accepted"]


@pytest.mark.parametrize("text", ["hosts", "hosts=", "hosts=-1", "hosts=many", "shoes=5", "hosts=٣"])
def test_a_limit_that_is_none_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no KIND=NUMBER \(KIND: hosts, paths"):
        parse_limits([text])


def test_the_operator_sets_limits() -> None:
    assert parse_limits(["hosts=5", "paths=0"]) == {**MOST, Limited.HOSTS: 5, Limited.PATHS: 0}
