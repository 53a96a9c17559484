"""`vipwire ingress convert`: what it prints serves what the Ingresses have served, and it says what is lost."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import yaml
from tests.l7.gateway.test_gateway_statuses import SERVICE, drawn, planned
from tests.l7.ingress.site import ingress, rule

from vipwire.model.names import ObjectName
from vipwire_l7.ingress.plan.ingress_content import read_ingress
from vipwire_l7.ingress.plan.to_gateway import convert_to_gateway
from vipwire_l7.plan.dependencies import RecordedObjects
from vipwire_l7.watch import wire
from vipwire_l7.watch.convert import convert_ingress
from vipwire_l7.watch.objects import BackendPort, BackendService, Ingress, IngressKind, Secret

WEB = BackendService(ObjectName("default", "web"), (BackendPort("http", 80),))


def read(value: Any) -> Ingress:
    made, problems = convert_ingress(msgspec.convert(value, wire.Ingress))
    assert made is not None, problems
    return made


def converted(*values: Any) -> tuple[list[Any], str]:
    made = convert_to_gateway(map(read, values), {WEB.name: WEB}, "vipwire")
    return made.objects, "\n".join(map(str, made.problems))


def test_hosts_paths_and_certificates_become_routes_and_listeners() -> None:
    rules = rule("a.org", "/", "/x"), rule("a.org", "/one", kind="Exact", port="http")
    made, lost = converted(ingress("web", *rules, tls=[{"hosts": ["a.org"], "secretName": "cert"}]))
    gateway, route, redirect = made
    assert [each["name"] for each in gateway["spec"]["listeners"]] == ["http", "https-a.org"]
    assert route["spec"]["parentRefs"] == [{"name": "ingress", "sectionName": "https-a.org"}]
    assert [each["matches"][0]["path"]["value"] for each in route["spec"]["rules"]] == ["/", "/x", "/one"]
    assert route["spec"]["rules"][2]["backendRefs"] == [{"name": "web", "port": 80}]
    assert redirect["spec"]["rules"][0]["filters"][0]["requestRedirect"] == {"scheme": "https", "statusCode": 308}
    assert lost == ""


def test_annotations_become_filters_and_what_is_lost_is_told() -> None:
    given = {
        "nginx.ingress.kubernetes.io/rewrite-target": "/new",
        "nginx.ingress.kubernetes.io/enable-cors": "true",
        "nginx.ingress.kubernetes.io/proxy-read-timeout": "5",
        "vipwire.io/set-request-headers": "X-A: b",
        "vipwire.io/affinity": "cookie",
        "vipwire.io/share-with": "*",
    }
    made, lost = converted(ingress("web", rule("a.org", "/old"), annotations=given))
    (found,) = made[1]["spec"]["rules"]
    assert [each["type"] for each in found["filters"]] == ["RequestHeaderModifier", "URLRewrite", "CORS"]
    assert found["timeouts"] == {"request": "5000ms"}
    assert found["sessionPersistence"] == {"type": "Cookie"}
    assert "metadata.annotations[share-with]: has no equivalent" in lost


GUARDS = {
    "vipwire.io/limit-rps": "5",
    "vipwire.io/allow-source-range": "10.0.0.0/8, 2001:db8::1",
    "vipwire.io/body-size": "8k",
    "vipwire.io/auth-secret": "default/users",
    "vipwire.io/auth-realm": "the shop",
}
USE = {
    "nginx.ingress.kubernetes.io/proxy-connect-timeout": "2",
    "vipwire.io/balance": "leastconn",
    "vipwire.io/health-check-path": "/healthz",
    "vipwire.io/pod-connections": "3",
    "vipwire.io/redispatch": "false",
}


def test_what_has_no_place_in_the_api_becomes_policies_that_say_the_same() -> None:
    """The plan of the objects has the policy that the Ingress has."""
    hosts = [rule(f"h{number}.org", "/") for number in range(18)]
    value = ingress("web", *hosts, annotations={**GUARDS, **USE})
    made, lost = converted(value)
    assert lost == ""
    policies = [each for each in made if each["apiVersion"] == "vipwire.io/v1"]
    named = [(each["kind"], each["metadata"]["name"], len(each["spec"]["targetRefs"])) for each in policies]
    assert named == [("TrafficPolicy", "web", 16), ("TrafficPolicy", "web-2", 2), ("BackendPolicy", "web", 1)]
    users = {"auth": "ann:$5$abcdefgh$ijklmnop"}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "users", "namespace": "default"}}
    texts = [yaml.safe_dump_all(made), yaml.safe_dump({**secret, "stringData": users})]
    _, plan = drawn(*texts, SERVICE.replace("infra", "default"))
    read_as = Secret(ObjectName("default", "users"), "", {"auth": users["auth"].encode()})
    wanted = read_ingress(read(value), RecordedObjects(IngressKind.SECRET, {read_as.name: read_as}, set()))
    (pool,) = plan.pools
    assert (pool.policy.guard, pool.policy.body_size) == (wanted.policy.guard, wanted.policy.body_size)
    for field in ("balance", "check", "pod_connections", "redispatch", "timeouts"):
        assert getattr(pool.policy, field) == getattr(wanted.policy, field)


def test_a_service_is_used_as_its_oldest_ingress_says() -> None:
    first = ingress("a", rule("a.org", "/"), annotations={"vipwire.io/balance": "leastconn"})
    second = ingress("b", rule("b.org", "/"), annotations={"vipwire.io/balance": "source"})
    made, lost = converted(first, second)
    assert [each["metadata"]["name"] for each in made if each["kind"] == "BackendPolicy"] == ["a"]
    assert "an older Ingress sets other values for the Service default/web" in lost


def test_hsts_and_the_roots_place_are_said_by_the_api_itself() -> None:
    given = {"vipwire.io/hsts": "true", "vipwire.io/hsts-max-age": "60", "vipwire.io/app-root": "/app"}
    made, lost = converted(ingress("web", rule("a.org", "/"), annotations=given))
    root, found = made[1]["spec"]["rules"]
    assert root["matches"] == [{"path": {"type": "Exact", "value": "/"}}]
    assert root["filters"][0]["requestRedirect"]["path"]["replaceFullPath"] == "/app"
    header = {"name": "Strict-Transport-Security", "value": "max-age=60"}
    assert found["filters"][0]["responseHeaderModifier"]["set"] == [header]
    assert lost == ""


def test_a_canary_becomes_a_share_of_the_route() -> None:
    part = {"vipwire.io/canary": "true", "vipwire.io/canary-weight": "20", "vipwire.io/canary-by-header": "x-new"}
    other = ingress("part", rule("a.org", "/", service="new"), annotations=part)
    made, _ = converted(ingress("web", rule("a.org", "/")), other)
    by_header, shared = made[1]["spec"]["rules"]
    assert by_header["matches"][0]["headers"] == [{"name": "x-new", "value": "always"}]
    assert [(each["name"], each["weight"]) for each in shared["backendRefs"]] == [("web", 80), ("new", 20)]
    services = "".join(SERVICE.replace("infra/web", f"default/{name}") for name in ("web", "new"))
    planner = planned(yaml.safe_dump_all(made), services)
    (parent,) = next(status for key, status in planner.statuses.items() if key[1].name == "web-a.org")["parents"]
    assert [each["status"] for each in parent["conditions"]] == ["True", "True"]


def test_the_command_prints_it(tmp_path: Path) -> None:
    (tmp_path / "web.yaml").write_text(yaml.safe_dump(ingress("web", rule("a.org", "/"))))
    command = (sys.executable, "-m", "vipwire", "ingress", "convert", "--manifests", str(tmp_path))
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert [each["kind"] for each in yaml.safe_load_all(done.stdout)] == ["Gateway", "HTTPRoute"]
