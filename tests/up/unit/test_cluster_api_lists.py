"""Lists and watches by HTTP: pages, revisions, selectors, bookmarks, and what is said when history is gone."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.up.unit.cluster_here import SERVICES, START, Here, cluster, in_cluster, service

from vipwire_up.api.answers.form import Representation, encode_list
from vipwire_up.api.kinds.catalogue import RESOURCES
from vipwire_up.api.kinds.small_kinds import CONFIG_MAPS
from vipwire_up.api.serving.limits import Bounds
from vipwire_up.store.record import Key, Record

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
META = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"


async def fill(here: Here, *names: str, **labels: str) -> list[Any]:
    made = []
    for name in names:
        body = service(name)
        body["metadata"]["labels"] = labels
        made.append(await here.post(SERVICES, body))
    return made


def names(page: Any) -> list[str]:
    return [item["metadata"]["name"] for item in page["items"]]


@in_cluster()
async def test_a_list_is_ordered_and_tells_its_revision(here: Here) -> None:
    await fill(here, "c", "a", "b")
    code, page = await here.send("GET", SERVICES)
    assert (code, page["kind"], page["apiVersion"], names(page)) == (200, "ServiceList", "v1", ["a", "b", "c"])
    assert page["metadata"] == {"resourceVersion": str(here.store.revision)}
    code, everywhere = await here.send("GET", "/api/v1/services")
    assert everywhere == page
    assert (await here.send("GET", "/api/v1/namespaces/none/services"))[1]["items"] == []


@in_cluster()
async def test_pages_show_one_state_while_it_is_changed(here: Here) -> None:
    await fill(here, *"abcde")
    _, first = await here.send("GET", f"{SERVICES}?limit=2")
    assert (names(first), first["metadata"]["remainingItemCount"]) == (["a", "b"], 3)
    await here.send("DELETE", f"{SERVICES}/d")
    await fill(here, "cc")
    _, second = await here.send("GET", f"{SERVICES}?limit=2&continue={first['metadata']['continue']}")
    assert (names(second), second["metadata"]["resourceVersion"]) == (
        ["c", "d"],
        first["metadata"]["resourceVersion"],
    )
    _, third = await here.send("GET", f"{SERVICES}?limit=2&continue={second['metadata']['continue']}")
    assert (names(third), "continue" in third["metadata"]) == (["e"], False)
    await here.store.compact(here.store.revision)
    code, status = await here.send("GET", f"{SERVICES}?limit=2&continue={first['metadata']['continue']}")
    assert (code, status["reason"]) == (410, "Expired")
    assert status["message"].startswith("The provided continue parameter is too old")
    assert (await here.send("GET", f"{SERVICES}?continue=nonsense"))[0] == 400


@in_cluster()
async def test_a_list_of_a_revision(here: Here) -> None:
    (first, _) = await fill(here, "a", "b")
    then = first["metadata"]["resourceVersion"]
    exact = f"{SERVICES}?resourceVersion={then}&resourceVersionMatch=Exact"
    _, page = await here.send("GET", exact)
    assert (names(page), page["metadata"]["resourceVersion"]) == (["a"], then)
    _, page = await here.send("GET", f"{SERVICES}?resourceVersion={then}&resourceVersionMatch=NotOlderThan")
    assert names(page) == ["a", "b"]
    _, page = await here.send("GET", f"{SERVICES}?resourceVersion=0")
    assert names(page) == ["a", "b"]
    await here.store.compact(here.store.revision)
    code, status = await here.send("GET", exact)
    assert (code, status["reason"]) == (410, "Expired")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("resourceVersionMatch=Exact", 400),
        ("resourceVersion=0&resourceVersionMatch=Exact", 400),
        ("resourceVersion=1&resourceVersionMatch=Other", 400),
        ("resourceVersion=-1", 400),
        ("limit=many", 400),
        ("labelSelector=a%20in", 400),
        ("labelSelector=a,,b", 400),
        ("labelSelector=a%3D%3D%3Db", 400),
        ("fieldSelector=spec.ports%3D80", 400),
        ("fieldSelector=nonsense", 400),
        ("resourceVersion=999999", 504),
    ],
)
@in_cluster()
async def test_lists_that_cannot_be_given(here: Here, query: str, code: int) -> None:
    found, status = await here.send("GET", f"{SERVICES}?{query}")
    assert (found, status["kind"]) == (code, "Status")


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("labelSelector=app%3Dweb", ["a"]),
        ("labelSelector=app%3D%3Dweb", ["a"]),
        ("labelSelector=app!%3Dweb", ["b", "c"]),
        ("labelSelector=app+in+(web,db)", ["a", "b"]),
        ("labelSelector=app+notin+(web,db)", ["c"]),
        ("labelSelector=app", ["a", "b"]),
        ("labelSelector=!app", ["c"]),
        ("labelSelector=app,tier%3Dback", ["b"]),
        ("labelSelector=", ["a", "b", "c"]),
        ("fieldSelector=metadata.name%3Db", ["b"]),
        ("fieldSelector=metadata.name!%3Db", ["a", "c"]),
        ("fieldSelector=metadata.namespace%3Ddefault,spec.type%3DNodePort", ["c"]),
        ("fieldSelector=spec.clusterIP%3DNone", ["b"]),
    ],
)
@in_cluster()
async def test_selectors(here: Here, selector: str, found: list[str]) -> None:
    for name, labels, spec in (
        ("a", {"app": "web"}, {}),
        ("b", {"app": "db", "tier": "back"}, {"clusterIP": "None"}),
        ("c", {}, {"type": "NodePort"}),
    ):
        body = service(name, **spec)
        body["metadata"]["labels"] = labels
        await here.post(SERVICES, body)
    _, page = await here.send("GET", f"{SERVICES}?{selector}")
    assert names(page) == found


@pytest.mark.parametrize("path", ["/api/v1", "/api/v1/", "/apis/networking.k8s.io/v1", "/apis/networking.k8s.io/v1/"])
@in_cluster()
async def test_what_is_served_is_told_with_and_without_a_slash_at_the_end(here: Here, path: str) -> None:
    code, found = await here.send("GET", path)
    assert (code, found["kind"]) == (200, "APIResourceList")


@in_cluster()
async def test_a_table_has_kubectls_columns(here: Here) -> None:
    await here.post(SERVICES, service("web", type="NodePort", ports=[{"port": 80, "nodePort": 30080}]))
    here.clock.move(minutes=3, seconds=5)
    _, table = await here.send("GET", SERVICES, Accept=TABLE)
    columns = [(column["name"], column["priority"]) for column in table["columnDefinitions"]]
    assert columns == [
        ("Name", 0),
        ("Type", 0),
        ("Cluster-IP", 0),
        ("External-IP", 0),
        ("Port(s)", 0),
        ("Age", 0),
        ("Selector", 1),
    ]
    (row,) = table["rows"]
    assert row["cells"] == ["web", "NodePort", "<none>", "<none>", "80:30080/TCP", "3m5s", "<none>"]
    assert (row["object"]["kind"], row["object"]["metadata"]["name"]) == ("PartialObjectMetadata", "web")
    _, one = await here.send("GET", f"{SERVICES}/web?includeObject=Object", Accept=TABLE)
    assert one["rows"][0]["object"]["kind"] == "Service"
    _, partial = await here.send("GET", SERVICES, Accept=META)
    assert (partial["kind"], set(partial["items"][0])) == (
        "PartialObjectMetadataList",
        {"kind", "apiVersion", "metadata"},
    )
    assert (await here.send("GET", SERVICES, Accept="application/xml"))[0] == 406


@pytest.mark.slow
@in_cluster()
async def test_an_object_as_new_as_asked_for(here: Here) -> None:
    (made,) = await fill(here, "a")
    path, now = f"{SERVICES}/a?resourceVersion=", here.store.revision
    for version in ("0", made["metadata"]["resourceVersion"], str(now)):
        assert (await here.send("GET", path + version))[1]["metadata"]["name"] == "a"
    code, status = await here.send("GET", f"{path}{now + 9}")
    assert (code, status["details"]["causes"][0]["reason"]) == (504, "ResourceVersionTooLarge")
    assert (await here.send("GET", f"{path}x"))[0] == 400


FIELDS = {
    "Pod": {"spec.nodeName", "spec.restartPolicy", "spec.hostNetwork", "status.phase", "status.podIP"},
    "Service": {"spec.clusterIP", "spec.type"},
    "Node": {"spec.unschedulable"},
    "Namespace": {"status.phase"},
    "Secret": {"type"},
    "Event": {
        *(f"involvedObject.{name}" for name in ("kind", "namespace", "name", "uid", "apiVersion", "fieldPath")),
        *("involvedObject.resourceVersion", "reason", "reportingComponent", "source", "type"),
    },
    "IPAddress": {f"spec.parentRef.{name}" for name in ("group", "resource", "namespace", "name")},
}
"""Besides metadata.name and metadata.namespace."""


async def test_the_fields_that_can_be_asked_for(tmp_path: Path) -> None:
    assert {each.kind: set(each.fields) for each in RESOURCES if each.fields} == FIELDS
    async with cluster(tmp_path) as here:
        for resource in RESOURCES:
            place = "/namespaces/default" if resource.namespaced else ""
            path = f"{resource.base}{place}/{resource.plural}?fieldSelector="
            wanted = {"metadata.name"} | ({"metadata.namespace"} if resource.namespaced else set())
            for field in wanted | FIELDS.get(resource.kind, set()):
                assert (await here.send("GET", f"{path}{field}%3Dx"))[0] == 200, (resource.kind, field)
            code, status = await here.send("GET", f"{path}spec.other%3Dx")
            assert (code, status["message"]) == (400, "field label not supported: spec.other")


def test_large_objects_of_a_list_are_passed_on_as_they_are_stored() -> None:
    """So many lists that nobody reads hold one copy, whatever the size of an object."""
    records = []
    for number, size in enumerate((1, 100_000, 100_000, 1, 80_000)):
        value = {"metadata": {"name": f"m{number}"}, "data": {"a": "x" * size}}
        records.append(Record(Key("configmaps", "default", f"m{number}"), number, json.dumps(value).encode()))
    pieces = list(encode_list(records, CONFIG_MAPS, Representation(), {"resourceVersion": "5"}, START))
    assert [piece for piece in pieces if len(piece) > 1000] == [records[at].value for at in (1, 2, 4)]
    assert all(any(piece is records[at].value for piece in pieces) for at in (1, 2, 4))
    assert json.loads(b"".join(pieces))["items"] == [json.loads(record.value) for record in records]


@in_cluster()
async def test_a_watch_from_a_revision_and_from_now(here: Here) -> None:
    (first,) = await fill(here, "a")
    since = first["metadata"]["resourceVersion"]
    await fill(here, "b")
    async with (
        here.watch(f"{SERVICES}?watch=true&resourceVersion={since}") as later,
        here.watch(f"{SERVICES}?watch=true") as now,
        here.watch(f"{SERVICES}/b?watch=true") as one,
        here.watch("/api/v1/watch/namespaces/default/services") as old,
    ):
        await here.send("PATCH", f"{SERVICES}/b", {"metadata": {"labels": {"x": "y"}}}, patch="merge-patch+json")
        await here.send("DELETE", f"{SERVICES}/a")
        assert await later.names(3) == [("ADDED", "b"), ("MODIFIED", "b"), ("DELETED", "a")]
        assert await now.names(4) == [("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "b"), ("DELETED", "a")]
        assert await old.names(2) == [("ADDED", "a"), ("ADDED", "b")]
        assert await one.names(2) == [("ADDED", "b"), ("MODIFIED", "b")]


@in_cluster()
async def test_a_watch_sees_objects_come_into_and_out_of_its_selection(here: Here) -> None:
    await fill(here, "a", on="no")
    async with here.watch(f"{SERVICES}?watch=true&labelSelector=on%3Dyes") as events:
        for value in ("yes", "yes2", "yes"):
            body = {"metadata": {"labels": {"on": value}}}
            await here.send("PATCH", f"{SERVICES}/a", body, patch="merge-patch+json")
        kind, gone = [await events.next() for _ in range(2)][1]
        assert (kind, gone["metadata"]["labels"]["on"]) == ("DELETED", "yes")
        assert int(gone["metadata"]["resourceVersion"]) == here.store.revision - 1
        assert await events.names(1) == [("ADDED", "a")]


@in_cluster()
async def test_a_watch_from_forgotten_history_ends_with_410(here: Here) -> None:
    await fill(here, "a", "b")
    await here.store.compact(here.store.revision)
    async with here.watch(f"{SERVICES}?watch=true&resourceVersion=1") as events:
        kind, status = await events.next()
        assert (kind, status["code"], status["reason"]) == ("ERROR", 410, "Expired")
        with pytest.raises(EOFError):
            await events.next()
    later = here.store.revision + 1
    async with here.watch(f"{SERVICES}?watch=true&resourceVersion={later}") as events:
        await fill(here, "c", "d")  # it waits for a version that is still to come
        assert await events.names(1) == [("ADDED", "d")]


@in_cluster(bookmark_every=0.02)
async def test_bookmarks_tell_how_far_a_quiet_watch_has_come(here: Here) -> None:
    await fill(here, "a")
    since = here.store.revision
    query = f"watch=true&resourceVersion={since}&allowWatchBookmarks=true"
    async with here.watch(f"{SERVICES}?{query}") as events:
        await here.post("/api/v1/namespaces", {"metadata": {"name": "other"}})
        seen = since
        while seen == since:
            kind, value = await events.next()
            assert (kind, value["kind"]) == ("BOOKMARK", "Service")
            seen = int(value["metadata"]["resourceVersion"])
        assert seen == here.store.revision


@in_cluster()
async def test_a_list_as_a_stream(here: Here) -> None:
    await fill(here, "a", "b")
    query = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    async with here.watch(f"{SERVICES}?{query}") as events:
        assert await events.names(2) == [("ADDED", "a"), ("ADDED", "b")]
        kind, value = await events.next()
        assert (kind, value["metadata"]["annotations"]) == ("BOOKMARK", {"k8s.io/initial-events-end": "true"})
    code, _ = await here.send("GET", f"{SERVICES}?watch=true&sendInitialEvents=true")
    assert code == 400


@in_cluster()
async def test_a_watch_of_a_table_tells_its_columns_once(here: Here) -> None:
    await fill(here, "a", "b")
    async with here.watch(f"{SERVICES}?watch=true", Accept=TABLE) as events:
        tables = [(await events.next())[1] for _ in range(2)]
        here.clock.move(minutes=7)
        await here.send("PATCH", f"{SERVICES}/a", {"metadata": {"labels": {"x": "y"}}}, patch="merge-patch+json")
        _, later = await events.next()
    assert [tables[0]["rows"][0]["cells"][5], later["rows"][0]["cells"][5]] == ["0s", "7m"]
    assert [bool(table["columnDefinitions"]) for table in tables] == [True, False]
    assert [table["rows"][0]["cells"][0] for table in tables] == ["a", "b"]


@in_cluster()
async def test_a_watch_ends_when_its_time_is_over(here: Here) -> None:
    async with here.watch(f"{SERVICES}?watch=true&timeoutSeconds=1") as events:
        with pytest.raises(EOFError):
            await events.next()


@pytest.mark.attack
@pytest.mark.slow
@in_cluster(bounds=Bounds(stall_seconds=2.0))
async def test_a_watcher_that_does_not_read_is_cut_off_and_holds_nobody_up(here: Here) -> None:
    path = "/api/v1/namespaces/default/configmaps"
    body = {"metadata": {"name": "large"}, "data": {"x": ""}}
    await here.post(path, body)
    with socket.create_connection(("127.0.0.1", int(here.url.rpartition(":")[2]))) as slow:
        slow.sendall(b"GET /api/v1/configmaps?watch=1 HTTP/1.1\r\nHost: x\r\nX-User: admin\r\n\r\n")
        async with here.watch(f"{path}?watch=1") as quick:
            await quick.next()
            for number in range(60):
                body["data"] = {"x": str(number) * 150_000}
                code, _ = await here.send("PUT", f"{path}/large", body)
                assert code == 200
                kind, value = await quick.next()
                assert (kind, value["data"]) == ("MODIFIED", body["data"])
            while here.connections() > 2:  # the quick watch's, and that of the requests
                assert (await here.send("GET", "/readyz"))[0] == 200


@in_cluster()
async def test_what_is_served_is_told_in_both_forms(here: Here) -> None:
    _, core = await here.send("GET", "/api/v1")
    found = {entry["name"]: entry for entry in core["resources"]}
    assert found["services"]["shortNames"] == ["svc"]
    assert set(found) >= {"services/status", "namespaces/finalize", "pods", "nodes", "secrets", "events"}
    _, groups = await here.send("GET", "/apis")
    named = [group["name"] for group in groups["groups"]]
    assert named == [
        "coordination.k8s.io",
        "discovery.k8s.io",
        "events.k8s.io",
        "gateway.networking.k8s.io",
        "networking.k8s.io",
        "vipwire.io",
    ]
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
    _, new = await here.send("GET", "/apis", Accept=accept)
    assert new["kind"] == "APIGroupDiscoveryList"
    plurals = [entry["resource"] for item in new["items"] for entry in item["versions"][0]["resources"]]
    assert plurals == [
        "leases",
        "endpointslices",
        "events",
        "backendtlspolicies",
        "gatewayclasses",
        "gateways",
        "grpcroutes",
        "httproutes",
        "listenersets",
        "referencegrants",
        "tcproutes",
        "tlsroutes",
        "udproutes",
        "ingressclasses",
        "ingresses",
        "ipaddresses",
        "servicecidrs",
        "backendpolicies",
        "trafficpolicies",
    ]
    for path in ("/api/v1/nonsense", "/apis/apps/v1/deployments", "/nonsense", "/api/v1/namespaces/a/b/c/d/e"):
        code, status = await here.send("GET", path)
        assert (code, status["message"]) == (404, "the server could not find the requested resource")


@in_cluster()
async def test_openapi_describes_what_is_served(here: Here) -> None:
    _, index = await here.send("GET", "/openapi/v3")
    assert set(index["paths"]) == {
        "api/v1",
        "apis/coordination.k8s.io/v1",
        "apis/discovery.k8s.io/v1",
        "apis/events.k8s.io/v1",
        "apis/gateway.networking.k8s.io/v1",
        "apis/gateway.networking.k8s.io/v1beta1",
        "apis/networking.k8s.io/v1",
        "apis/vipwire.io/v1",
    }
    for entry in index["paths"].values():
        _, document = await here.send("GET", entry["serverRelativeURL"])
        schemas = document["components"]["schemas"]
        for reference in _references(document):
            assert reference.removeprefix("#/components/schemas/") in schemas
    _, old = await here.send("GET", "/openapi/v2")
    assert {r.removeprefix("#/definitions/") for r in _references(old)} <= old["definitions"].keys()
    spec = old["definitions"]["io.k8s.api.core.v1.ServiceSpec"]["properties"]["ports"]
    assert (spec["x-kubernetes-patch-merge-key"], spec["x-kubernetes-list-map-keys"]) == (
        "port",
        ["port", "protocol"],
    )


def _references(value: Any) -> set[str]:
    return {part["$ref"] for part in _parts(value) if isinstance(part.get("$ref"), str)}


def _parts(value: Any) -> list[dict[str, Any]]:
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return ([value] if isinstance(value, dict) else []) + [part for entry in below for part in _parts(entry)]
