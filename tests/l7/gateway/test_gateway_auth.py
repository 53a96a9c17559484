"""ExternalAuth: a server is asked about each request, and a real HAProxy does as it says."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web
from tests.l7.gateway.site import GatewaySite, gateways, list_all, service
from tests.l7.gateway.test_gateway_statuses import HTTP, SERVICE, drawn, gateway, of_route

from vipwire_l7.haproxy import auth_grpc, mirrors
from vipwire_l7.plan.sites import BROKEN
from vipwire_l7.watch.objects import IngressKind

GATEWAY = """
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge}
spec: {gatewayClassName: vipwire, listeners: [{name: http, port: $edge, protocol: HTTP}]}
"""
ROUTE = """
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: NAME, namespace: infra}
spec:
  parentRefs: [{name: edge}]
  rules:
  - matches: [{path: {value: /NAME}}]
    filters:
    - {type: ExternalAuth, externalAuth: {protocol: HTTP, backendRef: {name: SERVER, port: 8080}, MORE}}
    backendRefs: [{name: v1, port: 8080}]
"""
OPEN = f"""{ROUTE.replace("NAME", "open").split("    filters:")[0].replace("/open", "/")}
    backendRefs: [{{name: v1, port: 8080}}]
"""
HEADERS = "http: {path: /check, allowedHeaders: [X-Asked], allowedResponseHeaders: [X-User]}"
ADDRESS = "127.0.0.65"


def route(name: str, more: str = "http: {}", server: str = "auth") -> str:
    return ROUTE.replace("NAME", name).replace("SERVER", server).replace("MORE", more)


class AuthServer:
    """Lets requests in by their path and Authorization, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.text()
        self.asked.append({**{key.lower(): value for key, value in request.headers.items()}, "path": request.path_qs})
        self.asked[-1] |= {"method": request.method, "body": body}
        if request.headers.get("Authorization") == "yes":
            return web.Response(headers={"X-User": "ann", "X-Other": "more"})
        if "/gone" in request.path:
            request.transport.close()  # type: ignore[union-attr]  # it is open
        if "/long" in request.path:
            return web.Response(status=401, text="x" * 30_000)
        if "/many" in request.path:
            return web.Response(status=401, headers={f"X-{number}": "x" * 2_000 for number in range(15)})
        return web.Response(status=401, text="who are you?", headers={"WWW-Authenticate": "Bearer"})


@pytest.fixture(scope="module")
def server() -> AuthServer:
    return AuthServer()


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, server: AuthServer) -> Iterator[GatewaySite]:
    with gateways(tmp_path_factory.mktemp("auth")) as made:

        async def start() -> web.AppRunner:
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", server.answer)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, ADDRESS, made.pod_port, reuse_address=True).start()
            return runner

        made.runners.append(made.run(start()))
        made.put(service("auth", ADDRESS, made.pod_port))
        made.put(service("away", "127.0.0.66", made.pod_port))
        made.put(GATEWAY)
        made.pods("v1")
        made.put(route("guarded"))
        made.put(route("headers", HEADERS))
        made.put(route("body", "http: {}, forwardBody: {maxSize: 10}"))
        made.put(route("away", server="away"))
        made.put(route("none", server="none"))
        made.put(route("odd").replace("protocol: HTTP", "protocol: ODD"))
        made.put(route("strange", "http: {path: 'a b'}"))
        made.put(route("method").replace("{path: {value: /method}}", "{method: get, path: {value: /method}}"))
        made.put(route("look").replace("value: /look", "type: RegularExpression, value: '/look/(?=a)'"))
        made.put(OPEN)
        list_all(made)
        made.settle()
        yield made


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_what_the_server_lets_in_passes(here: GatewaySite, server: AuthServer, method: str) -> None:
    """Several cases of the official suite.

    HTTPRouteExternalAuthHTTP, HTTPRouteExternalAuthHTTPForwardBody,
    HTTPRouteExternalAuthHTTPRequestHeadersToAuth, HTTPRouteExternalAuthHTTPResponseHeadersToUpstream,
    HTTPRouteExternalAuthPerRouteScope, HTTPRouteExternalAuthProgrammedCondition.
    """
    found = here.ask("edge", path="/guarded/x?y=1", method=method, headers={"Authorization": "yes"}, data="text")
    assert (found.status, found.seen["method"], found.seen["body"]) == (200, method, "text")
    assert (found.seen["headers"]["x-user"], found.seen["headers"]["x-other"]) == ("ann", "more")
    asked = server.asked[-1]
    assert (asked["path"], asked["x-forwarded-method"], asked["body"]) == ("/guarded/x?y=1", method, "")
    assert asked["method"] == (method if method in ("GET", "POST", "PUT", "DELETE") else "GET")


def test_what_it_refuses_gets_its_answer(here: GatewaySite) -> None:
    before = len(here.served)
    found = here.ask("edge", path="/guarded/x", headers={"Authorization": "no"})
    assert (found.status, found.text, found.headers["WWW-Authenticate"]) == (401, "who are you?", "Bearer")
    assert len(here.served) == before


def test_headers_are_passed_as_the_filter_says(here: GatewaySite, server: AuthServer) -> None:
    sent = {"Authorization": "yes", "X-Asked": "one", "X-Secret": "two", "X-User": "root"}
    found = here.ask("edge", "some.org", "/headers/x", headers=sent)
    assert found.seen["headers"]["x-user"] == "ann"
    assert "x-other" not in found.seen["headers"]
    asked = server.asked[-1]
    assert (asked["path"], asked["host"], asked["x-asked"]) == ("/check/headers/x", "some.org", "one")
    assert "x-secret" not in asked


def test_a_body_is_sent_as_far_as_it_may(here: GatewaySite, server: AuthServer) -> None:
    sent = {"Authorization": "yes"}
    assert here.ask("edge", path="/body", method="POST", headers=sent, data="0123456789").seen["body"] == "0123456789"
    assert server.asked[-1]["body"] == "0123456789"
    assert here.ask("edge", path="/body", method="POST", headers=sent, data="0123456789a").status == 413


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/away", 503),
        ("/none", 500),
        ("/guarded/gone", 502),
        ("/guarded/long", 500),
        ("/guarded/many", 500),
        ("/odd", 503),
        ("/strange/x", 503),
        ("/method", 503),
        ("/look/a", 503),
    ],
)
def test_nothing_passes_without_an_answer(here: GatewaySite, path: str, status: int) -> None:
    """HTTPRouteExternalAuthBackendUnavailable."""
    before = len(here.served)
    assert here.ask("edge", path=path).status in {status, 502, 503}
    assert len(here.served) == before


@pytest.mark.parametrize("path", ["//guarded", "/x/../guarded", "/guarde%64"])
def test_no_spelling_of_a_path_passes_by(here: GatewaySite, path: str) -> None:
    url = f"http://127.0.0.1:{here.port('edge')}{path}"
    _, output = here.curl("--path-as-is", "-o/dev/null", "-w%{http_code}", url)
    assert output == "400"


def test_no_host_writes_another_path_for_the_server(here: GatewaySite, server: AuthServer) -> None:
    async def raw() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", here.port("edge"))
        writer.write(b"GET /guarded HTTP/1.1\r\nHost: a.org/public?x=\r\nAuthorization: yes\r\n\r\n")
        line = await reader.readline()
        writer.close()
        return line

    before = len(server.asked)
    assert b" 400 " in here.run(raw())
    assert len(server.asked) == before


@pytest.mark.parametrize(
    ("more", "server", "accepted", "resolved"),
    [
        ("http: {}", "web", "Accepted", "ResolvedRefs"),
        ("http: {}", "none", "Accepted", "not BackendNotFound"),
        ("http: {path: 'a b'}", "web", "not UnsupportedValue", "ResolvedRefs"),
        ("http: {allowedHeaders: ['a b']}", "web", "not UnsupportedValue", "ResolvedRefs"),
        ("protocol: ODD", "web", "not UnsupportedValue", "ResolvedRefs"),
        ("protocol: GRPC", "web", "Accepted", "ResolvedRefs"),
        ("protocol: GRPC, grpc: {allowedHeaders: ['a b']}", "web", "not UnsupportedValue", "ResolvedRefs"),
    ],
)
def test_a_route_says_whether_its_server_can_be_asked(more: str, server: str, accepted: str, resolved: str) -> None:
    """HTTPRouteExternalAuthBackendRefNotFound, HTTPRouteExternalAuthUnknownBackendRef."""
    some = route("web", more, server).replace("8080", "80").replace("name: v1", "name: web")
    some = some.replace("protocol: HTTP, ", "") if "protocol" in more else some
    planner, plan = drawn(gateway(HTTP), some, SERVICE)
    found = of_route(planner, IngressKind.HTTP_ROUTE)
    assert (found["Accepted"], found["ResolvedRefs"]) == (accepted, resolved)
    if server == "none":
        assert "PartiallyInvalid" not in found, "one rule is the whole route"
        assert [each.target for each in plan.routes] == [BROKEN]


def test_http_route_external_auth_partially_invalid() -> None:
    """HTTPRouteExternalAuthPartiallyInvalid."""
    one, two = (route("web", server=server).replace("8080", "80").replace("v1", "web") for server in ("web", "none"))
    planner, _ = drawn(gateway(HTTP), one + "  - matches:" + two.partition("  - matches:")[2], SERVICE)
    found = of_route(planner, IngressKind.HTTP_ROUTE)
    assert found == {
        "Accepted": "Accepted",
        "ResolvedRefs": "not BackendNotFound",
        "PartiallyInvalid": "UnsupportedValue",
    }


@pytest.mark.parametrize("protocol", ["HTTP", "GRPC"])
def test_nothing_passes_where_the_lua_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str) -> None:
    """HAProxy itself goes on with a request whose action has failed."""
    for of, name in ((mirrors, "_LUA"), (auth_grpc, "LUA")):
        monkeypatch.setattr(of, name, getattr(of, name).replace("core.httpclient()", "core.nothing()"))
    with gateways(tmp_path) as made:
        made.put(GATEWAY)
        made.pods("v1")
        made.put(route("guarded", "http: {}", "v1").replace("protocol: HTTP", f"protocol: {protocol}"))
        made.put(OPEN)
        list_all(made)
        made.settle()
        assert made.ask("edge", path="/").pod == "v1"
        assert made.ask("edge", path="/guarded").status == 503
