"""What HTTPRoutes may do beyond their core, and the other kinds of routes, at a real HAProxy."""

import asyncio
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
import yaml
from tests.l7.configurations import check_configuration
from tests.l7.gateway.site import (
    PATIENCE,
    Answer,
    GatewaySite,
    by_authority,
    gateways,
    list_all,
    service,
    tls_policy,
    tls_secret,
)

from vipwire_l7.gateway.plan.kinds.objects import GatewaySetting
from vipwire_l7.run.default_certificate import make_certificate
from vipwire_l7.watch.objects import IngressKind

pytestmark = pytest.mark.haproxy

H2, SECURE, ODD = "127.0.0.90", "127.0.0.91", "127.0.0.92"
PODS = """
global
    nbthread 1
defaults
    mode http
    timeout client 60s
frontend h2
    bind {h2}:{port} proto h2
    http-request return status 200 content-type text/plain lf-string "h2 %[method] %[path] %[req.hdr(x-set)]"
frontend secure
    bind {secure}:{port} ssl crt {folder}/secure.pem alpn h2,http/1.1
    http-request return status 200 content-type text/plain lf-string "secure %[ssl_fc_sni]"
frontend odd
    bind {odd}:{port} ssl crt {folder}/odd.pem
    http-request return status 200 content-type text/plain string "odd"
"""
OBJECTS = """
--- Gateway same
spec:
  gatewayClassName: vipwire
  allowedListeners: {namespaces: {from: Same}}
  listeners:
  - {name: http, port: $same, protocol: HTTP}
  - {name: tcp, port: $tcp, protocol: TCP}
  - {name: pass, port: $pass, protocol: TLS, hostname: "*.pass.org", tls: {mode: Passthrough}}
  - {name: end, port: $end, protocol: TLS, hostname: end.org, tls: {certificateRefs: [{name: end}]}}
--- ListenerSet more
spec:
  parentRef: {name: same}
  listeners:
  - {name: more, port: $more, protocol: HTTP}
  - {name: again, port: $same, protocol: HTTP}
--- HTTPRoute at-set
spec:
  parentRefs: [{kind: ListenerSet, name: more, sectionName: more}]
  rules: [{name: named, backendRefs: [{name: v1, port: 8080}]}]
--- HTTPRoute responses
spec:
  parentRefs: [{name: same, port: $same}]
  hostnames: [responses.org]
  rules:
  - filters:
    - type: ResponseHeaderModifier
      responseHeaderModifier:
        set: [{name: X-Own-1, value: "it's \\"set\\" %[src]"}]
        add: [{name: X-Own-2, value: added}]
        remove: [Server]
    backendRefs: [{name: v1, port: 8080}]
--- HTTPRoute rewrites
spec:
  parentRefs: [{name: same, sectionName: http}]
  hostnames: [rewrites.org]
  rules:
  - matches: [{path: {value: /prefix/one}}]
    filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /one}}}]
    backendRefs: [{name: v1, port: 8080}]
  - matches: [{path: {value: /strip}}]
    filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /}}}]
    backendRefs: [{name: v1, port: 8080}]
  - matches: [{path: {value: /full}}]
    filters:
    - {type: URLRewrite, urlRewrite: {hostname: one.org, path: {type: ReplaceFullPath, replaceFullPath: "/it's/one"}}}
    backendRefs: [{name: v1, port: 8080}]
--- HTTPRoute cors
spec:
  parentRefs: [{name: same, sectionName: http}]
  hostnames: [cors.org]
  rules:
  - matches: [{path: {value: /named}}]
    filters:
    - type: CORS
      cors:
        allowOrigins: ["https://www.foo.com", "https://*.bar.com", "http://port.org:8080", "http://*:81"]
        allowMethods: [GET, OPTIONS]
        allowHeaders: [x-one, x-two]
        exposeHeaders: [x-three]
        allowCredentials: true
        maxAge: 3600
    backendRefs: [{name: v1, port: 8080}]
  - matches: [{path: {value: /any}}]
    filters:
    - type: CORS
      cors:
        {allowOrigins: ["*"], allowMethods: ["*"], allowHeaders: ["*"], exposeHeaders: ["*"], allowCredentials: true}
    backendRefs: [{name: v1, port: 8080}]
  - matches: [{path: {value: /open}}]
    filters:
    - {type: CORS, cors: {allowOrigins: ["*"], allowMethods: ["*"], allowHeaders: ["*"], exposeHeaders: ["*"]}}
    backendRefs: [{name: v1, port: 8080}]
  - matches: [{path: {value: /none}}]
    filters: [{type: CORS, cors: {}}]
    backendRefs: [{name: v1, port: 8080}]
  - matches: [{path: {value: /reply}}]
    filters: [{type: CORS, cors: {}}, {type: DirectResponse, directResponse: {statusCode: 403}}]
  - matches: [{path: {value: /moved}}]
    filters: [{type: CORS, cors: {}}, {type: RequestRedirect, requestRedirect: {hostname: a.org}}]
  - matches: [{path: {value: /gone}}]
    filters: [{type: CORS, cors: {}}]
    backendRefs: [{name: empty, port: 8080}]
  - matches: [{path: {value: /missing}}]
    filters: [{type: CORS, cors: {}}]
    backendRefs: [{name: missing, port: 8080}]
  - matches: [{path: {value: /nothing}}]
    filters: [{type: CORS, cors: {}}]
    backendRefs: [{name: v1, port: 8080, weight: 0}]
  - matches: [{path: {value: /single}}]
    backendRefs: [{name: missing, port: 8080, filters: [{type: CORS, cors: {}}]}]
  - matches: [{path: {value: /unasked}}]
    filters:
    - {type: CORS, cors: {}}
    - {type: ExternalAuth, externalAuth: {protocol: HTTP, backendRef: {name: missing, port: 8080}, http: {}}}
    backendRefs: [{name: v1, port: 8080}]
--- HTTPRoute replies
spec:
  parentRefs: [{name: same, sectionName: http}]
  hostnames: [replies.org]
  rules:
  - matches: [{path: {value: /body}}]
    filters:
    - type: DirectResponse
      directResponse: {statusCode: 200, body: {string: "hello, \\"gateway\\"\\r\\nit's %[src] ${HOME} äöü\\n"}}
  - matches: [{path: {value: /json}}]
    filters:
    - {type: DirectResponse, directResponse: {statusCode: 410, body: {string: '{"gone": true}'}}}
    - type: ResponseHeaderModifier
      responseHeaderModifier:
        {set: [{name: Content-Type, value: application/json}], add: [{name: x-own, value: "%[src]"}]}
  - matches: [{path: {value: /no-body}}]
    filters: [{type: DirectResponse, directResponse: {statusCode: 204, body: {string: "none comes"}}}]
  - matches: [{path: {value: /forbidden}}]
    filters: [{type: DirectResponse, directResponse: {statusCode: 403, body: {string: Forbidden}}}]
  - matches: [{path: {value: /bare}}]
    filters: [{type: DirectResponse, directResponse: {statusCode: 599}}]
  - matches: [{path: {value: /moved}}]
    filters:
    - {type: RequestRedirect, requestRedirect: {hostname: a.org}}
    - {type: ResponseHeaderModifier, responseHeaderModifier: {set: [{name: x-own, value: moved}]}}
  - matches: [{path: {value: /both}}]
    filters: [{type: DirectResponse, directResponse: {statusCode: 403}}]
    backendRefs: [{name: v1, port: 8080}]
  - matches: [{path: {value: /interim}}]
    filters: [{type: DirectResponse, directResponse: {statusCode: 103}}]
  - matches: [{path: {value: /mirrored}}]
    filters:
    - {type: DirectResponse, directResponse: {statusCode: 200}}
    - {type: RequestMirror, requestMirror: {backendRef: {name: v2, port: 8080}}}
--- HTTPRoute times
spec:
  parentRefs: [{name: same, sectionName: http}]
  hostnames: [times.org]
  rules:
  - {matches: [{path: {value: /request}}], timeouts: {request: 500ms}, backendRefs: [{name: v1, port: 8080}]}
  - {matches: [{path: {value: /backend}}], timeouts: {backendRequest: 500ms}, backendRefs: [{name: v1, port: 8080}]}
  - {matches: [{path: {value: /none}}], timeouts: {request: 0s}, backendRefs: [{name: v1, port: 8080}]}
  - {matches: [{path: {value: /retry}}], retry: {attempts: 2, codes: [503]}, backendRefs: [{name: v2, port: 8080}]}
  - {matches: [{path: {value: /errors}}], retry: {attempts: 2}, backendRefs: [{name: v2, port: 8080}]}
  - matches: [{path: {value: /late}}]
    retry: {attempts: 2}
    timeouts: {backendRequest: 300ms}
    backendRefs: [{name: v2, port: 8080}]
  - matches: [{path: {value: /fits}}]
    retry: {attempts: 5, codes: [500]}
    timeouts: {backendRequest: 300ms, request: 700ms}
    backendRefs: [{name: v2, port: 8080}]
--- HTTPRoute own
spec:
  parentRefs: [{name: same, sectionName: http}]
  hostnames: [own.org]
  rules:
  - matches: [{path: {value: /full}}]
    backendRefs:
    - name: v1
      port: 8080
      filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplaceFullPath, replaceFullPath: /rewritten}}}]
  - matches: [{path: {value: /prefix}}, {path: {value: /before}}]
    backendRefs:
    - name: v1
      port: 8080
      filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /rewritten}}}]
  - matches: [{path: {value: /moved}}]
    backendRefs:
    - name: v1
      port: 8080
      filters: [{type: RequestRedirect, requestRedirect: {scheme: https, hostname: a.org, statusCode: 302}}]
    - name: v2
      port: 8080
      filters: [{type: RequestRedirect, requestRedirect: {scheme: http, hostname: a.org, port: 80, statusCode: 301}}]
  - matches: [{path: {value: /both}}]
    backendRefs:
    - name: v1
      port: 8080
      filters:
      - {type: RequestMirror, requestMirror: {backendRef: {name: ws, port: 8080}}}
      - {type: CORS, cors: {allowOrigins: ["https://v1.org"]}}
    - {name: v2, port: 8080}
  - matches: [{path: {value: /none}}]
    backendRefs:
    - {name: v1, port: 8080, filters: [{type: DirectResponse, directResponse: {statusCode: 200}}]}
--- HTTPRoute sticky
spec:
  parentRefs: [{name: same, sectionName: http}]
  hostnames: [sticky.org]
  rules:
  - sessionPersistence:
      sessionName: mine
      absoluteTimeout: 1h
      cookieConfig: {lifetimeType: Permanent}
    backendRefs: [{name: both, port: 8080}]
--- HTTPRoute ends
spec:
  parentRefs: [{name: same, sectionName: http}]
  hostnames: [ends.org]
  rules:
  - sessionPersistence: {sessionName: mine, absoluteTimeout: 8h, idleTimeout: 30m}
    backendRefs: [{name: both, port: 8080}]
--- HTTPRoute protocols
spec:
  parentRefs: [{name: same, sectionName: http}]
  hostnames: [protocols.org]
  rules:
  - {matches: [{path: {value: /h2}}], backendRefs: [{name: h2, port: 8080}]}
  - {matches: [{path: {value: /ws}}], backendRefs: [{name: ws, port: 8080}]}
  - {matches: [{path: {value: /checked}}], backendRefs: [{name: secure, port: 8080}]}
  - {matches: [{path: {value: /odd}}], backendRefs: [{name: odd, port: 8080}]}
  - {matches: [{path: {value: /broken}}], backendRefs: [{name: unsure, port: 8080}]}
  - {matches: [{path: {value: /named}}], backendRefs: [{name: named, port: 8080}]}
  - {matches: [{path: {value: /misnamed}}], backendRefs: [{name: misnamed, port: 8080}]}
  - {matches: [{path: {value: /uri}}], backendRefs: [{name: uri, port: 8080}]}
--- GRPCRoute grpc
spec:
  parentRefs: [{name: same, sectionName: http}]
  hostnames: [grpc.org]
  rules:
  - matches: [{method: {service: a.Zero}}]
    backendRefs: [{name: h2, port: 8080, weight: 0}]
  - matches: [{method: {service: a.Gone}}]
    backendRefs: [{name: gone, port: 8080}]
--- TCPRoute tcp
spec:
  parentRefs: [{name: same, sectionName: tcp}]
  rules: [{backendRefs: [{name: v1, port: 8080, weight: 1}, {name: v2, port: 8080, weight: 1}]}]
--- TLSRoute pass
spec:
  parentRefs: [{name: same, sectionName: pass}]
  hostnames: [a.pass.org]
  rules: [{backendRefs: [{name: secure, port: 8080}]}]
--- TLSRoute end
spec:
  parentRefs: [{name: same, sectionName: end}]
  hostnames: [end.org]
  rules: [{backendRefs: [{name: v1, port: 8080}]}]
--- HTTPRoute mirrors
spec:
  parentRefs: [{name: same, sectionName: http}]
  hostnames: [mirrors.org]
  rules:
  - matches: [{path: {value: /mirror}}]
    filters:
    - {type: RequestMirror, requestMirror: {backendRef: {name: v2, port: 8080}}}
    - {type: RequestMirror, requestMirror: {backendRef: {name: ws, port: 8080}, percent: 100}}
    - {type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: x-set, value: mirrored}]}}
    backendRefs: [{name: v1, port: 8080}]
  - matches: [{path: {value: /some}}]
    filters:
    - type: RequestMirror
      requestMirror: {backendRef: {name: v2, port: 8080}, fraction: {numerator: 1, denominator: 2}}
    backendRefs: [{name: v1, port: 8080}]
  - matches: [{path: {value: /never}}]
    filters: [{type: RequestMirror, requestMirror: {backendRef: {name: v2, port: 8080}, percent: 0}}]
    backendRefs: [{name: v1, port: 8080}]
--- HTTPRoute partly
spec:
  parentRefs: [{name: same, sectionName: http}]
  hostnames: [partly.org]
  rules:
  - {matches: [{path: {value: /good}}], backendRefs: [{name: v1, port: 8080}]}
  - {matches: [{path: {value: /bad}}], filters: [{type: ExtensionRef, extensionRef: {name: a, kind: b}}]}
  - {matches: [{path: {type: RegularExpression, value: "/(?=a)"}}], backendRefs: [{name: v1, port: 8080}]}
  - matches: [{path: {value: "/x\\ny"}}]
    backendRefs: [{name: v1, port: 8080}]
  - filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: "a b", value: "x\\ny"}]}}]
    backendRefs: [{name: v1, port: 8080}]
--- HTTPRoute wholly
spec:
  parentRefs: [{name: same, sectionName: http}]
  hostnames: [wholly.org]
  rules: [{filters: [{type: Nonsense}], backendRefs: [{name: v1, port: 8080}]}]
"""


TLS_POLICIES = (
    tls_policy("named", by_authority("secure.org", ", subjectAltNames: [{type: Hostname, hostname: secure.org}]")),
    tls_policy("misnamed", by_authority("secure.org", ", subjectAltNames: [{type: Hostname, hostname: other.org}]")),
    tls_policy(
        "uri",
        by_authority(
            "secure.org",
            ', subjectAltNames: [{type: Hostname, hostname: secure.org}, {type: URI, uri: "spiffe://secure.org/a"}]',
        ),
    ),
    tls_policy("secure", by_authority("secure.org"), "secure", "odd"),
    tls_policy("unsure", by_authority("secure.org", name="nowhere")),
)
TAKEN = """
--- Gateway taken
spec:
  gatewayClassName: vipwire
  listeners:
  - {name: free, port: $free, protocol: HTTP}
  - {name: taken, port: $taken, protocol: HTTP}
--- HTTPRoute taken
spec:
  parentRefs: [{name: taken}]
  hostnames: [free.org]
  rules: [{backendRefs: [{name: v1, port: 8080}]}]
"""


def pods_of_haproxy(here: GatewaySite, folder: Path) -> "subprocess.Popen[bytes]":
    """Run the Pods that speak HTTP/2 and TLS, and make their Services."""
    good, odd = make_certificate_of("secure.org"), make_certificate_of("odd.org")
    (folder / "secure.pem").write_text(good)
    (folder / "odd.pem").write_text(odd)
    text = PODS.format(h2=H2, secure=SECURE, odd=ODD, port=here.pod_port, folder=folder)
    (folder / "pods.cfg").write_text(text)
    here.put(service("h2", H2, here.pod_port, more=", appProtocol: kubernetes.io/h2c"))
    for name, address in (
        *(("secure", SECURE), ("odd", ODD), ("unsure", SECURE)),
        *(("named", SECURE), ("misnamed", SECURE), ("uri", SECURE)),
    ):
        here.put(service(name, address, here.pod_port))
    authority = good.partition("-----BEGIN PRIVATE KEY-----")[0]
    here.pems["authority"] = authority
    meta = {"name": "authority", "namespace": "infra"}
    here.put(
        yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"ca.crt": authority}})
    )
    return subprocess.Popen(("haproxy", "-db", "-q", "-f", str(folder / "pods.cfg")))


def make_certificate_of(host: str) -> str:
    import datetime as dt  # noqa: PLC0415

    return make_certificate(dt.datetime.now(dt.UTC), host)  # noqa: TID251  # what is served must be valid now


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewaySite]:
    folder = tmp_path_factory.mktemp("gateways")
    with gateways(folder, GatewaySetting(bind="127.0.0.1", addresses=("gateway.example.com",))) as made:
        made.pods("v1", "v2")
        made.pods("ws", more=", appProtocol: kubernetes.io/ws")
        first, second = made.addresses["infra/v1"], made.addresses["infra/v2"]
        both = service("both", first, made.pod_port)
        made.put(
            both.replace("endpoints: [", f"endpoints: [{{addresses: [{second}], conditions: {{ready: true}}}}, ")
        )
        made.put(service("empty", first, made.pod_port).replace("ready: true", "ready: false"))
        made.put(OBJECTS)
        for policy in TLS_POLICIES:
            made.put(policy)
        made.put(tls_secret("end", "end.org"))
        with pods_of_haproxy(made, folder) as process:
            try:
                list_all(made)
                made.settle()
                assert [each.failure for each in made.done] == [""]
                yield made
            finally:
                process.terminate()


def test_haproxy_warns_of_nothing(here: GatewaySite) -> None:
    check_configuration(here.haproxy.folder)


def test_response_headers_are_changed(here: GatewaySite) -> None:
    """HTTPRouteResponseHeaderModifier."""
    headers = here.ask("same", "responses.org").headers
    assert headers["X-Own-1"] == 'it\'s "set" %[src]'
    assert headers.getall("X-Own-2") == ["pod", "added"]
    assert "Server" not in headers


@pytest.mark.parametrize(
    ("path", "host", "seen"),
    [
        ("/prefix/one/two?q=1", "rewrites.org", "/one/two?q=1"),
        ("/prefix/one", "rewrites.org", "/one"),
        ("/strip/two", "rewrites.org", "/two"),
        ("/strip", "rewrites.org", "/"),
        ("/full/x?q=1", "one.org", "/it's/one?q=1"),
    ],
)
def test_urls_are_rewritten(here: GatewaySite, path: str, host: str, seen: str) -> None:
    """HTTPRouteRewriteHost."""
    found = here.ask("same", "rewrites.org", path).seen
    assert (found["path"].replace("%27", "'"), found["host"]) == (seen, host)


def preflight(here: GatewaySite, path: str, origin: str, method: str = "PUT", names: str = "") -> dict[str, str]:
    """Ask whether a request may be made; return the answer's headers about it, without what they begin with."""
    asked = {"Origin": origin, "Access-Control-Request-Method": method}
    answer = here.ask(
        "same", "cors.org", path, "OPTIONS", asked | ({"Access-Control-Request-Headers": names} if names else {})
    )
    assert (answer.status, answer.text) == (200, "")
    return cors_headers(answer)


def cors_headers(answer: Answer) -> dict[str, str]:
    begin = "access-control-"
    return {
        key.lower().removeprefix(begin): value
        for key, value in answer.headers.items()
        if key.lower().startswith(begin)
    }


NAMED = {
    "allow-methods": "GET, OPTIONS",
    "allow-headers": "x-one, x-two",
    "max-age": "3600",
    "expose-headers": "x-three",
    "allow-credentials": "true",
}


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("https://www.foo.com", True),
        ("https://WWW.foo.com:443", True),
        ("https://www.foo.com:8443", False),
        ("http://www.foo.com", False),
        ("https://www.bar.com", True),
        ("https://a.b.bar.com", True),
        ("https://bar.com", False),
        ("https://xbar.com", False),
        ("https://a.bar.com.evil.org", False),
        ("http://port.org:8080", True),
        ("http://port.org", False),
        ("http://any.thing:81", True),
        ("http://any.thing", False),
        ("https://other.com", False),
        ("null", False),
    ],
)
def test_cross_origin_requests_are_answered(here: GatewaySite, origin: str, allowed: bool) -> None:  # noqa: FBT001
    """HTTPRouteCORS: origins with wildcards and ports; no backend sees a preflight, wherever it comes from."""
    before = len(here.served)
    expected = {"allow-origin": origin} | NAMED if allowed else {}
    assert preflight(here, "/named", origin, "GET") == expected
    assert len(here.served) == before
    plain = here.ask("same", "cors.org", "/named", headers={"Origin": origin})
    about_all = {name: value for name, value in expected.items() if name in ("allow-origin", "expose-headers")}
    assert plain.pod == "v1"
    assert cors_headers(plain) == (about_all | {"allow-credentials": "true"} if allowed else {})
    assert plain.headers["Vary"] == "Origin"


def test_cross_origin_requests_with_credentials_get_no_wildcard(here: GatewaySite) -> None:
    """HTTPRouteCORS, HTTPRouteCORSAllowCredentialsBehavior."""
    origin = "https://x.org:81"
    allowed = preflight(here, "/any", origin, "PUT", "x-a, x-b")
    assert "*" not in allowed.pop("expose-headers")
    assert allowed == {
        "allow-origin": origin,
        "allow-methods": "PUT",
        "allow-headers": "x-a, x-b",
        "max-age": "5",
        "allow-credentials": "true",
    }
    assert "allow-headers" not in preflight(here, "/any", origin)
    plain = cors_headers(here.ask("same", "cors.org", "/any", headers={"Origin": origin}))
    assert (plain["allow-origin"], plain["allow-credentials"]) == (origin, "true")
    assert {"x-own-1", "x-own-2"} <= set(plain["expose-headers"].split(","))
    simple = here.ask("same", "cors.org", "/any", "OPTIONS")
    assert simple.pod == "v1", "without what makes it a preflight it is a request as others"


def test_cross_origin_requests_without_credentials(here: GatewaySite) -> None:
    """HTTPRouteCORSAllowCredentialsBehavior: no origins are all origins, and nobody else may allow credentials."""
    assert preflight(here, "/none", "https://x.org") == {"allow-origin": "https://x.org", "max-age": "5"}
    plain = here.ask("same", "cors.org", "/none?cors=1", headers={"Origin": "https://x.org"})
    assert cors_headers(plain) == {"allow-origin": "https://x.org"}
    assert preflight(here, "/open", "https://x.org", "PUT", "x-a,x-b") == {
        "allow-origin": "https://x.org",
        "allow-methods": "PUT",
        "allow-headers": "x-a,x-b",
        "expose-headers": "*",
        "max-age": "5",
    }


def test_cross_origin_requests_read_what_haproxy_answers(here: GatewaySite) -> None:
    """Those for backends that are not there too: a script shall see a 500, and no network that is down."""
    broken = (("/missing", 500), ("/nothing", 500), ("/single", 500), ("/unasked", 500))
    for path, status in (("/reply", 403), ("/moved", 302), ("/gone", 503), *broken):
        assert preflight(here, path, "https://x.org")["allow-origin"] == "https://x.org"
        answer = here.ask("same", "cors.org", path, headers={"Origin": "https://x.org"})
        assert (answer.status, cors_headers(answer).get("allow-origin")) == (status, "https://x.org"), path
        assert "no backend" in answer.text or status != 500


def test_http_route_direct_response(here: GatewaySite) -> None:
    """HTTPRouteDirectResponse: HAProxy answers itself, and nothing in a body means anything to it."""
    before = len(here.served)
    body = here.ask("same", "replies.org", "/body")
    assert (body.status, body.text) == (200, 'hello, "gateway"\r\nit\'s %[src] ${HOME} äöü\n')
    assert body.headers["Content-Type"] == "text/plain; charset=utf-8"
    for path, status, text in (("no-body", 204, ""), ("forbidden", 403, "Forbidden"), ("bare", 599, "")):
        answer = here.ask("same", "replies.org", f"/{path}")
        assert (answer.status, answer.text) == (status, text)
    answer = here.ask("same", "replies.org", "/json")
    assert (answer.status, answer.text) == (410, '{"gone": true}')
    assert (answer.headers.getall("Content-Type"), answer.headers["x-own"]) == (["application/json"], "%[src]")
    assert here.ask("same", "replies.org", "/moved").headers["x-own"] == "moved"
    assert len(here.served) == before
    (parent,) = here.status(IngressKind.HTTP_ROUTE, "replies")["parents"]
    message = parent["conditions"][-1]["message"]
    assert re.findall(r"rules\[(\d)\]", message) == ["6", "7", "8"]
    for path in ("both", "interim", "mirrored"):
        assert here.ask("same", "replies.org", f"/{path}").status == 404


def test_timeouts_bound_the_answer(here: GatewaySite) -> None:
    """HTTPRouteTimeoutRequest, HTTPRouteTimeoutBackendRequest."""
    assert [
        here.ask("same", "times.org", f"/{name}?delay=1.5").status for name in ("request", "backend", "none")
    ] == [
        504,
        504,
        200,
    ]


def test_requests_are_sent_again_after_the_codes_that_are_named(here: GatewaySite) -> None:
    before = len(here.served)
    assert here.ask("same", "times.org", "/retry?code=503").status == 503
    assert here.served[before:] == ["v2 /retry"] * 3
    assert here.ask("same", "times.org", "/retry?code=500").status == 500
    assert len(here.served) == before + 4


def test_requests_are_sent_again_after_errors_of_connections_and_times(here: GatewaySite) -> None:
    """HTTPRouteRetryConnectionError, HTTPRouteRetryBackendTimeout: no code needs to be named for these.

    Also HTTPRouteRetryWithTimeouts.
    """
    for path, query, status in (
        ("/errors/a", "drop&fails=2", 200),
        ("/errors/b", "drop&fails=3", 502),
        ("/late/a", "delay=2&fails=2", 200),
        ("/late/b", "delay=2&fails=3", 504),
        ("/fits/a", "code=500&fails=1", 200),
    ):
        assert here.ask("same", "times.org", f"{path}?{query}").status == status, path
    assert here.ask("same", "times.org", "/fits/b?code=500").status == 500
    assert here.served.count("v2 /fits/b") == 2, "two tries of 300 ms fit into 700 ms"


@pytest.mark.parametrize(
    ("path", "seen"), [("/full/x", "/rewritten"), ("/prefix/x", "/rewritten/x"), ("/before/x", "/rewritten/x")]
)
def test_http_route_backend_url_rewrite(here: GatewaySite, path: str, seen: str) -> None:
    """HTTPRouteBackendURLRewrite: the path changes for one backend."""
    assert here.ask("same", "own.org", path).seen["path"] == seen


def test_single_backends_have_filters_of_their_own(here: GatewaySite) -> None:
    """HTTPRouteBackendRequestRedirect; mirrors and CORS of one backend."""
    moved = [here.ask("same", "own.org", "/moved") for _ in range(40)]
    found = {(each.status, each.headers["Location"]) for each in moved}
    assert found == {(302, "https://a.org/moved"), (301, "http://a.org/moved")}
    headers = {"Origin": "https://v1.org"}
    answers = [here.ask("same", "own.org", "/both", headers=headers) for _ in range(40)]
    assert {(each.pod, each.headers.get("Access-Control-Allow-Origin")) for each in answers} == {
        ("v1", "https://v1.org"),
        ("v2", None),
    }
    here.until_served("/both", "ws")
    assert here.served.count("ws /both") <= here.served.count("v1 /both")
    (parent,) = here.status(IngressKind.HTTP_ROUTE, "own")["parents"]
    assert "rules[4]: ExternalAuth and DirectResponse apply to rules" in parent["conditions"][-1]["message"]


def test_sessions_stay_with_their_pod(here: GatewaySite) -> None:
    """HTTPRouteSessionPersistenceCookie, HTTPRouteSessionPersistenceCookiePermanentLifetime."""
    answer = here.ask("same", "sticky.org")
    cookie = answer.headers["Set-Cookie"]
    assert cookie.startswith("mine=")
    assert "Max-Age=3600" in cookie
    again = {here.ask("same", "sticky.org", headers={"Cookie": cookie.partition(";")[0]}).pod for _ in range(6)}
    assert again == {answer.pod}


def test_sessions_end(here: GatewaySite) -> None:
    """HAProxy writes the times of the last request and of the first one into the cookie."""
    answer = here.ask("same", "ends.org")
    cookie = answer.headers["Set-Cookie"].partition(";")[0]
    assert "Max-Age" not in answer.headers["Set-Cookie"]
    value, last, first = cookie.split("|")
    long_ago = "AAAAB"

    def pods(sent: str) -> set[str]:
        return {here.ask("same", "ends.org", headers={"Cookie": sent}).pod for _ in range(6)}

    assert pods(cookie) == {answer.pod}
    assert len(pods(f"{value}|{long_ago}|{first}")) == 2
    assert len(pods(f"{value}|{last}|{long_ago}")) == 2


def test_backends_are_spoken_to_in_their_protocol(here: GatewaySite) -> None:
    """HTTPRouteBackendProtocolH2C, HTTPRouteBackendProtocolWebSocket."""
    assert here.ask("same", "protocols.org", "/h2").text == "h2 GET /h2 "
    assert here.ask("same", "protocols.org", "/checked").text == "secure secure.org"
    assert here.ask("same", "protocols.org", "/odd").status == 503
    assert here.ask("same", "protocols.org", "/broken").status == 500
    assert here.ask("same", "protocols.org", "/named").text == "secure secure.org"
    assert here.ask("same", "protocols.org", "/misnamed").status == 500
    assert here.ask("same", "protocols.org", "/uri").status == 500

    async def talking() -> str:
        url = f"http://127.0.0.1:{here.port('same')}/ws"
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(url, headers={"Host": "protocols.org"}) as ws,
        ):
            await ws.send_str("hello")
            return str((await ws.receive()).data)

    assert here.run(talking()) == "echo hello"


BUNDLE = "{group: certificates.k8s.io, kind: ClusterTrustBundle, name: 'example.com:signer:v1'}"


def test_bundles_are_trusted_while_they_are_there(here: GatewaySite) -> None:
    """BackendTLSPolicyClusterTrustBundle: what changes in a bundle counts at once, and nothing is kept of it."""

    def asked(validation: str) -> Answer:
        here.put(tls_policy("named", validation))
        here.settle()
        return here.ask("same", "protocols.org", "/named")

    try:
        for authorities in (f"clusterTrustBundleRef: {BUNDLE}", f"caCertificateRefs: [{BUNDLE}]"):
            validation = f"{{hostname: secure.org, {authorities}}}"
            here.put(trust_bundle(here.pems["authority"]))
            assert asked(validation).text == "secure secure.org"
            here.put(trust_bundle(make_certificate_of("secure.org").partition("-----BEGIN PRIVATE KEY-----")[0]))
            assert asked(validation).status == 503
            here.remove(IngressKind.CLUSTER_TRUST_BUNDLE, "example.com:signer:v1", "")
            assert asked(validation).status == 500
    finally:
        assert asked(by_authority("secure.org")).text == "secure secure.org"


def trust_bundle(pem: str) -> str:
    """Write a ClusterTrustBundle of a signer."""
    meta = {"name": "example.com:signer:v1"}
    spec = {"signerName": "example.com/signer", "trustBundle": pem}
    made = {"apiVersion": "certificates.k8s.io/v1beta1", "kind": "ClusterTrustBundle", "metadata": meta, "spec": spec}
    return yaml.safe_dump(made)


@pytest.mark.parametrize("service", ["a.Zero", "a.Gone"])
def test_grpc_without_a_backend_is_unavailable(here: GatewaySite, service: str) -> None:
    """GRPCRouteAllBackendsWeightZero: clients of gRPC read 503 as UNAVAILABLE, and 500 as UNKNOWN."""
    flags = ("--http2-prior-knowledge", "-H", "Host: grpc.org", "-X", "POST", "-w", "%{http_code}", "-o", "/dev/null")
    assert here.curl(*flags, f"http://127.0.0.1:{here.port('same')}/{service}/Any")[1] == "503"


def test_requests_are_mirrored(here: GatewaySite) -> None:
    """HTTPRouteRequestMirror, HTTPRouteRequestMultipleMirrors, HTTPRouteRequestPercentageMirror."""
    assert here.ask("same", "mirrors.org", "/mirror/get").pod == "v1"
    here.until_served("/mirror/get", "v1", "v2", "ws")
    assert here.ask("same", "mirrors.org", "/mirror/post", "POST", data="x" * 100).seen["body"] == "x" * 100
    here.until_served("/mirror/post", "v1", "v2", "ws")
    here.ask("same", "mirrors.org", "/mirror/large", "POST", data="x" * 60_000)
    here.until_served("/mirror/large", "v1", "v2", "ws")
    long = here.ask("same", "mirrors.org", "/mirror/long", "POST", data="x" * 100_000)
    assert (long.pod, len(long.seen["body"])) == ("v1", 100_000)
    here.ask("same", "mirrors.org", "/never")
    here.ask("same", "mirrors.org", "/mirror/last")
    here.until_served("/mirror/last", "v2")
    assert here.served.count("v2 /never") == 0
    assert here.served.count("v2 /mirror/long") == 0


def test_of_few_requests_the_share_is_mirrored_exactly(here: GatewaySite) -> None:
    """HTTPRouteRequestPercentageMirror: 500 requests may miss the share by a twentieth, as chance often does."""
    for number in range(20):
        assert here.ask("same", "mirrors.org", f"/some/{number}").pod == "v1"

    def copies() -> list[int]:
        return sorted(int(each.rpartition("/")[2]) for each in here.served if each.startswith("v2 /some/"))

    async def wait() -> None:
        async with asyncio.timeout(PATIENCE), here.heard:
            await here.heard.wait_for(lambda: len(copies()) >= 10)

    here.run(wait())
    assert [number // 2 for number in copies()] == list(range(10))  # one of each two


def test_connections_are_shared_by_weight(here: GatewaySite) -> None:
    """TCPRouteWeightedRouting."""
    assert here.pods_of("tcp", "any.org", times=30) == {"v1", "v2"}


def test_tls_is_handed_on_by_name_or_ended(here: GatewaySite) -> None:
    def ask(port: int, host: str) -> tuple[int, str]:
        return here.curl("-k", "--connect-to", f"::127.0.0.1:{port}", f"https://{host}:{port}/")

    assert ask(here.port("pass"), "a.pass.org") == (0, "secure a.pass.org")
    assert ask(here.port("pass"), "b.pass.org")[0] != 0
    assert '"pod": "v1"' in ask(here.port("end"), "end.org")[1]


def test_listener_sets_add_listeners_unless_the_gateway_has_the_place(here: GatewaySite) -> None:
    assert here.ask("more").pod == "v1"
    status = here.status(IngressKind.LISTENER_SET, "more")
    found = {
        each["name"]: {condition["type"]: condition["reason"] for condition in each["conditions"]}
        for each in status["listeners"]
    }
    assert found["more"]["Programmed"] == "Programmed"
    assert found["again"]["Conflicted"] == "HostnameConflict"
    assert here.status(IngressKind.GATEWAY, "same")["attachedListenerSets"] == 1


def test_what_cannot_be_served_costs_its_rule_and_the_status_says_it(here: GatewaySite) -> None:
    assert here.ask("same", "partly.org", "/good").pod == "v1"
    assert here.ask("same", "partly.org", "/bad").status == 404
    conditions = here.status(IngressKind.HTTP_ROUTE, "partly")["parents"][0]["conditions"]
    assert [(each["type"], each["status"]) for each in conditions] == [
        ("Accepted", "True"),
        ("ResolvedRefs", "True"),
        ("PartiallyInvalid", "True"),
    ]
    for rule in (1, 2, 3, 4):
        assert f"rules[{rule}]: " in conditions[2]["message"]
    assert here.ask("same", "wholly.org").status == 404
    wholly = here.status(IngressKind.HTTP_ROUTE, "wholly")["parents"][0]["conditions"]
    assert (wholly[0]["status"], wholly[0]["reason"]) == ("False", "UnsupportedValue")


def test_policies_about_backends_tell_what_has_become_of_them(here: GatewaySite) -> None:
    def reasons(name: str) -> list[str]:
        (ancestor,) = here.status(IngressKind.BACKEND_TLS_POLICY, name)["ancestors"]
        return [each["reason"] for each in ancestor["conditions"]]

    assert reasons("secure") == ["Accepted", "ResolvedRefs"]
    assert reasons("named") == ["Accepted", "ResolvedRefs"]
    assert (reasons("misnamed")[0], reasons("uri")[0]) == ("Invalid", "Invalid")
    assert reasons("unsure") == ["NoValidCACertificate", "InvalidCACertificateRef"]


def test_endpoints_change_without_a_reload(here: GatewaySite) -> None:
    reloads = [each.reload for each in here.done if each.reload]
    here.put(service("ws", here.addresses["infra/v2"], here.pod_port, more=", appProtocol: kubernetes.io/ws"))
    here.settle()
    assert here.ask("same", "protocols.org", "/ws").pod == "v2"
    here.pods("ws", more=", appProtocol: kubernetes.io/ws")  # as the other tests know it
    here.settle()
    assert [each.reload for each in here.done if each.reload] == reloads


def test_a_port_that_is_taken_costs_its_listener(here: GatewaySite) -> None:
    with socket.create_server(("127.0.0.1", here.port("taken"))):
        here.put(TAKEN)
        here.settle()
        assert here.ask("same", "mirrors.org", "/never").pod == "v1"
        made = here.status(IngressKind.GATEWAY, "taken")
        reasons = {each["name"]: each["conditions"][0]["reason"] for each in made["listeners"]}
        assert reasons == {"free": "Accepted", "taken": "PortUnavailable"}
        assert here.ask("free", "free.org").pod == "v1"
    here.remove(IngressKind.GATEWAY, "taken")
    here.settle()
