"""Where it was found to differ from kube-apiserver: apply, PUT, PATCH, selectors, watches, pages, and what stays."""

from functools import partial
from typing import Any

import pytest
from tests.up.unit.cluster_here import SERVICES, Here, in_cluster, service
from tests.up.unit.controllers_here import allocating
from tests.up.unit.up_here import write

from vipwire_up.controllers.hooks import set_default_class

WEB = f"{SERVICES}/web"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
ENDPOINTS = "/api/v1/namespaces/default/endpoints"
APPLY = f"{WEB}?fieldManager=me"
WHOLE = {"apiVersion": "v1", "kind": "Service"}


@pytest.mark.parametrize("left_out", ["kind", "apiVersion"])
@in_cluster()
async def test_an_apply_says_what_it_is_about(here: Here, left_out: str) -> None:
    body = {key: part for key, part in service("web").items() if key != left_out}
    code, status = await here.send("PATCH", APPLY, body, patch="apply-patch+yaml")
    assert (code, "is missing" in status["message"]) == (400, True)
    assert (await here.send("GET", WEB))[0] == 404


@pytest.mark.parametrize(("validation", "code"), [("Strict", 400), ("Warn", 500), ("Ignore", 500)])
@in_cluster()
async def test_an_apply_of_an_unknown_field_is_refused(here: Here, validation: str, code: int) -> None:
    path = f"{APPLY}&fieldValidation={validation}"
    found, status = await here.send("PATCH", path, service("web", foo=1), patch="apply-patch+yaml")
    assert (found, "spec.foo" in status["message"]) == (code, True)
    assert (await here.send("GET", WEB))[0] == 404


@in_cluster()
async def test_an_apply_to_an_object_that_has_been(here: Here) -> None:
    body = service("web")
    body["metadata"]["uid"] = "gone"
    code, status = await here.send("PATCH", APPLY, body, patch="apply-patch+yaml")
    assert (code, status["message"].partition('"web": ')[2]) == (
        409,
        "uid mismatch: the provided object specified uid gone, and no existing object was found",
    )


@in_cluster()
async def test_what_nobody_owns_any_more_is_owned_before_the_first_apply(here: Here) -> None:
    await here.post(SERVICES, service("web", sessionAffinity="ClientIP"))
    await here.send("PATCH", WEB, {"metadata": {"managedFields": [{}]}}, patch="merge-patch+json")
    body = service("web", sessionAffinity="None")
    code, status = await here.send("PATCH", APPLY, body, patch="apply-patch+yaml")
    assert (code, 'conflict with "before-first-apply" using v1' in status["message"]) == (409, True)
    code, found = await here.send("PATCH", f"{APPLY}&force=true", body, patch="apply-patch+yaml")
    assert (code, found["spec"]["sessionAffinity"]) == (200, "None")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (WEB, service("web")),
        (f"{ENDPOINTS}/web", {"metadata": {"name": "web"}}),
        (f"{LEASES}/web", {"metadata": {"name": "web"}, "spec": {"holderIdentity": "me"}}),
    ],
)
@in_cluster()
async def test_a_put_creates_what_is_not_there(here: Here, path: str, body: dict[str, Any]) -> None:
    stale = body | {"metadata": body["metadata"] | {"resourceVersion": "7"}}
    assert (await here.send("PUT", path, stale))[0] == 404
    assert (await here.send("PUT", path, body | {"metadata": body["metadata"] | {"uid": "x"}}))[0] == 409
    code, made = await here.send("PUT", path, body)
    assert (code, made["metadata"]["name"]) == (201, "web")
    assert (await here.send("PUT", f"{path}", made))[0] == 200


@in_cluster()
async def test_other_kinds_are_not_created_by_put(here: Here) -> None:
    path = "/api/v1/namespaces/default/configmaps/web"
    assert (await here.send("PUT", path, {"metadata": {"name": "web"}}))[0] == 404
    assert (await here.send("PUT", f"{WEB}/status", service("web")))[0] == 404


@in_cluster()
async def test_a_lock_is_taken_by_who_has_seen_it(here: Here) -> None:
    body = {"metadata": {"name": "web"}, "spec": {"holderIdentity": "me"}}
    made = await here.post(LEASES, body)
    code, status = await here.send("PUT", f"{LEASES}/web", body | {"spec": {"holderIdentity": "you"}})
    assert (code, status["details"]["causes"][0]["field"]) == (422, "metadata.resourceVersion")
    assert "Invalid value: 0: must be specified for an update" in status["message"]
    assert (await here.send("PUT", f"{LEASES}/web", made))[0] == 200


@pytest.mark.parametrize("patch", ["merge-patch+json", "strategic-merge-patch+json"])
@in_cluster()
async def test_a_patch_cannot_rename(here: Here, patch: str) -> None:
    await here.post(SERVICES, service("web"))
    code, status = await here.send("PATCH", WEB, {"metadata": {"name": "other"}}, patch=patch)
    assert (code, "(other) does not match the name on the URL (web)" in status["message"]) == (400, True)


@pytest.mark.parametrize(
    ("selector", "found"), [("n%3E2", ["b"]), ("n%3C2", ["a"]), ("n%3E0,n%3C9", ["a", "b"]), ("app%3Dx,n>1", [])]
)
@in_cluster()
async def test_labels_are_compared_as_numbers(here: Here, selector: str, found: list[str]) -> None:
    for name, number in (("a", "1"), ("b", "3"), ("c", "many")):
        body = service(name)
        body["metadata"]["labels"] = {"n": number}
        await here.post(SERVICES, body)
    _, page = await here.send("GET", f"{SERVICES}?labelSelector={selector}")
    assert [item["metadata"]["name"] for item in page["items"]] == found
    for wrong in ("n%3Ex", "n%3E", "n%3E" + "9" * 99):
        assert (await here.send("GET", f"{SERVICES}?labelSelector={wrong}"))[0] == 400


@in_cluster()
async def test_addresses_go_with_the_load_balancer(here: Here) -> None:
    await here.post(SERVICES, service("web", type="LoadBalancer"))
    told = {"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}}
    code, found = await here.send("PATCH", f"{WEB}/status", told, patch="merge-patch+json")
    assert (code, found["status"]["loadBalancer"]["ingress"]) == (200, [{"ip": "192.0.2.1", "ipMode": "VIP"}])
    change = {"spec": {"type": "ClusterIP", "allocateLoadBalancerNodePorts": None, "externalTrafficPolicy": None}}
    code, found = await here.send("PATCH", WEB, change, patch="merge-patch+json")
    assert (code, found["status"]["loadBalancer"]) == (200, {})
    code, status = await here.send("PATCH", f"{WEB}/status", told, patch="merge-patch+json")
    assert (code, status["details"]["causes"][0]["field"]) == (422, "status.loadBalancer.ingress")


UNCHANGEABLE: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    (
        SERVICES,
        service("web", type="LoadBalancer", externalTrafficPolicy="Local", healthCheckNodePort=30001),
        {"spec": {"healthCheckNodePort": 30002}},
        "spec.healthCheckNodePort",
    ),
    (
        SERVICES,
        service("web", type="LoadBalancer", loadBalancerClass="a/b"),
        {"spec": {"loadBalancerClass": "a/c"}},
        "spec.loadBalancerClass",
    ),
    (
        "/apis/networking.k8s.io/v1/ingressclasses",
        {"metadata": {"name": "web"}, "spec": {"controller": "example.com/a"}},
        {"spec": {"controller": "example.com/b"}},
        "spec.controller",
    ),
    (
        "/api/v1/nodes",
        {"metadata": {"name": "web"}, "spec": {"podCIDR": "10.1.0.0/24"}},
        {"spec": {"podCIDR": None, "podCIDRs": ["10.2.0.0/24"]}},
        "spec.podCIDRs",
    ),
    (
        "/api/v1/namespaces/default/pods",
        {"metadata": {"name": "web"}, "spec": {"containers": [{"name": "a", "image": "none"}]}},
        {"spec": {"nodeName": "n"}},
        "spec",
    ),
]


@pytest.mark.parametrize(("path", "body", "change", "field"), UNCHANGEABLE, ids=[case[3] for case in UNCHANGEABLE])
@in_cluster()
async def test_what_stays(here: Here, path: str, body: Any, change: Any, field: str) -> None:
    await here.post(path, body)
    code, status = await here.send("PATCH", f"{path}/web", change, patch="merge-patch+json")
    assert (code, status["details"]["causes"][0]["field"]) == (422, field)


def ingress(**path: Any) -> dict[str, Any]:
    backend = {"service": {"name": "a", "port": {"number": 80}}}
    paths = [{"path": "/", "pathType": "Prefix", "backend": backend} | path]
    return {"metadata": {"name": "web"}, "spec": {"rules": [{"host": "a.example", "http": {"paths": paths}}]}}


LOOSER: list[tuple[str, dict[str, Any], str]] = [
    ("services", service("web", ports=[{"port": 1, "appProtocol": "a b"}]), "spec.ports[0].appProtocol"),
    ("services", service("web", type="LoadBalancer", loadBalancerClass="a b"), "spec.loadBalancerClass"),
    ("services", service("web", loadBalancerSourceRanges=["10.0.0.0/8"]), "spec.LoadBalancerSourceRanges"),
    ("services", service("web", type="ExternalName", externalName="a.b", ipFamilies=["IPv4"]), "spec.ipFamilies"),
    ("configmaps", {"metadata": {"name": "web"}, "data": {"a": ""}, "binaryData": {"a": ""}}, "data[a]"),
    ("secrets", {"metadata": {"name": "web"}, "type": "kubernetes.io/ssh-auth"}, "data[ssh-privatekey]"),
    ("secrets", {"metadata": {"name": "web"}, "type": "kubernetes.io/basic-auth"}, "data[username]"),
    ("ingresses", ingress(path="/a//b"), "spec.rules[0].http.paths[0].path"),
    ("ingresses", ingress(path="/a/.."), "spec.rules[0].http.paths[0].path"),
    ("ingresses", ingress(path="/%2fa"), "spec.rules[0].http.paths[0].path"),
    ("ingresses", ingress(backend={}), "spec.rules[0].http.paths[0].backend"),
    (
        "ingresses",
        {"metadata": {"name": "web"}, "spec": {"rules": [{"http": {"paths": []}}]}},
        "spec.rules[0].http.paths",
    ),
    ("ingresses", {"metadata": {"name": "web"}, "spec": {"rules": [{"host": "10.0.0.1"}]}}, "spec.rules[0].host"),
]
GROUPS = {"ingresses": "/apis/networking.k8s.io/v1"}


@pytest.mark.parametrize(("plural", "body", "field"), LOOSER, ids=[f"{case[0]} {case[2]}" for case in LOOSER])
@in_cluster()
async def test_what_was_taken_and_is_refused(here: Here, plural: str, body: Any, field: str) -> None:
    path = f"{GROUPS.get(plural, '/api/v1')}/namespaces/default/{plural}"
    code, status = await here.send("POST", path, body)
    assert (code, field in [cause["field"] for cause in status["details"].get("causes", ())]) == (422, True), status


@pytest.mark.parametrize(
    ("endpoint", "field"),
    [
        ({"addresses": ["fd00:0::1"]}, "endpoints[0].addresses[0]"),
        ({"addresses": ["fd00::1"], "nodeName": "N"}, "endpoints[0].nodeName"),
        ({"addresses": ["fd00::1"], "hints": {"forZones": [{"name": "a b"}]}}, "endpoints[0].hints.forZones[0].name"),
        ({"addresses": ["fd00::1"], "hints": {"forZones": [{"name": "a"}] * 9}}, "endpoints[0].hints.forZones"),
    ],
)
@in_cluster()
async def test_endpoints_that_were_taken(here: Here, endpoint: Any, field: str) -> None:
    body = {"metadata": {"name": "web"}, "addressType": "IPv6", "endpoints": [endpoint]}
    path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
    code, status = await here.send("POST", path, body)
    assert (code, status["details"]["causes"][0]["field"]) == (422, field)


INGRESSES = "/apis/networking.k8s.io/v1/namespaces/default/ingresses"
CLASSES = "/apis/networking.k8s.io/v1/ingressclasses"


@in_cluster(make_hooks=lambda store: (partial(set_default_class, store),))
async def test_the_newest_default_class_is_written_into_ingresses_that_name_none(here: Here) -> None:
    async def made(name: str, **spec: Any) -> Any:
        body = ingress() | {"metadata": {"name": name}}
        stored = await here.post(INGRESSES, body | {"spec": body["spec"] | spec})
        (owned,) = stored["metadata"]["managedFields"]
        assert ("f:ingressClassName" in owned["fieldsV1"]["f:spec"]) == bool(spec)
        return stored["spec"].get("ingressClassName")

    default = {"ingressclass.kubernetes.io/is-default-class": "true"}
    await here.post(CLASSES, {"metadata": {"name": "plain"}, "spec": {"controller": "a.example/b"}})
    assert await made("none") is None
    for name in ("b-first", "c-second", "a-second"):
        body = {"metadata": {"name": name, "annotations": default}, "spec": {"controller": "a.example/b"}}
        await here.post(CLASSES, body)
        here.clock.move(seconds=60 if name == "b-first" else 0)
    assert await made("web") == "a-second"
    assert await made("own", ingressClassName="plain") == "plain"
    old = {"metadata": {"name": "old", "annotations": {"kubernetes.io/ingress.class": "x"}}}
    assert "ingressClassName" not in (await here.post(INGRESSES, ingress() | old))["spec"]


def owned(value: Any) -> Any:
    """Read what the creator owns of an object."""
    (entry,) = value["metadata"]["managedFields"]
    return entry["fieldsV1"]


@allocating()
async def test_what_the_server_allocates_is_nobodys(here: Here) -> None:
    made = await here.post(SERVICES, service("web", type="LoadBalancer", externalTrafficPolicy="Local"))
    assert made["spec"].keys() >= {"clusterIP", "healthCheckNodePort", "ipFamilies"}
    assert made["spec"]["ports"][0]["nodePort"]
    spec = owned(made)["f:spec"]
    wanted = {"allocateLoadBalancerNodePorts", "externalTrafficPolicy", "internalTrafficPolicy", "ports"}
    assert spec.keys() == {f"f:{name}" for name in wanted | {"sessionAffinity", "type"}}
    port = spec["f:ports"]['k:{"port":80,"protocol":"TCP"}']
    assert port.keys() == {".", "f:port", "f:protocol", "f:targetPort"}
    namespace = await here.post("/api/v1/namespaces", {"metadata": {"name": "new"}})
    assert owned(namespace) == {"f:metadata": {"f:labels": {".": {}, "f:kubernetes.io/metadata.name": {}}}}
    chosen = service("own", clusterIP="10.96.0.9")
    assert "f:clusterIP" in owned(await here.post(SERVICES, chosen))["f:spec"]


@in_cluster()
async def test_all_that_is_wrong_is_told_at_once(here: Here) -> None:
    body = service("Web", type="Other", ports=[{"port": 80, "protocol": "ICMP", "name": "A"}])
    code, status = await here.send("POST", SERVICES, body)
    fields = {cause["field"] for cause in status["details"]["causes"]}
    assert (code, fields) == (422, {"metadata.name", "spec.type", "spec.ports[0].protocol", "spec.ports[0].name"})


@in_cluster()
async def test_a_service_may_begin_with_a_digit(here: Here) -> None:
    await here.post(SERVICES, service("1abc"))


@in_cluster()
async def test_a_watch_from_now_on_replays_nothing(here: Here) -> None:
    await here.post(SERVICES, service("before"))
    query = "watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    async with here.watch(f"{SERVICES}?{query}") as events:
        await here.post(SERVICES, service("after"))
        assert await events.names(1) == [("ADDED", "after")]


@pytest.mark.parametrize("path", ["/api", "/apis", "/api/v1", "/openapi/v2", "/openapi/v3", "/openapi/v3/api/v1"])
@in_cluster()
async def test_what_a_client_has_is_not_sent_again(here: Here, path: str) -> None:
    async with here.session.get(here.url + path, headers={"X-User": "view"}) as response:
        tag = response.headers["ETag"]
    headers = {"X-User": "view", "If-None-Match": tag}
    async with here.session.get(here.url + path, headers=headers) as response:
        assert (response.status, await response.read()) == (304, b"")


@in_cluster()
async def test_who_uses_what_is_old_is_told(here: Here) -> None:
    await here.send("GET", ENDPOINTS)
    assert here.warnings == ['299 - "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"']
    await here.post(SERVICES, service("web", clusterIP="None", sessionAffinity="ClientIP"))
    assert here.warnings == ['299 - "spec.SessionAffinity is ignored for headless services"']
    typo = service("typo") | {"metadata": {"name": "typo", "annotations": {"vipwire.io/weight": "{}"}}}
    await here.post(SERVICES, typo)
    (warning,) = here.warnings
    assert warning.startswith('299 - "metadata.annotations[vipwire.io/weight]: ')


@in_cluster()
async def test_what_was_stored_when_less_was_refused_can_be_changed_and_deleted(here: Here) -> None:
    container = {"name": "a", "image": "none", "readinessProbe": {"tcpSocket": {"port": 80}}}
    path, spec = "/api/v1/namespaces/default/pods", {"containers": [container], "nodeName": "n"}
    made = await here.post(path, {"metadata": {"name": "old"}, "spec": spec})
    del made["metadata"]["resourceVersion"]
    made["metadata"]["finalizers"] = ["mine"]
    made["spec"]["containers"][0]["readinessProbe"]["tcpSocket"]["port"] = 80800
    await write(here.store, made)
    path += "/old"
    code, _ = await here.send("PATCH", path, {"metadata": {"labels": {"a": "b"}}}, patch="merge-patch+json")
    assert code == 200
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    assert (await here.send("PATCH", f"{path}/status", ready, patch="merge-patch+json"))[0] == 200
    more = {"metadata": {"finalizers": ["mine", "yours"]}}
    code, status = await here.send("PATCH", path, more, patch="merge-patch+json")
    assert (code, len(status["details"]["causes"])) == (422, 1)
    assert (await here.send("DELETE", f"{path}?gracePeriodSeconds=0"))[0] == 200
    assert (await here.send("PATCH", path, {"metadata": {"finalizers": None}}, patch="merge-patch+json"))[0] == 200
    assert (await here.send("GET", path))[0] == 404


@in_cluster()
async def test_requests_are_counted_by_kubernetes_names(here: Here) -> None:
    await here.post(SERVICES, service("web"))
    await here.send("GET", f"{SERVICES}/none")
    await here.send("DELETE", "/api/v1/services", user="view")
    code, text = await here.send("GET", "/metrics", user="view")
    assert code == 200
    about = 'dry_run="",group="",resource="services"'
    samples = {line.partition(" ")[0].partition("{")[0] for line in text.splitlines() if about in line}
    assert {"apiserver_request_total", "apiserver_request_duration_seconds_count"} <= samples
    for told, verb in (("201", "POST"), ("404", "GET"), ("403", "DELETECOLLECTION")):
        assert any(f'code="{told}"' in line and f'verb="{verb}"' in line for line in text.splitlines()), verb
    assert 'apiserver_storage_objects{resource="services"} 1.0' in text
    assert 'apiserver_current_inflight_requests{request_kind="readOnly"} 0.0' in text
    assert "process_resident_memory_bytes" in text
    for user in ("nobody", "anonymous"):
        assert (await here.send("GET", "/metrics", user=user))[0] == 403
