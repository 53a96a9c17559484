"""Patches and applies without a server: what becomes of a value."""

import copy
import json
from typing import Any

import pytest

from vipwire.kube.errors import ApiError
from vipwire_up.api.kinds.pod import PODS
from vipwire_up.api.kinds.service import SERVICES
from vipwire_up.api.patches.apply import (
    FieldManager,
    Owned,
    Ownership,
    apply_configuration,
    assign_changed_fields,
    read_ownership,
    undisputed_fields,
    update_last_applied,
    write_ownership,
)
from vipwire_up.api.patches.field_paths import format_path, paths_from_fields, paths_of_members, paths_to_fields
from vipwire_up.api.patches.json_patch import apply_json_patch, apply_merge_patch
from vipwire_up.api.patches.strategic import apply_strategic_patch

BASE = {"a": {"b": [1, 2]}, "c/d": "e"}


@pytest.mark.parametrize(
    ("operation", "result"),
    [
        ({"op": "add", "path": "/a/b/1", "value": 9}, {"a": {"b": [1, 9, 2]}, "c/d": "e"}),
        ({"op": "add", "path": "/a/b/-", "value": 9}, {"a": {"b": [1, 2, 9]}, "c/d": "e"}),
        ({"op": "add", "path": "", "value": 9}, 9),
        ({"op": "remove", "path": "/c~1d"}, {"a": {"b": [1, 2]}}),
        ({"op": "replace", "path": "/a/b/0", "value": 9}, {"a": {"b": [9, 2]}, "c/d": "e"}),
        ({"op": "move", "from": "/a/b/0", "path": "/x"}, {"a": {"b": [2]}, "c/d": "e", "x": 1}),
        ({"op": "copy", "from": "/a", "path": "/x"}, BASE | {"x": BASE["a"]}),
        ({"op": "test", "path": "/a/b/0", "value": 1}, BASE),
    ],
)
def test_json_patch(operation: dict[str, Any], result: Any) -> None:
    before = repr(BASE)
    assert apply_json_patch(BASE, [operation]) == result
    assert repr(BASE) == before


@pytest.mark.parametrize(
    ("operations", "code"),
    [
        ({}, 400),
        ([7], 400),
        ([{"op": "add", "path": "a", "value": 1}], 400),
        ([{"op": "add", "path": "/a"}], 400),
        ([{"op": "invent", "path": "/a"}], 400),
        ([{"op": "remove", "path": "/none"}], 422),
        ([{"op": "replace", "path": "/a/b/2", "value": 1}], 422),
        ([{"op": "add", "path": "/a/b/4", "value": 1}], 422),
        ([{"op": "add", "path": "/c~1d/x", "value": 1}], 422),
        ([{"op": "test", "path": "/a/b/0", "value": 2}], 422),
        ([{"op": "test", "path": "/a", "value": 1}] * 10_001, 413),
    ],
)
def test_json_patches_that_do_not_fit(operations: Any, code: int) -> None:
    with pytest.raises(ApiError) as refused:
        apply_json_patch(BASE, operations)
    assert refused.value.code == code


def test_merge_patch_is_that_of_its_rfc() -> None:
    assert apply_merge_patch({"a": "b", "c": {"d": 1, "e": 2}}, {"a": "z", "c": {"e": None}}) == {
        "a": "z",
        "c": {"d": 1},
    }
    assert apply_merge_patch({"a": [1]}, {"a": {"b": None, "c": 1}}) == {"a": {"c": 1}}
    assert apply_merge_patch({"a": 1}, [1]) == [1]


PORTS: dict[str, Any] = {"spec": {"ports": [{"name": "a", "port": 1}, {"name": "b", "port": 2}], "type": "ClusterIP"}}
A, B = PORTS["spec"]["ports"]


@pytest.mark.parametrize(
    ("patch", "ports"),
    [
        ([{"port": 2, "name": "z"}], [A, {"name": "z", "port": 2}]),
        ([{"port": 3, "name": "c"}], [A, B, {"port": 3, "name": "c"}]),
        ([{"port": 1, "$patch": "delete"}], [B]),
        ([{"$patch": "replace"}, {"port": 9}], [{"port": 9}]),
        ([{"$patch": "replace"}], []),
        ([], [A, B]),
    ],
)
def test_strategic_merge_of_a_list_with_keys(patch: list[Any], ports: list[Any]) -> None:
    assert apply_strategic_patch(PORTS, {"spec": {"ports": patch}}, SERVICES.type)["spec"]["ports"] == ports


def test_strategic_merge_directives() -> None:
    order: dict[str, Any] = {
        "spec": {"$setElementOrder/ports": [{"port": 2}, {"port": 1}], "ports": [{"port": 1, "name": "x"}]}
    }
    assert [p["port"] for p in apply_strategic_patch(PORTS, order, SERVICES.type)["spec"]["ports"]] == [2, 1]
    order = {"spec": {"$setElementOrder/ports": [{"port": 2}, {"port": 1}]}}
    assert apply_strategic_patch(PORTS, order, SERVICES.type)["spec"]["ports"] == [B, A]
    meta = {"metadata": {"finalizers": ["a", "b"]}}
    changes: dict[str, Any] = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["c"]}}
    assert apply_strategic_patch(meta, changes, SERVICES.type)["metadata"]["finalizers"] == ["b", "c"]
    assert apply_strategic_patch(PORTS, {"spec": {"$patch": "replace", "type": "x"}}, SERVICES.type) == {
        "spec": {"type": "x"}
    }
    assert apply_strategic_patch(PORTS, {"spec": {"$retainKeys": ["type"]}}, SERVICES.type)["spec"] == {
        "type": "ClusterIP"
    }
    volume = {"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}
    changes = {"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}]}}
    after = apply_strategic_patch(volume, changes, PODS.type)["spec"]["volumes"]
    assert after == [{"name": "v", "hostPath": {"path": "/x"}}]
    wrong: dict[str, Any]
    for wrong in ({"$patch": "unknown"}, {"spec": {"ports": [{"name": "no key"}]}}):
        with pytest.raises(ApiError):
            apply_strategic_patch(PORTS, wrong, SERVICES.type)


def test_fields_are_written_as_kubernetes_does_and_read_again() -> None:
    value = {"metadata": {"name": "x", "labels": {"a/b": "1"}}, "spec": {"ports": [{"port": 80, "name": "http"}]}}
    found = paths_of_members(value, SERVICES.type)
    port = 'k:{"port":80,"protocol":"TCP"}'
    written = paths_to_fields(found)
    assert written == {
        "f:metadata": {"f:labels": {"f:a/b": {}}},
        "f:spec": {"f:ports": {port: {".": {}, "f:name": {}, "f:port": {}}}},
    }
    assert set(paths_from_fields(written)) == set(found)
    assert format_path(("f:spec", "f:ports", port, "f:name")) == '.spec.ports[port=80,protocol="TCP"].name'


def test_who_makes_a_map_or_list_by_an_update_owns_it_whole_and_who_adds_to_it_does_not() -> None:
    first, second = FieldManager("first"), FieldManager("second")
    bare: dict[str, Any] = {"metadata": {"name": "x"}, "spec": {"ports": [{"port": 80}]}}
    labelled = {**bare, "metadata": {"name": "x", "labels": {"a": "1"}}}
    twice = {**bare, "metadata": {"name": "x", "labels": {"a": "1", "b": "2"}}}
    owned = assign_changed_fields({}, first, {}, bare, SERVICES.type, "t1")
    port = 'k:{"port":80,"protocol":"TCP"}'
    assert paths_to_fields(owned[first].paths) == {"f:spec": {"f:ports": {".": {}, port: {".": {}, "f:port": {}}}}}
    owned = assign_changed_fields(owned, second, bare, labelled, SERVICES.type, "t2")
    assert paths_to_fields(owned[second].paths) == {"f:metadata": {"f:labels": {".": {}, "f:a": {}}}}
    owned = assign_changed_fields(owned, first, labelled, twice, SERVICES.type, "t3")
    assert paths_to_fields(owned[first].paths)["f:metadata"] == {"f:labels": {"f:b": {}}}
    assert "." in paths_to_fields(owned[second].paths)["f:metadata"]["f:labels"]
    assert second not in assign_changed_fields(owned, first, twice, bare, SERVICES.type, "t4")


ME, OTHER = FieldManager("me", "Apply"), FieldManager("other", "Apply")


def applied(
    live: Any, wanted: Any, owned: Ownership, who: FieldManager = ME, *, force: bool = False
) -> tuple[Any, Ownership]:
    return apply_configuration(live, wanted, SERVICES.type, who, owned, force=force, now="now")


def ports(*numbers: int) -> dict[str, Any]:
    return {"spec": {"ports": [{"port": number, "name": f"p{number}"} for number in numbers]}}


def test_what_is_not_applied_any_more_goes_unless_another_holds_it() -> None:
    live, owned = applied({}, ports(1, 2), {})
    live, owned = applied(live, ports(2, 3), owned, OTHER)
    live, owned = applied(live, ports(3), owned)
    assert live == ports(2, 3)
    live, owned = applied(live, ports(3), owned, OTHER)
    assert live == ports(3)
    assert set(owned) == {ME, OTHER}


def test_an_element_whose_keys_are_its_own_goes_as_a_whole() -> None:
    live, owned = applied({}, {"status": {"podIPs": []}} | ports(1), {})
    live, _ = applied(live, {"spec": {"type": "ClusterIP"}}, owned)
    assert live["spec"] == {"type": "ClusterIP"}


def test_an_element_that_another_keeps_by_one_field_keeps_its_keys() -> None:
    live, owned = applied({}, ports(1, 2), {})
    named = copy.deepcopy(live)
    named["spec"]["ports"][0]["name"] = "theirs"
    owned = assign_changed_fields(owned, FieldManager("hand"), live, named, SERVICES.type, "now")
    live, _ = applied(named, ports(2), owned)
    assert live["spec"]["ports"] == [{"port": 1, "name": "theirs"}, {"port": 2, "name": "p2"}]


def test_a_conflict_is_about_values_and_force_takes_over() -> None:
    live, owned = applied({}, {"spec": {"type": "NodePort"}}, {})
    live, owned = applied(live, {"spec": {"type": "NodePort"}}, owned, OTHER)  # agreed: both hold it
    with pytest.raises(ApiError) as refused:
        applied(live, {"spec": {"type": "ClusterIP"}}, owned)
    assert refused.value.message == 'Apply failed with 1 conflict: conflict with "other" using v1: .spec.type'
    live, owned = applied(live, {"spec": {"type": "ClusterIP"}}, owned, force=True)
    assert live == {"spec": {"type": "ClusterIP"}}
    assert owned[OTHER] == Owned(frozenset(), "now")
    assert [entry["manager"] for entry in write_ownership(owned)] == ["me"]


LAST = "kubectl.kubernetes.io/last-applied-configuration"


def applied_by_kubectl(text: str) -> tuple[dict[str, Any], Ownership]:
    """Make a Service as kubectl's client-side apply leaves it, changed afterwards by somebody else."""
    annotated = {"metadata": {"name": "web", "annotations": {LAST: text}}}
    live = annotated | {"spec": {"sessionAffinity": "None", "type": "ClusterIP", "externalName": "old"}}
    first = assign_changed_fields({}, FieldManager("kubectl-client-side-apply"), {}, live, SERVICES.type, "t1")
    patched = live | {"spec": live["spec"] | {"type": "NodePort"}}
    return patched, assign_changed_fields(first, FieldManager("kubectl-patch"), live, patched, SERVICES.type, "t2")


def test_kubectl_goes_over_to_server_side_apply_without_a_conflict_with_itself() -> None:
    said = {"spec": {"sessionAffinity": "None", "type": "ClusterIP"}}
    live, owned = applied_by_kubectl(json.dumps(said))
    wanted = {"metadata": {"name": "web"}, "spec": {"sessionAffinity": "ClientIP", "type": "ClusterIP"}}
    kubectl, other = FieldManager("kubectl", "Apply"), FieldManager("other", "Apply")

    def put(writer: FieldManager, spec: dict[str, str]) -> Any:
        free = undisputed_fields(live, SERVICES, writer)
        value = wanted | {"spec": spec}
        return apply_configuration(live, value, SERVICES.type, writer, owned, force=free, now="t3")

    merged, after = put(kubectl, {"sessionAffinity": "ClientIP"})
    assert merged["spec"]["sessionAffinity"] == "ClientIP"
    assert ("f:spec", "f:sessionAffinity") not in after[FieldManager("kubectl-client-side-apply")].paths
    for writer, spec, why in (
        (kubectl, wanted["spec"], 'Apply failed with 1 conflict: conflict with "kubectl-patch" using v1: .spec.type'),
        (kubectl, {"externalName": "new"}, '"kubectl-client-side-apply" using v1: .spec.externalName'),
        (other, {"sessionAffinity": "ClientIP"}, '"kubectl-client-side-apply" using v1: .spec.sessionAffinity'),
    ):
        with pytest.raises(ApiError) as refused:
            put(writer, spec)
        assert why in refused.value.message
    text = update_last_applied(merged, wanted, kubectl)["metadata"]["annotations"][LAST]
    meta = '"metadata":{"annotations":{},"name":"web"}'
    assert text == f'{{{meta},"spec":{{"sessionAffinity":"ClientIP","type":"ClusterIP"}}}}\n'
    assert update_last_applied(merged, wanted, other) == merged


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"spec": 7}', '{"spec": {"ports": {"a": "b"}}}', "[" * 9999])
def test_what_was_applied_last_may_be_anything(text: str) -> None:
    live, _ = applied_by_kubectl(text)
    assert undisputed_fields(live, SERVICES, FieldManager("kubectl", "Apply")) == frozenset()


def test_ownership_survives_being_written() -> None:
    _, owned = applied({}, ports(1, 2), {})
    owned = assign_changed_fields(owned, FieldManager("editor"), ports(1, 2), ports(1), SERVICES.type, "later")
    assert read_ownership(write_ownership(owned)) == {writer: held for writer, held in owned.items() if held.paths}
    (mine,) = owned.values()
    assert not any('"port":2' in step for path in mine.paths for step in path)
