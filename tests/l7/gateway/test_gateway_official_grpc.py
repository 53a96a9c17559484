"""The official suite's cases of GRPCRoutes, by a real gRPC client and real servers. Its names."""

import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
import yaml
from tests.l7.gateway.site import GatewaySite, by_authority, gateways, list_all, now, service, tls_policy

from vipwire_l7.run.default_certificate import make_certificate

GATEWAYS = """
--- Gateway edge
spec: {gatewayClassName: vipwire, listeners: [{name: plain, port: $plain, protocol: HTTP}]}
--- Gateway second
spec: {gatewayClassName: vipwire, listeners: [{name: plain, port: $second, protocol: HTTP}]}
--- Gateway names
spec:
  gatewayClassName: vipwire
  listeners:
  - {name: listener-1, port: $names, protocol: HTTP, hostname: bar.com}
  - {name: listener-2, port: $names, protocol: HTTP, hostname: foo.bar.com}
  - {name: listener-3, port: $names, protocol: HTTP, hostname: "*.bar.com"}
  - {name: listener-4, port: $names, protocol: HTTP, hostname: "*.foo.com"}
  - {name: exact, port: $names, protocol: HTTP, hostname: abc.example.com}
"""
ROUTES = """
a-older:
  parentRefs: [{name: names, sectionName: exact}]
  hostnames: ["*.example.com"]
  rules: [{backendRefs: [{name: one, port: 8080}]}]
b-younger:
  parentRefs: [{name: names, sectionName: exact}]
  hostnames: [abc.example.com]
  rules: [{backendRefs: [{name: two, port: 8080}]}]
listener-1:
  parentRefs: [{name: names, sectionName: listener-1}]
  rules: [{backendRefs: [{name: one, port: 8080}]}]
listener-2:
  parentRefs: [{name: names, sectionName: listener-2}]
  rules: [{backendRefs: [{name: two, port: 8080}]}]
listener-3:
  parentRefs: [{name: names, sectionName: listener-3}, {name: names, sectionName: listener-4}]
  rules: [{backendRefs: [{name: three, port: 8080}]}]
exact:
  rules:
  - {matches: [{method: {service: a.Echo, method: Echo}}], name: named, backendRefs: [{name: one, port: 8080}]}
  - {matches: [{method: {service: a.Echo, method: EchoTwo}}], backendRefs: [{name: two, port: 8080}]}
headers:
  rules:
  - {matches: [{headers: [{name: version, value: one}]}], backendRefs: [{name: one, port: 8080}]}
  - {matches: [{headers: [{name: version, value: two}]}], backendRefs: [{name: two, port: 8080}]}
  - matches: [{headers: [{name: version, value: two}, {name: color, value: orange}]}]
    backendRefs: [{name: one, port: 8080}]
  - matches: [{headers: [{name: color, value: blue}]}, {headers: [{name: color, value: green}]}]
    backendRefs: [{name: one, port: 8080}]
  - matches: [{headers: [{name: color, value: red}]}, {headers: [{name: color, value: yellow}]}]
    backendRefs: [{name: two, port: 8080}]
shares:
  rules:
  - backendRefs:
    - {name: one, port: 8080, weight: 7}
    - {name: two, port: 8080, weight: 3}
    - {name: three, port: 8080, weight: 0}
sticky:
  rules:
  - matches: [{method: {service: a.Session}}]
    sessionPersistence: {sessionName: mine}
    backendRefs: [{name: both, port: 8080}]
  - matches: [{method: {service: a.Permanent}}]
    sessionPersistence: {sessionName: mine, absoluteTimeout: 1h, cookieConfig: {lifetimeType: Permanent}}
    backendRefs: [{name: both, port: 8080}]
modifier:
  rules:
  - filters:
    - type: RequestHeaderModifier
      requestHeaderModifier:
        set: [{name: x-set, value: set-overwrites}]
        add: [{name: x-add, value: one}, {name: x-append, value: two}]
        remove: [x-remove]
    backendRefs: [{name: one, port: 8080}]
checked:
  rules: [{backendRefs: [{name: secured, port: 8080}]}]
shared:
  parentRefs: [{name: edge}, {name: second}]
  hostnames: [gateways.org]
  rules: [{matches: [{method: {service: a.Echo, method: Echo}}], backendRefs: [{name: one, port: 8080}]}]
of-edge:
  parentRefs: [{name: edge}]
  hostnames: [gateways.org]
  rules: [{matches: [{method: {service: a.Echo, method: EchoTwo}}], backendRefs: [{name: two, port: 8080}]}]
of-second:
  parentRefs: [{name: second}]
  hostnames: [gateways.org]
  rules: [{matches: [{method: {service: a.Echo, method: EchoTwo}}], backendRefs: [{name: three, port: 8080}]}]
"""
"""GRPCRoutes by name; those without parents are for `NAME.org` at the first Gateway."""
RESET = (grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL)
"""What a client may see instead if HAProxy answers itself: it also resets a stream whose request has not ended."""
SERVERS = {"one": "127.0.0.64", "two": "127.0.0.65", "three": "127.0.0.66", "secured": "127.0.0.67"}


class Echo(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types here
    """A server without generated code: `Show` answers with the metadata `x-…`, all others with its name."""

    def __init__(self, name: str) -> None:
        self._name = name.encode()

    def service(self, handler_call_details: Any) -> Any:
        showing = handler_call_details.method.endswith("/Show")
        return grpc.unary_unary_rpc_method_handler(self.show if showing else self.answer)

    async def answer(self, request: bytes, context: Any) -> bytes:
        del context
        return self._name + b" " + request

    async def show(self, request: bytes, context: Any) -> bytes:
        del request
        return json.dumps(sorted(each for each in context.invocation_metadata() if each[0] in SENT)).encode()


SENT = ("x-add", "x-append", "x-set", "x-remove")


async def start(here: GatewaySite, name: str, credentials: Any = None) -> Any:
    server = grpc.aio.server(handlers=(Echo(name),))
    address = f"{SERVERS[name]}:{here.pod_port}"
    if credentials is None:
        server.add_insecure_port(address)
    else:
        server.add_secure_port(address, credentials)
    await server.start()
    return server


def put_routes(here: GatewaySite) -> None:
    for name, spec in yaml.safe_load(ROUTES).items():
        for_all = {"parentRefs": [{"name": "edge"}], "hostnames": [f"{name}.org"]}
        api = "gateway.networking.k8s.io/v1"
        whole = spec if "parentRefs" in spec else spec | for_all
        here.put_object({"apiVersion": api, "kind": "GRPCRoute", "metadata": {"name": name}, "spec": whole})


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewaySite]:
    with gateways(tmp_path_factory.mktemp("official-grpc")) as made:
        certificate, begin, key = make_certificate(now(), "secure.org").partition("-----BEGIN PRIVATE KEY-----")
        credentials = grpc.ssl_server_credentials([((begin + key).encode(), certificate.encode())])
        meta = {"name": "authority", "namespace": "infra"}
        data = {"ca.crt": certificate}
        made.put(yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}))
        for name, address in SERVERS.items():
            made.put(service(name, address, made.pod_port))
        first, rest = service("both", SERVERS["one"], made.pod_port).split("endpoints: [")
        made.put(f"{first}endpoints: [{{addresses: [{SERVERS['two']}], conditions: {{ready: true}}}}, {rest}")
        made.put(GATEWAYS)
        made.put(tls_policy("checked", by_authority("secure.org"), "secured"))
        put_routes(made)
        servers = [made.run(start(made, name, credentials if name == "secured" else None)) for name in SERVERS]
        list_all(made)
        made.settle()
        assert [each.failure for each in made.done] == [""]
        yield made
        for server in servers:
            made.run(server.stop(None))


def call(here: GatewaySite, host: str, method: str, *metadata: tuple[str, str], port: str = "plain") -> Any:
    """Make one unary call for a host: its code, answer and initial metadata."""

    async def run() -> Any:
        options = (("grpc.default_authority", host),)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{here.port(port)}", options) as channel:
            made = channel.unary_unary(method)(b"x", metadata=metadata, timeout=60)
            code = await made.code()
            return code, (await made).decode() if code == grpc.StatusCode.OK else "", await made.initial_metadata()

    return here.run(run())


def server_of(here: GatewaySite, host: str, method: str, *metadata: tuple[str, str], port: str = "plain") -> str:
    """Return which server answers a call; "" if the answer is what UNIMPLEMENTED stands for, 404."""
    code, answer, _ = call(here, host, method, *metadata, port=port)
    if code == grpc.StatusCode.OK:
        return str(answer).partition(" ")[0]
    assert code in {grpc.StatusCode.UNIMPLEMENTED, *RESET}
    return ""


@pytest.mark.parametrize(("method", "server"), [("Echo", "one"), ("EchoTwo", "two"), ("EchoThree", "")])
def test_grpc_exact_method_matching(here: GatewaySite, method: str, server: str) -> None:
    """GRPCExactMethodMatching, GRPCRouteNamedRule."""
    assert server_of(here, "exact.org", f"/a.Echo/{method}") == server


@pytest.mark.parametrize(
    ("version", "color", "server"),
    [
        ("one", "", "one"),
        ("two", "", "two"),
        ("two", "orange", "one"),
        ("two", "blue", "two"),
        ("", "orange", ""),
        ("", "", ""),
        ("", "blue", "one"),
        ("", "green", "one"),
        ("", "red", "two"),
        ("", "yellow", "two"),
        ("", "purple", ""),
    ],
)
def test_grpc_route_header_matching(here: GatewaySite, version: str, color: str, server: str) -> None:
    """GRPCRouteHeaderMatching."""
    metadata = [(key, value) for key, value in (("version", version), ("color", color)) if value]
    assert server_of(here, "headers.org", "/a.Echo/Any", *metadata, ("other", "one")) == server


@pytest.mark.parametrize(
    ("host", "server"),
    [
        ("bar.com", "one"),
        ("foo.bar.com", "two"),
        ("baz.bar.com", "three"),
        ("multiple.prefixes.bar.com", "three"),
        ("multiple.prefixes.foo.com", "three"),
        ("foo.com", ""),
        ("no.matching.host", ""),
    ],
)
def test_grpc_route_listener_hostname_matching(here: GatewaySite, host: str, server: str) -> None:
    """GRPCRouteListenerHostnameMatching."""
    assert server_of(here, host, "/a.Echo/Any", port="names") == server


def test_the_grpc_route_that_names_a_host_more_exactly_has_it(here: GatewaySite) -> None:
    """GRPCRouteMultipleRoutesAttachmentSameHostnameIntersection."""
    assert server_of(here, "abc.example.com", "/a.Echo/Any", port="names") == "two"


@pytest.mark.parametrize(("port", "own"), [("plain", "two"), ("second", "three")])
def test_grpc_route_multiple_gateways(here: GatewaySite, port: str, own: str) -> None:
    """GRPCRouteMultipleGateways."""
    found = [server_of(here, "gateways.org", f"/a.Echo/{method}", port=port) for method in ("Echo", "EchoTwo")]
    assert found == ["one", own]


def test_grpc_route_weight(here: GatewaySite) -> None:
    """GRPCRouteWeight."""
    found = [server_of(here, "shares.org", "/a.Echo/Any") for _ in range(200)]
    assert set(found) == {"one", "two"}
    assert 0.5 < found.count("one") / len(found) < 0.9


@pytest.mark.parametrize(("of", "lasts"), [("Session", False), ("Permanent", True)])
def test_grpc_sessions_stay_with_their_server(here: GatewaySite, of: str, *, lasts: bool) -> None:
    """GRPCRouteSessionPersistenceCookie, GRPCRouteSessionPersistenceCookiePermanentLifetime."""
    _, answer, metadata = call(here, "sticky.org", f"/a.{of}/Any")
    cookie = dict(metadata)["set-cookie"]
    assert ("Max-Age=3600" in cookie) == lasts
    again = {call(here, "sticky.org", f"/a.{of}/Any", ("cookie", cookie.partition(";")[0]))[1] for _ in range(8)}
    assert again == {answer}
    assert {call(here, "sticky.org", f"/a.{of}/Any")[1] for _ in range(8)} == {"one x", "two x"}


def test_grpc_route_request_header_modifier(here: GatewaySite) -> None:
    """GRPCRouteRequestHeaderModifier."""
    sent = (("x-set", "mine"), ("x-append", "mine"), ("x-remove", "gone"))
    _, answer, _ = call(here, "modifier.org", "/a.Echo/Show", *sent)
    found = [tuple(each) for each in json.loads(answer)]
    assert found == [("x-add", "one"), ("x-append", "mine"), ("x-append", "two"), ("x-set", "set-overwrites")]


def test_grpc_over_tls_to_the_server(here: GatewaySite) -> None:
    """BackendTLSPolicyGRPCRoute: the server speaks nothing but TLS."""
    assert server_of(here, "checked.org", "/a.Echo/Any") == "secured"
