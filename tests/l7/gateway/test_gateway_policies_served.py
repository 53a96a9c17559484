"""TrafficPolicies and BackendPolicies at a real HAProxy: what they guard is guarded, however a path is written."""

from collections.abc import Iterator

import pytest
import yaml
from tests.l7.gateway.site import GatewaySite, documents, gateways, list_all
from tests.l7.gateway.test_gateway_policies import policy

from vipwire_l7.watch.objects import IngressKind

GATEWAY = """
--- Gateway edge
spec:
  gatewayClassName: vipwire
  listeners: [{name: http, port: $edge, protocol: HTTP}]
---
"""
USERS = """
--- Secret users
stringData: {auth: "ann:$5$saltsalt$0IyaXrmV7.sGNS6tirgqHLqX/G.FBvgkYA.lpPdS5sA"}
---
"""
BACKEND = "backendRefs: [{name: v1, port: 8080}]"
REDIRECT = "filters: [{type: RequestRedirect, requestRedirect: {hostname: new.org, statusCode: 301}}]"
EXPRESSION = "path: {type: RegularExpression, value: '/area/[a-z]+'}"


def route(name: str, *rules: str) -> str:
    """Write an HTTPRoute for the host NAME.org."""
    spec = {"parentRefs": [{"name": "edge"}], "hostnames": [f"{name}.org"]}
    made = {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": {"name": name}}
    return yaml.safe_dump({**made, "spec": {**spec, "rules": [yaml.safe_load(each) for each in rules]}}) + "---\n"


PLAIN = f"{{{BACKEND}}}"
ADMIN = f"{{name: admin, matches: [{{path: {{value: /admin}}}}], {BACKEND}}}"
AREA = f"{{name: area, matches: [{{{EXPRESSION}}}], {BACKEND}}}"
COSTLY = f"{{name: costly, matches: [{{path: {{type: RegularExpression, value: '/deep/(a*)*b'}}}}], {BACKEND}}}"
POLICIES = {
    "denied": "denySources: [127.0.0.0/8]",
    "strangers": "allowSources: [10.0.0.0/8, '2001:db8::1']",
    "friends": "allowSources: [127.0.0.1]",
    "short": "maxBodySize: '8'",
    "users": "basicAuth: {secretName: users, realm: the shop}",
    "often": "limits: {requestsPerMinute: 3}",
    "unread": "allowSources: [everybody]",
    "gone": "denySources: [127.0.0.0/8]",
    "sent": "denySources: [127.0.0.0/8]",
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewaySite]:
    with gateways(tmp_path_factory.mktemp("policies")) as made:
        made.put(GATEWAY)
        made.put_object(documents(USERS)[0])
        made.pods("v1", "v2")
        for name, spec in POLICIES.items():
            rule = f"{{{REDIRECT}}}" if name == "sent" else PLAIN
            made.put(route(name, rule) + policy("TrafficPolicy", name, spec, f"HTTPRoute/{name}"))
        made.put(route("parts", PLAIN, ADMIN, AREA, COSTLY))
        targets = [f"HTTPRoute/parts/{part}" for part in ("admin", "area", "costly")]
        made.put(policy("TrafficPolicy", "parts", "denySources: [127.0.0.0/8]", *targets))
        made.put(route("checked", "{backendRefs: [{name: v2, port: 8080}]}"))
        made.put(policy("BackendPolicy", "checked", "healthCheck: {path: /own-check, interval: 50ms}", "Service/v2"))
        list_all(made)
        made.settle()
        yield made


@pytest.mark.parametrize(
    ("name", "status"),
    [("denied", 403), ("strangers", 403), ("friends", 200), ("short", 200), ("unread", 503), ("sent", 403)],
)
def test_a_policy_guards_its_route(here: GatewaySite, name: str, status: int) -> None:
    assert here.ask("edge", f"{name}.org").status == status


def test_bodies_have_a_longest_length(here: GatewaySite) -> None:
    found = [here.ask("edge", "short.org", method="POST", data=data).status for data in ("12345678", "123456789")]
    assert found == [200, 413]


def test_users_are_asked_for_their_passwords(here: GatewaySite) -> None:
    stranger = here.ask("edge", "users.org")
    assert (stranger.status, stranger.headers["WWW-Authenticate"]) == (401, 'Basic realm="the shop"')
    known = here.ask("edge", "users.org", headers={"Authorization": "Basic YW5uOnNlY3JldA=="})
    assert known.status == 200
    assert "authorization" not in known.seen["headers"]


def test_a_client_may_ask_so_often(here: GatewaySite) -> None:
    assert [here.ask("edge", "often.org").status for _ in range(5)] == [200, 200, 200, 429, 429]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 200),
        ("/administration", 200),
        ("/admin", 403),
        ("//admin", 400),
        ("/x/../admin/y", 400),
        ("/%61dmin", 400),
        ("/x%2f..%2fadmin", 400),
        ("/area/", 200),
        ("/area/one", 403),
        ("/x/../area/one", 400),
        ("/area/%6fne", 400),
        ("/area/one%2f", 400),
        ("/x/%C3%BC", 200),
        ("/x/%c3%bc", 400),
        (f"/area/{'a' * 300}", 414),
        ("/deep/b", 503),
        ("/deep/" + "a" * 40, 503),
        ("/deeper", 200),
    ],
)
def test_no_way_of_writing_a_path_leads_past_a_guard(here: GatewaySite, path: str, status: int) -> None:
    url = f"http://127.0.0.1:{here.port('edge')}{path}"
    code, output = here.curl("--path-as-is", "-o/dev/null", "-w%{http_code}", "-HHost: parts.org", url)
    assert (code, output) == (0, str(status))


def test_pods_get_a_guarded_path_as_it_was_sent(here: GatewaySite) -> None:
    url = f"http://127.0.0.1:{here.port('edge')}/x/%C3%BC?/../y"
    _, output = here.curl("--path-as-is", "-HHost: parts.org", url)
    assert '"path": "/x/%C3%BC?/../y"' in output


def test_a_service_is_asked_whether_it_is_well(here: GatewaySite) -> None:
    here.until_served("/own-check", "v2")


def test_what_a_policy_guards_is_open_once_it_has_gone(here: GatewaySite) -> None:
    assert here.ask("edge", "gone.org").status == 403
    here.remove(IngressKind.TRAFFIC_POLICY, "gone")
    here.settle()
    assert here.ask("edge", "gone.org").status == 200
