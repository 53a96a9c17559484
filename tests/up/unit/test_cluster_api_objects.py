"""The API server by HTTP: objects are created, read, changed and deleted as Kubernetes does it, in its words."""

import asyncio
import base64
import re
from typing import Any

import pytest
from tests.up.unit.cluster_here import SERVICES, Here, in_cluster, pod, service

pytestmark = pytest.mark.attack

WEB = f"{SERVICES}/web"
PODS = "/api/v1/namespaces/default/pods"
MAPS = "/api/v1/namespaces/default/configmaps"
APPLY = "apply-patch+yaml"


@in_cluster()
async def test_a_created_object_has_what_the_server_adds_and_defaults(here: Here) -> None:
    made = await here.post(SERVICES, service("web", selector={"app": "web"}))
    meta = made["metadata"]
    assert (meta["name"], meta["namespace"], meta["creationTimestamp"]) == ("web", "default", "2026-01-01T12:00:00Z")
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", meta["uid"])
    assert meta["resourceVersion"] == str(here.store.revision)
    assert made["spec"] == {
        "ports": [{"port": 80, "protocol": "TCP", "targetPort": 8080}],
        "selector": {"app": "web"},
        "sessionAffinity": "None",
        "type": "ClusterIP",
        "internalTrafficPolicy": "Cluster",
    }
    assert await here.send("GET", WEB) == (200, made)


@in_cluster()
async def test_what_is_wrong_in_a_service_is_a_status_that_names_the_fields(here: Here) -> None:
    body = service("web", ports=[{"port": 1}, {"port": 2}], sessionAffinity="ClientIP")
    code, status = await here.send("POST", SERVICES, body)
    assert (code, status["kind"], status["reason"]) == (422, "Status", "Invalid")
    wrong = "[spec.ports[0].name: Required value, spec.ports[1].name: Required value]"
    assert status["message"] == f'Service "web" is invalid: {wrong}'
    assert status["details"]["name"] == "web"
    assert [cause["field"] for cause in status["details"]["causes"]] == ["spec.ports[0].name", "spec.ports[1].name"]
    assert (await here.send("GET", WEB))[0] == 404


MALFORMED: list[tuple[bytes, int, str]] = [
    (b"{", 400, "the body of the request is not JSON"),
    (b"[]", 400, "is not of kind Service"),
    (b"\xff", 400, "not JSON"),
    (b"[" * 100_000, 400, "not JSON"),
    (b'{"kind":"Pod"}', 400, "the object provided is unrecognized"),
    (b'{"metadata":7}', 400, "metadata"),
    (b'{"metadata":{"name":"web","namespace":"other"}}', 400, "does not match the namespace sent on the request"),
    (b'{"metadata":{"name":"web"},"spec":{"ports":"80"}}', 400, "cannot unmarshal string into field spec.ports"),
    (b'{"metadata":{"name":"web"},"spec":{"ports":[{"port":"80"}]}}', 400, "field spec.ports[0].port of type int32"),
    (b'{"metadata":{"name":"web"},"spec":{"ports":[{"port":1e99}]}}', 400, "of type int32"),
    (b'{"metadata":{"name":"web","resourceVersion":"7"}}', 400, "resourceVersion should not be set"),
    (b'{"metadata":{}}', 422, "name or generateName is required"),
    (b'{"metadata":{"name":"Web"}}', 422, "a lowercase RFC 1123 label must consist of lower case"),
    (b'{"metadata":{"name":"web","labels":{"a":"b c"}}}', 422, "metadata.labels: Invalid value"),
    (b" " * (3 << 20) + b"{}", 413, "Request entity too large: limit is 3145728"),
]


@pytest.mark.parametrize(("body", "code", "message"), MALFORMED)
@in_cluster()
async def test_bodies_that_make_no_sense_are_refused_in_the_apis_form(
    here: Here, body: bytes, code: int, message: str
) -> None:
    before = here.store.revision
    found, status = await here.send("POST", SERVICES, body)
    assert (found, status["kind"], status["code"]) == (code, "Status", code)
    assert message in status["message"]
    assert here.store.revision == before


@in_cluster()
async def test_unknown_fields_are_refused_told_or_dropped_as_asked(here: Here) -> None:
    body = service("web", foo=1)
    code, status = await here.send("POST", f"{SERVICES}?fieldValidation=Strict", body)
    assert (code, status["message"]) == (
        400,
        'Service in version "v1" cannot be handled as a Service: strict decoding error: unknown field "spec.foo"',
    )
    code, made = await here.send("POST", SERVICES, body)
    assert (code, "foo" in made["spec"]) == (201, False)
    assert here.warnings == ['299 - "unknown field \\"spec.foo\\""']
    code, _ = await here.send("PUT", f"{WEB}?fieldValidation=Ignore", body)
    assert (code, here.warnings) == (200, [])
    assert (await here.send("PUT", f"{WEB}?fieldValidation=maybe", body))[0] == 422


JSON_TWICE = (
    b'{"metadata": {"name": "web", "labels": {"a": "1", "a": "2"}}, "spec": {"ports": [{"port": 80, "port": 81}]}}'
)
YAML_TWICE = b"metadata: {name: web, labels: {a: '1', a: '2'}}\nspec: {ports: [{port: 80, port: 81}]}\n"


@pytest.mark.parametrize(("body", "kind"), [(JSON_TWICE, "json"), (YAML_TWICE, "yaml")])
@in_cluster()
async def test_fields_that_stand_twice_are_refused_told_or_taken_as_asked(here: Here, body: bytes, kind: str) -> None:
    headers = {"Content_Type": f"application/{kind}"}
    code, status = await here.send("POST", f"{SERVICES}?fieldValidation=Strict", body, **headers)
    words = 'strict decoding error: duplicate field "metadata.labels.a", duplicate field "spec.ports[0].port"'
    assert (code, words in status["message"]) == (400, True)
    code, made = await here.send("POST", SERVICES, body, **headers)
    assert (code, made["metadata"]["labels"], made["spec"]["ports"][0]["port"]) == (201, {"a": "2"}, 81)
    assert len(here.warnings) == 2
    assert (await here.send("PUT", f"{WEB}?fieldValidation=Ignore", body, **headers))[0] == 200
    assert here.warnings == []


@pytest.mark.parametrize(
    "bomb",
    [
        b"a0: &a0 [x, x]\n" + b"".join(b"a%d: &a%d [*a%d, *a%d]\n" % (n, n, n - 1, n - 1) for n in range(1, 40)),
        b"metadata: &a {name: web, labels: *a}\n",
    ],
)
@in_cluster()
async def test_yaml_whose_aliases_make_much_of_little_is_refused(here: Here, bomb: bytes) -> None:
    code, status = await here.send("POST", SERVICES, bomb, Content_Type="application/yaml")
    assert (code, status["message"].startswith("error decoding YAML: ")) == (400, True)


@in_cluster()
async def test_names_are_made_taken_and_refused(here: Here) -> None:
    made = [await here.post(PODS, pod("", metadata={"generateName": "web-"})) for _ in range(3)]
    assert len({re.fullmatch(r"web-[a-z2-9]{5}", one["metadata"]["name"]) for one in made}) == 3
    await here.post(SERVICES, service("web"))
    code, status = await here.send("POST", SERVICES, service("web"))
    assert (code, status["reason"]) == (409, "AlreadyExists")
    assert status["message"] == 'services "web" already exists'
    code, status = await here.send("POST", "/api/v1/namespaces/none/services", service("web"))
    assert (code, status["message"]) == (404, 'namespaces "none" not found')
    code, status = await here.send("GET", f"{SERVICES}/none")
    assert (code, status["message"], status["details"]) == (
        404,
        'services "none" not found',
        {"name": "none", "kind": "services"},
    )


@in_cluster()
async def test_an_update_on_an_old_state_is_a_conflict_and_loses_nothing(here: Here) -> None:
    made = await here.post(SERVICES, service("web"))
    made["metadata"]["labels"] = {"a": "1"}
    code, first = await here.send("PUT", WEB, made)
    assert code == 200
    made["metadata"]["labels"] = {"a": "2"}
    code, status = await here.send("PUT", WEB, made)
    assert (code, status["reason"]) == (409, "Conflict")
    assert status["message"] == (
        'Operation cannot be fulfilled on services "web": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
    assert await here.send("GET", WEB) == (200, first)
    code, status = await here.send("PATCH", WEB, {"metadata": {"resourceVersion": "1"}}, patch="merge-patch+json")
    assert code == 409
    code, status = await here.send("PUT", WEB, first | {"metadata": first["metadata"] | {"uid": "other"}})
    assert (code, "Precondition failed: UID" in status["message"]) == (409, True)


@in_cluster()
async def test_concurrent_patches_all_happen(here: Here) -> None:
    await here.post(SERVICES, service("web"))
    patches = [{"metadata": {"labels": {f"l{number}": "x"}}} for number in range(40)]
    async with asyncio.TaskGroup() as tasks:
        sent = [tasks.create_task(here.send("PATCH", WEB, part, patch="merge-patch+json")) for part in patches]
    assert {task.result()[0] for task in sent} == {200}
    _, found = await here.send("GET", WEB)
    assert len(found["metadata"]["labels"]) == 40


@in_cluster()
async def test_a_change_that_changes_nothing_has_no_revision(here: Here) -> None:
    made = await here.post(SERVICES, service("web"))
    assert await here.send("PUT", WEB, made) == (200, made)
    assert here.store.revision == int(made["metadata"]["resourceVersion"])


@in_cluster()
async def test_what_cannot_be_changed_is_kept_or_refused(here: Here) -> None:
    made = await here.post(SERVICES, service("web", clusterIP="10.0.0.1", type="NodePort"))
    body = service("web", type="NodePort")
    body["metadata"] |= {"creationTimestamp": "2000-01-01T00:00:00Z", "generation": 9}
    _, changed = await here.send("PUT", WEB, body)
    assert changed["metadata"]["creationTimestamp"] == made["metadata"]["creationTimestamp"]
    assert changed["spec"]["clusterIPs"] == ["10.0.0.1"]
    moved = service("web", clusterIP="10.0.0.2", clusterIPs=["10.0.0.2"], type="NodePort")
    code, status = await here.send("PUT", WEB, moved)
    assert (code, status["details"]["causes"][0]["message"]) == (
        422,
        'Invalid value: ["10.0.0.2"]: may not change once set',
    )
    for address in ("10.0.0.2", "None"):  # a patch that says only the first of two fields
        patch = {"spec": {"clusterIP": address}}
        code, status = await here.send("PATCH", WEB, patch, patch="strategic-merge-patch+json")
        assert (code, "may not change once set" in status["message"]) == (422, True)
    code, status = await here.send("PUT", WEB, service("other"))
    assert (code, "does not match the name on the URL (web)" in status["message"]) == (400, True)


@in_cluster()
async def test_status_and_spec_are_written_apart(here: Here) -> None:
    ingress = [{"ip": "1.2.3.4", "ipMode": "Proxy"}]
    body = service("web", type="LoadBalancer") | {"status": {"loadBalancer": {"ingress": ingress}}}
    made = await here.post(SERVICES, body)
    assert made["status"] == {"loadBalancer": {}}
    changed = made | {"status": body["status"], "spec": made["spec"] | {"type": "ClusterIP"}}
    code, found = await here.send("PUT", f"{WEB}/status", changed)
    assert (code, found["status"], found["spec"]) == (200, body["status"], made["spec"])
    code, found = await here.send("PATCH", WEB, {"status": {"loadBalancer": None}}, patch="merge-patch+json")
    assert (code, found["status"]) == (200, body["status"])
    assert (await here.send("GET", f"{WEB}/status"))[1] == found
    assert (await here.send("GET", f"{WEB}/scale"))[0] == 404


@in_cluster()
async def test_a_pod_is_declared_with_its_status(here: Here) -> None:
    made = await here.post(PODS, pod("web", status={"podIP": "10.1.0.1", "phase": "Running"}))
    assert made["status"] == {"podIP": "10.1.0.1", "podIPs": [{"ip": "10.1.0.1"}], "phase": "Running"}
    code, status = await here.send("PATCH", f"{PODS}/web", {"spec": {"hostname": "x"}}, patch="merge-patch+json")
    assert (code, status["reason"]) == (422, "Invalid")
    assert "pod updates may not change fields other than" in status["message"]


@pytest.mark.parametrize(
    ("address", "warning"),
    [
        ("", "vipwire starts no containers: a Pod must already run, and must have an address"),
        ("127.0.0.1", "127.0.0.1 cannot be an endpoint: an endpoint may not be in the loopback range"),
        ("192.0.2.1", ""),
    ],
)
@in_cluster()
async def test_who_declares_a_pod_that_no_service_leads_to_is_warned(here: Here, address: str, warning: str) -> None:
    spec = {"containers": [{"name": "a", "image": "none"}]}
    body = {"metadata": {"name": "p"}, "spec": spec, "status": {"podIP": address} if address else {}}
    await here.post(PODS, body)
    assert [warning in text for text in here.warnings] == ([True] if warning else [])


NO_HOSTS = ("255.255.255.255", "0.0.0.0", "::", "224.0.0.1", "ff02::1")  # refused, not bound


@pytest.mark.parametrize("address", NO_HOSTS)
@in_cluster()
async def test_no_pod_no_endpoint_and_no_load_balancer_has_an_address_of_no_machine(here: Here, address: str) -> None:
    family = "IPv6" if ":" in address else "IPv4"
    slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"

    async def fields(method: str, path: str, body: dict[str, Any], patch: str = "") -> list[str]:
        code, status = await here.send(method, path, body, **({"patch": patch} if patch else {}))
        assert (code, status["reason"]) == (422, "Invalid"), (path, status)
        return [cause["field"] for cause in status["details"]["causes"]]

    made = {"metadata": {"name": "a"}, "addressType": family, "endpoints": [{"addresses": [address]}]}
    assert await fields("POST", slices, made) == ["endpoints[0].addresses[0]"]
    subsets = {"metadata": {"name": "a"}, "subsets": [{"addresses": [{"ip": address}], "ports": [{"port": 80}]}]}
    assert await fields("POST", "/api/v1/namespaces/default/endpoints", subsets) == ["subsets[0].addresses[0].ip"]
    assert await fields("POST", PODS, pod("a", status={"podIP": address})) == ["status.podIPs[0].ip"]
    await here.post(PODS, pod("b", status={"podIP": "192.0.2.1"}))
    moved = {"status": {"podIP": address, "podIPs": [{"ip": address}]}}
    assert await fields("PATCH", f"{PODS}/b/status", moved, "merge-patch+json") == ["status.podIPs[0].ip"]
    await here.post(SERVICES, service("web", type="LoadBalancer"))
    balanced = {"status": {"loadBalancer": {"ingress": [{"ip": address}]}}}
    found = await fields("PATCH", f"{WEB}/status", balanced, "merge-patch+json")
    assert found == ["status.loadBalancer.ingress[0].ip"]


@in_cluster()
async def test_a_dry_run_answers_as_if_and_does_nothing(here: Here) -> None:
    code, made = await here.send("POST", f"{SERVICES}?dryRun=All", service("web"))
    assert (code, made["spec"]["type"]) == (201, "ClusterIP")
    assert "resourceVersion" not in made["metadata"]
    assert (await here.send("GET", WEB))[0] == 404
    there = await here.post(SERVICES, service("web"))
    await here.post(SERVICES, service("later"))
    before = here.store.revision
    patch = {"metadata": {"labels": {"a": "b"}}}
    code, found = await here.send("PATCH", f"{WEB}?dryRun=All", patch, patch="merge-patch+json")
    assert (code, found["metadata"]["labels"]) == (200, {"a": "b"})
    assert found["metadata"]["resourceVersion"] == there["metadata"]["resourceVersion"]  # kubectl diff shows it
    assert (await here.send("DELETE", f"{WEB}?dryRun=All"))[0] == 200
    assert here.store.revision == before
    assert (await here.send("POST", f"{SERVICES}?dryRun=Some", service("x")))[0] == 422


@in_cluster()
async def test_deletion_waits_for_finalizers_and_checks_preconditions(here: Here) -> None:
    body = service("web")
    body["metadata"]["finalizers"] = ["example.com/wait"]
    made = await here.post(SERVICES, body)
    code, status = await here.send("DELETE", WEB, {"preconditions": {"uid": "other"}})
    assert (code, status["reason"]) == (409, "Conflict")
    code, found = await here.send("DELETE", WEB)
    assert (code, found["metadata"]["deletionTimestamp"]) == (200, "2026-01-01T12:00:00Z")
    more = {"metadata": {"finalizers": ["example.com/wait", "example.com/more"]}}
    code, status = await here.send("PATCH", WEB, more, patch="merge-patch+json")
    why = "no new finalizers can be added if the object is being deleted, found new finalizers"
    assert (code, status["details"]["causes"][0]["field"]) == (422, "metadata.finalizers")
    assert f'Forbidden: {why} []string{{"example.com/more"}}' in status["message"]
    code, _ = await here.send("PATCH", WEB, {"metadata": {"finalizers": None}}, patch="merge-patch+json")
    assert code == 200
    assert (await here.send("GET", WEB))[0] == 404
    again = await here.post(SERVICES, service("web"))
    assert again["metadata"]["uid"] != made["metadata"]["uid"]
    code, last = await here.send("DELETE", WEB)
    assert (code, last["kind"], last["metadata"]["uid"]) == (200, "Service", again["metadata"]["uid"])
    made = await here.post(MAPS, {"metadata": {"name": "map"}})
    code, status = await here.send("DELETE", f"{MAPS}/map")
    assert (code, status["status"], status["details"]["uid"]) == (200, "Success", made["metadata"]["uid"])


@in_cluster()
async def test_a_collection_is_deleted_by_selector(here: Here) -> None:
    for name in ("a", "b", "c"):
        body = service(name)
        body["metadata"]["labels"] = {"go": "yes" if name < "c" else "no"}
        await here.post(SERVICES, body)
    assert (await here.send("DELETE", f"{SERVICES}?labelSelector=go%3Dyes"))[0] == 200
    _, left = await here.send("GET", SERVICES)
    assert [item["metadata"]["name"] for item in left["items"]] == ["c"]


@in_cluster()
async def test_three_kinds_of_patch(here: Here) -> None:
    ports = [{"name": "a", "port": 1}, {"name": "b", "port": 2}]
    await here.post(SERVICES, service("web", ports=ports))
    strategic = {"spec": {"ports": [{"port": 2, "targetPort": "http"}]}}
    _, found = await here.send("PATCH", WEB, strategic, patch="strategic-merge-patch+json")
    assert [port["targetPort"] for port in found["spec"]["ports"]] == [1, "http"]
    _, found = await here.send("PATCH", WEB, {"spec": {"ports": ports[:1]}}, patch="merge-patch+json")
    assert [port["name"] for port in found["spec"]["ports"]] == ["a"]
    operations = [{"op": "replace", "path": "/spec/ports/0/name", "value": "z"}]
    _, found = await here.send("PATCH", WEB, operations, patch="json-patch+json")
    assert [port["name"] for port in found["spec"]["ports"]] == ["z"]
    code, status = await here.send("PATCH", WEB, {}, patch="unknown+json")
    assert (code, status["reason"]) == (415, "UnsupportedMediaType")
    code, status = await here.send("PATCH", f"{SERVICES}/none", {}, patch="merge-patch+json")
    assert code == 404


@in_cluster()
async def test_applies_create_share_conflict_force_and_remove(here: Here) -> None:
    async def apply(manager: str, body: Any, more: str = "") -> tuple[int, Any]:
        return await here.send("PATCH", f"{WEB}?fieldManager={manager}{more}", body, patch=APPLY)

    mine: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web", "labels": {"a": "1", "b": "1"}},
    }
    mine["spec"] = {"ports": [{"port": 80, "name": "http"}]}
    code, made = await apply("one", mine)
    assert (code, [entry["operation"] for entry in made["metadata"]["managedFields"]]) == (201, ["Apply"])
    other = {"apiVersion": "v1", "kind": "Service", "metadata": {"labels": {"a": "2"}}}
    code, status = await apply("two", other)
    assert (code, status["message"]) == (
        409,
        'Apply failed with 1 conflict: conflict with "one" using v1: .metadata.labels.a',
    )
    cause = {
        "reason": "FieldManagerConflict",
        "message": 'conflict with "one" using v1',
        "field": ".metadata.labels.a",
    }
    assert status["details"]["causes"] == [cause]
    code, found = await apply("two", other, "&force=true")
    assert (code, found["metadata"]["labels"]) == (200, {"a": "2", "b": "1"})
    mine["metadata"]["labels"] = {}
    _, found = await apply("one", mine)
    assert found["metadata"]["labels"] == {"a": "2"}
    assert (await here.send("PATCH", WEB, mine, patch=APPLY))[0] == 400


@in_cluster()
async def test_what_a_patch_changes_is_its_writers(here: Here) -> None:
    await here.send("POST", f"{SERVICES}?fieldManager=maker", service("web"))
    patch = {"spec": {"sessionAffinity": "ClientIP"}}
    _, found = await here.send("PATCH", WEB, patch, patch="merge-patch+json", User_Agent="painter/1.0 (linux)")
    owners = {entry["manager"]: entry["fieldsV1"] for entry in found["metadata"]["managedFields"]}
    assert set(owners) == {"maker", "painter"}
    config: dict[str, Any] = {"f:clientIP": {"f:timeoutSeconds": {}}}
    assert owners["painter"] == {"f:spec": {"f:sessionAffinity": {}, "f:sessionAffinityConfig": config}}
    assert "f:sessionAffinity" not in owners["maker"]["f:spec"]


@pytest.mark.parametrize(
    ("user", "method", "path", "code"),
    [
        ("admin", "GET", "/api/v1/secrets", 200),
        ("view", "GET", "/api/v1/services", 200),
        ("view", "GET", "/api/v1/secrets", 403),
        ("view", "DELETE", SERVICES, 403),
        ("node", "GET", "/apis/discovery.k8s.io/v1/endpointslices", 200),
        ("node", "GET", "/api/v1/secrets", 403),
        ("node", "POST", SERVICES, 403),
        ("nobody", "GET", "/api/v1/services", 403),
        ("nobody", "GET", "/api", 403),
        ("nobody", "GET", "/version", 200),
        ("nobody", "GET", "/readyz", 200),
    ],
)
@in_cluster()
async def test_roles(here: Here, user: str, method: str, path: str, code: int) -> None:
    found, status = await here.send(method, path, {} if method == "POST" else None, user=user)
    assert found == code
    if code == 403 and path == SERVICES and method == "POST":
        assert status["message"] == (
            'services is forbidden: User "node" cannot create resource "services" in API group "" '
            'in the namespace "default"'
        )


@in_cluster(limit=120 << 10)
async def test_a_full_disk_is_the_servers_error_and_the_object_is_as_before(here: Here) -> None:
    small = {"metadata": {"name": "a"}, "data": {"x": "small"}}
    made = await here.post(MAPS, small)
    code, status = await here.send("PUT", f"{MAPS}/a", small | {"data": {"x": "large" * 50_000}})
    assert (code, status["reason"]) == (500, "InternalError")
    assert "no space left: the store did not make the change" in status["message"]
    assert await here.send("GET", f"{MAPS}/a") == (200, made)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/api/v1/namespaces/default/secrets", {"data": {"a": "no base64"}}, "data[a]: illegal base64 data"),
        ("/apis/coordination.k8s.io/v1/namespaces/default/leases", {"spec": {"renewTime": "now"}}, "not a time"),
    ],
)
@in_cluster()
async def test_a_value_that_cannot_be_read_is_named(here: Here, path: str, body: Any, message: str) -> None:
    code, status = await here.send("POST", path, body | {"metadata": {"name": "a"}})
    assert code == 400
    assert message in status["message"]


@pytest.mark.parametrize(
    ("kind", "part", "whole"),
    [("ConfigMap", "data", False), ("ConfigMap", "binaryData", True), ("Secret", "data", True)],
)
@in_cluster()
async def test_a_mebibyte_of_data_is_the_most_as_it_is_without_base64(
    here: Here, kind: str, part: str, *, whole: bool
) -> None:
    for size, expected in ((1 << 20, 201), ((1 << 20) + 1, 422)):
        content = b"x" * size
        text = base64.b64encode(content).decode() if whole else content.decode()
        body = {"metadata": {"name": "large"}, part: {"key": text}}
        code, answer = await here.send("POST", f"/api/v1/namespaces/default/{kind.lower()}s", body)
        assert code == expected, answer.get("message")
        assert code == 201 or "Too long: may not be more than 1048576 bytes" in answer["message"]
        await here.send("DELETE", f"/api/v1/namespaces/default/{kind.lower()}s/large")
