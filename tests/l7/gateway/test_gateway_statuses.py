"""What statuses say: the official suite's cases about conditions, by planning alone. Cases have its names."""

from ipaddress import ip_network
from typing import Any

import msgspec
import pytest
from tests.l7.gateway.site import BASE, documents, tls_secret
from tests.l7.plans import ToldPlan, listed, plan_all

from vipwire.kube.gateway_addresses import CONTROLLER
from vipwire.model.names import ObjectName
from vipwire.watched_objects.event import Upserted
from vipwire_l7.gateway.plan.kinds.objects import GatewaySetting
from vipwire_l7.gateway.plan.merged_statuses import merge_status
from vipwire_l7.gateway.plan.planner import GatewayPlanner
from vipwire_l7.gateway.watch.kinds import RESOURCES
from vipwire_l7.haproxy.configuration import build_configuration
from vipwire_l7.haproxy.layout import Layout
from vipwire_l7.watch.objects import IngressKind
from vipwire_l7.watch.snapshot import Snapshot

NOW = 1_800_000_000.0
CERTIFICATE = tls_secret("good", "a.org")
GATEWAY = """
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: infra, generation: 3}
spec:
  gatewayClassName: vipwire
  LISTENERS
"""
ROUTE = """
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web, namespace: infra, generation: 2}
spec:
  parentRefs: [{name: edge}]
  rules: [{backendRefs: [{name: web, port: 80}]}]
"""
SERVICE = """
--- Service infra/web
spec: {ports: [{port: 80}]}
"""


def planned(*texts: str, setting: GatewaySetting | None = None) -> GatewayPlanner:
    """Plan objects."""
    return drawn(*texts, setting=setting)[0]


def drawn(*texts: str, setting: GatewaySetting | None = None) -> tuple[GatewayPlanner, ToldPlan]:
    """Plan objects; return the plan as well."""
    planner = GatewayPlanner(setting or GatewaySetting(addresses=("192.0.2.1",)))
    return planner, plan_all(planner, snapshot_of(*texts), NOW)


def snapshot_of(*texts: str) -> Snapshot:
    """Read objects."""
    snapshot = listed(kinds=RESOURCES)
    for each in (document for text in (BASE, *texts) for document in documents(text)):
        resource = RESOURCES[IngressKind(each["kind"])]
        made, problems = resource.convert(msgspec.convert(each, resource.type))
        assert made is not None, problems
        snapshot.apply(Upserted(made, problems))
    return snapshot


def gateway(*listeners: str, more: str = "") -> str:
    """Write a Gateway with listeners, each in YAML's flow style."""
    return GATEWAY.replace("LISTENERS", f"listeners: [{', '.join(listeners)}]\n  {more}")


def status(planner: GatewayPlanner, kind: IngressKind, name: str, namespace: str = "infra") -> Any:
    return planner.statuses[kind, ObjectName(namespace, name)]


def reasons(of: Any) -> dict[str, str]:
    """Return the reasons of conditions; those of conditions that do not hold begin with `not `."""
    return {each["type"]: ("" if each["status"] == "True" else "not ") + each["reason"] for each in of["conditions"]}


def of_route(planner: GatewayPlanner, kind: IngressKind = IngressKind.HTTP_ROUTE) -> dict[str, str]:
    return reasons(status(planner, kind, "web")["parents"][0])


HTTP = "{name: http, port: 80, protocol: HTTP}"


LISTENERS = """
Gateway | HTTP | Accepted | Programmed | ResolvedRefs
GatewayInvalidRouteKind | HTTP, allowedRoutes: {kinds: [{kind: Odd}]} | Accepted | Programmed | not InvalidRouteKinds
GatewayUnsupportedProtocol | example.com/odd | not UnsupportedProtocol | not Invalid | ResolvedRefs
GatewayInvalidTLSConfiguration: no Secret | {name: none} | Accepted | not Invalid | not InvalidCertificateRef
GatewayInvalidTLSConfiguration: kind | {name: good, kind: Odd} | Accepted | not Invalid | not InvalidCertificateRef
GatewayInvalidTLSConfiguration: group | {name: good, group: odd} | Accepted | not Invalid | not InvalidCertificateRef
GatewayInvalidTLSConfiguration: malformed | {name: malformed} | Accepted | not Invalid | not InvalidCertificateRef
GatewayInvalidTLSConfiguration: empty | {name: empty} | Accepted | not Invalid | not InvalidCertificateRef
GatewaySecretMissingReferenceGrant | {name: good, namespace: web} | Accepted | not Invalid | not RefNotPermitted
GatewayTLS | {name: good} | Accepted | Programmed | ResolvedRefs
"""
"""A protocol, or the certificate of a listener for HTTPS; its conditions."""
BAD_SECRETS = """
{kind: Secret, metadata: {name: malformed, namespace: infra}, stringData: {tls.crt: odd, tls.key: odd}}
---
{kind: Secret, metadata: {name: empty, namespace: infra}, stringData: {}}
"""


def rows(text: str) -> list[tuple[str, ...]]:
    """Read a table: a row in a line, cells between bars."""
    return [tuple(cell.strip() for cell in line.split("|")) for line in text.strip().splitlines()]


@pytest.mark.parametrize(("case", "more", "accepted", "programmed", "resolved"), rows(LISTENERS))
def test_listeners(case: str, more: str, accepted: str, programmed: str, resolved: str) -> None:
    """GatewayInvalidListenersUnsupportedProtocol, GatewaySecretMissingReferencedSecret."""
    of_protocol = f"{{name: a, port: 80, protocol: {more}}}"
    of_https = f"{{name: a, port: 443, protocol: HTTPS, tls: {{certificateRefs: [{more}]}}}}"
    listener = of_https if more.startswith("{") else of_protocol
    planner = planned(gateway(listener), CERTIFICATE, BAD_SECRETS)
    (found,) = status(planner, IngressKind.GATEWAY, "edge")["listeners"]
    wanted = {"Accepted": accepted, "Programmed": programmed, "ResolvedRefs": resolved}
    assert reasons(found) == {**wanted, "Conflicted": "not NoConflicts"}, case
    assert {each["observedGeneration"] for each in found["conditions"]} == {3}


def test_kinds_that_a_listener_takes_are_told() -> None:
    kinds = "allowedRoutes: {kinds: [{kind: HTTPRoute}, {kind: TCPRoute}]}"
    planner = planned(gateway(HTTP, f"{{name: a, port: 81, protocol: HTTP, {kinds}}}"))
    found = [
        [kind["kind"] for kind in each["supportedKinds"]]
        for each in status(planner, IngressKind.GATEWAY, "edge")["listeners"]
    ]
    assert found == [["HTTPRoute", "GRPCRoute"], ["HTTPRoute"]]


def test_listeners_at_one_place_are_told_apart_or_in_conflict() -> None:
    planner = planned(
        gateway(
            HTTP,
            "{name: host, port: 80, protocol: HTTP, hostname: a.org}",
            "{name: same, port: 80, protocol: HTTP, hostname: a.org}",
            "{name: web, port: 81, protocol: HTTP, hostname: a.org}",
            "{name: tcp, port: 81, protocol: TCP}",
            "{name: udp, port: 80, protocol: UDP}",
            "{name: ends, port: 443, protocol: HTTPS, hostname: a.org, tls: {certificateRefs: [{name: a}]}}",
            "{name: hands, port: 443, protocol: TLS, hostname: a.org, tls: {mode: Passthrough}}",
            "{name: other, port: 443, protocol: TLS, hostname: b.org, tls: {mode: Passthrough}}",
        )
    )
    made = status(planner, IngressKind.GATEWAY, "edge")
    found = {each["name"]: reasons(each)["Conflicted"] for each in made["listeners"]}
    # None of those that want the same place may be picked as the winner.
    assert found == {
        "http": "not NoConflicts",
        "host": "HostnameConflict",
        "same": "HostnameConflict",
        "web": "ProtocolConflict",
        "tcp": "ProtocolConflict",
        "udp": "not NoConflicts",
        "ends": "ProtocolConflict",
        "hands": "ProtocolConflict",
        "other": "not NoConflicts",
    }
    assert reasons(made) == {"Accepted": "ListenersNotValid", "Programmed": "Programmed"}
    of_tcp = next(each for each in made["listeners"] if each["name"] == "tcp")
    assert (reasons(of_tcp)["Accepted"], reasons(of_tcp)["Programmed"]) == ("not Invalid", "not Invalid")


POOL = GatewaySetting(pool=(ip_network("192.0.2.8/31"), ip_network("2001:db8::/127")))


def named_gateways(*names: str, more: str = "") -> tuple[str, ...]:
    return tuple(gateway(HTTP, more=more).replace("name: edge", f"name: {name}") for name in names)


def addresses_of(planner: GatewayPlanner, name: str) -> list[str]:
    return [each["value"] for each in status(planner, IngressKind.GATEWAY, name)["addresses"]]


def test_gateways_without_addresses_get_each_their_own_of_the_pool() -> None:
    planner = planned(*named_gateways("a", "b", "c"), setting=POOL)
    assert [addresses_of(planner, name) for name in "abc"] == [
        ["192.0.2.8", "2001:db8::"],
        ["192.0.2.9", "2001:db8::1"],
        [],
    ]
    assert reasons(status(planner, IngressKind.GATEWAY, "c")) == {
        "Accepted": "Accepted",
        "Programmed": "not AddressNotAssigned",
    }
    # Who has one keeps it when an older one goes, and what is free is given to who waits.
    planner.update(snapshot_of(*named_gateways("b", "c")), NOW)
    assert [addresses_of(planner, name)[0] for name in "bc"] == ["192.0.2.9", "192.0.2.8"]


def test_a_gateway_with_an_address_of_ipv6_can_be_written() -> None:
    setting = GatewaySetting(pool=(ip_network("2001:db8::/127"),))
    _, plan = drawn(gateway(HTTP), setting=setting)
    layout = Layout("/run/x", "/run/x/socket")
    written = build_configuration(plan, {pool.name: () for pool in plan.pools}, layout, "").write_text("mark")
    assert "frontend gateway:2001:db8:::80\n    bind '[2001:db8::]:80'\n" in written


def test_after_a_restart_a_gateway_has_the_address_that_its_status_says() -> None:
    told = named_gateways("b")[0] + "status: {addresses: [{value: 192.0.2.8}, {value: 7}, {value: 192.0.2.1}]}\n"
    planner = planned(named_gateways("a")[0], told, setting=POOL)
    assert [addresses_of(planner, name)[0] for name in "ab"] == ["192.0.2.9", "192.0.2.8"]


def test_an_address_of_the_pool_that_a_gateway_names_is_its_own() -> None:
    names = named_gateways("b", more="addresses: [{value: 192.0.2.8}]")
    planner = planned(*named_gateways("a"), *names, setting=POOL)
    assert [addresses_of(planner, name)[0] for name in "ab"] == ["192.0.2.9", "192.0.2.8"]
    assert len(plan_all(planner, snapshot_of(*named_gateways("a"), *names), NOW).frontends) == 3


SET = """
--- ListenerSet infra/NAME
spec: {parentRef: {name: edge}, listeners: [LISTENERS]}
"""


def listener_set(name: str, *listeners: str) -> str:
    """Write a ListenerSet; without dates their names say which is older."""
    return SET.replace("NAME", name).replace("LISTENERS", ", ".join(listeners))


@pytest.mark.parametrize(
    ("case", "listener", "conflict"),
    [
        ("ListenerSetHostnameConflict", "{name: x, port: 80, protocol: HTTP, hostname: a.org}", "HostnameConflict"),
        ("ListenerSetProtocolConflict", "{name: x, port: 80, protocol: TCP}", "ProtocolConflict"),
    ],
)
def test_of_owners_the_gateway_comes_first_and_then_the_older_set(case: str, listener: str, conflict: str) -> None:
    own = "{name: own, port: 80, protocol: HTTP, hostname: a.org}"
    shared = "{name: shared, port: 90, protocol: HTTP, hostname: b.org}"
    planner = planned(
        gateway(own, more="allowedListeners: {namespaces: {from: Same}}"),
        listener_set("a", listener, shared),
        listener_set("b", listener),
        listener_set("c", shared, "{name: fine, port: 91, protocol: HTTP}"),
    )
    made = status(planner, IngressKind.GATEWAY, "edge")
    assert reasons(made["listeners"][0])["Accepted"] == "Accepted"
    assert made["attachedListenerSets"] == 2, case
    sets = {name: status(planner, IngressKind.LISTENER_SET, name) for name in "abc"}
    for name, wanted in (("a", conflict), ("b", conflict), ("c", "HostnameConflict")):
        told = reasons(sets[name]["listeners"][0])
        assert (told["Accepted"], told["Programmed"], told["Conflicted"]) == (
            f"not {wanted}",
            f"not {wanted}",
            wanted,
        )
    assert reasons(sets["a"]["listeners"][1])["Accepted"] == "Accepted"
    assert reasons(sets["b"]) == {"Accepted": "not ListenersNotValid", "Programmed": "not ListenersNotValid"}
    assert reasons(sets["c"])["Programmed"] == "Programmed"


def test_gateway_overlapping_tls_config_hostnames() -> None:
    """GatewayOverlappingTLSConfigHostnames."""
    hosts = {"foo": "foo.a.org", "bar": "bar.bar.a.org", "wild": "'*.a.org'", "apart": "a.org"}
    tls = "protocol: HTTPS, tls: {certificateRefs: [{name: good}]}"
    listeners = [f"{{name: {name}, port: 443, hostname: {host}, {tls}}}" for name, host in hosts.items()]
    planner = planned(gateway(*listeners, f"{{name: other, port: 9443, hostname: foo.a.org, {tls}}}"), CERTIFICATE)
    made = status(planner, IngressKind.GATEWAY, "edge")
    found = {each["name"]: reasons(each).get("OverlappingTLSConfig") for each in made["listeners"]}
    assert found == dict.fromkeys(("foo", "bar", "wild"), "OverlappingHostnames") | {"apart": None, "other": None}
    assert {reasons(each)["Accepted"] for each in made["listeners"]} == {"Accepted"}


def test_gateway_invalid_parameters_ref() -> None:
    """GatewayInvalidParametersRef."""
    more = "infrastructure: {labels: {a: b}, parametersRef: {group: odd.io, kind: Odd, name: odd}}"
    made = status(planned(gateway(HTTP, more=more)), IngressKind.GATEWAY, "edge")
    assert reasons(made) == {"Accepted": "not InvalidParameters", "Programmed": "not Invalid"}
    fine = status(planned(gateway(HTTP, more="infrastructure: {labels: {a: b}}")), IngressKind.GATEWAY, "edge")
    assert reasons(fine) == {"Accepted": "Accepted", "Programmed": "Programmed"}


def test_conditions_of_others_stay_and_ours_go_when_there_is_nothing_to_say() -> None:
    """GatewayPreserveForeignConditions."""
    theirs = {"type": "example.com/Odd", "status": "True", "reason": "Odd", "lastTransitionTime": "then"}
    gone = {"type": "OverlappingTLSConfig", "status": "True", "reason": "X", "lastTransitionTime": "then"}
    made = status(planned(gateway(HTTP)), IngressKind.GATEWAY, "edge")
    before = {"conditions": [theirs], "listeners": [{"name": "http", "conditions": [theirs, gone]}]}
    written = merge_status(made, before, CONTROLLER, "now")
    assert theirs in written["conditions"]
    (listener,) = written["listeners"]
    assert theirs in listener["conditions"]
    assert "OverlappingTLSConfig" not in {each["type"] for each in listener["conditions"]}


@pytest.mark.parametrize(
    ("bind", "port", "accepted"),
    [
        ("*", 80, "not PortUnavailable"),
        ("[::]", 80, "not PortUnavailable"),
        ("*", 81, "Accepted"),
        ("192.0.2.1", 80, "Accepted"),
    ],
)
def test_where_ingresses_come_in_no_listener_is(bind: str, port: int, accepted: str) -> None:
    setting = GatewaySetting(bind=bind, addresses=("192.0.2.1",), reserved=frozenset({"*:80"}))
    planner = planned(gateway(f"{{name: a, port: {port}, protocol: HTTP}}"), setting=setting)
    assert reasons(status(planner, IngressKind.GATEWAY, "edge")["listeners"][0])["Accepted"] == accepted


def test_a_gateway_whose_address_changes_says_so_at_the_next_plan() -> None:
    found = ["192.0.2.1"]
    snapshot = snapshot_of(gateway(HTTP))
    planner = GatewayPlanner(GatewaySetting(), lambda: tuple(found))
    for address in ("192.0.2.1", "192.0.2.2"):
        found[0] = address
        planner.update(snapshot, NOW)
        made = status(planner, IngressKind.GATEWAY, "edge")["addresses"]
        assert made == [{"type": "IPAddress", "value": address}]


def test_a_gateway_without_any_valid_listener_is_not_accepted() -> None:
    made = status(planned(gateway("{name: a, port: 80, protocol: odd}")), IngressKind.GATEWAY, "edge")
    assert reasons(made) == {"Accepted": "not ListenersNotValid", "Programmed": "not Invalid"}


def test_the_older_gateway_has_the_protocol_of_a_port_that_both_share() -> None:
    younger = gateway("{name: tcp, port: 80, protocol: TCP}").replace("name: edge", "name: younger")
    made = status(planned(gateway(HTTP), younger), IngressKind.GATEWAY, "younger")
    assert reasons(made["listeners"][0])["Accepted"] == "not PortUnavailable"


@pytest.mark.parametrize(
    ("addresses", "accepted", "programmed", "reached"),
    [
        ("[{value: 192.0.2.7}]", "Accepted", "Programmed", ["192.0.2.7"]),
        ("[{type: IPAddress}]", "Accepted", "Programmed", ["192.0.2.1"]),
        ("[{value: 192.0.2.8}]", "Accepted", "not AddressNotUsable", []),
        ("[{value: 192.0.2.8}, {value: 192.0.2.7}]", "Accepted", "not AddressNotUsable", []),
        ("[{type: example.com/odd, value: x}, {value: 192.0.2.7}]", "not UnsupportedAddress", "not Invalid", []),
    ],
)
def test_gateway_static_addresses(addresses: str, accepted: str, programmed: str, reached: list[str]) -> None:
    """GatewayOptionalAddressValue, GatewayStaticAddresses."""
    setting = GatewaySetting(addresses=("192.0.2.1",), usable=frozenset({"192.0.2.7"}))
    made = status(
        planned(gateway(HTTP, more=f"addresses: {addresses}"), setting=setting), IngressKind.GATEWAY, "edge"
    )
    assert reasons(made) == {"Accepted": accepted, "Programmed": programmed}
    assert [each["value"] for each in made["addresses"]] == reached


ROUTES = """
HTTPRouteSimpleSameNamespace | | | Accepted | ResolvedRefs
NotMatchingSectionName | {name: edge} | {name: edge, sectionName: x} | not NoMatchingParent | ResolvedRefs
NotMatchingListenerPort | {name: edge} | {name: edge, port: 81} | not NoMatchingParent | ResolvedRefs
HTTPRouteParentRefPort | {name: edge} | {name: edge, port: 80} | Accepted | ResolvedRefs
HostnameIntersection | rules: | hostnames: [b.com], rules: | not NoMatchingListenerHostname | ResolvedRefs
InvalidCrossNamespaceParentRef | infra, | web, | not NotAllowedByListeners |
InvalidNonExistentBackendRef | {name: web, port | {name: none, port | Accepted | not BackendNotFound
InvalidBackendRefUnknownKind | {name: web, port | {kind: Odd, name: web, port | Accepted | not InvalidKind
InvalidCrossNamespaceBackendRef | {name: web, p | {namespace: web, name: web, p | Accepted | not RefNotPermitted
DisallowedKind | kind: HTTPRoute | kind: TCPRoute | not NotAllowedByListeners | ResolvedRefs
"""
"""What is changed in a route, into what; its conditions."""


@pytest.mark.parametrize(("case", "before", "after", "accepted", "resolved"), rows(ROUTES))
def test_routes(case: str, before: str, after: str, accepted: str, resolved: str) -> None:
    """Several cases of the official suite.

    HTTPRouteDisallowedKind, HTTPRouteInvalidCrossNamespaceParentRef,
    HTTPRouteInvalidParentRefNotMatchingListenerPort, HTTPRouteInvalidParentRefNotMatchingSectionName.
    """
    text = ROUTE.replace(before, after.replace(", rules:", "\n  rules:")) if before else ROUTE
    text = text.replace("{name: edge", "{namespace: infra, name: edge")
    planner = planned(gateway("{name: http, port: 80, protocol: HTTP, hostname: '*.a.org'}"), text, SERVICE)
    kind = IngressKind.TCP_ROUTE if "TCPRoute" in text else IngressKind.HTTP_ROUTE
    namespace = "web" if before == "infra," else "infra"
    (parent,) = status(planner, kind, "web", namespace)["parents"]
    found = reasons(parent)
    assert (found["Accepted"], found["ResolvedRefs"] if resolved else "") == (accepted, resolved), case
    assert {each["observedGeneration"] for each in parent["conditions"]} == {2}
    counted = status(planner, IngressKind.GATEWAY, "edge")["listeners"][0]["attachedRoutes"]
    assert counted == (accepted == "Accepted")


def test_routes_of_nobodys_gateways_and_classes_of_others_have_no_status() -> None:
    other = BASE.replace("name: vipwire,", "name: other,").replace("vipwire.io/gateway", "example.com/other")
    theirs = gateway(HTTP).replace("gatewayClassName: vipwire", "gatewayClassName: other")
    planner = planned(other, theirs, ROUTE, SERVICE)
    assert {key[1].name for key in planner.statuses} == {"vipwire"}


@pytest.mark.parametrize(
    ("from_", "to", "granted"),
    [
        ("{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: infra}", '{group: "", kind: Service}', True),
        ("{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: infra}", "{kind: Service, name: web}", True),
        (
            "{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: infra}",
            "{kind: Service, name: odd}",
            False,
        ),
        ("{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: other}", "{kind: Service}", False),
        ("{group: gateway.networking.k8s.io, kind: TCPRoute, namespace: infra}", "{kind: Service}", False),
        ("{group: example.com, kind: HTTPRoute, namespace: infra}", "{kind: Service}", False),
        ("{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: infra}", "{kind: Secret}", False),
    ],
)
def test_a_reference_needs_a_grant_that_names_both_sides(from_: str, to: str, *, granted: bool) -> None:
    """HTTPRouteInvalidReferenceGrant, HTTPRoutePartiallyInvalidViaInvalidReferenceGrant."""
    grant = f"""
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {{name: grant, namespace: web}}
spec: {{from: [{from_}], to: [{to}]}}
"""
    route = ROUTE.replace("{name: web, port", "{namespace: web, name: web, port")
    planner = planned(gateway(HTTP), route, SERVICE.replace("infra/", "web/"), grant)
    assert of_route(planner)["ResolvedRefs"] == ("ResolvedRefs" if granted else "not RefNotPermitted")


def test_a_mirror_that_is_nowhere_is_told_and_the_rule_serves() -> None:
    mirror = "filters: [{type: RequestMirror, requestMirror: {backendRef: {name: none, port: 80}}}]"
    planner = planned(gateway(HTTP), ROUTE.replace("{backendRefs", f"{{{mirror}, backendRefs"), SERVICE)
    assert of_route(planner) == {"Accepted": "Accepted", "ResolvedRefs": "not BackendNotFound"}


def test_a_route_that_fails_unexpectedly_costs_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("vipwire_l7.gateway.plan.routes.plan_entries", fail)
    planner = planned(gateway(HTTP), ROUTE, SERVICE)
    (parent,) = status(planner, IngressKind.HTTP_ROUTE, "web")["parents"]
    assert "boom" in parent["conditions"][0]["message"]
    assert reasons(parent)["Accepted"] == "not UnsupportedValue"


def test_a_name_that_is_no_host_is_left_out_and_told() -> None:
    some = ROUTE.replace("rules:", 'hostnames: ["a.org", "b c"]\n  rules:')
    planner, plan = drawn(gateway(HTTP), some, SERVICE)
    (parent,) = status(planner, IngressKind.HTTP_ROUTE, "web")["parents"]
    assert (reasons(parent)["Accepted"], plan.sites) == ("Accepted", frozenset({"a.org:80"}))
    assert "'b c'" in parent["conditions"][0]["message"]
    planner, plan = drawn(gateway(HTTP), some.replace('"a.org", ', ""), SERVICE)
    assert (of_route(planner)["Accepted"], plan.routes) == ("not UnsupportedValue", ())
