"""Kinds that are served in several groups or versions: the same objects, by each version's names of fields."""

import json
from typing import Any, Final

import pytest
from tests.up.unit.cluster_here import Here, in_cluster

from vipwire_up.api.kinds.catalogue import BY_ID, SERVED
from vipwire_up.api.kinds.event import NEW_EVENTS
from vipwire_up.api.objects.resource import Resource, convert_to_served, convert_to_stored
from vipwire_up.controllers.garbage_collector import GarbageCollector

CORE: Final = "/api/v1/namespaces/default/events"
NEW: Final = "/apis/events.k8s.io/v1/namespaces/default/events"
ROUTES: Final = "/apis/gateway.networking.k8s.io/v1/namespaces/default/httproutes"
BETA: Final = ROUTES.replace("/v1/", "/v1beta1/")
TIME: Final = "2026-05-04T12:00:00.000000Z"
OTHERS: Final = [each for each in SERVED if each.stored_as is not None]


def new_event(name: str = "e", **more: Any) -> dict[str, Any]:
    """Return an Event as client-go's new recorder writes it."""
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "default"},
        "eventTime": TIME,
        "reportingController": "example.com/operator",
        "reportingInstance": "operator-1",
        "action": "Scaling",
        "reason": "Scaled",
        "regarding": {"kind": "Service", "namespace": "default", "name": "web"},
        "note": "from 1 to 2",
        "type": "Normal",
    } | more


def old_event(name: str = "e") -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "involvedObject": {"kind": "Service", "namespace": "default", "name": "web"},
        "reason": "Scaled",
        "message": "from 1 to 2",
        "type": "Warning",
        "count": 3,
        "firstTimestamp": "2026-05-04T11:00:00Z",
        "lastTimestamp": "2026-05-04T12:00:00Z",
        "source": {"component": "scaler"},
    }


@pytest.mark.parametrize("resource", OTHERS, ids=lambda resource: f"{resource.plural}.{resource.api_version}")
def test_every_field_of_a_version_is_one_of_the_stored_kind(resource: Resource) -> None:
    kept = BY_ID[resource.id]
    renamed = {resource.renamed.get(name, name): field.type for name, field in resource.type.fields.items()}
    assert renamed == {name: field.type for name, field in kept.type.fields.items()}
    whole = {name: name for name in resource.type.fields} | {"apiVersion": resource.api_version}
    assert convert_to_served(resource, convert_to_stored(resource, whole)) == whole
    assert convert_to_stored(resource, whole).keys() == kept.type.fields.keys()


@in_cluster()
async def test_an_event_of_the_new_group_is_one_of_the_old(here: Here) -> None:
    made = await here.post(NEW, new_event())
    assert {name: made[name] for name in new_event() if name != "metadata"} == {
        name: part for name, part in new_event().items() if name != "metadata"
    }
    _, old = await here.send("GET", f"{CORE}/e")
    assert old["metadata"] == made["metadata"]
    assert (old["apiVersion"], old["message"], old["involvedObject"]) == ("v1", made["note"], made["regarding"])
    assert (old["reportingComponent"], old["eventTime"]) == ("example.com/operator", TIME)
    assert not {"note", "regarding", "reportingController"} & old.keys()


@in_cluster()
async def test_an_event_of_the_old_group_is_one_of_the_new(here: Here) -> None:
    old = await here.post(CORE, old_event())
    code, new = await here.send("GET", f"{NEW}/e")
    assert (code, new["apiVersion"], new["kind"]) == (200, "events.k8s.io/v1", "Event")
    assert (new["note"], new["deprecatedCount"], new["deprecatedSource"]) == (
        "from 1 to 2",
        3,
        {"component": "scaler"},
    )
    assert new["deprecatedFirstTimestamp"] == old["firstTimestamp"]
    assert new["deprecatedLastTimestamp"] == old["lastTimestamp"]
    code, listed = await here.send("GET", "/apis/events.k8s.io/v1/events")
    assert (listed["kind"], listed["apiVersion"], listed["items"]) == ("EventList", "events.k8s.io/v1", [new])


@in_cluster()
async def test_watches_of_both_groups_tell_the_same_changes(here: Here) -> None:
    async with here.watch(f"{CORE}?watch=1") as core, here.watch(f"{NEW}?watch=1") as new:
        await here.post(NEW, new_event())
        series = {"series": {"count": 2, "lastObservedTime": TIME}}
        code, patched = await here.send("PATCH", f"{NEW}/e", series, patch="strategic-merge-patch+json")
        assert (code, patched["series"], patched["note"]) == (200, series["series"], "from 1 to 2")
        assert (await here.send("PATCH", f"{CORE}/e", {"message": "other"}, patch="merge-patch+json"))[0] == 200
        assert (await here.send("DELETE", f"{NEW}/e"))[0] == 200
        for events, version, text in ((core, "v1", "message"), (new, "events.k8s.io/v1", "note")):
            told = [await events.next() for _ in range(4)]
            assert [kind for kind, _ in told] == ["ADDED", "MODIFIED", "MODIFIED", "DELETED"]
            assert {value["apiVersion"] for _, value in told} == {version}
            assert [value[text] for _, value in told] == ["from 1 to 2", "from 1 to 2", "other", "other"]
            assert told[1][1]["series"] == series["series"]


@in_cluster()
async def test_every_kind_of_patch_names_fields_of_the_new_group(here: Here) -> None:
    await here.post(
        CORE, old_event() | {"count": None, "firstTimestamp": None, "lastTimestamp": None, "source": None}
    )
    for kind, patch in {
        "json-patch+json": [{"op": "test", "path": "/note", "value": "from 1 to 2"}],
        "merge-patch+json": {"metadata": {"labels": {"a": "b"}}, "note": "from 1 to 2"},
        "strategic-merge-patch+json": {"metadata": {"labels": {"c": "d"}}, "regarding": {"name": "web"}},
    }.items():
        code, shown = await here.send("PATCH", f"{NEW}/e", patch, patch=kind)
        assert (code, shown["note"]) == (200, "from 1 to 2"), shown
    assert shown["metadata"]["labels"] == {"a": "b", "c": "d"}
    applied = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"labels": {"e": "f"}},
        "reason": "Scaled",
    }
    code, shown = await here.send("PATCH", f"{NEW}/e?fieldManager=m", applied, patch="apply-patch+yaml")
    assert (code, shown["metadata"]["labels"]) == (200, {"a": "b", "c": "d", "e": "f"})
    code, status = await here.send(
        "PATCH", f"{NEW}/e?fieldManager=m", applied | {"message": "x"}, patch="apply-patch+yaml"
    )
    assert (code, ".message: field not declared in schema" in status["message"]) == (500, True)
    code, shown = await here.send("PUT", f"{NEW}/e", shown)
    assert (code, shown["note"]) == (200, "from 1 to 2")


@pytest.mark.parametrize(
    ("changed", "fields"),
    [
        ({"eventTime": None}, {"eventTime"}),
        ({"type": "Odd"}, {"type"}),
        ({"deprecatedCount": 1, "deprecatedSource": {"component": "x"}}, {"count", "source"}),
        ({"deprecatedFirstTimestamp": "2026-05-04T12:00:00Z"}, {"firstTimestamp"}),
        ({"series": {"count": 1}}, {"series.count", "series.lastObservedTime"}),
        ({"reportingController": "a b"}, {"reportingComponent"}),
        ({"action": "", "reason": "r" * 129}, {"action", "reason"}),
        ({"note": "n" * 1025}, {"message"}),
    ],
)
@in_cluster()
async def test_the_new_group_refuses_more(here: Here, changed: dict[str, Any], fields: set[str]) -> None:
    code, status = await here.send("POST", NEW, new_event(**changed))
    assert (code, {cause["field"] for cause in status["details"]["causes"]}) == (422, fields), status


@in_cluster()
async def test_only_the_series_changes_by_the_new_group(here: Here) -> None:
    await here.post(NEW, new_event())
    code, status = await here.send("PATCH", f"{NEW}/e", {"note": "x", "reason": "y"}, patch="merge-patch+json")
    assert (code, [cause["field"] for cause in status["details"]["causes"]]) == (422, ["reason", "message"])


@in_cluster()
async def test_names_of_the_other_group_are_unknown(here: Here) -> None:
    sent = new_event(message="x", regarding={"kind": "Service", "namespace": "default", "name": "web", "odd": 1})
    assert (await here.send("POST", f"{NEW}?fieldValidation=Strict", sent))[0] == 400
    code, made = await here.send("POST", NEW, sent | {"metadata": {"name": "f"}})
    assert (code, made["note"]) == (201, "from 1 to 2")
    assert sorted(text.partition('"')[2] for text in here.warnings) == [
        'unknown field \\"message\\""',
        'unknown field \\"regarding.odd\\""',
    ]
    code, status = await here.send("POST", NEW, old_event() | {"apiVersion": "v1", "kind": "Event"})
    assert (code, status["reason"]) == (400, "BadRequest")


@in_cluster()
async def test_events_are_selected_by_the_names_of_their_group(here: Here) -> None:
    await here.post(NEW, new_event())
    await here.post(CORE, old_event("other") | {"involvedObject": {"kind": "Pod", "namespace": "default"}})
    for path, asked in ((NEW, "regarding.kind=Pod"), (CORE, "involvedObject.kind=Pod")):
        code, found = await here.send("GET", f"{path}?fieldSelector={asked}")
        assert (code, [each["metadata"]["name"] for each in found["items"]]) == (200, ["other"])
    for path, asked in ((CORE, "regarding.kind=Pod"), (NEW, "involvedObject.kind=Pod")):
        assert (await here.send("GET", f"{path}?fieldSelector={asked}"))[0] == 400
    assert (await here.send("DELETE", f"{NEW}?fieldSelector=regarding.kind%3DService"))[0] == 200
    assert [each["metadata"]["name"] for each in (await here.send("GET", CORE))[1]["items"]] == ["other"]


@in_cluster()
async def test_tables_of_both_groups_are_alike(here: Here) -> None:
    await here.post(NEW, new_event(series={"count": 7, "lastObservedTime": TIME}))
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
    tables = [(await here.send("GET", f"{path}?includeObject=Object", Accept=accept))[1] for path in (CORE, NEW)]
    cells = [table["rows"][0]["cells"] for table in tables]
    assert cells[0] == cells[1]
    assert {"Scaled", "service/web", 7} <= set(cells[0])
    assert [table["rows"][0]["object"]["apiVersion"] for table in tables] == ["v1", "events.k8s.io/v1"]
    assert tables[1]["rows"][0]["object"]["note"] == "from 1 to 2"


@in_cluster()
async def test_a_route_of_v1beta1_is_one_of_v1(here: Here) -> None:
    sent = {"apiVersion": "gateway.networking.k8s.io/v1beta1", "kind": "HTTPRoute", "metadata": {"name": "r"}}
    async with here.watch(f"{ROUTES}?watch=1") as stable, here.watch(f"{BETA}?watch=1") as beta:
        made = await here.post(BETA, sent | {"spec": {"hostnames": ["a.test"]}})
        assert (made["apiVersion"], made["spec"]["hostnames"]) == (sent["apiVersion"], ["a.test"])
        _, same = await here.send("GET", f"{ROUTES}/r")
        assert same == made | {"apiVersion": "gateway.networking.k8s.io/v1"}
        condition = {
            "type": "Accepted",
            "status": "True",
            "reason": "Accepted",
            "message": "",
            "lastTransitionTime": TIME,
        }
        parent = {"parentRef": {"name": "g"}, "controllerName": "a.test/b", "conditions": [condition]}
        code, told = await here.send("PUT", f"{BETA}/r/status", made | {"status": {"parents": [parent]}})
        assert (code, told["status"]["parents"][0]["controllerName"]) == (200, "a.test/b"), told
        spec = {"spec": {"hostnames": ["b.test"]}}
        applied = await here.send("PATCH", f"{BETA}/r?fieldManager=m&force=1", sent | spec, patch="apply-patch+yaml")
        assert (applied[0], applied[1]["spec"]["hostnames"], applied[1]["status"]) == (
            200,
            ["b.test"],
            told["status"],
        )
        assert (await here.send("DELETE", f"{BETA}/r"))[0] == 200
        for events, version in ((stable, "v1"), (beta, "v1beta1")):
            told = [await events.next() for _ in range(4)]
            assert [kind for kind, _ in told] == ["ADDED", "MODIFIED", "MODIFIED", "DELETED"]
            assert {value["apiVersion"] for _, value in told} == {f"gateway.networking.k8s.io/{version}"}


@in_cluster()
async def test_a_version_has_the_rules_of_the_stored_kind(here: Here) -> None:
    code, status = await here.send("POST", BETA, {"metadata": {"name": "r"}, "spec": {"hostnames": ["*"]}})
    assert (code, status["details"]["causes"][0]["field"]) == (422, "spec.hostnames[0]")
    assert (await here.send("POST", BETA, {"metadata": {"name": "r"}, "spec": {"odd": 1}}))[0] == 201
    assert here.warnings == ['299 - "unknown field \\"spec.odd\\""']
    code, status = await here.send("POST", BETA, {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute"})
    assert (code, "is not gateway.networking.k8s.io/v1beta1" in status["message"]) == (400, True)


@in_cluster()
async def test_an_owner_may_be_named_by_every_version(here: Here) -> None:
    route = await here.post(BETA, {"metadata": {"name": "r"}, "spec": {}})
    owner = {name: route[name] for name in ("apiVersion", "kind")}
    owner |= {name: route["metadata"][name] for name in ("name", "uid")}
    maps = "/api/v1/namespaces/default/configmaps"
    await here.post(maps, {"metadata": {"name": "m", "ownerReferences": [owner]}})
    collector = GarbageCollector(here.registry)
    await collector.step()
    assert (await here.send("GET", f"{maps}/m"))[0] == 200
    assert (await here.send("DELETE", f"{ROUTES}/r"))[0] == 200
    await collector.step()
    assert (await here.send("GET", f"{maps}/m"))[0] == 404


def field(number: int, value: bytes) -> bytes:
    """Encode a field of protobuf that is shorter than 128 bytes."""
    return bytes((number << 3 | 2, len(value))) + value


@in_cluster()
async def test_an_event_of_the_new_group_in_protobuf(here: Here) -> None:
    about = field(1, b"Service") + field(2, b"default") + field(3, b"web")
    texts = {4: b"a/b", 5: b"c", 6: b"Scaling", 7: b"Scaled", 10: b"from 1 to 2", 11: b"Normal"}
    event = field(1, field(1, b"e")) + field(2, b"\x08\x80\xa0\xe0\xcf\x06") + field(8, about)
    event += b"".join(field(number, text) for number, text in texts.items()) + b"\x78\x00"  # Go writes count 0
    whole = field(1, field(1, b"events.k8s.io/v1") + field(2, b"Event"))
    whole += bytes((2 << 3 | 2, len(event) & 0x7F | 0x80, len(event) >> 7)) + event
    media = {"Content-Type": "application/vnd.kubernetes.protobuf"}
    code, made = await here.send("POST", NEW, b"k8s\x00" + whole, **media)
    assert (code, made["note"], made["regarding"]["name"]) == (201, "from 1 to 2", "web")
    assert (made["reportingController"], made["type"], made["action"]) == ("a/b", "Normal", "Scaling")


@in_cluster()
async def test_roles_have_the_same_rights_in_every_version(here: Here) -> None:
    assert (await here.send("POST", NEW, new_event("n"), user="node"))[0] == 201
    assert (await here.send("POST", NEW, new_event("v"), user="view"))[0] == 403
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": "x"}}
    _, told = await here.send("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", body, user="node")
    groups = [each["apiGroups"] for each in told["status"]["resourceRules"] if each["resources"] == ["events"]]
    assert groups == [[""], ["events.k8s.io"]]


@in_cluster()
async def test_discovery_and_schemas_have_every_version(here: Here) -> None:
    _, listed = await here.send("GET", "/apis")
    told = {group["name"]: [each["version"] for each in group["versions"]] for group in listed["groups"]}
    for resource in SERVED:
        assert resource.version in told.get(resource.group, ["v1"])
        assert told.get(resource.group, ["v1"])[0] == "v1"
        _, kinds = await here.send("GET", resource.base)
        assert resource.plural in {each["name"] for each in kinds["resources"]}
        code, schema = await here.send("GET", f"/openapi/v3{resource.base}")
        assert (code, resource.type.name in schema["components"]["schemas"]) == (200, True)
    assert NEW_EVENTS.base in json.dumps((await here.send("GET", "/"))[1])
