"""deploy/gateway: its flags are taken, its class is ours, its roles allow what is asked for, and no more."""

import asyncio
from typing import Any

import msgspec
import yaml
from scripts.policy_definitions import definitions
from tests.unit.deployed import DEPLOY, one
from tests.unit.test_deploy_rbac import Right
from tests.unit.test_ingress_deploy import recording

from vipwire.cluster.api.guard import Role, User, may
from vipwire.gateway.cli import gateway
from vipwire.gateway.plan.objects import ROUTE_KINDS, GatewaySetting
from vipwire.gateway.plan.planner import GatewayPlanner
from vipwire.gateway.run.status import GatewayStatusWriter
from vipwire.gateway.run.versions import served_versions
from vipwire.gateway.watch.kinds import RESOURCES, at_versions
from vipwire.ingress.plan.policy_fields import BACKEND, TRAFFIC
from vipwire.ingress.run.election import LeaseKeeper
from vipwire.ingress.watch.objects import IngressKind
from vipwire.ingress.watch.snapshot import Snapshot
from vipwire.kube.client import ApiSource
from vipwire.kube.events import EventRecorder, Subject
from vipwire.kube.gateway_addresses import CONTROLLER
from vipwire.model.names import ObjectName
from vipwire.state.event import Upserted

FOLDER = DEPLOY / "gateway"


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


OBJECTS = """
{apiVersion: GROUP/v1, kind: GatewayClass, metadata: {name: vipwire}, spec: {controllerName: vipwire.io/gateway}}
---
apiVersion: GROUP/v1
kind: Gateway
metadata: {name: edge, namespace: default}
spec:
  gatewayClassName: vipwire
  allowedListeners: {namespaces: {from: Same}}
  listeners:
  - {name: http, port: 80, protocol: HTTP}
  - {name: tls, port: 443, protocol: TLS, tls: {mode: Passthrough}}
  - {name: tcp, port: 90, protocol: TCP}
  - {name: udp, port: 90, protocol: UDP}
---
apiVersion: GROUP/v1
kind: ListenerSet
metadata: {name: more, namespace: default}
spec: {parentRef: {name: edge}, listeners: [{name: more, port: 81, protocol: HTTP}]}
---
apiVersion: GROUP/v1
kind: BackendTLSPolicy
metadata: {name: secure, namespace: default}
spec: {targetRefs: [{kind: Service, name: web}], validation: {hostname: a.org, wellKnownCACertificates: System}}
---
apiVersion: vipwire.io/v1
kind: TrafficPolicy
metadata: {name: traffic, namespace: default}
spec: {targetRefs: [{group: GROUP, kind: HTTPRoute, name: web}]}
---
apiVersion: vipwire.io/v1
kind: BackendPolicy
metadata: {name: backend, namespace: default}
spec: {targetRefs: [{kind: Service, name: web}]}
"""
ROUTE = """
---
apiVersion: GROUP/v1
kind: KIND
metadata: {name: web, namespace: default}
spec: {parentRefs: [{name: edge}], rules: [{backendRefs: [{name: web, port: 80}]}]}
"""


def filled() -> Snapshot:
    """Read an object of each kind that has a status of ours."""
    text = OBJECTS + "".join(ROUTE.replace("KIND", kind.value) for kind in ROUTE_KINDS)
    snapshot = Snapshot(RESOURCES)
    for each in yaml.safe_load_all(text.replace("GROUP", "gateway.networking.k8s.io")):
        resource = RESOURCES[IngressKind(each["kind"])]
        made, problems = resource.convert(msgspec.convert(each, resource.type))
        assert made is not None, problems
        snapshot.apply(Upserted(made, problems))
    return snapshot


async def asked() -> set[Right]:
    """Run all that asks an API server, with everything happening that makes it ask differently."""
    snapshot, planner = filled(), GatewayPlanner(GatewaySetting())
    planner.plan(snapshot, 0.0)
    async with asyncio.timeout(60), recording() as (recorder, access), asyncio.TaskGroup() as group:
        resources = at_versions(RESOURCES, await served_versions(access))
        keeper, events = LeaseKeeper(access, ObjectName("default", "edge"), "me"), EventRecorder(access, "me", qps=0)
        writer = GatewayStatusWriter(access, resources, CONTROLLER, keeper.leading)
        work = (
            ApiSource(access, resources.values()).run(Snapshot(RESOURCES).apply),
            writer.run(lambda: planner.statuses, snapshot.declared),
            keeper.run(),
            events.run(),
        )
        tasks = [group.create_task(each) for each in work]
        for _ in range(2):  # an Event that is made, and one that is counted up
            events.record(
                Subject("Gateway", "edge", "default", "u-1", "gateway.networking.k8s.io/v1"), "Sync", "it is"
            )
            await events.drained()
        groups = {each.plural: each.api_version.rpartition("/")[0].removeprefix("v1") for each in resources.values()}
        written = {RESOURCES[kind].plural for kind, _ in planner.statuses}
        await recorder.until(
            *((group, plural, "watch") for plural, group in groups.items()),
            *((groups[plural], f"{plural}/status", "patch") for plural in written),
            ("coordination.k8s.io", "leases", "update"),
        )
        for task in tasks:
            task.cancel()
        return recorder.rights


def test_the_roles_allow_what_is_asked_for_and_only_that() -> None:
    allowed = {
        (group, resource, verb)
        for role in objects()
        for rule in role.get("rules", ())
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert asyncio.run(asked()) == allowed
    user = User("gateway", (Role.INGRESS.value,))
    assert [right for right in allowed if not may(user, right[2], right[1])] == [], "and so does a `vipwire up`"


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
