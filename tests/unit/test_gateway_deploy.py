"""deploy/gateway: its flags are taken, its class is ours, its roles name what is watched and written, and no more."""

from typing import Any

import yaml
from scripts.policy_definitions import definitions
from tests.unit.deployed import DEPLOY, one

from vipwire.cluster.api.guard import Role, User, may
from vipwire.gateway.cli import gateway
from vipwire.gateway.plan.objects import CONTROLLER
from vipwire.gateway.watch.kinds import RESOURCES
from vipwire.ingress.plan.policy_fields import BACKEND, TRAFFIC
from vipwire.ingress.watch.objects import IngressKind

FOLDER = DEPLOY / "gateway"
SILENT = (IngressKind.REFERENCE_GRANT, IngressKind.NAMESPACE, IngressKind.CONFIG_MAP)
OURS = ("/apis/gateway.networking.k8s.io/", "/apis/vipwire.io/")


def objects() -> list[dict[str, Any]]:
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    return [each for name in kustomization["resources"] for each in yaml.safe_load_all((FOLDER / name).read_text())]


def test_the_flags_are_taken_and_the_class_is_ours() -> None:
    (found,) = one(objects(), "DaemonSet")["spec"]["template"]["spec"]["containers"]
    assert found["command"] == ["vipwire", "gateway"]
    with gateway.make_context("gateway", list(found["args"])) as context:
        given = context.params
    (mount,) = found["volumeMounts"]
    assert str(given["run_dir"]) == mount["mountPath"]
    assert given["metrics_bind_address"].endswith(f":{found['ports'][0]['containerPort']}")
    assert given["controller"] == CONTROLLER == one(objects(), "GatewayClass")["spec"]["controllerName"]
    assert given["lease"] == f"kube-system/{one(objects(), 'Role')['metadata']['name']}"


def test_the_roles_allow_what_is_read_and_written_and_only_that() -> None:
    allowed = {
        (group, resource, verb)
        for role in objects()
        if role["kind"] == "ClusterRole"
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    groups = {each.plural: each.api_version.rpartition("/")[0] for each in RESOURCES.values()}
    wanted = {(group, plural, verb) for plural, group in groups.items() for verb in ("list", "watch")}
    own = [each for each in RESOURCES.values() if each.path.startswith(OURS) and each.kind not in SILENT]
    wanted |= {(groups[each.plural], f"{each.plural}/status", "patch") for each in own}
    assert allowed == wanted | {("", "events", "create"), ("", "events", "patch")}
    user = User("gateway", (Role.INGRESS.value,))
    assert [right for right in allowed if not may(user, right[2], right[1])] == []


def test_the_definitions_of_policies_are_those_of_vipwire_up() -> None:
    assert (FOLDER / "policies.yaml").read_text() == definitions()
    fields = {each["metadata"]["name"]: _leaves(_spec(each)) for each in yaml.safe_load_all(definitions())}
    assert fields == {"trafficpolicies.vipwire.io": {*TRAFFIC}, "backendpolicies.vipwire.io": {*BACKEND}}


def _spec(definition: dict[str, Any]) -> dict[str, Any]:
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return {name: of for name, of in schema["properties"]["spec"]["properties"].items() if name != "targetRefs"}


def _leaves(properties: dict[str, Any]) -> set[str]:
    """Name the fields, those of groups by their paths."""
    inner = {name: _leaves(of.get("properties", {})) for name, of in properties.items()}
    return {f"{name}.{each}" for name, found in inner.items() for each in found} | {
        name for name, found in inner.items() if not found
    }
