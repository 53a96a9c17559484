"""What a Gateway's plan says about certificates of clients and its own; cases have the official suite's names."""

import pytest
import yaml
from tests.l7.gateway.site import now, secret_of, tls_secret
from tests.l7.gateway.test_gateway_statuses import SERVICE, drawn, gateway, reasons, status

from vipwire_l7.haproxy.configuration import make_maps
from vipwire_l7.haproxy.frontends import Lookups
from vipwire_l7.run.default_certificate import make_certificate
from vipwire_l7.watch.objects import IngressKind

HTTPS = "{name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: good}]}}"
CERTIFICATE = tls_secret("good", "a.org")
AUTHORITY = yaml.safe_dump(
    {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "good", "namespace": "infra"},
        "data": {"ca.crt": make_certificate(now(), "a.org").partition("-----BEGIN PRIVATE KEY-----")[0]},
    }
)


@pytest.mark.parametrize(
    ("refs", "accepted", "resolved"),
    [
        ("[{kind: ConfigMap, name: good}]", "Accepted", "ResolvedRefs"),
        ("[{kind: ConfigMap, name: none}]", "not NoValidCACertificate", "not InvalidCACertificateRef"),
        ("[{kind: Secret, name: good}]", "not NoValidCACertificate", "not InvalidCACertificateKind"),
        ("[{kind: ConfigMap, name: good, namespace: b}]", "not NoValidCACertificate", "not RefNotPermitted"),
        ("[{kind: ConfigMap, name: good}, {kind: ConfigMap, name: none}]", "Accepted", "not InvalidCACertificateRef"),
    ],
)
def test_a_port_without_authorities_is_not_served(refs: str, accepted: str, resolved: str) -> None:
    """GatewayFrontendInvalidDefaultClientCertificateValidation: the HTTP listener beside it is served.

    Also GatewayInvalidFrontendClientCertificateValidation.
    """
    more = f"tls: {{frontend: {{default: {{validation: {{caCertificateRefs: {refs}}}}}}}}}"
    listeners = (HTTPS, "{name: http, port: 80, protocol: HTTP}")
    planner, plan = drawn(gateway(*listeners, more=more), CERTIFICATE, AUTHORITY, SERVICE)
    https, http = status(planner, IngressKind.GATEWAY, "edge")["listeners"]
    assert (reasons(https)["Accepted"], reasons(https)["ResolvedRefs"]) == (accepted, resolved)
    assert reasons(http)["Accepted"] == "Accepted"
    served = {each.bind: each.clients for each in plan.frontends}
    assert set(served) == ({"*:80", "*:443"} if accepted == "Accepted" else {"*:80"})
    assert served["*:80"] == ""
    assert bool(served.get("*:443")) == (accepted == "Accepted")


def test_a_port_asks_for_the_same_of_all_its_clients() -> None:
    more = "tls: {frontend: {default: {validation: {caCertificateRefs: [{kind: ConfigMap, name: good}]}}}}"
    dated = 'generation: 3, creationTimestamp: "2026-0{}-01T00:00:00Z"'
    asking = gateway(HTTPS, more=more).replace("generation: 3", dated.format(1))
    younger = gateway(HTTPS.replace("443,", "443, hostname: b.org,")).replace("name: edge", "name: other")
    other = younger.replace("generation: 3", dated.format(2))
    planner, plan = drawn(asking, other, CERTIFICATE, AUTHORITY)
    (listener,) = status(planner, IngressKind.GATEWAY, "other")["listeners"]
    assert reasons(listener)["Accepted"] == "not PortUnavailable"
    (frontend,) = plan.frontends
    assert frontend.clients
    assert frontend.hosts == {"*"}


@pytest.mark.parametrize(
    ("ref", "reason"),
    [
        ("{name: good}", "ResolvedRefs"),
        ("{name: none}", "not InvalidClientCertificateRef"),
        ("{kind: ConfigMap, name: good}", "not InvalidClientCertificateRef"),
        ("{group: odd.io, name: good}", "not InvalidClientCertificateRef"),
        ("{name: malformed}", "not InvalidClientCertificateRef"),
        ("{name: good, namespace: b}", "not RefNotPermitted"),
    ],
)
def test_a_gateway_says_whether_it_has_its_own_certificate(ref: str, reason: str) -> None:
    """GatewayInvalidTLSBackendConfiguration."""
    malformed = secret_of("malformed", "odd")
    whole = gateway(HTTPS, more=f"tls: {{backend: {{clientCertificateRef: {ref}}}}}")
    planner, plan = drawn(whole, CERTIFICATE, malformed)
    found = reasons(status(planner, IngressKind.GATEWAY, "edge"))
    assert (found["Accepted"], found["ResolvedRefs"]) == ("Accepted", reason)
    assert len(plan.authorities) == (reason == "ResolvedRefs")


def test_one_listener_needs_no_search_for_it() -> None:
    _, plan = drawn(gateway(HTTPS), CERTIFICATE)
    assert make_maps(plan, {plan.frontends[0].mark: Lookups()})["listeners"] == {}
