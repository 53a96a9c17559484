"""A change costs what it changes, and comes to what planning everything anew does, whatever came before it."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.l7.gateway.site import now

import vipwire_l7
from vipwire.model.names import ObjectName
from vipwire.watched_objects.event import Deleted, Listed, Upserted
from vipwire_l7.gateway.plan.kinds.objects import GatewaySetting
from vipwire_l7.gateway.plan.planner import GatewayPlanner
from vipwire_l7.gateway.run.shared_planner import SharedPlanner
from vipwire_l7.gateway.watch.kinds import RESOURCES
from vipwire_l7.ingress.plan.planner import IngressPlanner
from vipwire_l7.plan.plan import Setting
from vipwire_l7.run.default_certificate import make_certificate
from vipwire_l7.watch.kinds import RESOURCES as OF_INGRESS
from vipwire_l7.watch.objects import IngressKind
from vipwire_l7.watch.snapshot import Refusal, Snapshot

OURS = str(Path(vipwire_l7.__file__).parent)
NOW = now()
PEM, MARK, KEY = make_certificate(NOW, "a.org", "*.b.org").partition("-----BEGIN PRIVATE KEY-----")
DAY = 86400.0
Text = dict[str, Any]


def empty() -> Snapshot:
    snapshot = Snapshot(RESOURCES.keys() | OF_INGRESS.keys())
    for kind in RESOURCES.keys() | OF_INGRESS.keys():
        snapshot.apply(Listed(cast("Any", kind), ()))
    return snapshot


def put(snapshot: Snapshot, written: Text) -> None:
    kind = IngressKind(written["kind"])
    resource = OF_INGRESS.get(kind) or RESOURCES[kind]
    made, problems = resource.convert(msgspec.convert(written, resource.type))
    assert made is not None, problems
    snapshot.apply(Upserted(made, problems))


def named(kind: str, name: str, namespace: str = "web", **more: Any) -> Text:
    return {"kind": kind, "metadata": {"name": name, "namespace": namespace, "generation": 1}, **more}


def service(name: str, namespace: str = "web", port: int = 80) -> Text:
    return named("Service", name, namespace, spec={"ports": [{"name": "http", "port": port}]})


def http_route(number: int, to: str, path: str = "/") -> Text:
    rule = {"matches": [{"path": {"value": path}}], "backendRefs": [{"name": to, "port": 80}]}
    spec = {"parentRefs": [{"name": "edge"}], "hostnames": [f"h{number}.org"], "rules": [rule]}
    return named("HTTPRoute", f"r{number}", spec=spec)


def one_ingress(number: int, to: str, path: str = "/") -> Text:
    backend = {"service": {"name": to, "port": {"number": 80}}}
    rule = {"host": f"h{number}.org", "http": {"paths": [{"path": path, "pathType": "Prefix", "backend": backend}]}}
    return named("Ingress", f"i{number}", spec={"ingressClassName": "vipwire", "rules": [rule]})


GATEWAY = (
    {"kind": "GatewayClass", "metadata": {"name": "vipwire"}, "spec": {"controllerName": "vipwire.io/gateway"}},
    named(
        "Gateway",
        "edge",
        spec={"gatewayClassName": "vipwire", "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]},
    ),
)


WAYS: dict[str, tuple[Callable[[], Any], tuple[Text, ...], Callable[..., Text]]] = {
    "HTTPRoutes": (lambda: GatewayPlanner(GatewaySetting()), GATEWAY, http_route),
    "Ingresses": (lambda: IngressPlanner(Setting()), (), one_ingress),
}


def test_planning_an_ingress_grows_with_the_number_of_its_hosts_alone() -> None:
    def steps(hosts: int) -> int:
        snapshot, count = empty(), 0
        http = {
            "paths": [
                {"path": "/", "pathType": "Prefix", "backend": {"service": {"name": "s", "port": {"number": 80}}}}
            ]
        }
        rules = [{"host": f"h{number}.org", "http": http} for number in range(hosts)]
        put(snapshot, named("Ingress", "many", spec={"ingressClassName": "vipwire", "rules": rules}))

        def note(frame: FrameType, event: str, _: object) -> Any:
            nonlocal count
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            count += event == "opcode"
            return note

        sys.settrace(note)
        try:
            IngressPlanner(Setting()).plan(snapshot, 0.0)
        finally:
            sys.settrace(None)
        return count

    assert steps(200) < 2.2 * steps(100)


@pytest.mark.parametrize(("planner", "around", "one"), WAYS.values(), ids=WAYS)
def test_a_change_costs_the_same_among_many(
    planner: Callable[[], Any], around: tuple[Text, ...], one: Callable[..., Text]
) -> None:
    def calls(others: int) -> int:
        snapshot, made, found = empty(), planner(), 0
        for each in (*around, *(text for n in range(others) for text in (service(f"s{n}"), one(n, f"s{n}")))):
            put(snapshot, each)
        made.update(snapshot, NOW.timestamp())
        made.kept.take_change()
        put(snapshot, one(0, "s1", "/new"))

        def count(frame: FrameType, event: str, _: object) -> None:
            nonlocal found
            found += event == "call" and frame.f_code.co_filename.startswith(OURS)

        sys.setprofile(count)
        try:
            made.update(snapshot, NOW.timestamp())
        finally:
            sys.setprofile(None)
        change = made.kept.take_change()
        assert {each.partition(":")[0] for each in change.hosts} == {"h0.org"}
        assert {"web:s0:80", "web:s1:80"} & change.pools == {"web:s0:80"}, "the other one was there"
        return found

    few, many = calls(20), calls(200)
    assert 20 < few <= many <= 1.1 * few, (few, many)


NAMES, SPACES, HOSTS = ("a", "b", "c"), ("one", "two"), ("a.org", "x.b.org", "*.b.org", "")
PATHS = (
    ("/", "Prefix"),
    ("/a", "Prefix"),
    ("/a", "Exact"),
    ("/a//b", "Prefix"),
    ("/[a-z]+", "ImplementationSpecific"),
)
NOTES: tuple[dict[str, str], ...] = (
    {},
    {"share-with": "two"},
    {"canary": "true", "canary-weight": "30"},
    {"use-regex": "true"},
    {"use-regex": "true", "allow-source-range": "192.0.2.0/24"},
    {"auth-type": "basic", "auth-secret": "users"},
)


@st.composite
def ingresses(draw: st.DrawFn) -> Text:
    space = draw(st.sampled_from(SPACES))

    def backend() -> Text:
        return {"service": {"name": draw(st.sampled_from(NAMES)), "port": {"number": 80}}}

    rules = []
    for _ in range(draw(st.integers(0, 3))):
        path, kind = draw(st.sampled_from(PATHS))
        paths = [{"path": path, "pathType": kind, "backend": backend()}]
        rules.append({"host": draw(st.sampled_from(HOSTS)), "http": {"paths": paths}})
    spec: Text = {"ingressClassName": draw(st.sampled_from(("vipwire", "vipwire", "ours", "nginx"))), "rules": rules}
    if draw(st.booleans()):
        spec["tls"] = [{"hosts": draw(st.lists(st.sampled_from(HOSTS[:3]), max_size=2)), "secretName": "pair"}]
    if draw(st.integers(0, 3)) == 0:
        spec["defaultBackend"] = backend()
    made = named("Ingress", draw(st.sampled_from(NAMES)), space, spec=spec)
    created = f"2026-01-0{draw(st.integers(1, 3))}T00:00:00Z"
    notes = {f"vipwire.io/{key}": value for key, value in draw(st.sampled_from(NOTES)).items()}
    made["metadata"] |= {"creationTimestamp": created, "annotations": notes}
    return made


def secret(name: str, namespace: str, *, good: bool) -> Text:
    pair = {"tls.crt": PEM, "tls.key": MARK + KEY, "auth": "x:$6$abcdefgh$abcdefgh"}
    return named("Secret", name, namespace, stringData=pair if good else {"auth": "nonsense", "tls.crt": "x"})


objects = st.one_of(
    ingresses(),
    ingresses(),
    st.builds(service, st.sampled_from(NAMES), st.sampled_from(SPACES), st.sampled_from((80, 80, 81))),
    st.builds(secret, st.sampled_from(("pair", "users")), st.sampled_from(SPACES), good=st.booleans()),
    st.builds(
        lambda controller: {
            "kind": "IngressClass",
            "metadata": {"name": "ours"},
            "spec": {"controller": f"vipwire.io/{controller}"},
        },
        st.sampled_from(("ingress", "other")),
    ),
)
refusals = st.dictionaries(
    st.builds(ObjectName, st.sampled_from(SPACES), st.sampled_from(NAMES)),
    st.builds(Refusal, st.just("is refused"), st.booleans()),
    max_size=1,
)
HISTORIES = st.lists(
    st.tuples(
        st.lists(st.tuples(objects, st.sampled_from((False, False, False, True))), max_size=4),
        refusals,
        st.sampled_from((0.0, 0.0, 0.0, -DAY, 4000 * DAY)),
    ),
    min_size=1,
    max_size=10,
)


@pytest.mark.slow
@pytest.mark.parametrize("setting", [Setting(), Setting(hosts_apart=True)], ids=["hosts shared", "hosts apart"])
@given(history=HISTORIES)
@settings(max_examples=150)
def test_ingresses_that_are_followed_are_planned_as_anew(
    setting: Setting, history: list[tuple[list[tuple[Text, bool]], dict[ObjectName, Refusal], float]]
) -> None:
    snapshot, followed = empty(), IngressPlanner(setting)
    for batch, refused, later in history:
        for written, gone in batch:
            meta = written["metadata"]
            name = ObjectName(meta.get("namespace", ""), meta["name"])
            if gone:
                snapshot.apply(Deleted(cast("Any", IngressKind(written["kind"])), name))
            else:
                put(snapshot, written)
        snapshot.refusals = refused
        time = NOW.timestamp() + later
        anew = IngressPlanner(setting).plan(snapshot, time)
        plan = followed.plan(snapshot, time)
        assert plan == anew


def test_a_shared_plan_is_both_plans_and_follows_them() -> None:
    snapshot, shared = empty(), SharedPlanner(IngressPlanner(Setting()), GatewayPlanner(GatewaySetting()))
    for each in (*GATEWAY, service("s0"), service("s1"), one_ingress(0, "s0"), http_route(1, "s0")):
        put(snapshot, each)
    shared.update(snapshot, NOW.timestamp())
    assert {each.partition(":")[0] for each in shared.kept.take_change().hosts} == {"h0.org", "h1.org"}
    put(snapshot, http_route(1, "s1"))
    shared.update(snapshot, NOW.timestamp())
    change = shared.kept.take_change()
    assert ({each.partition(":")[0] for each in change.hosts}, change.pools) == ({"h1.org"}, {"web:s1:80"})
    plan = shared.plan(snapshot, NOW.timestamp())
    assert {each.target for each in plan.routes} == {"web:s0:80", "web:s1:80"}
    assert {each.name for each in plan.pools} == {"web:s0:80", "web:s1:80"}
    assert [each.name for each in plan.admitted] == ["i0"]


def test_a_host_follows_the_service_of_its_ingress_s_default_backend() -> None:
    snapshot, followed = empty(), IngressPlanner(Setting())
    written = one_ingress(0, "s0", "/a")
    written["spec"]["defaultBackend"] = {"service": {"name": "s1", "port": {"number": 80}}}
    put(snapshot, written)
    for target in ("unavailable", "web:s1:80"):
        routes = {each.path: each.target for each in followed.plan(snapshot, NOW.timestamp()).routes}
        assert routes[""] == target
        put(snapshot, service("s1"))
