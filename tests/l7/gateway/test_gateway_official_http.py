"""Cases of the official suite about HTTPRoutes that no other module has, at a real HAProxy. Its names and answers."""

import asyncio
import socket
import struct
from collections.abc import Iterator

import pytest
from tests.l7.gateway.site import GatewaySite, gateways, list_all, service, tls_secret
from tests.l7.gateway.test_gateway_core import Ask, misdirected
from tests.l7.gateway.test_gateway_statuses import reasons

from vipwire_l7.watch.objects import IngressKind

GATEWAYS = """
apiVersion: v1
kind: Namespace
metadata: {name: chosen, labels: {routes: let-in}}
--- Namespace other
--- Gateway same
spec:
  gatewayClassName: vipwire
  listeners: [{name: http, port: $same, protocol: HTTP}]
--- Gateway second
spec:
  gatewayClassName: vipwire
  listeners:
  - {name: http, port: $second, protocol: HTTP}
  - {name: https, port: $secure, protocol: HTTPS, tls: {certificateRefs: [{name: pair}]}}
--- Gateway names
spec:
  gatewayClassName: vipwire
  listeners:
  - {name: listener-1, port: $names, protocol: HTTP, hostname: bar.com}
  - {name: listener-2, port: $names, protocol: HTTP, hostname: foo.bar.com}
  - {name: listener-3, port: $names, protocol: HTTP, hostname: "*.bar.com"}
  - {name: listener-4, port: $names, protocol: HTTP, hostname: "*.foo.com"}
--- Gateway wide
spec:
  gatewayClassName: vipwire
  listeners:
  - {name: exact, port: $wide, protocol: HTTP, hostname: abc.example.com}
  - {name: deep, port: $wide, protocol: HTTP, hostname: "*.deep.example.org"}
--- Gateway lets-sets-in
spec:
  gatewayClassName: vipwire
  allowedListeners: {namespaces: {from: Same}}
  listeners: [{name: own, port: $sets, protocol: HTTP, hostname: own.com}]
--- Gateway lets-no-set-in
spec:
  gatewayClassName: vipwire
  listeners: [{name: own, port: $unset, protocol: HTTP, hostname: own.com}]
--- ListenerSet refused
spec:
  parentRef: {name: lets-no-set-in}
  listeners: [{name: more, port: $unset, protocol: HTTP, hostname: more.com}]
--- ListenerSet more
spec:
  parentRef: {name: lets-sets-in}
  listeners:
  - {name: all, port: $sets, protocol: HTTP, hostname: all.com, allowedRoutes: {namespaces: {from: All}}}
  - {name: same, port: $sets, protocol: HTTP, hostname: same.com, allowedRoutes: {namespaces: {from: Same}}}
  - name: chosen
    port: $sets
    protocol: HTTP
    hostname: chosen.com
    allowedRoutes: {namespaces: {from: Selector, selector: {matchLabels: {routes: let-in}}}}
"""
ROUTES = """
--- HTTPRoute shared
spec:
  parentRefs: [{name: same}, {name: second, sectionName: http}]
  rules:
  - {matches: [{path: {value: /shared}}], backendRefs: [{name: v1, port: 8080}]}
  - {matches: [{path: {value: /named}}], name: named, backendRefs: [{name: v1, port: 8080}]}
  - {matches: [{path: {value: /unnamed}}], backendRefs: [{name: v1, port: 8080}]}
  - {matches: [{path: {value: /omitted}}]}
  - {matches: [{path: {value: /empty}}], backendRefs: []}
--- HTTPRoute only-same
spec: {parentRefs: [{name: same}], rules: [{backendRefs: [{name: v2, port: 8080}]}]}
--- HTTPRoute only-second
spec: {parentRefs: [{name: second, sectionName: http}], rules: [{backendRefs: [{name: v3, port: 8080}]}]}
--- HTTPRoute precedence-with-host
spec:
  parentRefs: [{name: same}]
  hostnames: [precedence.org]
  rules: [{matches: [{path: {value: /shared}}], backendRefs: [{name: v3, port: 8080}]}]
--- HTTPRoute headers
spec:
  parentRefs: [{name: same}]
  hostnames: [headers.org]
  rules:
  - {matches: [{headers: [{name: version, value: one}]}], backendRefs: [{name: v1, port: 8080}]}
  - {matches: [{headers: [{name: version, value: two}]}], backendRefs: [{name: v2, port: 8080}]}
  - matches: [{headers: [{name: version, value: two}, {name: color, value: orange}]}]
    backendRefs: [{name: v1, port: 8080}]
  - matches: [{headers: [{name: color, value: blue}]}, {headers: [{name: color, value: green}]}]
    backendRefs: [{name: v1, port: 8080}]
  - matches: [{headers: [{name: color, value: red}]}, {headers: [{name: color, value: yellow}]}]
    backendRefs: [{name: v2, port: 8080}]
--- HTTPRoute queries
spec:
  parentRefs: [{name: same}]
  hostnames: [queries.org]
  rules:
  - {matches: [{queryParams: [{name: animal, value: whale}]}], backendRefs: [{name: v1, port: 8080}]}
  - {matches: [{queryParams: [{name: animal, value: dolphin}]}], backendRefs: [{name: v2, port: 8080}]}
  - matches: [{queryParams: [{name: animal, value: dolphin}, {name: color, value: blue}]}]
    backendRefs: [{name: v3, port: 8080}]
  - {matches: [{queryParams: [{name: ANIMAL, value: Whale}]}], backendRefs: [{name: v3, port: 8080}]}
  - matches: [{path: {value: /path1}, queryParams: [{name: animal, value: whale}]}]
    backendRefs: [{name: v1, port: 8080}]
  - matches: [{headers: [{name: version, value: one}], queryParams: [{name: animal, value: whale}]}]
    backendRefs: [{name: v2, port: 8080}]
  - matches:
    - path: {value: /path2}
      headers: [{name: version, value: two}]
      queryParams: [{name: animal, value: whale}]
    backendRefs: [{name: v3, port: 8080}]
  - matches:
    - {path: {value: /path3}, queryParams: [{name: animal, value: shark}]}
    - {path: {value: /path4}, headers: [{name: version, value: three}], queryParams: [{name: animal, value: kraken}]}
    backendRefs: [{name: v1, port: 8080}]
--- HTTPRoute shares
spec:
  parentRefs: [{name: same}]
  hostnames: [shares.org]
  rules:
  - backendRefs:
    - name: v1
      port: 8080
      filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: backend, value: v1}]}}]
    - name: v2
      port: 8080
      filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: backend, value: v2}]}}]
--- HTTPRoute types
spec:
  parentRefs: [{name: same}]
  hostnames: [types.org]
  rules:
  - {matches: [{path: {value: /headless}}], backendRefs: [{name: headless, port: 8080}]}
  - {matches: [{path: {value: /by-hand}}], backendRefs: [{name: by-hand, port: 8080}]}
--- HTTPRoute again
spec:
  parentRefs: [{name: same}]
  hostnames: [again.org]
  rules:
  - {matches: [{path: {value: /one}}], retry: {attempts: 3, codes: [500]}, backendRefs: [{name: v1, port: 8080}]}
  - matches: [{path: {value: /all}}]
    retry: {attempts: 2, codes: [500, 502, 503, 504]}
    backendRefs: [{name: v1, port: 8080}]
  - {matches: [{path: {value: /resets}}], retry: {attempts: 3}, backendRefs: [{name: resetting, port: 8080}]}
--- HTTPRoute rewrites
spec:
  parentRefs: [{name: same}]
  hostnames: [rewrites.org]
  rules:
  - matches: [{path: {value: /full}}]
    filters:
    - {type: URLRewrite, urlRewrite: {path: {type: ReplaceFullPath, replaceFullPath: /test}}}
    - &changes
      type: RequestHeaderModifier
      requestHeaderModifier:
        set: [{name: X-Set, value: set-overwrites}]
        add: [{name: X-Add, value: one}, {name: X-Append, value: two}]
        remove: [X-Remove]
    backendRefs: [{name: v1, port: 8080}]
  - matches: [{path: {value: /prefix/and-headers}}]
    filters:
    - {type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /prefix}}}
    - *changes
    backendRefs: [{name: v1, port: 8080}]
"""
RESETTING = "127.0.0.99"
"""A Pod that resets each connection."""
REDIRECTS = (
    *(("nil", port) for port in ("nil", "80", "443", "8443")),
    *(("http", port) for port in ("nil", "80", "8080")),
    *(("https", port) for port in ("nil", "443", "8443")),
)
ROUTE = """
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  parentRefs: [{parents}]
  hostnames: [{hosts}]
  rules: [{{matches: [{{path: {{value: {path}}}}}], backendRefs: [{{name: {pod}, namespace: infra, port: 8080}}]}}]
"""
GRANT = """
--- ReferenceGrant all
spec:
  from:
  - {group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: chosen}
  - {group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: other}
  to: [{group: "", kind: Service}]
"""


def put_route(here: GatewaySite, name: str, pod: str, parents: str, hosts: str, path: str = "/", **more: str) -> None:
    """Put a route with one rule."""
    namespace = more.get("namespace", "infra")
    here.put(ROUTE.format(name=name, pod=pod, parents=parents, hosts=hosts, path=path, namespace=namespace))


def redirecting() -> str:
    """Write a route whose rules redirect by scheme and port, each in all ways."""
    rules = []
    for scheme, port in REDIRECTS:
        fields = {"hostname": "example.org", "scheme": scheme, "port": port}
        given = ", ".join(f"{key}: {value}" for key, value in fields.items() if value != "nil")
        filters = f"[{{type: RequestRedirect, requestRedirect: {{{given}}}}}]"
        rules.append(f"  - {{matches: [{{path: {{value: /{scheme}-{port}}}}}], filters: {filters}}}")
    head = ROUTE.format(name="redirects", pod="", parents="{name: second}", hosts="", path="/", namespace="infra")
    return head.partition("  hostnames:")[0] + "  rules:\n" + "\n".join(rules)


def objects(here: GatewaySite) -> None:
    """Put everything."""
    for text in (GATEWAYS, ROUTES, GRANT, redirecting(), tls_secret("pair", "any.org")):
        here.put(text)
    for number, sections in (("1", "listener-1"), ("2", "listener-2"), ("3", "listener-3 listener-4")):
        parents = ", ".join(f"{{name: names, sectionName: {each}}}" for each in sections.split())
        put_route(here, f"listener-{number}", f"v{number}", parents, "")
    # Their names say which is older: without dates these sort.
    put_route(here, "a-wider", "v1", "{name: wide}", '"*.example.com", "*.example.org"')
    put_route(here, "a-wider-path", "v3", "{name: wide}", '"*.example.com"', "/deeper/path")
    put_route(here, "b-exact", "v2", "{name: wide}", 'abc.example.com, "*.deep.example.org"')
    put_route(here, "b-exact-path", "v3", "{name: wide}", "abc.example.com", "/only")
    for namespace, pod in (("infra", "v1"), ("chosen", "v2"), ("other", "v3")):
        parents = "{kind: ListenerSet, name: more, namespace: infra}"
        put_route(here, "at-set", pod, parents, "", f"/{namespace}", namespace=namespace)
    put_route(here, "at-both", "v1", "{name: lets-no-set-in}, {kind: ListenerSet, name: refused}", "")
    put_route(here, "at-gateway", "v1", "{name: lets-sets-in}", "")
    plain = service("headless", here.addresses["infra/v1"], here.pod_port)
    here.put(plain.replace("spec: {ports", "spec: {clusterIP: None, ports"))
    here.put(service("by-hand", here.addresses["infra/v2"], here.pod_port).replace("by-hand-1", "written-by-hand"))
    one = service("resetting", RESETTING, here.pod_port)
    good = f"endpoints: [{{addresses: [{here.addresses['infra/v1']}], conditions: {{ready: true}}}}, "
    here.put(one.replace("endpoints: [", good))


def asks(case: str, port: str, host: str, *wanted: tuple[str, str]) -> Iterator[Ask]:
    """Yield requests to one host; who is wanted at a path, with headers behind `;`."""
    for text, who in wanted:
        path, *headers = text.split(";")
        yield Ask(case, port, host, path, who, headers=dict(each.split("=") for each in headers))


ASKS = (
    *asks("HTTPRouteListenerHostnameMatching", "names", "bar.com", ("/", "v1")),
    *asks("HTTPRouteListenerHostnameMatching", "names", "foo.bar.com", ("/", "v2")),
    *asks("HTTPRouteListenerHostnameMatching", "names", "baz.bar.com", ("/", "v3")),
    *asks("HTTPRouteListenerHostnameMatching", "names", "multiple.prefixes.bar.com", ("/", "v3")),
    *asks("HTTPRouteListenerHostnameMatching", "names", "multiple.prefixes.foo.com", ("/", "v3")),
    *asks("HTTPRouteListenerHostnameMatching", "names", "foo.com", ("/", "404")),
    *asks("HTTPRouteListenerHostnameMatching", "names", "no.matching.host", ("/", "404")),
    *asks("HTTPRouteMultipleGateways", "same", "any.org", ("/shared", "v1"), ("/", "v2")),
    *asks("HTTPRouteMultipleGateways", "second", "any.org", ("/shared", "v1"), ("/", "v3")),
    *asks("HTTPRouteNamedRule", "same", "any.org", ("/named", "v1"), ("/unnamed", "v1")),
    *asks("HTTPRouteNoBackendRefs", "same", "any.org", ("/omitted", "500"), ("/empty", "500")),
    *asks("HTTPRouteHostnamePrecedence", "same", "precedence.org", ("/shared", "v3")),
    *asks(
        "HTTPRouteMultipleRoutesAttachmentSameHostnameIntersection",
        *("wide", "abc.example.com"),
        *(("/", "v2"), ("/deeper/path", "v2"), ("/only", "v3")),
    ),
    *asks("HTTPRouteMultipleRoutesAttachmentSameHostnameIntersection", "wide", "a.deep.example.org", ("/", "v2")),
    *asks("HTTPRouteServiceTypes", "same", "types.org", ("/headless", "v1"), ("/by-hand", "v2")),
    *asks(
        "HTTPRouteHeaderMatching",
        *("same", "headers.org"),
        *(("/;Version=one", "v1"), ("/;Version=two", "v2"), ("/;Version=two;Color=orange", "v1")),
        *(("/;Version=two;Color=blue", "v2"), ("/;Color=orange", "404"), ("/;Some-Other-Header=one", "404")),
        *(("/;Color=blue", "v1"), ("/;Color=green", "v1"), ("/;Color=red", "v2"), ("/;Color=yellow", "v2")),
        ("/;Color=purple", "404"),
    ),
    *asks(
        "HTTPRouteQueryParamMatching",
        *("same", "queries.org"),
        *(("/?animal=whale", "v1"), ("/?animal=dolphin", "v2"), ("/?animal=dolphin&color=blue", "v3")),
        *(("/?ANIMAL=Whale", "v3"), ("/?animal=whale&otherparam=irrelevant", "v1")),
        *(("/?animal=dolphin&color=yellow", "v2"), ("/?color=blue", "404"), ("/?animal=dog", "404")),
        *(("/?animal=whaledolphin", "404"), ("/", "404"), ("/path1?animal=whale", "v1")),
        *(("/?animal=whale;version=one", "v2"), ("/path2?animal=whale;version=two", "v3")),
        *(("/path3?animal=shark", "v1"), ("/path4?animal=kraken;version=three", "v1")),
        *(("/?animal=shark", "404"), ("/path4?animal=kraken", "404")),
    ),
    *asks("ListenerSetAllowedNamespaceNone", "unset", "own.com", ("/", "v1")),
    *asks("ListenerSetAllowedNamespaceNone", "unset", "more.com", ("/", "404")),
    *asks("ListenerSetAllowedRoutesNamespaces", "sets", "own.com", ("/infra", "v1")),
    *asks(
        "ListenerSetAllowedRoutesNamespaces",
        *("sets", "all.com"),
        *(("/infra", "v1"), ("/chosen", "v2"), ("/other", "v3")),
    ),
    *asks(
        "ListenerSetAllowedRoutesNamespaces",
        *("sets", "same.com"),
        *(("/infra", "v1"), ("/chosen", "404"), ("/other", "404")),
    ),
    *asks(
        "ListenerSetAllowedRoutesNamespaces",
        *("sets", "chosen.com"),
        *(("/infra", "404"), ("/chosen", "v2"), ("/other", "404")),
    ),
)


async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reset a connection once something has come."""
    await reader.read(1)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewaySite]:
    with gateways(tmp_path_factory.mktemp("official")) as made:
        made.pods("v1", "v2", "v3")
        objects(made)
        list_all(made)
        made.settle()
        assert [each.failure for each in made.done] == [""]
        server = made.run(asyncio.start_server(reset, RESETTING, made.pod_port))
        yield made
        server.close()


def test_official_requests_go_where_they_are_to(here: GatewaySite) -> None:
    assert misdirected(here, ASKS) == []


def test_headers_are_those_of_the_backend_that_is_drawn(here: GatewaySite) -> None:
    """HTTPRouteRequestHeaderModifierBackendWeights."""
    found = [here.ask("same", "shares.org").seen for _ in range(40)]
    assert {each["pod"] for each in found} == {"v1", "v2"}
    assert [each for each in found if each["headers"]["backend"] != each["pod"]] == []


def test_listeners_of_sets_count_the_routes_of_their_namespaces(here: GatewaySite) -> None:
    """ListenerSetAllowedRoutesNamespaces, ListenerSetAllowedNamespaceNone."""
    made = here.status(IngressKind.LISTENER_SET, "more")
    assert [each["attachedRoutes"] for each in made["listeners"]] == [3, 1, 1]
    refused = reasons(here.status(IngressKind.LISTENER_SET, "refused"))
    assert refused == {"Accepted": "not NotAllowed", "Programmed": "not NotAllowed"}
    assert here.status(IngressKind.GATEWAY, "lets-no-set-in")["attachedListenerSets"] == 0


def location(here: GatewaySite, port: str, scheme: str, own: str) -> str:
    """Return where a redirect leads, with `own` as the listener's scheme."""
    path = f"/{scheme}-{port}"
    name = "second" if own == "http" else "secure"
    number = here.port(name)
    flags = ("-k", "-o", "/dev/null", "-w", "%{http_code} %{redirect_url}", "--connect-to", f"::127.0.0.1:{number}")
    return here.curl(*flags, f"{own}://any.org:{number}{path}")[1].replace(f":{number}/", ":OWN/")


@pytest.mark.parametrize("own", ["http", "https"])
@pytest.mark.parametrize(("scheme", "port"), REDIRECTS)
def test_redirects_have_the_port_of_their_scheme(here: GatewaySite, own: str, scheme: str, port: str) -> None:
    """HTTPRouteRedirectPortAndScheme: without a scheme and a port the listener's stay."""
    to = own if scheme == "nil" else scheme
    shown = port if port != "nil" else "OWN" if scheme == "nil" else ""
    suffix = "" if shown in ("", {"http": "80", "https": "443"}[to]) else f":{shown}"
    assert location(here, port, scheme, own) == f"302 {to}://example.org{suffix}/{scheme}-{port}"


@pytest.mark.parametrize(
    ("path", "code", "fails", "status", "times"),
    [
        ("/one/a", 500, 2, 200, 3),
        ("/one/b", 500, 4, 500, 4),
        ("/one/c", 503, 2, 503, 1),
        *((f"/all/{code}-well", code, 1, 200, 2) for code in (500, 502, 503, 504)),
        *((f"/all/{code}-ill", code, 3, code, 3) for code in (500, 502, 503, 504)),
    ],
)
def test_http_route_retry(here: GatewaySite, path: str, code: int, fails: int, status: int, times: int) -> None:
    """HTTPRouteRetry."""
    assert here.ask("same", "again.org", f"{path}?code={code}&fails={fails}").status == status
    assert here.served.count(f"v1 {path}") == times


def test_http_route_retry_connection_error(here: GatewaySite) -> None:
    """HTTPRouteRetryConnectionError."""
    assert here.pods_of("same", "again.org", "/resets") == {"v1"}


@pytest.mark.parametrize(
    ("path", "seen"), [("/full/and-headers/test", "/test"), ("/prefix/and-headers/one", "/prefix/one")]
)
def test_http_route_rewrite_path_with_headers(here: GatewaySite, path: str, seen: str) -> None:
    """HTTPRouteRewritePath."""
    sent = {"X-Remove": "gone", "X-Append": "mine", "X-Set": "mine"}
    found = here.ask("same", "rewrites.org", path, headers=sent).seen
    got = {key: found["headers"].get(key) for key in ("x-set", "x-add", "x-append", "x-remove")}
    assert (found["path"], found["pod"]) == (seen, "v1")
    assert got == {"x-set": "set-overwrites", "x-add": "one", "x-append": "mine,two", "x-remove": None}


CHANGING = """
--- Gateway changing
spec: {gatewayClassName: vipwire, listeners: [LISTENERS]}
"""


def test_listeners_that_change_are_served_so(here: GatewaySite) -> None:
    """GatewayUpdateListenerHostname, GatewayModifyListeners, GatewayListenerDynamicPorts."""
    put_route(here, "changing", "v1", "{name: changing}", "accepted.com")
    first, more = (
        "{name: http, port: $first, protocol: HTTP, hostname: HOST}",
        "{name: m, port: $more, protocol: HTTP}",
    )
    for listeners, codes in (
        ([first.replace("HOST", "other.com")], (404, 0)),
        ([first.replace("HOST", "accepted.com"), more], (200, 200)),
        ([first.replace("HOST", "accepted.com")], (200, 0)),
    ):
        here.put(CHANGING.replace("LISTENERS", ", ".join(listeners)))
        here.settle()
        found = []
        for port in ("first", "more"):
            flags = ("-s", "-o", "/dev/null", "-w", "%{http_code}", "-H", "Host: accepted.com")
            found.append(int(here.curl(*flags, f"http://127.0.0.1:{here.port(port)}/")[1]))
        assert tuple(found) == codes
        made = here.status(IngressKind.GATEWAY, "changing")["listeners"]
        assert [each["attachedRoutes"] for each in made] == [int(codes[0] == 200)] * len(listeners)


WOKEN = """
--- HTTPRoute woken
spec: {parentRefs: [{name: same}], hostnames: [woken.org], rules: [{backendRefs: [{name: v1, port: 8080}]}]}
"""


def test_who_tells_of_a_change_is_woken_by_it(here: GatewaySite) -> None:
    """A look at a Gateway that comes before its first status ends the suite's case (GatewayMustHaveCondition)."""
    answers: list[str] = []

    def tell() -> None:
        answers.append(here.status(IngressKind.HTTP_ROUTE, "woken")["parents"][0]["parentRef"]["name"])

    here.controller.desired.taken.add(tell)
    here.put(WOKEN)
    here.settle()
    here.controller.desired.taken.discard(tell)
    assert answers[-1:] == ["same"]
