"""Planning grows with the number of things alone; two planners share a plan; a plan follows default backends."""

from typing import Any

import msgspec
from tests.l7.plans import count_steps, listed, plan_all

from vipwire.watched_objects.event import Upserted
from vipwire_l7.gateway.plan.kinds.objects import GatewaySetting
from vipwire_l7.gateway.plan.planner import GatewayPlanner
from vipwire_l7.gateway.run.shared_planner import SharedPlanner
from vipwire_l7.gateway.watch.kinds import RESOURCES
from vipwire_l7.ingress.plan.planner import IngressPlanner
from vipwire_l7.plan.plan import Setting
from vipwire_l7.watch.kinds import RESOURCES as OF_INGRESS
from vipwire_l7.watch.objects import IngressKind
from vipwire_l7.watch.snapshot import Snapshot

KINDS = RESOURCES.keys() | OF_INGRESS.keys()
Text = dict[str, Any]


def put(snapshot: Snapshot, written: Text) -> None:
    kind = IngressKind(written["kind"])
    resource = OF_INGRESS.get(kind) or RESOURCES[kind]
    made, problems = resource.convert(msgspec.convert(written, resource.type))
    assert made is not None, problems
    snapshot.apply(Upserted(made, problems))


def named(kind: str, name: str, **more: Any) -> Text:
    return {"kind": kind, "metadata": {"name": name, "namespace": "web", "generation": 1}, **more}


def service(name: str) -> Text:
    return named("Service", name, spec={"ports": [{"name": "http", "port": 80}]})


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


def test_planning_an_ingress_grows_with_the_number_of_its_hosts_alone() -> None:
    def steps(hosts: int) -> int:
        snapshot = listed(kinds=KINDS)
        http = {
            "paths": [
                {"path": "/", "pathType": "Prefix", "backend": {"service": {"name": "s", "port": {"number": 80}}}}
            ]
        }
        rules = [{"host": f"h{number}.org", "http": http} for number in range(hosts)]
        put(snapshot, named("Ingress", "many", spec={"ingressClassName": "vipwire", "rules": rules}))

        return count_steps(lambda: IngressPlanner(Setting()).update(snapshot, 0.0))

    assert steps(200) < 2.2 * steps(100)


def test_a_shared_plan_is_both_plans_and_follows_them() -> None:
    snapshot, shared = listed(kinds=KINDS), SharedPlanner(IngressPlanner(Setting()), GatewayPlanner(GatewaySetting()))
    for each in (*GATEWAY, service("s0"), service("s1"), one_ingress(0, "s0"), http_route(1, "s0")):
        put(snapshot, each)
    shared.update(snapshot, 0.0)
    assert {each.partition(":")[0] for each in shared.kept.take_change().hosts} == {"h0.org", "h1.org"}
    put(snapshot, http_route(1, "s1"))
    shared.update(snapshot, 0.0)
    change = shared.kept.take_change()
    assert ({each.partition(":")[0] for each in change.hosts}, change.pools) == ({"h1.org"}, {"web:s1:80"})
    plan = shared.kept.build_site_plan()
    assert {each.target for each in plan.routes} == {"web:s0:80", "web:s1:80"}
    assert {each.name for each in plan.pools} == {"web:s0:80", "web:s1:80"}
    assert [each.name for each in shared.kept.admitted] == ["i0"]


def test_a_host_follows_the_service_of_its_ingress_s_default_backend() -> None:
    snapshot, followed = listed(kinds=KINDS), IngressPlanner(Setting())
    written = one_ingress(0, "s0", "/a")
    written["spec"]["defaultBackend"] = {"service": {"name": "s1", "port": {"number": 80}}}
    put(snapshot, written)
    for target in ("unavailable", "web:s1:80"):
        routes = {each.path: each.target for each in plan_all(followed, snapshot).routes}
        assert routes[""] == target
        put(snapshot, service("s1"))
