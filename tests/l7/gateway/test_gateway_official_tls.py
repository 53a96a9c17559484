"""Cases of the official suite about TLS- and TCPRoutes and policies of TLS, at a real HAProxy. Its names."""

import asyncio
import json
import ssl
from collections.abc import Iterator

import pytest
import yaml
from tests.l7.gateway.site import GatewaySite, by_authority, gateways, list_all, now, service, tls_policy, tls_secret
from tests.l7.gateway.test_gateway_statuses import reasons

from vipwire_l7.run.default_certificate import make_certificate
from vipwire_l7.watch.objects import IngressKind

HANDED_ON = "protocol: TLS, tls: {mode: Passthrough}"
ENDED = "protocol: TLS, tls: {certificateRefs: [{name: pair}]}"
GATEWAY = """
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: {name}}}
spec: {{gatewayClassName: vipwire, listeners: [{listeners}]}}
"""
ROUTE = """
apiVersion: gateway.networking.k8s.io/v1
kind: {kind}
metadata: {{name: {name}}}
spec:
  parentRefs: [{{name: {gateway}{more}}}]
  hostnames: [{hosts}]
  rules: [{{backendRefs: [{{name: {pod}, port: 8080}}]}}]
"""
TLS_ROUTES = (
    ("exact", "abc.example.com", {"any": ("*.example.com", "one")}),
    ("wild", "*.example.com", {"exact": ("abc.example.com", "one"), "wide": ("*.com", "two")}),
    ("wide", "*.com", {"exact": ("abc.example.com", "one"), "wild": ("*.example.com", "two")}),
    ("empty", "", {"exact": ("abc.example.com", "one"), "wild": ("*.com", "two")}),
    ("older", "abc.example.com", {"a-wild": ("*.example.com", "one"), "b-exact": ("abc.example.com", "two")}),
    ("deeper", "*.example.com", {"a-wide": ("*.com", "one"), "b-wild": ("*.example.com", "two")}),
)
"""A listener at a port of its own, its host, and the routes there, the older first: their hosts and Pods."""
ASKS = """
--- Gateway asks
spec:
  gatewayClassName: vipwire
  tls: {frontend: {default: {validation: {caCertificateRefs: [{group: "", kind: ConfigMap, name: nowhere}]}}}}
  listeners:
  - {name: http, port: $asks, protocol: HTTP}
  - {name: https, port: $asking, protocol: HTTPS, tls: {certificateRefs: [{name: pair}]}}
"""


def put_route(here: GatewaySite, kind: str, name: str, gateway: str, hosts: str, pod: str, **more: str) -> None:
    """Put a route; `more` is its parent's port or section."""
    extra = "".join(f", {key}: {value}" for key, value in more.items())
    here.put(ROUTE.format(kind=kind, name=name, gateway=gateway, hosts=hosts, pod=pod, more=extra))


def put_tls_routes(here: GatewaySite) -> None:
    """Put listeners that hand TLS on, with their routes."""
    for name, host, routes in TLS_ROUTES:
        named = f"hostname: '{host}', " if host else ""
        listener = f"{{name: tls, port: ${name}, {named}{HANDED_ON}}}"
        here.put(GATEWAY.format(name=name, listeners=listener))
        for each, (wanted, pod) in routes.items():
            put_route(here, "TLSRoute", f"{name}-{each}", name, f"'{wanted}'", pod)


def put_others(here: GatewaySite) -> None:
    """Put everything else but the Pods."""
    ends = f"{{name: plain, port: $plain, {ENDED}}}, {{name: again, port: $again, {ENDED}}}"
    here.put(GATEWAY.format(name="ends", listeners=ends))
    put_route(here, "TCPRoute", "plain", "ends", "", "v1", sectionName="plain")
    put_route(here, "TLSRoute", "again", "ends", "again.org", "checked", sectionName="again")
    connections = ", ".join(f"{{name: {name}, port: ${name}, protocol: TCP}}" for name in ("first", "second"))
    here.put(GATEWAY.format(name="tcp", listeners=connections))
    put_route(here, "TCPRoute", "a-older", "tcp", "", "v1", sectionName="first")
    put_route(here, "TCPRoute", "b-younger", "tcp", "", "v2", sectionName="first")
    put_route(here, "TCPRoute", "by-port", "tcp", "", "v2", port="$second")
    secure = "{name: https, port: $https, protocol: HTTPS, tls: {certificateRefs: [{name: pair}]}}"
    here.put(GATEWAY.format(name="http", listeners=f"{{name: http, port: $http, protocol: HTTP}}, {secure}"))
    for name in ("checked", "rivals", "sections"):
        put_route(here, "HTTPRoute", name, "http", f"{name}.org", name)
    here.put(tls_policy("checked", by_authority("secure.org")))
    here.put(tls_policy("a-good", by_authority("secure.org"), "rivals"))
    here.put(tls_policy("b-rival", by_authority("other.org"), "rivals"))
    here.put(tls_policy("a-all", by_authority("other.org"), "sections"))
    here.put(tls_policy("b-port", by_authority("secure.org"), "sections, sectionName: http"))
    modes = {"passes": HANDED_ON, "ended": ENDED, "plainly": "protocol: TCP"}
    lost = ", ".join(f"{{name: {name}, port: ${name}, {mode}}}" for name, mode in modes.items())
    here.put(GATEWAY.format(name="lost", listeners=lost))
    for name, kind in (("passes", "TLSRoute"), ("ended", "TLSRoute"), ("plainly", "TCPRoute")):
        put_route(
            here, kind, f"lost-{name}", "lost", "any.org" if kind == "TLSRoute" else "", "none", sectionName=name
        )
    here.put(ASKS)
    put_route(here, "HTTPRoute", "asks", "asks", "", "v1")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewaySite]:
    folder = tmp_path_factory.mktemp("official-tls")
    with gateways(folder) as made:
        pem = make_certificate(now(), "secure.org")
        (folder / "secure.pem").write_text(pem)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "secure.pem")
        made.pods("v1", "v2")
        made.pods("one", "two", tls=context)
        for name in ("checked", "rivals", "sections"):
            made.put(service(name, made.addresses["infra/one"], made.pod_port))
        meta = {"name": "authority", "namespace": "infra"}
        authority = {"ca.crt": pem.partition("-----BEGIN PRIVATE KEY-----")[0]}
        made.put(yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": authority}))
        made.put(tls_secret("pair", "any.org"))
        put_tls_routes(made)
        put_others(made)
        list_all(made)
        made.settle()
        assert [each.failure for each in made.done] == [""]
        yield made


def pod_over_tls(here: GatewaySite, port: str, name: str) -> str:
    """Ask for a name over TLS; return which Pod answers, "" if the connection ends."""
    number = here.port(port)
    code, body = here.curl("-k", "--connect-to", f"::127.0.0.1:{number}", f"https://{name}:{number}/")
    return str(json.loads(body)["pod"]) if code == 0 else ""


@pytest.mark.parametrize(
    ("port", "name", "pod"),
    [
        ("exact", "abc.example.com", "one"),
        ("exact", "non.matching.com", ""),
        ("wild", "abc.example.com", "one"),
        ("wild", "other.example.com", "two"),
        ("wild", "non.matching.com", ""),
        ("wide", "abc.example.com", "one"),
        ("wide", "other.example.com", "two"),
        ("wide", "non.matching.com", ""),
        ("empty", "abc.example.com", "one"),
        ("empty", "other.example.com", "two"),
        ("empty", "non.matching.org", ""),
    ],
)
def test_tls_route_hostname_intersection(here: GatewaySite, port: str, name: str, pod: str) -> None:
    """TLSRouteHostnameIntersection."""
    assert pod_over_tls(here, port, name) == pod


@pytest.mark.parametrize("port", ["older", "deeper"])
def test_the_more_specific_host_has_a_connection(here: GatewaySite, port: str) -> None:
    """TLSRouteMultipleRoutesAttachmentSameHostnameIntersection: the younger route names the host more exactly."""
    assert pod_over_tls(here, port, "abc.example.com") == "two"


def test_a_tcp_route_gets_what_was_in_tls(here: GatewaySite) -> None:
    """TCPRouteOnTLSTerminate."""
    assert pod_over_tls(here, "plain", "any.org") == "v1"


def test_what_was_in_tls_is_encrypted_again(here: GatewaySite) -> None:
    """BackendTLSPolicyTLSRouteTerminate; the Pod speaks nothing but TLS."""
    assert pod_over_tls(here, "again", "again.org") == "one"
    assert pod_over_tls(here, "again", "other.org") == ""
    ancestors = here.status(IngressKind.BACKEND_TLS_POLICY, "checked")["ancestors"]
    assert {each["ancestorRef"]["name"] for each in ancestors} == {"ends", "http"}
    for each in ancestors:
        assert reasons(each) == {"Accepted": "Accepted", "ResolvedRefs": "ResolvedRefs"}


def told(here: GatewaySite, port: str, name: str) -> bytes:
    """Ask by HTTP, over TLS if there is a name to ask for; return what comes before the connection ends."""

    async def asking() -> bytes:
        context = None
        if name:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            where = ("127.0.0.1", here.port(port))
            reader, writer = await asyncio.open_connection(*where, ssl=context, server_hostname=name or None)
            writer.write(b"GET / HTTP/1.1\r\nHost: any.org\r\n\r\n")
            found = await reader.read()
            writer.close()
        except (ConnectionResetError, ssl.SSLEOFError):  # any other error of TLS is about bytes that came
            return b""
        return found

    return bytes(here.run(asking()))


@pytest.mark.parametrize(("port", "name"), [("passes", "any.org"), ("ended", "any.org"), ("plainly", "")])
def test_connections_for_a_backend_that_is_not_there_end_without_a_byte(
    here: GatewaySite, port: str, name: str
) -> None:
    """TLSRouteInvalidBackendRefNonexistent, TLSRouteInvalidBackendRefUnknownKind, TLSRouteInvalidReferenceGrant."""
    assert told(here, port, name) == b""


@pytest.mark.parametrize(("port", "pod"), [("first", "v1"), ("second", "v2")])
def test_the_oldest_tcp_route_has_all_connections(here: GatewaySite, port: str, pod: str) -> None:
    """TCPRouteMultipleRoutesAttachment, TCPRouteParentRefPortAndSectionName, TCPRouteSimpleSameNamespace."""
    assert here.pods_of(port, "any.org") == {pod}


@pytest.mark.parametrize("name", ["checked", "rivals", "sections"])
def test_of_policies_the_accepted_one_counts(here: GatewaySite, name: str) -> None:
    """BackendTLSPolicy, …ConflictResolution, BackendTLSPolicyReencrypt: another one would refuse the certificate."""
    assert here.ask("http", f"{name}.org").pod == "one"
    assert pod_over_tls(here, "https", f"{name}.org") == "one"


def test_policies_say_which_of_them_counts(here: GatewaySite) -> None:
    """BackendTLSPolicyConflictResolution."""
    found = {}
    for name in ("a-good", "b-rival", "a-all", "b-port"):
        (ancestor,) = here.status(IngressKind.BACKEND_TLS_POLICY, name)["ancestors"]
        found[name] = reasons(ancestor)["Accepted"]
    accepted = dict.fromkeys(("a-good", "a-all", "b-port"), "Accepted")
    assert found == {**accepted, "b-rival": "not Conflicted"}


def test_a_check_of_clients_that_is_not_there_costs_https_alone(here: GatewaySite) -> None:
    """GatewayFrontendInvalidDefaultClientCertificateValidation."""
    assert here.ask("asks").pod == "v1"
    assert pod_over_tls(here, "asking", "any.org") == ""
    made = {each["name"]: reasons(each) for each in here.status(IngressKind.GATEWAY, "asks")["listeners"]}
    wanted = {"Accepted": "Accepted", "ResolvedRefs": "ResolvedRefs", "Programmed": "Programmed"}
    assert {key: made["http"][key] for key in wanted} == wanted
    refused = {"Accepted": "NoValidCACertificate", "ResolvedRefs": "InvalidCACertificateRef", "Programmed": "Invalid"}
    assert {key: made["https"][key] for key in refused} == {key: f"not {each}" for key, each in refused.items()}
