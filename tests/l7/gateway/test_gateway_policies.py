"""TrafficPolicies and BackendPolicies: whom they count for, what statuses say, and what HAProxy makes of them."""

import pytest
import yaml
from tests.l7.gateway.test_gateway_statuses import HTTP, SERVICE, drawn, gateway, reasons

from vipwire.model.names import ObjectName
from vipwire_l7.gateway.plan.planner import GatewayPlanner
from vipwire_l7.plan.policy import Algorithm, Limit, Policy, SameSite
from vipwire_l7.plan.sites import CLOSED
from vipwire_l7.watch.objects import IngressKind

TRAFFIC, BACKEND = IngressKind.TRAFFIC_POLICY, IngressKind.BACKEND_POLICY
ROUTE = """
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web, namespace: infra, generation: 2}
spec:
  parentRefs: [{name: edge}]
  rules:
  - {name: one, matches: [{path: {value: /one}}], backendRefs: [{name: web, port: 80}]}
  - {name: two, matches: [{path: {value: /two}}], backendRefs: [{name: web, port: 80}]}
"""
EDGE = gateway(HTTP)


def policy(kind: str, name: str, spec: str, *targets: str, created: str = "") -> str:
    """Write a policy for targets such as `HTTPRoute/web/one`."""
    refs = []
    for target in targets:
        of, named, *section = target.split("/")
        group = "" if of == "Service" else "gateway.networking.k8s.io"
        refs.append({"group": group, "kind": of, "name": named} | ({"sectionName": section[0]} if section else {}))
    meta = {"name": name, "namespace": "infra", "generation": 4, "creationTimestamp": created}
    made = {"apiVersion": "vipwire.io/v1", "kind": kind, "metadata": meta}
    return yaml.safe_dump({**made, "spec": {"targetRefs": refs, **yaml.safe_load(spec)}}) + "---\n"


def by_path(*texts: str) -> dict[str, Policy | str]:
    """Plan, and return the policy of each path's pool, or the name of what else is there."""
    plan = drawn(EDGE, ROUTE, SERVICE, *texts)[1]
    pools = {pool.name: pool.policy for pool in plan.pools}
    return {route.path: pools.get(route.target, route.target) for route in plan.routes}


def accepted(planner: GatewayPlanner, kind: IngressKind, name: str) -> list[str]:
    found = planner.statuses[kind, ObjectName("infra", name)]["ancestors"]
    return [reasons(each)["Accepted"] for each in found]


@pytest.mark.parametrize(
    ("targets", "one", "two"),
    [
        (("Gateway/edge",), 5, 5),
        (("Gateway/edge/http",), 5, 5),
        (("HTTPRoute/web",), 5, 5),
        (("HTTPRoute/web/one",), 5, None),
        (("HTTPRoute/other", "Gateway/other", "GRPCRoute/web"), None, None),
    ],
)
def test_a_policy_counts_for_what_it_names(targets: tuple[str, ...], one: int | None, two: int | None) -> None:
    found = by_path(policy("TrafficPolicy", "slow", "limits: {requestsPerSecond: 5}", *targets))
    limits = {path: each.limit and each.limit.per_second for path, each in found.items() if isinstance(each, Policy)}
    assert limits == {"/one": one, "/two": two}


def test_the_nearer_policy_counts_field_by_field() -> None:
    found = by_path(
        policy("TrafficPolicy", "a", "{limits: {requestsPerSecond: 5}, maxBodySize: 1k}", "Gateway/edge"),
        policy("TrafficPolicy", "b", "limits: {connections: 7}", "HTTPRoute/web/one"),
    )
    assert [(each.limit, each.body_size) for each in found.values() if isinstance(each, Policy)] == [
        (Limit(connections=7), 1024),
        (Limit(per_second=5), 1024),
    ]


def test_of_two_for_the_same_the_older_counts_and_the_other_is_told() -> None:
    old = policy("TrafficPolicy", "z", "maxBodySize: 1k", "HTTPRoute/web", created="2026-01-01T00:00:00Z")
    new = policy(
        "TrafficPolicy", "a", "maxBodySize: 2k", "HTTPRoute/web", "Gateway/edge", created="2026-02-01T00:00:00Z"
    )
    planner, plan = drawn(EDGE, ROUTE, SERVICE, old, new)
    assert {pool.policy.body_size for pool in plan.pools} == {1024}
    assert accepted(planner, TRAFFIC, "z") == ["Accepted"]
    assert accepted(planner, TRAFFIC, "a") == ["not Conflicted", "Accepted"]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("limits: {requestsPerSecond: five}", "limits.requestsPerSecond"),
        ("limits: 5", "limits is an unknown field"),
        ("allowSources: [10.0.0.0/8, nonsense]", "allowSources"),
        ("allowSources: [{a: b}]", "allowSources"),
        ("denySource: [10.0.0.0/8]", "denySource is an unknown field"),
        ("maxBodySize: [1]", "maxBodySize"),
        ("basicAuth: {realm: shop}", "basicAuth.secretName is missing"),
        ("basicAuth: {secretName: none}", "Secret infra/none has no users"),
        ("basicAuth: {secretName: other/users}", "the Secret must be in the same namespace"),
    ],
)
def test_a_policy_that_cannot_be_read_closes_what_it_is_for(spec: str, said: str) -> None:
    bad = policy("TrafficPolicy", "bad", spec, "HTTPRoute/web/one")
    found = by_path(bad)
    assert (found["/one"], found["/two"]) == (CLOSED, Policy())
    planner, plan = drawn(EDGE, ROUTE, SERVICE, bad)
    assert accepted(planner, TRAFFIC, "bad") == ["not Invalid"]
    (problem,) = plan.problems
    assert said in problem.message
    assert problem.kind == "TrafficPolicy"


def test_a_broken_policy_costs_itself_alone() -> None:
    head = "kind: TrafficPolicy\nmetadata: {{name: p{}, namespace: infra}}\nspec: {}\n---\n"
    specs = ("5", "null", "[]", "{targetRefs: 5}", "{targetRefs: [5, {kind: 5}, {kind: HTTPRoute, name: [a]}]}")
    broken = [head.format(number, spec) for number, spec in enumerate(specs)]
    found = by_path(*broken)
    assert list(found.values()) == [Policy(), Policy()]
    assert len(drawn(EDGE, ROUTE, SERVICE, *broken)[1].problems) == len(broken)


@pytest.mark.parametrize(
    ("kind", "target", "reason"),
    [
        ("TrafficPolicy", "HTTPRoute/web", "Accepted"),
        ("TrafficPolicy", "HTTPRoute/web/one", "Accepted"),
        ("TrafficPolicy", "HTTPRoute/web/none", "not TargetNotFound"),
        ("TrafficPolicy", "HTTPRoute/none", "not TargetNotFound"),
        ("TrafficPolicy", "Gateway/edge/http", "Accepted"),
        ("TrafficPolicy", "Gateway/edge/none", "not TargetNotFound"),
        ("TrafficPolicy", "TCPRoute/web", "not Invalid"),
        ("TrafficPolicy", "Service/web", "not Invalid"),
        ("BackendPolicy", "Service/web", "Accepted"),
        ("BackendPolicy", "Service/none", "not TargetNotFound"),
        ("BackendPolicy", "Service/web/none", "not TargetNotFound"),
        ("BackendPolicy", "HTTPRoute/web", "not Invalid"),
    ],
)
def test_a_status_says_whether_a_target_is_there(kind: str, target: str, reason: str) -> None:
    planner, _ = drawn(EDGE, ROUTE, SERVICE, policy(kind, "some", "{}", target))
    assert accepted(planner, IngressKind(kind), "some") == [reason]
    (ancestor,) = planner.statuses[IngressKind(kind), ObjectName("infra", "some")]["ancestors"]
    of, name, *section = target.split("/")
    ref = ancestor["ancestorRef"]
    assert (ref["kind"], ref["namespace"], ref["name"]) == (of, "infra", name)
    assert ref.get("sectionName") == (section[0] if section else None)
    assert ancestor["conditions"][0]["observedGeneration"] == 4


def test_a_policy_of_a_service_counts_for_its_pools() -> None:
    spec = """
    balance: {algorithm: leastconn}
    timeouts: {connect: 1s, server: 9s, queue: 2s}
    healthCheck: {path: /healthz}
    connectionsPerEndpoint: 3
    redispatch: false
    proxyProtocol: v2
    sessionCookie: {sameSite: Lax, secure: true}
    """
    own = ROUTE.replace("{name: one,", "{name: one, timeouts: {request: 4s}, sessionPersistence: {},")
    plan = drawn(EDGE, own, SERVICE, policy("BackendPolicy", "pods", spec, "Service/web"))[1]
    one, two = sorted((pool.policy for pool in plan.pools), key=lambda each: each.affinity is None)
    assert dict(two.timeouts) == {"connect": 1000, "server": 9000, "queue": 2000}
    assert dict(one.timeouts) == {"connect": 1000, "server": 4000, "queue": 2000}
    assert two.balance.algorithm is Algorithm.LEAST_CONNECTIONS
    assert (two.check and two.check.path, two.pod_connections, two.redispatch) == ("/healthz", 3, False)
    assert one.affinity is not None
    assert (one.affinity.same_site, one.affinity.secure, two.affinity) == (SameSite.LAX, True, None)


def test_what_cannot_be_read_for_a_service_is_left_out() -> None:
    bad = policy("BackendPolicy", "pods", "{balance: {algorithm: best}, connectionsPerEndpoint: 3}", "Service/web")
    planner, plan = drawn(EDGE, ROUTE, SERVICE, bad)
    assert {pool.policy for pool in plan.pools} == {Policy()}
    assert accepted(planner, BACKEND, "pods") == ["not Invalid"]
