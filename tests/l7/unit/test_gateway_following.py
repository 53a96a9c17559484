"""Following changes of the Gateway API's objects one by one comes to what planning everything anew does.

Nothing plans anew by the clock: an object whose change was overlooked would stay unseen.
"""

from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.l7.gateway.site import now, secret_of
from tests.l7.plans import count_calls, listed

from vipwire.kube.gateway_addresses import POOL
from vipwire.model.names import ObjectName
from vipwire.watched_objects.event import Deleted, Upserted
from vipwire_l7.gateway.plan.kinds.objects import GatewaySetting
from vipwire_l7.gateway.plan.planner import GatewayPlanner
from vipwire_l7.gateway.watch.kinds import RESOURCES
from vipwire_l7.haproxy.backends import name_spares
from vipwire_l7.haproxy.configuration import Configuration
from vipwire_l7.haproxy.layout import Layout
from vipwire_l7.haproxy.refused import remove_parts
from vipwire_l7.haproxy.state import WHOLE, Change, Delta, record_change
from vipwire_l7.run.default_certificate import make_certificate
from vipwire_l7.run.desired import Desired
from vipwire_l7.watch.objects import IngressKind
from vipwire_l7.watch.snapshot import ChangeExtent

pytestmark = pytest.mark.slow

LAYOUT = Layout("/run/x", "/run/x/sock")
NOW = now()
PAIR, OTHER = (make_certificate(NOW, "a.org", "*.b.org") for _ in range(2))
USERS = "x:$6$abcdefgh$abcdefgh"
AUTHORITY = PAIR.partition("-----BEGIN PRIVATE KEY-----")[0]

ALL = "allowedRoutes: {namespaces: {from: All}}"
BY_LABEL = "allowedRoutes: {namespaces: {from: Selector, selector: {matchLabels: {open: 'yes'}}}}"
HTTP, NARROW = (
    f"{{name: http, port: 80, protocol: HTTP, {ALL}}}",
    "{name: http, port: 80, protocol: HTTP, hostname: a.org}",
)
LABELLED = f"{{name: http, port: 80, protocol: HTTP, {BY_LABEL}}}"
HTTPS = f"{{name: https, port: 443, protocol: HTTPS, {ALL}, tls: {{certificateRefs: [{{name: pair}}]}}}}"
FAR = "{name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: pair, namespace: web}]}}"
PASSED = f"{{name: tls, port: 443, protocol: TLS, hostname: '*.b.org', {ALL}, tls: {{mode: Passthrough}}}}"
TCP, UDP = f"{{name: tcp, port: 99, protocol: TCP, {ALL}}}", f"{{name: udp, port: 99, protocol: UDP, {ALL}}}"
CHECKED = (
    "tls: {frontend: {default: {validation: {caCertificateRefs: [{group: '', kind: ConfigMap, name: authority}]}}}}"
)
SHOWN = "tls: {backend: {clientCertificateRef: {name: shown}}}"
SETS = "allowedListeners: {namespaces: {from: All}}"
EDGE = "parentRefs: [{name: edge, namespace: infra}]"
SET = "parentRefs: [{kind: ListenerSet, name: more, namespace: web}]"


def gateway(*listeners: str, more: str = SETS) -> str:
    return f"{{gatewayClassName: vipwire, listeners: [{', '.join(listeners)}], {more}}}"


def route(parents: str, backend: str, more: str = "", hosts: str = "hostnames: [a.org], ") -> str:
    return f"{{{parents}, {hosts}rules: [{{backendRefs: [{{{backend}, port: 80}}]{more}}}]}}"


def asking(name: str) -> str:
    auth = f"{{protocol: HTTP, http: {{path: /x}}, backendRef: {{name: {name}, port: 80}}}}"
    return f", filters: [{{type: ExternalAuth, externalAuth: {auth}}}]"


NEAR, ACROSS, GONE = "name: a", "name: b, namespace: infra", "name: nobody"
MIRRORS = ", filters: [{type: RequestMirror, requestMirror: {backendRef: {name: b, port: 80}}}]"
GRANT = (
    "{{from: [{{group: gateway.networking.k8s.io, kind: {kind}, namespace: {source}}}], "
    "to: [{{group: '', kind: {to}}}]}}"
)
SERVICE = "{clusterIP: 10.96.0.1, ports: [{name: http, port: 80, protocol: TCP%s}]}"
Key = tuple[str, str, str]
RANGES: Key = ("ConfigMap", *POOL)
VARIANTS: dict[Key, list[str]] = {
    ("GatewayClass", "", "vipwire"): [
        "{controllerName: vipwire.io/gateway}",
        "{controllerName: example.com/other}",
        "{controllerName: vipwire.io/gateway, parametersRef: {group: x, kind: Y, name: z}}",
    ],
    ("Gateway", "infra", "edge"): [
        gateway(HTTP, HTTPS),
        gateway(NARROW, FAR, TCP),
        gateway(LABELLED, PASSED, UDP),
        gateway(HTTP, HTTPS, more=CHECKED),
        gateway(HTTP, more=SHOWN),
        gateway(HTTP, TCP, UDP, more="addresses: [{value: 192.0.2.1}]"),
    ],
    ("Gateway", "infra", "second"): [gateway(HTTP, more=SHOWN), gateway(PASSED)],
    ("ListenerSet", "web", "more"): [
        f"{{parentRef: {{name: edge, namespace: infra}}, listeners: [{each}]}}"
        for each in (HTTP.replace("80", "81"), HTTPS.replace("443", "444"), TCP)
    ],
    ("HTTPRoute", "infra", "one"): [
        route(EDGE, NEAR),
        route(EDGE, GONE),
        route(EDGE, NEAR, MIRRORS),
        route(EDGE, NEAR, asking("b")),
        route(SET, NEAR, hosts=""),
    ],
    ("HTTPRoute", "web", "two"): [route(EDGE, ACROSS), route(EDGE, NEAR), route(SET, ACROSS)],
    ("GRPCRoute", "infra", "calls"): [route(EDGE, "name: b"), route(EDGE, GONE)],
    ("TLSRoute", "web", "passed"): [
        route(EDGE, ACROSS, hosts="hostnames: [x.b.org], "),
        route(EDGE, NEAR, hosts="hostnames: [y.b.org], "),
    ],
    ("TCPRoute", "infra", "plain"): [route(EDGE, NEAR, hosts=""), route(EDGE, GONE, hosts="")],
    ("UDPRoute", "web", "datagrams"): [route(EDGE, ACROSS, hosts=""), route(EDGE, NEAR, hosts="")],
    ("ReferenceGrant", "infra", "services"): [
        GRANT.format(kind="HTTPRoute", source="web", to="Service"),
        GRANT.format(kind="UDPRoute", source="web", to="Service"),
    ],
    ("ReferenceGrant", "web", "secrets"): [GRANT.format(kind="Gateway", source="infra", to="Secret")],
    ("BackendTLSPolicy", "infra", "checked"): [
        f"{{targetRefs: [{{group: '', kind: Service, name: {name}}}], validation: {{hostname: a.org, {refs}}}}}"
        for name, refs in (
            ("a", "caCertificateRefs: [{group: '', kind: ConfigMap, name: authority}]"),
            ("b", "caCertificateRefs: [{group: certificates.k8s.io, kind: ClusterTrustBundle, name: bundle}]"),
            ("a", "wellKnownCACertificates: System"),
        )
    ],
    ("TrafficPolicy", "infra", "limits"): [
        f"{{targetRefs: [{{group: gateway.networking.k8s.io, kind: {kind}, name: {name}}}], {what}}}"
        for kind, name, what in (
            ("HTTPRoute", "one", "basicAuth: {secretName: users}"),
            ("Gateway", "edge", "maxBodySize: 1048576"),
        )
    ],
    ("BackendPolicy", "infra", "sticky"): [
        "{targetRefs: [{group: '', kind: Service, name: a}], balance: {algorithm: leastconn}}"
    ],
    ("Namespace", "", "web"): ["{}", "labels: {open: 'yes'}"],
    ("ConfigMap", "infra", "authority"): ["authority", "nonsense"],
    RANGES: ["192.0.2.0/24"],
    ("ClusterTrustBundle", "", "bundle"): ["authority", "nonsense"],
    ("Secret", "infra", "pair"): ["pair", "other", "nonsense"],
    ("Secret", "infra", "shown"): ["pair", "nonsense"],
    ("Secret", "web", "pair"): ["pair", "nonsense"],
    ("Secret", "infra", "users"): ["users", "nonsense"],
    ("Service", "infra", "a"): [
        SERVICE % "",
        SERVICE % ", appProtocol: kubernetes.io/h2c",
        SERVICE % ", targetPort: 8443",
        "{type: ExternalName, externalName: one.example.net}",
    ],
    ("Service", "infra", "b"): [
        SERVICE % ", appProtocol: https",
        "{clusterIP: None, ports: [{port: 80, protocol: UDP}]}",
    ],
    ("Service", "web", "a"): [SERVICE % "", "{clusterIP: 10.96.0.2, ports: [{port: 80, protocol: UDP}]}"],
    ("Service", "infra", "edge-vipwire"): ["edge", "second", "edge, no address", "plain"],
}


def document(key: Key, text: str) -> dict[str, Any]:
    """Write an object; what has no spec is told by a word."""
    kind, namespace, name = key
    meta: dict[str, Any] = {"name": name, "generation": 1} | ({"namespace": namespace} if namespace else {})
    made = {"kind": kind, "metadata": meta}
    authority = AUTHORITY if text == "authority" else text
    if kind == "Namespace":
        return made | {"metadata": meta | yaml.safe_load(f"{{{text}}}" if text != "{}" else "{}")}
    if kind == "ConfigMap":
        return made | {"data": {"ca.crt": authority}}
    if kind == "ClusterTrustBundle":
        return made | {"spec": {"trustBundle": authority}}
    if kind == "Secret":
        pem = {"pair": PAIR, "other": OTHER}.get(text)
        found: dict[str, Any] = yaml.safe_load(secret_of(name, pem, namespace)) if pem else made
        return (
            found
            if pem
            else made | {"stringData": {"auth": USERS if text == "users" else text, "tls.crt": text, "tls.key": text}}
        )
    if name == "edge-vipwire":
        whose, _, lacks = text.partition(", ")
        notes = {} if whose == "plain" else {"vipwire.io/gateway": whose}
        given_ = {"loadBalancer": {"ingress": [] if lacks else [{"ip": "198.51.100.1"}]}}
        ports = [{"name": "http", "port": 80, "targetPort": 20000}]
        spec = {"type": "LoadBalancer", "clusterIP": "10.96.0.9", "ports": ports}
        return made | {"metadata": meta | {"annotations": notes}, "spec": spec, "status": given_}
    return made | {"spec": yaml.safe_load(text)}


def event(key: Key, variant: int | None) -> Any:
    if variant is None:
        return Deleted(cast("Any", IngressKind(key[0])), ObjectName(*key[1:]))
    return event_of(key, VARIANTS[key][variant])


def event_of(key: Key, text: str) -> Any:
    kind, name = IngressKind(key[0]), ObjectName(*key[1:])
    resource = RESOURCES[kind]
    made, problems = resource.convert(msgspec.convert(document(key, text), resource.type))
    return Deleted(cast("Any", kind), name, problems) if made is None else Upserted(made, problems)


EVERY = [(key, number) for key, found in VARIANTS.items() for number in (*range(len(found)), None)]
REFUSED = st.dictionaries(st.integers(0, 10), st.integers(0, 9), max_size=2)
"""The steps after which HAProxy refuses a pool, and which."""
CHANGES = st.lists(st.lists(st.sampled_from(EVERY), min_size=1, max_size=4), max_size=10)
SETTINGS = {
    "one address": (GatewaySetting(addresses=("192.0.2.9",), usable=frozenset({"192.0.2.1"})), [RANGES]),
    "Services of its own": (GatewaySetting(services=ObjectName("kube-system", "vipwire-gateway")), [RANGES]),
    "addresses of vipwire up": (GatewaySetting(), []),
}
"""With the objects that are not there at first."""


class Followed:
    """What HAProxy has: kept up to date by parts, which come to the same as the whole."""

    def __init__(self, desired: Desired) -> None:
        self.desired, self.live = desired, cast("Configuration | None", None)
        self.pending = WHOLE

    def follow(self, delta: Delta, *, waits: bool = False) -> None:
        """Follow a change. With `waits` a reload does not come yet."""
        self.pending = self.pending.merge_later(delta)
        live = self.live
        if live is not None:
            part, whole = (self.desired.find_change(live, each) for each in (self.pending, WHOLE))
            assert sorted(part.commands) == sorted(whole.commands)
            assert set(part.reasons) == set(whole.reasons)
            if waits or not part.reasons:
                record_change(live, part)
                self.pending = part.waiting
                assert bool(self.pending) == bool(part.reasons)
                assert not self.desired.find_change(live, WHOLE).commands
                return
        self.reload()

    def reload(self) -> None:
        """Let HAProxy have all."""
        made = self.desired.build_configuration(LAYOUT.folder, self.live)
        self.live, self.pending = replace(made, spares=name_spares(0)), Delta()
        assert not self.desired.find_change(self.live, WHOLE)

    def refuse(self, number: int) -> None:
        """Refuse a pool, as HAProxy may at a reload."""
        pools = [each.name for each in self.desired.plan.pools]
        if pools:
            self.desired.exclude_pool(pools[number % len(pools)], "it is refused")
            self.reload()


@pytest.mark.parametrize(("setting", "later"), SETTINGS.values(), ids=SETTINGS)
@given(batches=CHANGES, waits=st.lists(st.booleans(), min_size=11), refused=REFUSED)
@settings(max_examples=40)
def test_what_is_followed_is_what_is_planned_anew(
    setting: GatewaySetting,
    later: list[Key],
    batches: list[list[tuple[Key, int | None]]],
    waits: list[bool],
    refused: dict[int, int],
) -> None:
    snapshot, planner = listed(kinds=RESOURCES), GatewayPlanner(setting)
    held: dict[Key, int] = dict.fromkeys(VARIANTS.keys() - set(later), 0)
    for key in held:
        snapshot.apply(event(key, 0))
    followed = Desired(snapshot, planner, LAYOUT, "PEM")
    haproxy = Followed(followed)
    for step, batch in enumerate([[], *batches]):
        for key, variant in batch:
            snapshot.apply(event(key, variant))
            held.pop(key, None)
            if variant is not None:
                held[key] = variant
        haproxy.follow(followed.update(snapshot.take_touched(), NOW.timestamp()), waits=waits[step])
        if step in refused:
            haproxy.refuse(refused[step])
        fresh = GatewayPlanner(setting)
        # A snapshot of its own: `Desired` writes refused destinations into the snapshot.
        current = listed(kinds=RESOURCES)
        for key, kept in held.items():
            current.apply(event(key, kept))
        anew = Desired(current, fresh, LAYOUT, "PEM")
        anew.update(ChangeExtent(structure=True), NOW.timestamp())
        assert followed.plan == remove_parts(anew.plan, followed.refused)
        assert set(followed.problems) >= set(anew.problems)
        assert followed.refused or followed.problems == anew.problems
        assert planner.statuses == fresh.statuses
        assert planner.services == fresh.services
        served = [{key: set(slots) - {None} for key, slots in each.slots.items()} for each in (followed, anew)]
        assert served[0] == served[1]


class Serving:
    """Objects of a Gateway, and HAProxy as it follows them."""

    def __init__(self, *listeners: str) -> None:
        self.snapshot = listed(kinds=RESOURCES)
        for key in VARIANTS:
            if key[0] in ("GatewayClass", "Secret", "Service"):
                self.snapshot.apply(event(key, 0))
        planner = GatewayPlanner(GatewaySetting(addresses=("192.0.2.9",)))
        self.desired = Desired(self.snapshot, planner, LAYOUT, "PEM")
        self.haproxy = Followed(self.desired)
        self.put(("Gateway", "infra", "edge"), gateway(*listeners))

    def put(self, key: Key, text: str, *, waits: bool = False) -> None:
        self.snapshot.apply(event_of(key, text))
        self.haproxy.follow(self.desired.update(self.snapshot.take_touched(), NOW.timestamp()), waits=waits)


def test_a_reload_for_another_certificate_waits_until_haproxy_reloads() -> None:
    here = Serving(HTTPS)
    here.put(("Gateway", "infra", "edge"), gateway(HTTPS.replace("name: pair", "name: shown")), waits=True)
    for _ in range(2):
        assert here.haproxy.live is not None
        change = here.desired.find_change(here.haproxy.live, here.haproxy.pending)
        assert (change.commands, bool(change.reasons)) == ((), True)
        record_change(here.haproxy.live, change)


def test_a_map_that_another_frontend_looks_up_gets_the_hosts_of_all() -> None:
    here = Serving(HTTP, HTTP.replace("name: http, port: 80", "name: more, port: 81"))
    wildcard = "{parentRefs: [{name: edge, sectionName: http}], hostnames: ['*.a.org'], rules: [{}]}"
    here.put(("HTTPRoute", "infra", "one"), wildcard)
    plain = "{parentRefs: [{name: edge, sectionName: more}], hostnames: [a.org], rules: [{}]}"
    here.put(("HTTPRoute", "infra", "two"), plain)
    assert here.haproxy.live is not None
    assert "a.org:81" in here.haproxy.live.maps["sites"]


def of_route(number: int, backend: str) -> Any:
    spec = f"{{parentRefs: [{{name: edge}}], hostnames: [h{number}.org], rules: [{{backendRefs: [{backend}]}}]}}"
    return event_of(("HTTPRoute", "infra", f"r{number}"), spec)


def calls_of_a_route(routes: int) -> int:
    """Count the calls of our functions for one route among others that leads elsewhere, up to its commands."""
    snapshot = listed(kinds=RESOURCES)
    snapshot.apply(event(("GatewayClass", "", "vipwire"), 0))
    snapshot.apply(event_of(("Gateway", "infra", "edge"), gateway(HTTP)))
    for number in range(routes):
        service = SERVICE % ""
        snapshot.apply(event_of(("Service", "infra", f"s{number}"), service))
        snapshot.apply(of_route(number, f"{{name: s{number}, port: 80}}"))
    desired = Desired(snapshot, GatewayPlanner(GatewaySetting(addresses=("192.0.2.9",))), LAYOUT, "PEM")
    haproxy = Followed(desired)
    haproxy.follow(desired.update(snapshot.take_touched(), 0.0))
    live = haproxy.live
    assert live is not None
    snapshot.apply(of_route(1, "{name: s0, port: 80}"))
    changes = list[Change]()
    calls = count_calls(
        lambda: changes.append(desired.find_change(live, desired.update(snapshot.take_touched(), 0.0)))
    )
    assert [each.partition(" /")[0] for each in changes[0].commands] == ["set map"]
    return calls


def test_a_changed_route_costs_the_same_among_many() -> None:
    few, many = calls_of_a_route(10), calls_of_a_route(110)
    assert few > 20, "something was done"
    assert many <= few + 20
