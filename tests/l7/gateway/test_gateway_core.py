"""HTTPRoutes' core, at a real HAProxy: what the official conformance suite asks. Cases have its names."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.l7.configurations import check_configuration
from tests.l7.gateway.site import GatewaySite, gateways, list_all, tls_secret

pytestmark = pytest.mark.haproxy

OBJECTS = """
apiVersion: v1
kind: Namespace
metadata: {name: web, labels: {team: web}}
--- Gateway same
spec:
  gatewayClassName: vipwire
  listeners: [{name: http, port: $same, protocol: HTTP}]
--- Gateway all
spec:
  gatewayClassName: vipwire
  listeners:
  - {name: http, port: $all, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}
  - name: selected
    port: $all
    protocol: HTTP
    hostname: "*.selected.org"
    allowedRoutes: {namespaces: {from: Selector, selector: {matchLabels: {team: web}}}}
--- HTTPRoute simple
spec:
  parentRefs: [{name: same}]
  rules: [{backendRefs: [{name: v1, port: 8080}]}]
--- HTTPRoute web/across
spec:
  parentRefs: [{name: all, namespace: infra}]
  hostnames: [across.org]
  rules: [{backendRefs: [{name: web, port: 8080}]}]
--- HTTPRoute matching
spec:
  parentRefs: [{name: same}]
  hostnames: [matching.org]
  rules:
  - matches: [{path: {type: PathPrefix, value: /}}, {headers: [{name: version, value: one}]}]
    backendRefs: [{name: v1, port: 8080}]
  - matches: [{path: {type: PathPrefix, value: /v2}}, {headers: [{name: version, value: two}]}]
    backendRefs: [{name: v2, port: 8080}]
--- HTTPRoute exact
spec:
  parentRefs: [{name: same}]
  hostnames: [exact.org]
  rules:
  - matches: [{path: {type: Exact, value: /one}}]
    backendRefs: [{name: v1, port: 8080}]
  - matches: [{path: {type: Exact, value: /two}}]
    backendRefs: [{name: v2, port: 8080}]
--- HTTPRoute order
spec:
  parentRefs: [{name: same}]
  hostnames: [order.org]
  rules:
  - matches:
    - {path: {type: PathPrefix, value: /match}}
    - {path: {type: PathPrefix, value: /match/prefix/one}}
    backendRefs: [{name: v1, port: 8080}]
  - matches:
    - {path: {type: Exact, value: /match/exact/one}}
    - {path: {type: PathPrefix, value: /match/prefix}}
    - {path: {type: PathPrefix, value: /match}, method: PUT}
    backendRefs: [{name: v2, port: 8080}]
  - matches:
    - {path: {type: Exact, value: /match/exact}}
    - {path: {type: PathPrefix, value: /match}, headers: [{name: a, value: b}, {name: c, value: d}]}
    - {path: {type: PathPrefix, value: /match}, queryParams: [{name: q, value: "1 2"}]}
    backendRefs: [{name: v3, port: 8080}]
--- HTTPRoute across-1
spec:
  parentRefs: [{name: same}]
  hostnames: [two.org, also.two.org]
  rules:
  - matches: [{path: {value: /}}, {headers: [{name: version, value: one}]}]
    backendRefs: [{name: v1, port: 8080}]
--- HTTPRoute across-2
spec:
  parentRefs: [{name: same}]
  hostnames: [two.org]
  rules:
  - matches: [{path: {value: /v2}}, {headers: [{name: version, value: two}]}]
    backendRefs: [{name: v2, port: 8080}]
--- HTTPRoute expressions
spec:
  parentRefs: [{name: same}]
  hostnames: [expressions.org]
  rules:
  - matches: [{path: {type: RegularExpression, value: "/(a|b)[0-9]+"}}]
    backendRefs: [{name: v1, port: 8080}]
  - matches: [{headers: [{name: x, type: RegularExpression, value: "it's [0-9]+"}]}]
    backendRefs: [{name: v2, port: 8080}]
  - matches: [{headers: [{name: x, value: "}"}]}, {headers: [{name: y, value: "-f 'q' $HOME \\"\\" # %[src]"}]}]
    backendRefs: [{name: v3, port: 8080}]
--- HTTPRoute weights
spec:
  parentRefs: [{name: same}]
  hostnames: [weights.org]
  rules:
  - matches: [{path: {value: /some}}]
    backendRefs:
    - {name: v1, port: 8080, weight: 7}
    - {name: v2, port: 8080, weight: 3}
    - {name: v3, port: 8080, weight: 0}
  - matches: [{path: {value: /none}}]
    backendRefs: [{name: v1, port: 8080, weight: 0}]
--- HTTPRoute headers
spec:
  parentRefs: [{name: same}]
  hostnames: [headers.org]
  rules:
  - filters:
    - type: RequestHeaderModifier
      requestHeaderModifier:
        set: [{name: X-Set, value: "it's 100% %[src] set"}]
        add: [{name: X-Add, value: added}]
        remove: [X-Gone]
    backendRefs:
    - name: v1
      port: 8080
      filters:
      - type: RequestHeaderModifier
        requestHeaderModifier: {set: [{name: X-Of-Backend, value: v1}]}
--- HTTPRoute redirects
spec:
  parentRefs: [{name: same}]
  hostnames: [redirects.org]
  rules:
  - matches: [{path: {value: /host}}]
    filters: [{type: RequestRedirect, requestRedirect: {hostname: other.org}}]
  - matches: [{path: {value: /code}}]
    filters: [{type: RequestRedirect, requestRedirect: {statusCode: 301, hostname: other.org, port: 80}}]
  - matches: [{path: {value: /scheme}}]
    filters: [{type: RequestRedirect, requestRedirect: {scheme: https, statusCode: 308}}]
  - matches: [{path: {value: /port}}]
    filters: [{type: RequestRedirect, requestRedirect: {scheme: https, port: 8443, statusCode: 307}}]
  - matches: [{path: {value: /full}}]
    filters:
    - {type: RequestRedirect, requestRedirect: {path: {type: ReplaceFullPath, replaceFullPath: /new}, port: 80}}
  - matches: [{path: {value: /prefix}}]
    filters:
    - type: RequestRedirect
      requestRedirect: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /p}, port: 80, statusCode: 303}
--- HTTPRoute strange
spec:
  parentRefs: [{name: same}]
  hostnames: [strange.org]
  rules:
  - matches: [{path: {value: /gone}}]
    backendRefs: [{name: nobody, port: 8080}]
  - matches: [{path: {value: /kind}}]
    backendRefs: [{name: v1, kind: Nonsense, port: 8080}]
  - matches: [{path: {value: /forbidden}}]
    backendRefs: [{name: web, namespace: web, port: 8080}]
  - matches: [{path: {value: /granted}}]
    backendRefs: [{name: granted, namespace: web, port: 8080}]
  - matches: [{path: {value: /empty}}]
    backendRefs: [{name: empty, port: 8080}]
--- Service empty
spec: {ports: [{name: http, port: 8080}]}
--- ReferenceGrant web/grant
spec:
  from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: infra}]
  to: [{group: "", kind: Service, name: granted}]
"""
HOSTS = """
--- Gateway hosts
spec:
  gatewayClassName: vipwire
  listeners:
  - {name: exact, port: $hosts, protocol: HTTP, hostname: very.specific.com}
  - {name: wildcard, port: $hosts, protocol: HTTP, hostname: "*.wildcard.io"}
  - {name: deeper, port: $hosts, protocol: HTTP, hostname: "*.anotherwildcard.io"}
--- HTTPRoute intersecting
spec:
  parentRefs: [{name: hosts}]
  hostnames: [non.matching.com, "*.nonmatching.io", very.specific.com, foo.wildcard.io, "*.anotherwildcard.io"]
  rules: [{matches: [{path: {value: /s}}], backendRefs: [{name: v1, port: 8080}]}]
--- HTTPRoute elsewhere
spec:
  parentRefs: [{name: hosts}]
  hostnames: [nowhere.org]
  rules: [{backendRefs: [{name: v1, port: 8080}]}]
--- Gateway isolated
spec:
  gatewayClassName: vipwire
  listeners:
  - {name: empty, port: $isolated, protocol: HTTP}
  - {name: wide, port: $isolated, protocol: HTTP, hostname: "*.example.com"}
  - {name: foo, port: $isolated, protocol: HTTP, hostname: "*.foo.example.com"}
  - {name: abc, port: $isolated, protocol: HTTP, hostname: abc.foo.example.com}
--- HTTPRoute at-empty
spec:
  parentRefs: [{name: isolated, sectionName: empty}]
  rules: [{matches: [{path: {value: /empty}}], backendRefs: [{name: v1, port: 8080}]}]
--- HTTPRoute at-wide
spec:
  parentRefs: [{name: isolated, sectionName: wide}]
  rules: [{matches: [{path: {value: /wide}}], backendRefs: [{name: v1, port: 8080}]}]
--- HTTPRoute at-foo
spec:
  parentRefs: [{name: isolated, sectionName: foo}]
  rules: [{matches: [{path: {value: /foo}}], backendRefs: [{name: v1, port: 8080}]}]
--- HTTPRoute at-abc
spec:
  parentRefs: [{name: isolated, sectionName: abc}]
  rules: [{matches: [{path: {value: /abc}}], backendRefs: [{name: v1, port: 8080}]}]
"""
TLS = """
--- Gateway secure
spec:
  gatewayClassName: vipwire
  listeners:
  - {name: any, port: $tls, protocol: HTTPS, tls: {certificateRefs: [{name: any}]}}
  - {name: two, port: $tls, protocol: HTTPS, hostname: two.org, tls: {certificateRefs: [{name: two, namespace: web}]}}
  - {name: wild, port: $tls, protocol: HTTPS, hostname: "*.wild.org", tls: {certificateRefs: [{name: any}]}}
  - {name: inner, port: $tls, protocol: HTTPS, hostname: in.wild.org, tls: {certificateRefs: [{name: any}]}}
--- ReferenceGrant web/secrets
spec:
  from: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: infra}]
  to: [{group: "", kind: Secret}]
--- HTTPRoute secured
spec:
  parentRefs: [{name: secure}]
  rules: [{backendRefs: [{name: v1, port: 8080}]}]
"""


@dataclass(frozen=True)
class Ask:
    """A request, and who is to answer it: a Pod by its name, or a status."""

    case: str
    port: str
    host: str
    path: str
    who: str
    method: str = "GET"
    headers: dict[str, str] = field(default_factory=dict)


ASKS = (
    Ask("HTTPRouteSimpleSameNamespace", "same", "", "/", "v1"),
    Ask("HTTPRouteCrossNamespace", "all", "across.org", "/", "web"),
    Ask("HTTPRouteMatching", "same", "matching.org", "/", "v1"),
    Ask("HTTPRouteMatching", "same", "matching.org", "/example", "v1"),
    Ask("HTTPRouteMatching", "same", "matching.org", "/", "v1", headers={"Version": "one"}),
    Ask("HTTPRouteMatching", "same", "matching.org", "/v2", "v2"),
    Ask("HTTPRouteMatching", "same", "matching.org", "/v2/example", "v2"),
    Ask("HTTPRouteMatching", "same", "matching.org", "/v2example", "v1"),
    Ask("HTTPRouteMatching", "same", "matching.org", "/", "v2", headers={"Version": "two"}),
    Ask("HTTPRouteMatching", "same", "matching.org", "/v2/", "v2", headers={"Version": "one"}),
    Ask("HTTPRouteExactPathMatching", "same", "exact.org", "/one", "v1"),
    Ask("HTTPRouteExactPathMatching", "same", "exact.org", "/two?x=y", "v2"),
    Ask("HTTPRouteExactPathMatching", "same", "exact.org", "/", "404"),
    Ask("HTTPRouteExactPathMatching", "same", "exact.org", "/one/example", "404"),
    Ask("HTTPRouteExactPathMatching", "same", "exact.org", "/two/", "404"),
    Ask("HTTPRouteExactPathMatching", "same", "exact.org", "/Two", "404"),
    Ask("HTTPRoutePathMatchOrder", "same", "order.org", "/match/exact/one", "v2"),
    Ask("HTTPRoutePathMatchOrder", "same", "order.org", "/match/exact", "v3"),
    Ask("HTTPRoutePathMatchOrder", "same", "order.org", "/match", "v1"),
    Ask("HTTPRoutePathMatchOrder", "same", "order.org", "/match/prefix/one/any", "v1"),
    Ask("HTTPRoutePathMatchOrder", "same", "order.org", "/match/prefix/any", "v2"),
    Ask("HTTPRoutePathMatchOrder", "same", "order.org", "/match/any", "v1"),
    Ask("HTTPRoutePathMatchOrder", "same", "order.org", "/elsewhere", "404"),
    Ask("HTTPRouteMethodMatching", "same", "order.org", "/match", "v2", method="PUT"),
    Ask("HTTPRouteMethodMatching", "same", "order.org", "/match", "v2", "PUT", {"A": "b", "C": "d"}),
    Ask("HTTPRouteQueryParamMatching", "same", "order.org", "/match?q=1%202", "v3"),
    Ask("HTTPRouteMatchingAcrossRoutes", "same", "two.org", "/", "v1"),
    Ask("HTTPRouteMatchingAcrossRoutes", "same", "two.org", "/v2", "v2"),
    Ask("HTTPRouteMatchingAcrossRoutes", "same", "two.org", "/v2/x", "v2", headers={"Version": "one"}),
    Ask("HTTPRouteMatchingAcrossRoutes", "same", "two.org", "/", "v2", headers={"Version": "two"}),
    Ask("HTTPRouteMatchingAcrossRoutes", "same", "also.two.org", "/v2", "v1"),
    Ask("RegularExpression", "same", "expressions.org", "/a12", "v1"),
    Ask("RegularExpression", "same", "expressions.org", "/a12x", "404"),
    Ask("RegularExpression", "same", "expressions.org", "/x", "v2", headers={"X": "it's 12"}),
    Ask("RegularExpression", "same", "expressions.org", "/x", "v3", headers={"X": "}"}),
    Ask("HostileValue", "same", "expressions.org", "/x", "v3", headers={"Y": "-f 'q' $HOME \"\" # %[src]"}),
    Ask("HTTPRouteInvalidNonExistentBackendRef", "same", "strange.org", "/gone", "500"),
    Ask("HTTPRouteInvalidBackendRefUnknownKind", "same", "strange.org", "/kind", "500"),
    Ask("HTTPRouteInvalidCrossNamespaceBackendRef", "same", "strange.org", "/forbidden", "500"),
    Ask("HTTPRouteReferenceGrant", "same", "strange.org", "/granted", "granted"),
    Ask("HTTPRouteServiceWithoutEndpoints", "same", "strange.org", "/empty", "503"),
    Ask("HTTPRouteWeight", "same", "weights.org", "/none", "500"),
    Ask("HTTPRouteHostnameIntersection", "hosts", "very.specific.com", "/s", "v1"),
    Ask("HTTPRouteHostnameIntersection", "hosts", "very.specific.com:1234", "/s", "v1"),
    Ask("HTTPRouteHostnameIntersection", "hosts", "foo.wildcard.io", "/s", "v1"),
    Ask("HTTPRouteHostnameIntersection", "hosts", "a.b.anotherwildcard.io", "/s", "v1"),
    Ask("HTTPRouteHostnameIntersection", "hosts", "anotherwildcard.io", "/s", "404"),
    Ask("HTTPRouteHostnameIntersection", "hosts", "bar.wildcard.io", "/s", "404"),
    Ask("HTTPRouteHostnameIntersection", "hosts", "non.matching.com", "/s", "404"),
    Ask("HTTPRouteHostnameIntersection", "hosts", "nowhere.org", "/", "404"),
    Ask("HTTPRouteListenerIsolation", "isolated", "bar.com", "/empty", "v1"),
    Ask("HTTPRouteListenerIsolation", "isolated", "bar.com", "/wide", "404"),
    Ask("HTTPRouteListenerIsolation", "isolated", "bar.example.com", "/wide", "v1"),
    Ask("HTTPRouteListenerIsolation", "isolated", "bar.example.com", "/empty", "404"),
    Ask("HTTPRouteListenerIsolation", "isolated", "bar.foo.example.com", "/foo", "v1"),
    Ask("HTTPRouteListenerIsolation", "isolated", "bar.foo.example.com", "/wide", "404"),
    Ask("HTTPRouteListenerIsolation", "isolated", "abc.foo.example.com", "/abc", "v1"),
    Ask("HTTPRouteListenerIsolation", "isolated", "abc.foo.example.com", "/foo", "404"),
)


def misdirected(here: GatewaySite, asks: Iterable[Ask]) -> list[tuple[Ask, str]]:
    """Ask; return the requests that another Pod answered, or another status."""
    found = ((each, here.ask(each.port, each.host, each.path, each.method, each.headers).pod) for each in asks)
    return [(each, who) for each, who in found if who != each.who]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewaySite]:
    with gateways(tmp_path_factory.mktemp("gateways")) as made:
        made.pods("v1", "v2", "v3")
        made.pods("web", "granted", namespace="web")
        for each in (
            OBJECTS,
            HOSTS,
            TLS,
            tls_secret("any", "any.org"),
            tls_secret("two", "two.org", namespace="web"),
        ):
            made.put(each)
        list_all(made)
        made.settle()
        assert [each.failure for each in made.done] == [""]
        yield made


def test_haproxy_warns_of_nothing(here: GatewaySite) -> None:
    check_configuration(here.haproxy.folder)


def test_requests_go_where_the_api_says(here: GatewaySite) -> None:
    """GatewayHTTPListenerIsolation.

    Also HTTPRouteAllBackendsWeightZero.
    """
    assert misdirected(here, ASKS) == []


def test_weights_share_requests(here: GatewaySite) -> None:
    found = [here.ask("same", "weights.org", "/some").pod for _ in range(300)]
    assert set(found) == {"v1", "v2"}
    assert 0.5 < found.count("v1") / len(found) < 0.9


def test_request_headers_are_changed_and_their_values_mean_nothing_to_haproxy(here: GatewaySite) -> None:
    """HTTPRouteBackendRequestHeaderModifier, HTTPRouteRequestHeaderModifier."""
    seen = here.ask("same", "headers.org", headers={"X-Gone": "1", "X-Set": "mine", "X-Add": "mine"}).seen["headers"]
    assert seen["x-set"] == "it's 100% %[src] set"
    assert seen["x-add"] == "mine,added"
    assert seen["x-of-backend"] == "v1"
    assert "x-gone" not in seen


@pytest.mark.parametrize(
    ("path", "code", "location"),
    [
        ("/host/x?q=1", 302, "http://other.org:PORT/host/x?q=1"),
        ("/code", 301, "http://other.org/code"),
        ("/scheme/x", 308, "https://redirects.org/scheme/x"),
        ("/port", 307, "https://redirects.org:8443/port"),
        ("/full/x?q=1", 302, "http://redirects.org/new?q=1"),
        ("/prefix/x", 303, "http://redirects.org/p/x"),
        ("/prefix", 303, "http://redirects.org/p"),
    ],
)
def test_redirects(here: GatewaySite, path: str, code: int, location: str) -> None:
    """Several cases of the official suite.

    HTTPRouteRedirectHostAndStatus, HTTPRouteRedirectPath, HTTPRouteRedirectPort, HTTPRouteRedirectScheme,
    HTTPRoute303Redirect, HTTPRoute307Redirect, HTTPRoute308Redirect.
    """
    answer = here.ask("same", "redirects.org", path)
    assert (answer.status, answer.headers.get("Location")) == (code, location.replace("PORT", str(here.port("same"))))


def test_certificates_are_chosen_by_the_name_that_clients_ask_for(here: GatewaySite) -> None:
    """HTTPRouteHTTPSListener."""
    for host, subject in (("two.org", "two.org"), ("else.org", "any.org")):
        port = here.port("tls")
        _, text = here.curl(
            "-k", "-v", "--stderr", "-", "--connect-to", f"::127.0.0.1:{port}", f"https://{host}:{port}/"
        )
        assert f"subject: CN={subject}" in text
        assert '"pod": "v1"' in text


@pytest.mark.parametrize(
    ("name", "host", "code"),
    [
        ("any.org", "any.org", 200),
        ("any.org", "two.org", 421),
        ("any.org", "else.org", 200),
        ("two.org", "two.org", 200),
        ("two.org", "any.org", 421),
        ("a.wild.org", "b.wild.org", 200),
        ("a.wild.org", "in.wild.org", 421),
        ("in.wild.org", "in.wild.org", 200),
        ("in.wild.org", "a.wild.org", 421),
        ("in.wild.org", "two.org", 421),
        ("unknown.org", "any.org", 200),
    ],
)
def test_requests_for_another_listener_than_the_connections_are_refused(
    here: GatewaySite, name: str, host: str, code: int
) -> None:
    """HTTPRouteHTTPSListenerDetectMisdirectedRequests."""
    port = here.port("tls")
    wanted = ("--connect-to", f"::127.0.0.1:{port}", f"https://{name}:{port}/", "-H", f"Host: {host}")
    _, text = here.curl("-k", "-o", "/dev/null", "-w", "%{http_code}", *wanted)
    assert int(text) == code


COSTLY = "(a+)+(?:LAST)?$"


@pytest.mark.parametrize("guarded", [False, True])
def test_expressions_that_need_many_steps_do_not_end_haproxy(here: GatewaySite, *, guarded: bool) -> None:
    """A request that takes two seconds ends HAProxy, by its watchdog. More of these are over a namespace's budget."""
    name = "costly-guarded" if guarded else "costly"
    lasts = ("c" * number for number in range(1, 6))
    costly = [COSTLY.replace("LAST", last) for last in lasts]
    paths: list[Any] = [[{"path": {"type": "RegularExpression", "value": f"/x/{each}"}}] for each in costly]
    headers: list[Any] = [
        [{"headers": [{"name": "x", "type": "RegularExpression", "value": each}]}] for each in costly[:1]
    ]
    guard = {"path": {"type": "RegularExpression", "value": "/guarded/[a-z]+"}}
    to = [{"name": "v1", "port": 8080}]
    rules = [
        {"name": "guard", "matches": [guard], "backendRefs": to},
        *({"matches": each} for each in (*paths, *headers)),
    ]
    made = {"parentRefs": [{"name": "same"}], "hostnames": [f"{name}.org"], "rules": rules}
    meta = {"name": name, "namespace": "infra"}
    here.put_object({"kind": "HTTPRoute", "metadata": meta, "spec": made})
    target = {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": name, "sectionName": "guard"}
    if guarded:
        spec = {"targetRefs": [target], "denySources": ["127.0.0.0/8"]}
        here.put_object({"kind": "TrafficPolicy", "metadata": meta, "spec": spec})
    here.settle()
    for _ in range(1000):  # an old worker may answer until it has heard of the new one
        if here.ask("same", f"{name}.org", "/x/aaa").status == 500:
            break
    strange = "a" * 40 + "!"
    assert here.ask("same", f"{name}.org", f"/x/{strange}", headers={"x": strange}).status == 404
    assert here.ask("same", f"{name}.org", "/guarded/x").status == (403 if guarded else 200)


def test_origins_with_many_wildcards_do_not_end_haproxy(here: GatewaySite) -> None:
    """As many steps as regular expressions take, and 64 of them for each request."""
    origins = [*(f"https://{'*a' * 12}*{number}" for number in range(63)), "https://*.good.org"]
    rule = {
        "filters": [{"type": "CORS", "cors": {"allowOrigins": origins}}],
        "backendRefs": [{"name": "v1", "port": 8080}],
    }
    spec = {"parentRefs": [{"name": "same"}], "hostnames": ["origins.org"], "rules": [rule]}
    here.put_object({"kind": "HTTPRoute", "metadata": {"name": "origins"}, "spec": spec})
    here.settle()
    for origin, allowed in (("https://a.good.org", True), (f"https://{'a' * 4000}!", False)):
        for _ in range(1000):  # an old worker may answer until it has heard of the new one
            answer = here.ask("same", "origins.org", headers={"Origin": origin})
            if "Vary" in answer.headers:
                break
        assert (answer.status, "Access-Control-Allow-Origin" in answer.headers) == (200, allowed)
