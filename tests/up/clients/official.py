"""The official Python client."""

import contextlib
import threading

from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic import DynamicClient
from kubernetes.leaderelection import electionconfig, leaderelection
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock
from tests.up.clients.common import NAMESPACE, config_map, refused, route, service, until, wait_for_restart
from urllib3.exceptions import HTTPError

GATEWAY = ("gateway.networking.k8s.io", "v1", NAMESPACE, "httproutes")


def code_of(error: ApiException) -> int:
    return int(error.status)


def change(core: client.CoreV1Api) -> None:
    made = core.create_namespaced_config_map(NAMESPACE, config_map("one", a="1"))
    with refused(ApiException, 409, code_of):
        core.create_namespaced_config_map(NAMESPACE, config_map("one"))
    with refused(ApiException, 404, code_of):
        core.read_namespaced_config_map("none", NAMESPACE)
    with refused(ApiException, 422, code_of):
        core.create_namespaced_service(NAMESPACE, service("A_B"))
    changed = core.read_namespaced_config_map("one", NAMESPACE)
    changed.data["b"] = "2"
    core.replace_namespaced_config_map("one", NAMESPACE, changed)
    with refused(ApiException, 409, code_of):
        core.replace_namespaced_config_map("one", NAMESPACE, made)
    for number in range(5):
        core.create_namespaced_config_map(NAMESPACE, config_map(f"page{number}"))
    names, token = [], None
    while token != "":
        page = core.list_namespaced_config_map(NAMESPACE, label_selector="app=test", limit=2, _continue=token)
        names += [each.metadata.name for each in page.items]
        token = page.metadata._continue or ""  # noqa: SLF001  # the client's name for it
    assert names == ["one", *(f"page{number}" for number in range(5))]
    assert not core.list_namespaced_config_map(NAMESPACE, label_selector="app!=test").items


def patch(core: client.CoreV1Api, api: client.ApiClient) -> None:
    core.create_namespaced_service(NAMESPACE, service("web"))
    ports = {"spec": {"ports": [{"port": 80, "name": "c"}]}}
    strategic = core.patch_namespaced_service("web", NAMESPACE, ports)
    assert [each.name for each in strategic.spec.ports] == ["c", "b"]
    replaced = core.patch_namespaced_service("web", NAMESPACE, [{"op": "remove", "path": "/spec/ports/1"}])
    assert [each.name for each in replaced.spec.ports] == ["c"]
    services = DynamicClient(api).resources.get(api_version="v1", kind="Service")
    merged = services.patch(body=ports, name="web", namespace=NAMESPACE, content_type="application/merge-patch+json")
    assert len(merged.spec.ports) == 1
    maps = DynamicClient(api).resources.get(api_version="v1", kind="ConfigMap")
    maps.server_side_apply(body=config_map("applied", a="1"), name="applied", namespace=NAMESPACE, field_manager="m1")
    with refused(ApiException, 409, code_of):
        maps.server_side_apply(config_map("applied", a="2"), "applied", NAMESPACE, field_manager="m2")
    forced = maps.server_side_apply(
        config_map("applied", a="2"), "applied", NAMESPACE, field_manager="m2", force_conflicts=True
    )
    assert forced.data.a == "2"
    status = {"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}}
    core.patch_namespaced_service("web", NAMESPACE, {"spec": {"type": "LoadBalancer"}})
    shown = core.patch_namespaced_service_status("web", NAMESPACE, status)
    assert shown.status.load_balancer.ingress[0].ip == "192.0.2.1"


def end(core: client.CoreV1Api) -> None:
    body = config_map("held")
    body["metadata"]["finalizers"] = ["a.test/held"]
    core.create_namespaced_config_map(NAMESPACE, body)
    core.delete_namespaced_config_map("held", NAMESPACE)
    assert core.read_namespaced_config_map("held", NAMESPACE).metadata.deletion_timestamp is not None
    core.patch_namespaced_config_map("held", NAMESPACE, {"metadata": {"finalizers": None}})
    with refused(ApiException, 404, code_of):
        core.read_namespaced_config_map("held", NAMESPACE)


def custom(api: client.ApiClient) -> None:
    objects = client.CustomObjectsApi(api)
    made = objects.create_namespaced_custom_object(*GATEWAY, route("one", hostnames=["a.test"]))
    assert made["spec"]["rules"][0]["matches"][0]["path"] == {"type": "PathPrefix", "value": "/"}
    with refused(ApiException, 422, code_of):
        objects.create_namespaced_custom_object(*GATEWAY, route("two", hostnames=["*"]))


def lead() -> None:
    leading = threading.Event()
    settings = electionconfig.Config(
        LeaseLock("leader", NAMESPACE, "me"), lease_duration=4, renew_deadline=3, retry_period=1,
        onstarted_leading=leading.set, onstopped_leading=None,
    )  # fmt: skip
    threading.Thread(target=leaderelection.LeaderElection(settings).run, daemon=True).start()
    until(leading.is_set, "it leads")
    assert client.CoordinationV1Api().read_namespaced_lease("leader", NAMESPACE).spec.holder_identity == "me"


def follow(core: client.CoreV1Api, seen: list[str]) -> None:
    version = core.list_namespaced_config_map(NAMESPACE).metadata.resource_version
    while True:
        watching = watch.Watch()
        with contextlib.suppress(HTTPError):
            for event in watching.stream(core.list_namespaced_config_map, NAMESPACE, resource_version=version):
                seen.append(event["object"].metadata.name)
                version = event["object"].metadata.resource_version


def main() -> None:
    config.load_kube_config()
    core, api = client.CoreV1Api(), client.ApiClient()
    core.create_namespace({"metadata": {"name": NAMESPACE}})
    change(core)
    patch(core, api)
    end(core)
    custom(api)
    lead()
    seen: list[str] = []
    threading.Thread(target=follow, args=(core, seen), daemon=True).start()
    core.create_namespaced_config_map(NAMESPACE, config_map("before"))
    until(lambda: "before" in seen, "the watch shows an object")
    wait_for_restart()
    core.create_namespaced_config_map(NAMESPACE, config_map("after"))
    until(lambda: "after" in seen, "the watch goes on")
    assert seen == ["before", "after"]


main()
