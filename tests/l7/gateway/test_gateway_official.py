"""Cases of the official suite about statuses, by planning alone: those that no other module here has. Its names."""

import json
import re
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.l7.gateway.site import BASE, documents, now, tls_policy, tls_secret
from tests.l7.gateway.test_gateway_statuses import (
    CERTIFICATE,
    HTTP,
    NOW,
    ROUTE,
    SERVICE,
    drawn,
    gateway,
    listener_set,
    planned,
    reasons,
    rows,
    snapshot_of,
    status,
)

from vipwire.kube.gateway_addresses import POOL
from vipwire_l7.gateway.plan.features import FEATURES, WITH_SERVICES
from vipwire_l7.gateway.plan.kinds.objects import GatewaySetting
from vipwire_l7.gateway.plan.planner import GatewayPlanner
from vipwire_l7.run.default_certificate import make_certificate
from vipwire_l7.run.process import has_system_authorities
from vipwire_l7.watch.objects import IngressKind

ROOT = Path(__file__).parents[3]
BY_SYSTEM = "{hostname: a.org, wellKnownCACertificates: System}"
POLICY = tls_policy("web", BY_SYSTEM)
GRPC = ROUTE.replace("kind: HTTPRoute", "kind: GRPCRoute")
SETS = "allowedListeners: {namespaces: {from: Same}}"
TLS_ROUTE = """
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: web, namespace: infra, generation: 2}
spec:
  parentRefs: [{name: edge}]
  hostnames: [a.org]
  rules: [{backendRefs: [{name: web, port: 80}]}]
"""
GRANT = """
--- ReferenceGrant web/grant
spec: {from: [FROM], to: [TO]}
"""


def at_generation(number: int, *texts: str) -> list[str]:
    """Write objects of a generation."""
    made = [each for text in texts for each in documents(text)]
    for each in made:
        each["metadata"]["generation"] = number
    return [yaml.safe_dump_all(made)]


def generations(found: Any) -> set[int]:
    """Find all observed generations in a status."""
    if isinstance(found, list):
        return {number for each in found for number in generations(each)}
    if not isinstance(found, dict):
        return set()
    own = {found["observedGeneration"]} if "observedGeneration" in found else set()
    return own | {number for each in found.values() for number in generations(each)}


def test_observed_generation_bump() -> None:
    """GatewayClassObservedGenerationBump, GatewayObservedGenerationBump, HTTPRouteObservedGenerationBump.

    Also BackendTLSPolicyObservedGenerationBump.
    """
    listeners = listener_set("more", "{name: more, port: 81, protocol: HTTP}")
    objects = (BASE, gateway(HTTP, more=SETS), listeners, ROUTE, GRPC, SERVICE, POLICY)
    planner = GatewayPlanner(GatewaySetting())
    for number in (7, 8):
        planner.update(snapshot_of(*at_generation(number, *objects)), NOW)
        found = {kind.value: generations(each) for (kind, _), each in planner.statuses.items()}
        kinds = ("GatewayClass", "Gateway", "ListenerSet", "HTTPRoute", "GRPCRoute", "BackendTLSPolicy")
        assert found == {kind: {number} for kind in kinds}


GRANTS = """
GatewaySecretReferenceGrantAllInNamespace | Gateway | infra | {group: "", kind: Secret} | ResolvedRefs
GatewaySecretReferenceGrantSpecific | Gateway | infra | {group: "", kind: Secret, name: good} | ResolvedRefs
GatewaySecretInvalidReferenceGrant: from kind | HTTPRoute | infra | {kind: Secret, name: good} | not RefNotPermitted
GatewaySecretInvalidReferenceGrant: from namespace | Gateway | odd | {kind: Secret, name: good} | not RefNotPermitted
GatewaySecretInvalidReferenceGrant: to kind | Gateway | infra | {kind: Service, name: good} | not RefNotPermitted
GatewaySecretInvalidReferenceGrant: to name | Gateway | infra | {kind: Secret, name: odd} | not RefNotPermitted
"""
"""The kind and namespace from which a reference comes, where it leads; the condition of the listener."""


@pytest.mark.parametrize(("case", "kind", "namespace", "to", "reason"), rows(GRANTS))
def test_secrets_of_other_namespaces(case: str, kind: str, namespace: str, to: str, reason: str) -> None:
    listener = "{name: a, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: good, namespace: web}]}}"
    from_ = f"{{group: gateway.networking.k8s.io, kind: {kind}, namespace: {namespace}}}"
    grant = GRANT.replace("FROM", from_).replace("TO", to)
    planner = planned(gateway(listener), tls_secret("good", "a.org", namespace="web"), grant)
    (found,) = status(planner, IngressKind.GATEWAY, "edge")["listeners"]
    assert reasons(found)["ResolvedRefs"] == reason, case


@pytest.mark.parametrize(
    ("parent", "accepted"),
    [
        ("{name: edge, sectionName: http, port: 80}", "Accepted"),
        ("{name: edge, sectionName: http, port: 81}", "not NoMatchingParent"),
        ("{name: edge, sectionName: other, port: 81}", "Accepted"),
        ("{name: edge, sectionName: odd, port: 80}", "not NoMatchingParent"),
    ],
)
def test_http_route_invalid_parent_ref_section_name_not_matching_port(parent: str, accepted: str) -> None:
    """HTTPRouteInvalidParentRefSectionNameNotMatchingPort, HTTPRouteListenerPortMatching."""
    planner = planned(
        gateway(HTTP, "{name: other, port: 81, protocol: HTTP}"), ROUTE.replace("{name: edge}", parent), SERVICE
    )
    (found,) = status(planner, IngressKind.HTTP_ROUTE, "web")["parents"]
    assert reasons(found)["Accepted"] == accepted


HANDED_ON, ENDED = "protocol: TLS, tls: {mode: Passthrough}", "protocol: TLS, tls: {certificateRefs: [{name: good}]}"
WAYS = {
    "pass": HANDED_ON,
    "end": ENDED.replace("{cert", "{mode: Terminate, cert"),
    "HTTP": "protocol: HTTP",
    "HTTPS": "protocol: HTTPS, tls: {certificateRefs: [{name: good}]}",
}
TLS_ROUTES = """
SimpleSameNamespace | pass | | | Accepted | ResolvedRefs
TerminateSimpleSameNamespace | end | | | Accepted | ResolvedRefs
InvalidReferenceGrant | pass | web, port | web, namespace: web, port | Accepted | not RefNotPermitted
InvalidBackendRefNonexistent | pass | web, port | odd, port | Accepted | not BackendNotFound
InvalidBackendRefUnknownKind | pass | web, port | web, kind: Odd, port | Accepted | not InvalidKind
InvalidNoMatchingListener: HTTP | HTTP | | | not NotAllowedByListeners | ResolvedRefs
InvalidNoMatchingListener: HTTPS | HTTPS | | | not NotAllowedByListeners | ResolvedRefs
InvalidNoMatchingListener: kinds | pass, ONLY_HTTP | | | not NotAllowedByListeners | ResolvedRefs
InvalidNoMatchingListener: name | pass | edge} | edge, sectionName: b} | not NoMatchingParent | ResolvedRefs
InvalidNoMatchingListenerHostname | pass, hostname: b.org | | | not NoMatchingListenerHostname | ResolvedRefs
InvalidNoMatchingListenerHostname | pass, hostname: '*.a.org' | | | not NoMatchingListenerHostname | ResolvedRefs
""".replace("ONLY_HTTP", "allowedRoutes: {kinds: [{kind: HTTPRoute}]}")
"""A listener; what is changed in a TLSRoute for a.org, into what; its conditions."""


@pytest.mark.parametrize(("case", "listener", "before", "after", "accepted", "resolved"), rows(TLS_ROUTES))
def test_tls_routes(case: str, listener: str, before: str, after: str, accepted: str, resolved: str) -> None:
    """Several cases of the official suite.

    TLSRouteSimpleSameNamespace, TLSRouteTerminateSimpleSameNamespace, TLSRouteInvalidReferenceGrant,
    TLSRouteInvalidBackendRefNonexistent, TLSRouteInvalidBackendRefUnknownKind,
    TLSRouteInvalidNoMatchingListener, TLSRouteInvalidNoMatchingListenerHostname.
    """
    way, _, more = listener.partition(", ")
    text = TLS_ROUTE.replace(before, after) if before else TLS_ROUTE
    planner = planned(gateway(f"{{name: tls, port: 443, {WAYS[way]}, {more}}}"), text, SERVICE, CERTIFICATE)
    (parent,) = status(planner, IngressKind.TLS_ROUTE, "web")["parents"]
    (found,) = status(planner, IngressKind.GATEWAY, "edge")["listeners"]
    said = (reasons(parent)["Accepted"], reasons(parent)["ResolvedRefs"], found["attachedRoutes"])
    assert said == (accepted, resolved, int(accepted == "Accepted")), case


@pytest.mark.parametrize(
    ("from_", "namespace", "let_in"),
    [
        ("from: None", "infra", False),
        ("from: Same", "infra", True),
        ("from: Same", "web", False),
        ("from: All", "web", True),
        ("from: Selector, selector: {matchLabels: {kubernetes.io/metadata.name: web}}", "web", True),
        ("from: Selector, selector: {matchLabels: {kubernetes.io/metadata.name: web}}", "infra", False),
    ],
)
def test_listener_set_allowed_namespaces(from_: str, namespace: str, *, let_in: bool) -> None:
    """Several cases of the official suite.

    ListenerSetAllowedNamespaceAll, ListenerSetAllowedNamespaceSame, ListenerSetAllowedNamespaceSelector,
    ListenerSetDefaultNotAllowed.
    """
    made = listener_set("more", "{name: more, port: 81, protocol: HTTP}")
    made = made.replace("infra/", f"{namespace}/").replace("parentRef: {", "parentRef: {namespace: infra, ")
    planner = planned(gateway(HTTP, more=f"allowedListeners: {{namespaces: {{{from_}}}}}"), made)
    found = reasons(status(planner, IngressKind.LISTENER_SET, "more", namespace))
    assert found["Accepted"] == ("Accepted" if let_in else "not NotAllowed")
    counted = status(planner, IngressKind.GATEWAY, "edge")["attachedListenerSets"]
    assert counted == int(let_in)


def test_gateway_name_maximum_length() -> None:
    """GatewayNameMaximumLength."""
    long = ".".join(["a" * 50] * 4)[:253]
    planner = planned(gateway(HTTP).replace("name: edge", f"name: {long}"), ROUTE.replace("edge", long), SERVICE)
    assert reasons(status(planner, IngressKind.GATEWAY, long))["Programmed"] == "Programmed"
    assert status(planner, IngressKind.GATEWAY, long)["listeners"][0]["attachedRoutes"] == 1


@pytest.mark.parametrize(
    ("case", "validation", "wanted"),
    [
        (
            "BackendTLSPolicyInvalidCACertificateRef",
            '{hostname: a.org, caCertificateRefs: [{group: "", kind: ConfigMap, name: nowhere}]}',
            {"Accepted": "not NoValidCACertificate", "ResolvedRefs": "not InvalidCACertificateRef"},
        ),
        (
            "BackendTLSPolicyInvalidKind",
            '{hostname: a.org, caCertificateRefs: [{group: "", kind: Odd, name: nowhere}]}',
            {"Accepted": "not NoValidCACertificate", "ResolvedRefs": "not InvalidKind"},
        ),
        (
            "BackendTLSPolicy",
            BY_SYSTEM,
            {"Accepted": "Accepted", "ResolvedRefs": "ResolvedRefs"},
        ),
    ],
)
def test_backend_tls_policies(case: str, validation: str, wanted: dict[str, str]) -> None:
    policy = tls_policy("web", validation)
    planner = planned(gateway(HTTP), ROUTE, SERVICE, policy)
    (ancestor,) = status(planner, IngressKind.BACKEND_TLS_POLICY, "web")["ancestors"]
    assert reasons(ancestor) == wanted, case
    assert ancestor["ancestorRef"]["name"] == "edge"


BUNDLE = """
apiVersion: certificates.k8s.io/v1beta1
kind: ClusterTrustBundle
metadata: {name: "example.com:signer:v1"}
spec: {signerName: example.com/signer, trustBundle: PEM}
"""
REF = "{group: certificates.k8s.io, kind: ClusterTrustBundle, name: 'example.com:signer:v1'}"
NO_AUTHORITY = {"Accepted": "not NoValidCACertificate", "ResolvedRefs": "not InvalidCACertificateRef"}
ALL_WELL = {"Accepted": "Accepted", "ResolvedRefs": "ResolvedRefs"}


@pytest.mark.parametrize("form", ["clusterTrustBundleRef: REF", "caCertificateRefs: [REF]"])
@pytest.mark.parametrize(
    ("content", "ref", "wanted"),
    [
        ("good", REF, ALL_WELL),
        ("good", REF.replace(":v1", ":v2"), NO_AUTHORITY),
        ("nonsense", REF, NO_AUTHORITY),
        ("''", REF, NO_AUTHORITY),
        ("good", REF.replace("ClusterTrustBundle", "Odd"), NO_AUTHORITY | {"ResolvedRefs": "not InvalidKind"}),
    ],
)
def test_authorities_are_in_a_cluster_trust_bundle(form: str, content: str, ref: str, wanted: dict[str, str]) -> None:
    """BackendTLSPolicyClusterTrustBundle, and GatewayFrontendClusterTrustBundle, of clients' certificates."""
    pem = make_certificate(now(), "a.org").partition("-----BEGIN PRIVATE KEY-----")[0]
    bundle = BUNDLE.replace("PEM", json.dumps(pem) if content == "good" else content)
    named = form.replace("REF", ref)
    validation = f"{{hostname: a.org, {named}}}"
    policy = tls_policy("web", validation)
    more = "caCertificateRefs: [], " if "Bundle" in form[:20] else ""
    tls = f"tls: {{frontend: {{default: {{validation: {{{more}{named}}}}}}}}}"
    https = "{name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: good}]}}"
    planner = planned(gateway(HTTP, https, more=tls), ROUTE, SERVICE, policy, bundle, tls_secret("good", "a.org"))
    (ancestor,) = status(planner, IngressKind.BACKEND_TLS_POLICY, "web")["ancestors"]
    assert reasons(ancestor) == wanted
    listener = status(planner, IngressKind.GATEWAY, "edge")["listeners"][1]
    kind = wanted["ResolvedRefs"].replace("InvalidKind", "InvalidCACertificateKind")
    assert (reasons(listener)["Accepted"], reasons(listener)["ResolvedRefs"]) == (wanted["Accepted"], kind)


def test_both_kinds_of_authorities_count_together() -> None:
    refs = f"caCertificateRefs: [{{group: '', kind: ConfigMap, name: nowhere}}], clusterTrustBundleRef: {REF}"
    policy = tls_policy("web", f"{{hostname: a.org, {refs}}}")
    pem = make_certificate(now(), "a.org").partition("-----BEGIN PRIVATE KEY-----")[0]
    planner = planned(gateway(HTTP), ROUTE, SERVICE, policy, BUNDLE.replace("PEM", json.dumps(pem)))
    (ancestor,) = status(planner, IngressKind.BACKEND_TLS_POLICY, "web")["ancestors"]
    assert reasons(ancestor) == {"Accepted": "Accepted", "ResolvedRefs": "not InvalidCACertificateRef"}


def test_a_machine_without_authorities_says_so() -> None:
    """HAProxy would refuse the whole configuration."""
    planner, sites = drawn(
        gateway(HTTP), ROUTE, SERVICE, POLICY, setting=GatewaySetting(has_system_authorities=lambda: False)
    )
    (ancestor,) = status(planner, IngressKind.BACKEND_TLS_POLICY, "web")["ancestors"]
    assert reasons(ancestor) == {"Accepted": "not Invalid", "ResolvedRefs": "ResolvedRefs"}
    assert all(pool.policy.verify is None for pool in sites.pools)


@pytest.mark.parametrize("code", [0, 1])
def test_haproxy_says_whether_it_has_authorities(tmp_path: Path, code: int) -> None:
    program = tmp_path / "haproxy"
    program.write_text(f'#!/bin/sh\ngrep -q "ca-file @system-ca" "$3" || exit 2\nexit {code}\n')
    program.chmod(0o755)
    assert has_system_authorities(str(program)) == (code == 0)


def test_the_page_names_the_features_that_no_class_tells_and_those_of_services() -> None:
    text = (ROOT / "docs" / "gateway-conformance.md").read_text().partition("## Features that are not told")[2]
    rows = re.findall(r"^\| (\w+) \| (.*) \|$", text.partition("\n## ")[0], re.MULTILINE)[1:]
    assert rows
    assert FEATURES.isdisjoint(name for name, _ in rows)
    assert {name for name, reason in rows if reason.startswith("told with ")} == WITH_SERVICES


def test_the_class_says_what_is_served_with_services() -> None:
    """GatewayInfrastructurePropagation: `vipwire up` makes a Service for each Gateway, if it has a range for them."""
    meta = f"{{name: {POOL.name}, namespace: {POOL.namespace}}}"
    ranges = f"{{apiVersion: v1, kind: ConfigMap, metadata: {meta}, data: {{}}}}"
    pool = GatewaySetting(pool=(IPv4Network("192.0.2.0/28"),))
    for setting, texts, told in ((None, (), False), (None, (ranges,), True), (pool, (ranges,), False)):
        planner = planned(gateway(HTTP), *texts, setting=setting)
        found = {
            each["name"] for each in status(planner, IngressKind.GATEWAY_CLASS, "vipwire", "")["supportedFeatures"]
        }
        assert found == (FEATURES | WITH_SERVICES if told else FEATURES)
