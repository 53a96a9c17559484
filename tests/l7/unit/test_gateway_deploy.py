"""deploy/gateway: its flags are taken, its class is ours, its roles allow what is asked for, and no more."""

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from scripts.policy_definitions import definitions
from tests.l7.unit.test_ingress_deploy import reading_pod, recording, rights_of
from tests.project.deployed import DEPLOY, KUBECTL, one, pod_of, rendered
from tests.project.test_deploy_rbac import Right

from vipwire.kube.access.access import Access
from vipwire.kube.client import ApiSource
from vipwire.kube.events import EventRecorder, Subject
from vipwire.kube.gateway_addresses import CONTROLLER, GATEWAY, OF_CONTROLLER
from vipwire.model.names import ObjectName
from vipwire.model.net import Family
from vipwire.watched_objects.event import Upserted
from vipwire_l7.gateway.cli import gateway
from vipwire_l7.gateway.plan.kinds.objects import ROUTE_KINDS, GatewaySetting
from vipwire_l7.gateway.plan.merged_statuses import GatewayStatuses
from vipwire_l7.gateway.plan.own_services import OwnService
from vipwire_l7.gateway.plan.planner import GatewayPlanner
from vipwire_l7.gateway.run.app import read_served_versions
from vipwire_l7.gateway.run.service_writer import ServiceWriter
from vipwire_l7.gateway.watch.kinds import RESOURCES, WITH_INGRESS, choose_versions
from vipwire_l7.ingress.plan.planner import IngressPlanner
from vipwire_l7.ingress.served import IngressStatuses
from vipwire_l7.plan.plan import Setting
from vipwire_l7.plan.policy_fields import BACKEND, TRAFFIC
from vipwire_l7.run.election import LeaseKeeper
from vipwire_l7.run.rates import Rate
from vipwire_l7.run.status_writer import StatusWriter
from vipwire_l7.watch.kinds import RESOURCES as OF_INGRESS
from vipwire_l7.watch.kinds import IngressResource
from vipwire_l7.watch.objects import BackendService, BackendSlice, GatewayObject, Ingress, IngressKind
from vipwire_l7.watch.snapshot import Snapshot
from vipwire_up.api.kinds.catalogue import RESOURCES as SERVED
from vipwire_up.api.serving.authorization import Role, User, may_use

pytestmark = pytest.mark.slow

FOLDER = DEPLOY / "gateway"
BOTH = DEPLOY / "gateway-with-ingress"
SERVICES = DEPLOY / "gateway-with-services"


def objects(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """Read the objects of a folder and of those that it builds on."""
    found: list[dict[str, Any]] = []
    for name in yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]:
        path = folder / name
        found += objects(path.resolve()) if path.is_dir() else yaml.safe_load_all(path.read_text())
    return found


def test_the_flags_are_taken_and_the_class_is_ours() -> None:
    (found,) = one(objects(), "DaemonSet")["spec"]["template"]["spec"]["containers"]
    assert found["command"] == ["vipwire", "gateway"]
    with gateway.make_context("gateway", list(found["args"])) as context:
        given = context.params
    mount, _ = found["volumeMounts"]
    assert str(given["run_dir"]) == mount["mountPath"]
    assert given["metrics_bind_address"].endswith(f":{found['ports'][0]['containerPort']}")
    assert given["controller"] == CONTROLLER == one(objects(), "GatewayClass")["spec"]["controllerName"]
    assert given["lease"] == f"kube-system/{one(objects(), 'Role')['metadata']['name']}"


@pytest.mark.skipif(KUBECTL is None, reason="renders with kubectl, which is not installed")
def test_one_process_for_both_has_the_flag_the_class_and_the_image() -> None:
    alone, both = rendered(FOLDER), rendered(BOTH)
    (found,), (plain,) = (pod_of(each)["containers"] for each in (both, alone))
    assert found == {**plain, "args": [*plain["args"], "--ingress"]}
    with gateway.make_context("gateway", list(found["args"])) as context:
        given = context.params
    ingress = one(list(yaml.safe_load_all((DEPLOY / "ingress" / "ingressclass.yaml").read_text())), "IngressClass")
    assert given["ingress"]
    assert one(both, "IngressClass") == ingress
    assert given["ingress_class"] == ingress["metadata"]["name"]
    assert (given["http"], given["https"]) == ("*:80", "*:443")


@pytest.mark.skipif(KUBECTL is None, reason="renders with kubectl, which is not installed")
def test_the_service_of_our_pods_selects_them_and_is_the_one_that_the_flag_names() -> None:
    alone, made = rendered(FOLDER), rendered(SERVICES)
    (found,), (plain,) = (pod_of(each)["containers"] for each in (made, alone))
    assert found["args"][:-1] == plain["args"]
    with gateway.make_context("gateway", list(found["args"])) as context:
        given = context.params
    service = one(made, "Service")
    assert given["services"] == f"{service['metadata']['namespace']}/{service['metadata']['name']}"
    labels = one(made, "DaemonSet")["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert service["spec"]["clusterIP"] == "None"


async def written_services() -> set[Right]:
    """Write Services and their slices: those that are to be, and one of each that nobody has a use for any more."""
    gateway = GatewayObject(IngressKind.GATEWAY, ObjectName("default", "edge"), None)
    pods = ObjectName("kube-system", "pods")
    snapshot = filled()
    wanted = OwnService(ObjectName("default", "edge-vipwire"), gateway.name, {(80, False): 20000}, {}, {})
    mine = {GATEWAY: "edge", OF_CONTROLLER: CONTROLLER}
    for name in ("edge-vipwire", "edge-other"):
        snapshot.apply(Upserted(BackendService(ObjectName("default", name), annotations=mine), ()))
    for name, service in (("pods-1", pods), ("edge-vipwire-old", wanted.name)):
        made = BackendSlice(ObjectName(service.namespace, name), service, Family.IPV4, {}, ())
        snapshot.apply(Upserted(made, ()))
    async with asyncio.timeout(60), recording() as (recorder, access):
        writer = ServiceWriter(access, pods, CONTROLLER, snapshot, lambda: True)
        task = asyncio.ensure_future(writer.run(lambda: {wanted.name: wanted}))
        plurals = (("", "services"), ("discovery.k8s.io", "endpointslices"))
        await recorder.until(*((group, plural, verb) for group, plural in plurals for verb in ("patch", "delete")))
        task.cancel()
        return recorder.rights


def test_the_role_for_services_allows_what_is_asked_for_and_only_that() -> None:
    rules = [each["rules"] for each in yaml.safe_load_all((SERVICES / "rbac.yaml").read_text()) if "rules" in each]
    allowed = rights_of(rules[0])
    creating = {each for each in allowed if each[2] == "create"}  # what an apply of a new object asks for as well
    assert asyncio.run(written_services()) == allowed - creating
    assert {(group, plural, "patch") for group, plural, _ in creating} <= allowed


OBJECTS = """
{apiVersion: GROUP/v1, kind: GatewayClass, metadata: {name: vipwire}, spec: {controllerName: vipwire.io/gateway}}
---
apiVersion: GROUP/v1
kind: Gateway
metadata: {name: edge, namespace: default, uid: u-1}
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


async def asked(kinds: Mapping[IngressKind, IngressResource] = RESOURCES) -> set[Right]:
    """Run all that asks an API server, with everything happening that makes it ask differently."""
    snapshot, planner = filled(), GatewayPlanner(GatewaySetting())
    planner.update(snapshot, 0.0)
    async with asyncio.timeout(60), recording() as (recorder, access), asyncio.TaskGroup() as group:
        resources = choose_versions(kinds, await read_served_versions(access))
        keeper, events = LeaseKeeper(access, ObjectName("default", "edge"), "me"), EventRecorder(access, "me", qps=0)
        statuses = GatewayStatuses(planner, snapshot, CONTROLLER)
        writer = StatusWriter(access, resources, statuses, snapshot, keeper.is_leading, Rate(1_000))
        work = (
            ApiSource(access, resources.values()).run(Snapshot(kinds).apply),
            writer.run(),
            keeper.run(),
            events.run(),
            *(writing(access, keeper) if IngressKind.INGRESS in kinds else ()),
            reading_pod(access),
        )
        tasks = [group.create_task(each) for each in work]
        for _ in range(2):  # an Event that is made, and one that is counted up
            events.record(
                Subject("Gateway", "edge", "default", "u-1", "gateway.networking.k8s.io/v1"), "Sync", "it is"
            )
            await events.wait_until_sent()
        groups = {each.plural: each.api_version.rpartition("/")[0].removeprefix("v1") for each in resources.values()}
        written = {RESOURCES[kind].plural for kind, _ in planner.statuses}
        await recorder.until(
            *((group, plural, "watch") for plural, group in groups.items()),
            *((groups[plural], f"{plural}/status", "patch") for plural in written),
            ("", "pods", "get"),
            ("coordination.k8s.io", "leases", "update"),
            *((("networking.k8s.io", "ingresses/status", "patch"),) if IngressKind.INGRESS in kinds else ()),
        )
        for task in tasks:
            task.cancel()
        return recorder.rights


def writing(access: Access, keeper: LeaseKeeper) -> Iterator[Coroutine[Any, Any, None]]:
    """Write the status of an Ingress."""
    snapshot, planner = Snapshot(), IngressPlanner(Setting())
    snapshot.apply(Upserted(Ingress(ObjectName("default", "web"), "vipwire"), ()))
    planner.update(snapshot, 0.0)
    statuses = IngressStatuses(planner, snapshot, lambda: ("192.0.2.1",))
    yield StatusWriter(access, OF_INGRESS, statuses, snapshot, keeper.is_leading, Rate(1_000)).run()


@pytest.mark.parametrize(("folder", "kinds"), [(FOLDER, RESOURCES), (BOTH, WITH_INGRESS)], ids=["alone", "both"])
def test_the_roles_allow_what_is_asked_for_and_only_that(
    folder: Path, kinds: Mapping[IngressKind, IngressResource]
) -> None:
    allowed = rights_of(rule for role in objects(folder) for rule in role.get("rules", ()))
    assert asyncio.run(asked(kinds)) == allowed
    user = User("gateway", (Role.INGRESS.value,))
    served = {each.plural for each in SERVED}  # there are no ClusterTrustBundles
    asking = [right for right in allowed if right[1].partition("/")[0] in served]
    assert [right for right in asking if not may_use(user, right[2], right[1])] == [], "and so does a `vipwire up`"


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
