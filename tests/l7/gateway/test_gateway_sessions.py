"""Sessions of a rule that shares requests by weight: clients go back to the Service and the Pod that they had."""

from collections.abc import Iterator

import pytest
from tests.l7.gateway.site import GatewaySite, gateways, list_all, service

from vipwire_l7.haproxy.refused import remove_parts
from vipwire_l7.plan.sites import CLOSED, Chance, Frontend, SessionBound, SitePlan, Step, make_choice

GATEWAY = """
--- Gateway edge
spec:
  gatewayClassName: vipwire
  listeners: [{name: http, port: $http, protocol: HTTP}]
"""
ROUTE = """
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: {host}}}
spec:
  parentRefs: [{{name: edge}}]
  hostnames: [{host}]
  rules:
  - {session}
    backendRefs: [{refs}]
"""
RULE = """
  - sessionPersistence: {{}}
    matches: [{{path: {{value: /{name}}}}}]
    backendRefs: [{{name: {name}, port: 8080}}]
"""
SESSION = "sessionPersistence: {sessionName: mine, absoluteTimeout: 1h}"
PODS = {"stable": ("s1", "s2"), "canary": ("c1", "c2")}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewaySite]:
    with gateways(tmp_path_factory.mktemp("sessions")) as made:
        made.pods(*PODS["stable"], *PODS["canary"])
        for name in PODS:
            put_service(made, name)
        made.put(GATEWAY)
        share(made, "sticky.org", stable=1, canary=1)
        share(made, "plain.org", "sessionPersistence: {}", stable=1, canary=1)
        list_all(made)
        made.settle()
        yield made


def put_service(here: GatewaySite, name: str, *, empty: bool = False) -> None:
    """Put a Service with its two Pods, or with none."""
    first, second = (here.addresses[f"infra/{pod}"] for pod in PODS[name])
    text = service(name, first, here.pod_port)
    more = f"endpoints: [{{addresses: [{second}], conditions: {{ready: true}}}}, "
    head, _, rest = text.partition("endpoints: [")
    here.put(f"{head}endpoints: []\n" if empty else f"{head}{more}{rest}")


def share(here: GatewaySite, host: str, session: str = SESSION, **weights: int) -> None:
    """Put the route of a host."""
    refs = ", ".join(f"{{name: {name}, port: 8080, weight: {weight}}}" for name, weight in weights.items())
    here.put(ROUTE.format(host=host, session=session, refs=refs))


def begin(here: GatewaySite, host: str, pods: tuple[str, ...]) -> tuple[str, str]:
    """Ask without a cookie until one of the Pods answers; return its name and the cookie."""
    for _ in range(200):
        answer = here.ask("http", host)
        if answer.pod in pods:
            return answer.pod, answer.headers["Set-Cookie"].partition(";")[0]
    raise AssertionError(f"none of {pods} has answered")


def again(here: GatewaySite, host: str, cookie: str) -> set[str]:
    """Return which Pods answer ten requests with a cookie."""
    return {here.ask("http", host, headers={"Cookie": f"other=1; {cookie}; more=2"}).pod for _ in range(10)}


@pytest.mark.parametrize("host", ["sticky.org", "plain.org"])
def test_sessions_stay_whatever_the_weights_draw(here: GatewaySite, host: str) -> None:
    for pods in PODS.values():
        pod, cookie = begin(here, host, pods)
        assert again(here, host, cookie) == {pod}
    assert len({here.ask("http", host).pod for _ in range(60)}) == 4


def test_two_rules_of_a_host_keep_their_sessions_apart(here: GatewaySite) -> None:
    rules = "".join(RULE.format(name=name).lstrip("\n") for name in PODS)
    here.put(ROUTE.partition("  - {session}")[0].format(host="two.org") + rules)
    here.settle()
    first = {name: here.ask("http", "two.org", f"/{name}") for name in PODS}
    cookies = [answer.headers["Set-Cookie"].partition(";")[0] for answer in first.values()]
    assert len({cookie.partition("=")[0] for cookie in cookies}) == 2
    for name, answer in first.items():
        sent = {"Cookie": "; ".join(cookies)}
        assert {here.ask("http", "two.org", f"/{name}", headers=sent).pod for _ in range(10)} == {answer.pod}


def test_pods_see_no_session_cookie_and_all_others(here: GatewaySite) -> None:
    pod, cookie = begin(here, "sticky.org", PODS["canary"])
    seen = here.ask("http", "sticky.org", headers={"Cookie": f"other=1; {cookie}; more=2"}).seen
    assert (seen["pod"], seen["headers"]["cookie"]) == (pod, "other=1; more=2")


def test_a_cookie_of_nobody_is_drawn_anew(here: GatewaySite) -> None:
    answer = here.ask("http", "sticky.org", headers={"Cookie": "mine=0123456789.nonsense"})
    assert answer.headers["Set-Cookie"].startswith("mine=")


def test_a_weight_of_nothing_gets_no_new_clients(here: GatewaySite) -> None:
    share(here, "goes.org", stable=1, canary=1)
    here.settle()
    pod, cookie = begin(here, "goes.org", PODS["canary"])
    share(here, "goes.org", stable=1, canary=0)
    here.settle()
    assert again(here, "goes.org", cookie) == {pod}
    assert not here.pods_of("http", "goes.org").intersection(PODS["canary"])


def test_sessions_stay_when_a_canary_comes(here: GatewaySite) -> None:
    share(here, "alone.org", stable=1)
    here.settle()
    pod, cookie = begin(here, "alone.org", PODS["stable"])
    share(here, "alone.org", stable=1, canary=9)
    here.settle()
    assert again(here, "alone.org", cookie) == {pod}


def test_without_an_endpoint_a_session_goes_elsewhere(here: GatewaySite) -> None:
    share(here, "leaves.org", stable=1, canary=1)
    here.settle()
    _, cookie = begin(here, "leaves.org", PODS["canary"])
    put_service(here, "canary", empty=True)
    share(here, "leaves.org", stable=1, canary=0)
    here.settle()
    assert again(here, "leaves.org", cookie) <= set(PODS["stable"])
    put_service(here, "canary")
    here.settle()


def test_a_pool_that_haproxy_refuses_costs_only_its_share() -> None:
    """What counts the endpoints of a pool that is not there would be refused with all else of the choice."""
    choice = make_choice((Step("a", (SessionBound("mine", "m", "a"),)), Step("a", (Chance(1, 2),)), Step("b")))
    plan = remove_parts(SitePlan(frontends=(Frontend("f", "*:80", ":80", choices=(choice,)),)), {"a"})
    assert plan.all_choices[0].steps == (Step(CLOSED, (Chance(1, 2),)), Step("b"))
