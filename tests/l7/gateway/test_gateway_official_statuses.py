"""Cases of the official suite about TCP-, UDP- and TLSRoutes, ListenerSets and policies, by planning alone."""

from typing import Any

import pytest
from tests.l7.gateway.site import tls_secret
from tests.l7.gateway.test_gateway_official import ENDED, GRANT, HANDED_ON, POLICY, SETS, TLS_ROUTE
from tests.l7.gateway.test_gateway_statuses import (
    CERTIFICATE,
    HTTP,
    NOW,
    ROUTE,
    SERVICE,
    gateway,
    listener_set,
    planned,
    reasons,
    snapshot_of,
    status,
)

from vipwire.kube.gateway_addresses import CONTROLLER
from vipwire_l7.gateway.plan.kinds.objects import GatewaySetting
from vipwire_l7.gateway.plan.merged_statuses import merge_status
from vipwire_l7.gateway.plan.planner import GatewayPlanner
from vipwire_l7.run.status_writer import rank_for_writing
from vipwire_l7.watch.objects import IngressKind

KINDS = {"TCP": IngressKind.TCP_ROUTE, "UDP": IngressKind.UDP_ROUTE}
ONE, OTHER = "{name: one, port: 81, protocol: PROTOCOL}", "{name: other, port: 82, protocol: PROTOCOL}"
BOTH = """
--- Service NAMESPACE/web
spec: {ports: [{name: tcp, port: 80}, {name: udp, port: 80, protocol: UDP}]}
"""


def plain_route(protocol: str, parent: str = "{name: edge}", backend: str = "{name: web, port: 80}") -> str:
    """Write a TCPRoute or UDPRoute."""
    text = ROUTE.replace("HTTPRoute", f"{protocol}Route").replace("{name: edge}", parent)
    return text.replace("{name: web, port: 80}", backend)


def seen(planner: GatewayPlanner, protocol: str, name: str = "web") -> dict[str, str]:
    (parent,) = status(planner, KINDS[protocol], name)["parents"]
    assert {each["observedGeneration"] for each in parent["conditions"]} == {2}
    return reasons(parent)


def attached(planner: GatewayPlanner) -> dict[str, int]:
    return {
        each["name"]: each["attachedRoutes"] for each in status(planner, IngressKind.GATEWAY, "edge")["listeners"]
    }


@pytest.mark.parametrize("protocol", ["TCP", "UDP"])
@pytest.mark.parametrize(
    ("case", "parent", "accepted", "counts"),
    [
        ("SimpleSameNamespace", "{name: edge, sectionName: one}", "Accepted", (1, 0)),
        ("ParentRefPortAndSectionName: port", "{name: edge, port: 82}", "Accepted", (0, 1)),
        ("ParentRefPortAndSectionName: both", "{name: edge, sectionName: other, port: 82}", "Accepted", (0, 1)),
        ("ParentRefAttachAll", "{name: edge}", "Accepted", (1, 1)),
        ("InvalidNonTCPListener", "{name: edge, sectionName: http}", "not NotAllowedByListeners", (0, 0)),
        ("InvalidNonTCPListener", "{name: edge, sectionName: strange}", "not NotAllowedByListeners", (0, 0)),
        ("ValidInvalidListeners", "{name: edge, sectionName: none}", "not NoMatchingParent", (0, 0)),
    ],
)
def test_routes_without_hosts_attach(
    protocol: str, case: str, parent: str, accepted: str, counts: tuple[int, int]
) -> None:
    """Several cases of the official suite.

    TCPRouteInvalidNonTCPListener, TCPRouteParentRefAttachAll, UDPRouteInvalidNonUDPListener,
    UDPRouteNotAllowedByListener, UDPRouteParentRefAttachAllListeners, UDPRouteValidInvalidListeners.

    Also UDPRouteParentRefPortAndSectionName.
    """
    strange = f"{{name: strange, port: 83, protocol: {'UDP' if protocol == 'TCP' else 'TCP'}}}"
    own = [each.replace("PROTOCOL", protocol) for each in (ONE, OTHER)]
    service = BOTH.replace("NAMESPACE", "infra")
    planner = planned(gateway(*own, HTTP, strange), plain_route(protocol, parent), service)
    assert seen(planner, protocol)["Accepted"] == accepted, case
    assert attached(planner) == {"one": counts[0], "other": counts[1], "http": 0, "strange": 0}
    made = {each["name"]: each for each in status(planner, IngressKind.GATEWAY, "edge")["listeners"]}
    assert made["one"]["supportedKinds"] == [{"group": "gateway.networking.k8s.io", "kind": f"{protocol}Route"}]


@pytest.mark.parametrize("protocol", ["TCP", "UDP"])
@pytest.mark.parametrize(
    ("case", "backend", "granted", "resolved"),
    [
        ("InvalidBackendRefNonexistent", "{name: none, port: 80}", "", "not BackendNotFound"),
        ("InvalidBackendRefUnknownKind", "{kind: Odd, name: web, port: 80}", "", "not InvalidKind"),
        ("InvalidCrossNamespaceBackendRef", "{name: web, namespace: web, port: 80}", "", "not RefNotPermitted"),
        ("InvalidReferenceGrant", "{name: web, namespace: web, port: 80}", "HTTPRoute", "not RefNotPermitted"),
        ("ReferenceGrant", "{name: web, namespace: web, port: 80}", "same", "ResolvedRefs"),
    ],
)
def test_routes_without_hosts_refer(protocol: str, case: str, backend: str, granted: str, resolved: str) -> None:
    """Several cases of the official suite.

    TCPRouteInvalidBackendRefNonexistent, TCPRouteInvalidCrossNamespaceBackendRef,
    TCPRouteInvalidReferenceGrant, TCPRouteReferenceGrant, UDPRouteInvalidCrossNamespaceBackendRef,
    UDPRouteReferenceGrant.
    """
    kind = granted.replace("same", f"{protocol}Route") or "Odd"
    grant = GRANT.replace("FROM", f"{{group: gateway.networking.k8s.io, kind: {kind}, namespace: infra}}")
    grant = grant.replace("TO", '{group: "", kind: Service, name: web}')
    listener = ONE.replace("PROTOCOL", protocol)
    service = BOTH.replace("NAMESPACE", "web")
    planner = planned(gateway(listener), plain_route(protocol, backend=backend), service, grant)
    assert seen(planner, protocol) == {"Accepted": "Accepted", "ResolvedRefs": resolved}, case


@pytest.mark.parametrize("protocol", ["TCP", "UDP"])
def test_of_routes_without_hosts_all_count(protocol: str) -> None:
    """TCPRouteMultipleRoutesAttachment, UDPRouteMultipleRoutesAttachment: which one is served, packets tell."""
    younger = plain_route(protocol).replace("name: web, namespace: infra", "name: younger, namespace: infra")
    listener = ONE.replace("PROTOCOL", protocol)
    planner = planned(gateway(listener), plain_route(protocol), younger, BOTH.replace("NAMESPACE", "infra"))
    for name in ("web", "younger"):
        assert seen(planner, protocol, name) == {"Accepted": "Accepted", "ResolvedRefs": "ResolvedRefs"}
    assert attached(planner) == {"one": 2}


def test_udp_tcp_listener_merge() -> None:
    listeners = [f"{{name: {each.lower()}, port: 53, protocol: {each}}}" for each in KINDS]
    routes = [plain_route(each) for each in KINDS]
    planner = planned(gateway(*listeners), *routes, BOTH.replace("NAMESPACE", "infra"))
    assert attached(planner) == {"tcp": 1, "udp": 1}
    for protocol in KINDS:
        assert seen(planner, protocol) == {"Accepted": "Accepted", "ResolvedRefs": "ResolvedRefs"}


@pytest.mark.parametrize(
    ("case", "way", "wanted", "kinds", "resolved"),
    [
        (
            "TLSRouteListenerPassthroughSupportedKinds",
            HANDED_ON,
            "TCPRoute TLSRoute",
            "TLSRoute",
            "not InvalidRouteKinds",
        ),
        ("TLSRouteListenerTerminateSupportedKinds", ENDED, "TLSRoute", "TLSRoute", "ResolvedRefs"),
        ("TCPRouteOnTLSTerminate", ENDED, "", "TLSRoute TCPRoute", "ResolvedRefs"),
    ],
)
def test_kinds_of_tls_listeners(case: str, way: str, wanted: str, kinds: str, resolved: str) -> None:
    asked = ", ".join(f"{{kind: {each}}}" for each in wanted.split())
    listener = f"{{name: a, port: 443, {way}, allowedRoutes: {{kinds: [{asked}]}}}}"
    (found,) = status(planned(gateway(listener), CERTIFICATE), IngressKind.GATEWAY, "edge")["listeners"]
    assert [each["kind"] for each in found["supportedKinds"]] == kinds.split(), case
    assert (reasons(found)["Accepted"], reasons(found)["ResolvedRefs"]) == ("Accepted", resolved)


def test_gateway_listener_protocol_and_route_kind_conflicts() -> None:
    """GatewayListenerProtocolAndRouteKindConflicts."""
    only = f"{{name: tls, port: 443, hostname: a.org, {HANDED_ON}, allowedRoutes: {{kinds: [{{kind: TLSRoute}}]}}}}"
    https = "{name: https, port: 8443, protocol: HTTPS, tls: {certificateRefs: [{name: good}]}}"
    rival = f"{{name: rival, port: 8443, {HANDED_ON}}}"
    route = ROUTE.replace("{name: edge}", "{name: edge, sectionName: tls}")
    tls = TLS_ROUTE.replace("{name: edge}", "{name: edge, sectionName: tls}")
    planner = planned(gateway(only, https, rival), route, tls, SERVICE, CERTIFICATE)
    (refused,) = status(planner, IngressKind.HTTP_ROUTE, "web")["parents"]
    assert reasons(refused) == {"Accepted": "not NotAllowedByListeners", "ResolvedRefs": "ResolvedRefs"}
    assert attached(planner) == {"tls": 1, "https": 0, "rival": 0}
    made = {each["name"]: reasons(each) for each in status(planner, IngressKind.GATEWAY, "edge")["listeners"]}
    for name in ("https", "rival"):
        assert made[name]["Conflicted"] == "ProtocolConflict"
        assert (made[name]["Accepted"], made[name]["Programmed"]) == ("not Invalid", "not Invalid")


def test_gateway_with_attached_routes() -> None:
    """GatewayWithAttachedRoutes, GatewayWithAttachedRoutesWithPort8080."""
    other = "{name: other, port: 8080, protocol: HTTP}"
    second = ROUTE.replace("name: web, namespace: infra", "name: second, namespace: infra")
    named = ROUTE.replace("{name: edge}", "{name: edge, sectionName: other}")
    for routes, counts in (((ROUTE,), (1, 1)), ((ROUTE, second), (2, 2)), ((named,), (0, 1))):
        planner = planned(gateway(HTTP, other), *routes, SERVICE)
        assert attached(planner) == {"http": counts[0], "other": counts[1]}
        for each in status(planner, IngressKind.GATEWAY, "edge")["listeners"]:
            assert (reasons(each)["Accepted"], reasons(each)["ResolvedRefs"]) == ("Accepted", "ResolvedRefs")


@pytest.mark.parametrize(
    ("more", "accepted", "programmed", "attached_sets"),
    [
        (
            "infrastructure: {parametersRef: {group: odd.io, kind: Odd, name: odd}}",
            "not ParentNotAccepted",
            "not ParentNotProgrammed",
            0,
        ),
        ("addresses: [{value: 192.0.2.9}]", "Accepted", "not ParentNotProgrammed", 1),
    ],
)
def test_listener_set_parent_not_accepted(more: str, accepted: str, programmed: str, attached_sets: int) -> None:
    """ListenerSetParentNotAccepted."""
    planner = planned(
        gateway(HTTP, more=f"{SETS}\n  {more}"), listener_set("more", "{name: x, port: 81, protocol: HTTP}")
    )
    made = status(planner, IngressKind.LISTENER_SET, "more")
    assert reasons(made) == {"Accepted": accepted, "Programmed": programmed}
    assert status(planner, IngressKind.GATEWAY, "edge")["attachedListenerSets"] == attached_sets
    everyone = (*made["listeners"], *status(planner, IngressKind.GATEWAY, "edge")["listeners"])
    assert [reasons(each)["Programmed"] for each in everyone] == ["not Pending", "not Pending"]


@pytest.mark.parametrize(("granted", "resolved"), [("ListenerSet", True), ("Gateway", False)])
def test_listener_set_reference_grant(granted: str, *, resolved: bool) -> None:
    """ListenerSetReferenceGrant."""
    tls = "tls: {certificateRefs: [{name: far, namespace: web}]}"
    grant = GRANT.replace("FROM", f"{{group: gateway.networking.k8s.io, kind: {granted}, namespace: infra}}")
    grant = grant.replace("TO", '{group: "", kind: Secret}')
    made = listener_set("more", f"{{name: x, port: 443, protocol: HTTPS, {tls}}}")
    planner = planned(gateway(HTTP, more=SETS), made, grant, tls_secret("far", "a.org", namespace="web"))
    found = status(planner, IngressKind.LISTENER_SET, "more")
    verdict = "Accepted" if resolved else "not ListenersNotValid"
    assert reasons(found)["Accepted"] == verdict
    assert reasons(found)["Programmed"] == ("Programmed" if resolved else verdict)
    listener = reasons(found["listeners"][0])
    assert listener["ResolvedRefs"] == ("ResolvedRefs" if resolved else "not RefNotPermitted")


def test_listener_set_allowed_routes_supported_kinds() -> None:
    """ListenerSetAllowedRoutesSupportedKinds.

    Also ListenerSetProtocolAndRouteKindConflicts.
    """
    kinds = "allowedRoutes: {kinds: [{kind: HTTPRoute}]}"
    planner = planned(
        gateway(HTTP, more=SETS),
        listener_set("more", f"{{name: x, port: 443, hostname: a.org, {HANDED_ON}, {kinds}}}"),
    )
    (found,) = status(planner, IngressKind.LISTENER_SET, "more")["listeners"]
    assert (reasons(found)["ResolvedRefs"], found["supportedKinds"]) == ("not InvalidRouteKinds", [])


@pytest.mark.parametrize(
    ("case", "parents", "accepted", "counts"),
    [
        ("RouteStatusScopedToParentRef: Gateway", "{name: edge}", ["Accepted"], (1, 0)),
        ("RouteStatusScopedToParentRef: set", "{kind: ListenerSet, name: more}", ["Accepted"], (0, 1)),
        ("DualParentRefIndependence", "{name: edge}, {kind: ListenerSet, name: more}", ["Accepted"] * 2, (1, 1)),
        (
            "DualParentRefIndependence: one",
            "{name: edge, sectionName: odd}, {kind: ListenerSet, name: more}",
            ["not NoMatchingParent", "Accepted"],
            (0, 1),
        ),
    ],
)
def test_listener_sets_and_gateways_are_parents_of_their_own(
    case: str, parents: str, accepted: list[str], counts: tuple[int, int]
) -> None:
    """ListenerSetRouteStatusScopedToParentRef, ListenerSetDualParentRefIndependence."""
    made = listener_set("more", "{name: x, port: 81, protocol: HTTP}")
    planner = planned(gateway(HTTP, more=SETS), made, ROUTE.replace("{name: edge}", parents), SERVICE)
    found = status(planner, IngressKind.HTTP_ROUTE, "web")["parents"]
    assert [reasons(each)["Accepted"] for each in found] == accepted, case
    (own,) = status(planner, IngressKind.LISTENER_SET, "more")["listeners"]
    assert (attached(planner)["http"], own["attachedRoutes"]) == counts


def test_gateway_update_listener_hostname() -> None:
    """Also ListenerSetUpdateListenerHostname: a route is judged anew when the listener has another host."""
    route = ROUTE.replace("rules:", "hostnames: [a.org]\n  rules:").replace(
        "{name: edge}", "{name: edge}, {kind: ListenerSet, name: more}"
    )
    planner = GatewayPlanner(GatewaySetting())
    for host, accepted in (("b.org", "not NoMatchingListenerHostname"), ("a.org", "Accepted")):
        own, more = (f"{{name: x, port: {port}, protocol: HTTP, hostname: {host}}}" for port in (80, 81))
        planner.update(snapshot_of(gateway(own, more=SETS), listener_set("more", more), route, SERVICE), NOW)
        found = status(planner, IngressKind.HTTP_ROUTE, "web")["parents"]
        assert [reasons(each)["Accepted"] for each in found] == [accepted] * 2


def test_parents_are_written_before_their_routes() -> None:
    """The suite reads the ListenerSet as soon as the route is accepted, and fails if it has no status of ours yet."""
    made = listener_set("more", "{name: x, port: 81, protocol: HTTP}")
    planner = planned(gateway(HTTP, more=SETS), made, ROUTE, SERVICE, POLICY)
    kinds = [kind.value for kind, _ in sorted(planner.statuses, key=rank_for_writing)]
    assert kinds == ["Gateway", "GatewayClass", "ListenerSet", "BackendTLSPolicy", "HTTPRoute"]


THEIRS = {
    "controllerName": "example.com/other",
    "conditions": [{"type": "Accepted", "status": "True", "reason": "Accepted", "lastTransitionTime": "then"}],
}


@pytest.mark.parametrize(
    ("case", "kind", "field", "ref"),
    [
        ("HTTPRoutePreserveForeignStatus", IngressKind.HTTP_ROUTE, "parents", "parentRef"),
        ("BackendTLSPolicyPreserveForeignStatus", IngressKind.BACKEND_TLS_POLICY, "ancestors", "ancestorRef"),
    ],
)
def test_what_other_controllers_say_stays(case: str, kind: IngressKind, field: str, ref: str) -> None:
    theirs = {ref: {"name": "theirs"}, **THEIRS}
    ours = status(planned(gateway(HTTP), ROUTE, SERVICE, POLICY), kind, "web")
    written: Any = merge_status(ours, {field: [theirs]}, CONTROLLER, "now")
    assert [each["controllerName"] for each in written[field]] == [CONTROLLER, "example.com/other"], case
    assert written[field][1] == theirs


def test_a_policys_ancestors_are_the_gateways_whose_routes_lead_to_its_service() -> None:
    """The API takes 16 of them, so that others than these may not be told."""
    more = [gateway(HTTP).replace("name: edge", f"name: more-{number}") for number in range(20)]
    planner = planned(gateway(HTTP), *more, ROUTE, SERVICE, POLICY)
    found = status(planner, IngressKind.BACKEND_TLS_POLICY, "web")["ancestors"]
    assert [each["ancestorRef"]["name"] for each in found] == ["edge"]
    parents = ", ".join(["{name: edge}", *(f"{{name: more-{number}}}" for number in range(20))])
    planner = planned(gateway(HTTP), *more, ROUTE.replace("{name: edge}", parents), SERVICE, POLICY)
    assert len(status(planner, IngressKind.BACKEND_TLS_POLICY, "web")["ancestors"]) == 16
    planner = planned(gateway(HTTP), SERVICE, POLICY)
    assert status(planner, IngressKind.BACKEND_TLS_POLICY, "web")["ancestors"] == []
