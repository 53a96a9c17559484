"""Certificates of clients, those that Pods are shown, and requests at the wrong listener, at a real HAProxy.

Cases have the names of the official suite where it has them.
"""

import json
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.l7.gateway.site import GatewaySite, gateways, list_all, now, secret_of, tls_secret
from tests.l7.gateway.test_gateway_statuses import reasons

from vipwire_l7.run.default_certificate import make_certificate
from vipwire_l7.watch.objects import IngressKind

GATEWAYS = """
--- Gateway many
spec:
  gatewayClassName: vipwire
  listeners:
  - {name: all, port: $many, protocol: HTTPS, tls: {certificateRefs: [{name: pair}]}}
  - {name: second, port: $many, protocol: HTTPS, hostname: second.org, tls: {certificateRefs: [{name: pair}]}}
  - {name: wild, port: $many, protocol: HTTPS, hostname: "*.wild.org", tls: {certificateRefs: [{name: pair}]}}
  - {name: fourth, port: $many, protocol: HTTPS, hostname: fourth.wild.org, tls: {certificateRefs: [{name: pair}]}}
--- Gateway asks
spec:
  gatewayClassName: vipwire
  tls:
    frontend:
      default: {validation: {caCertificateRefs: [{group: "", kind: ConfigMap, name: clients}]}}
      perPort:
      - port: $loose
        tls:
          validation: {caCertificateRefs: [{group: "", kind: ConfigMap, name: clients}], mode: AllowInsecureFallback}
  listeners:
  - {name: strict, port: $strict, protocol: HTTPS, tls: {certificateRefs: [{name: pair}]}}
  - {name: loose, port: $loose, protocol: HTTPS, tls: {certificateRefs: [{name: pair}]}}
  - {name: plain, port: $plain, protocol: HTTP}
--- Gateway shows
spec:
  gatewayClassName: vipwire
  tls: {backend: {clientCertificateRef: {name: own}}}
  listeners: [{name: http, port: $shows, protocol: HTTP}]
--- Gateway mixed
spec:
  gatewayClassName: vipwire
  listeners:
  - {name: https, port: $mixed, protocol: HTTPS, hostname: "*.mixed.org", tls: {certificateRefs: [{name: pair}]}}
  - {name: pass, port: $mixed, protocol: TLS, hostname: abc.mixed.org, tls: {mode: Passthrough}}
  - {name: wild, port: $mixed, protocol: TLS, hostname: "*.deep.mixed.org", tls: {mode: Passthrough}}
  - {name: end, port: $mixed, protocol: TLS, hostname: end.mixed.org, tls: {certificateRefs: [{name: pair}]}}
--- HTTPRoute mixed
spec:
  parentRefs: [{name: mixed, sectionName: https}]
  rules: [{backendRefs: [{name: v1, port: 8080}]}]
--- TLSRoute pass
spec:
  parentRefs: [{name: mixed, sectionName: pass}, {name: mixed, sectionName: wild}]
  hostnames: [abc.mixed.org, a.deep.mixed.org]
  rules: [{backendRefs: [{name: passed, port: 8080}]}]
--- TLSRoute end
spec:
  parentRefs: [{name: mixed, sectionName: end}]
  hostnames: [end.mixed.org]
  rules: [{backendRefs: [{name: v2, port: 8080}]}]
--- HTTPRoute asks
spec:
  parentRefs: [{name: asks}]
  rules: [{backendRefs: [{name: v1, port: 8080}]}]
--- HTTPRoute shows
spec:
  parentRefs: [{name: shows}, {name: asks, sectionName: plain}]
  hostnames: [asking.org]
  rules: [{backendRefs: [{name: asking, port: 8080}]}]
"""
ROUTE = """
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: many-{number}}}
spec:
  parentRefs: [{{name: many, sectionName: {section}}}]
  hostnames: ["{host}"]
  rules: [{{backendRefs: [{{name: {pod}, port: 8080}}]}}]
"""
ROUTES = (("all", "first.org", "v1"), ("second", "second.org", "v2"), ("wild", "*.wild.org", "v3"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def here(folder: Path) -> Iterator[GatewaySite]:
    with gateways(folder) as made:
        known, strange, own = (make_certificate(now(), name) for name in ("known.org", "strange.org", "own.org"))
        for name, pem in (("known", known), ("strange", strange), ("own", own)):
            (folder / f"{name}.pem").write_text(pem)
        authority = {"ca.crt": known.partition("-----BEGIN PRIVATE KEY-----")[0]}
        meta = {"name": "clients", "namespace": "infra"}
        made.put(yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": authority}))
        made.put(tls_secret("pair", "any.org"))
        made.put(secret_of("own", own))
        made.put(GATEWAYS)
        for number, (section, host, pod) in enumerate((*ROUTES, ("fourth", "fourth.wild.org", "v1"))):
            made.put(ROUTE.format(number=number, section=section, host=host, pod=pod))
        made.pods("v1", "v2", "v3")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "strange.pem")
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(folder / "own.pem")
        made.pods("asking", tls=context, more=", appProtocol: https")
        plain = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        plain.load_cert_chain(folder / "strange.pem")
        made.pods("passed", tls=plain)
        list_all(made)
        made.settle()
        yield made


def ask(here: GatewaySite, port: str, name: str, host: str, *more: str) -> tuple[int, str, str]:
    """Ask for a host over a connection for a name (SNI); return curl's status, the answer's, and the body."""
    number = here.port(port)
    url = f"https://{name}:{number}/"
    form = ("-w", "\n%{http_code}", "--connect-to", f"::127.0.0.1:{number}", "-H", f"Host: {host}")
    code, output = here.curl("-k", *form, *more, url)
    body, _, answered = output.rpartition("\n")
    return code, answered, body


@pytest.mark.parametrize("http", ["--http1.1", "--http2"])
@pytest.mark.parametrize(
    ("name", "host", "answer"),
    [
        ("first.org", "first.org", "v1"),
        ("first.org", "second.org", "421"),
        ("first.org", "unknown.org", "404"),
        ("second.org", "second.org", "v2"),
        ("second.org", "first.org", "421"),
        ("second.org", "unknown.org", "421"),
        ("third.wild.org", "third.wild.org", "v3"),
        ("third.wild.org", "fifth.wild.org", "v3"),
        ("third.wild.org", "fourth.wild.org", "421"),
        ("third.wild.org", "second.org", "421"),
        ("third.wild.org", "unknown.org", "421"),
        ("fourth.wild.org", "fourth.wild.org", "v1"),
        ("fourth.wild.org", "fifth.wild.org", "421"),
        ("unknown.org", "first.org", "v1"),
        ("unknown.org", "unknown.org", "404"),
    ],
)
def test_misdirected_requests_are_refused(here: GatewaySite, http: str, name: str, host: str, answer: str) -> None:
    """HTTPRouteHTTPSListenerDetectMisdirectedRequests."""
    _, answered, body = ask(here, "many", name, host, http)
    assert answer == answered or f'"pod": "{answer}"' in body


def test_one_connection_is_for_one_listener(here: GatewaySite) -> None:
    """The second request of an HTTP/2 connection is for another host."""
    number = here.port("many")
    urls = [f"https://{name}:{number}/" for name in ("third.wild.org", "third.wild.org")]
    again = ("--next", "-k", "--http2", "-o/dev/null", "-w", "%{http_code} %{num_connects}\n", "-HHost: second.org")
    form = ("-o/dev/null", "-w", "%{http_code} %{num_connects}\n", "-HHost: third.wild.org")
    to = ("--connect-to", f"::127.0.0.1:{number}")
    _, output = here.curl("-k", "--http2", *form, *to, urls[0], *again, *to, urls[1])
    assert output.split("\n")[:2] == ["200 1", "421 0"]


@pytest.mark.parametrize(
    ("port", "shown", "served"),
    [
        ("strict", "known", True),
        ("strict", "strange", False),
        ("strict", "", False),
        ("loose", "known", True),
        ("loose", "strange", True),
        ("loose", "", True),
    ],
)
@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_clients_must_show_a_certificate(
    here: GatewaySite, folder: Path, port: str, shown: str, version: str, *, served: bool
) -> None:
    """GatewayFrontendClientCertificateValidation, and …InsecureFallback.

    Also GatewayFrontendClientCertificateValidationInsecureFallback.
    """
    more = ("--cert", str(folder / f"{shown}.pem")) if shown else ()
    code, answered, _ = ask(here, port, "any.org", "any.org", "--tls-max", version, f"--tlsv{version}", *more)
    assert (code == 0, answered == "200") == (served, served)


def test_ports_without_tls_ask_for_nothing(here: GatewaySite) -> None:
    assert here.ask("plain", "any.org").pod == "v1"


def test_pods_are_shown_a_gateways_certificate(here: GatewaySite) -> None:
    """GatewayBackendClientCertificateFeature: the Pod ends connections without one."""
    assert here.ask("shows", "asking.org").pod == "asking"
    assert here.ask("plain", "asking.org").status >= 500
    found = reasons(here.status(IngressKind.GATEWAY, "shows"))
    assert found["ResolvedRefs"] == "ResolvedRefs"


def test_a_gateway_that_lets_strangers_in_says_so(here: GatewaySite) -> None:
    found = reasons(here.status(IngressKind.GATEWAY, "asks"))
    assert found["InsecureFrontendValidationMode"] == "ConfigurationChanged"
    assert "InsecureFrontendValidationMode" not in reasons(here.status(IngressKind.GATEWAY, "many"))


@pytest.mark.parametrize(
    ("name", "served"),
    [
        ("other.mixed.org", "v1"),
        ("abc.mixed.org", "passed"),
        ("a.deep.mixed.org", "passed"),
        ("b.deep.mixed.org", ""),
        ("end.mixed.org", "v2"),
        ("unknown.org", "404"),
    ],
)
def test_all_of_tls_shares_a_port(here: GatewaySite, name: str, served: str) -> None:
    """GatewayHTTPSAndTLSPassthroughSamePort, TLSRouteModeMixed: the most specific host has a connection.

    Also TLSRouteMixedTerminationSameNamespace.
    """
    code, answered, body = ask(here, "mixed", name, name)
    assert (code == 0) == bool(served)
    if code == 0:
        assert served == answered or json.loads(body)["pod"] == served


def test_pods_see_the_client_where_ports_are_shared(here: GatewaySite) -> None:
    _, _, body = ask(here, "mixed", "other.mixed.org", "other.mixed.org", "--interface", "127.0.0.9")
    headers = json.loads(body)["headers"]
    assert (headers["x-forwarded-for"], headers["x-forwarded-proto"]) == ("127.0.0.9", "https")


def test_requests_for_what_is_handed_on_are_misdirected(here: GatewaySite) -> None:
    assert ask(here, "mixed", "other.mixed.org", "abc.mixed.org")[1] == "421"


def test_listeners_of_tls_that_share_a_port_are_accepted(here: GatewaySite) -> None:
    listeners = here.status(IngressKind.GATEWAY, "mixed")["listeners"]
    assert {each["name"]: (each["attachedRoutes"], reasons(each)["Accepted"]) for each in listeners} == dict.fromkeys(
        ("https", "pass", "wild", "end"), (1, "Accepted")
    )


GROWS = """
--- Gateway grows
spec:
  gatewayClassName: vipwire
  listeners:
  - {name: https, port: $grows, protocol: HTTPS, hostname: a.grows.org, tls: {certificateRefs: [{name: pair}]}}
MORE
--- HTTPRoute grows
spec:
  parentRefs: [{name: grows, sectionName: https}]
  rules: [{backendRefs: [{name: v1, port: 8080}]}]
--- TLSRoute grows
spec:
  parentRefs: [{name: grows, sectionName: pass}]
  hostnames: [b.grows.org]
  rules: [{backendRefs: [{name: passed, port: 8080}]}]
"""
HANDS_ON = "  - {name: pass, port: $grows, protocol: TLS, hostname: b.grows.org, tls: {mode: Passthrough}}"


def test_a_port_comes_to_be_shared_and_is_alone_again(here: GatewaySite) -> None:
    for more, handed_on in (("", False), (HANDS_ON, True), ("", False)):
        here.put(GROWS.replace("MORE", more))
        here.settle()
        assert here.done[-1].failure == ""
        assert json.loads(ask(here, "grows", "a.grows.org", "a.grows.org")[2])["pod"] == "v1"
        assert ('"pod": "passed"' in ask(here, "grows", "b.grows.org", "b.grows.org")[2]) == handed_on
