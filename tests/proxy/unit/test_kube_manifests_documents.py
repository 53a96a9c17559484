"""Manifest files as text: YAML and JSON, lists, what is ignored and what is reported where."""

import json
from typing import Any

import pytest
import yaml
from tests.fakes.objects import node, service, service_cidr, slice_of

from vipwire.errors import DecodeError
from vipwire.kube.manifests.documents import MANIFESTS, Manifest
from vipwire.kube.manifests.source import diff_inventories, list_by_kind, take_inventory
from vipwire.watched_objects.event import Deleted, Kind, Object, Upserted


def read(*documents: Any, file: str = "a.yaml") -> Manifest[Kind, Object]:
    return MANIFESTS.read(yaml.safe_dump_all(documents), file)


def names(manifest: Manifest[Kind, Object]) -> list[str]:
    return [str(name) for entry in manifest.entries for name in entry.names]


def test_several_documents_and_all_kinds() -> None:
    manifest = read(service(1), None, slice_of(1), node("n"), service_cidr("c", "10.96.0.0/12"))
    assert names(manifest) == ["ns-1/service-1", "ns-1/service-1-abcde", "n", "c"]
    assert manifest.problems == ()


@pytest.mark.parametrize("kind", ["List", "ServiceList"])
def test_lists_are_unfolded(kind: str) -> None:
    items = [service(1), service(2)]
    if kind == "ServiceList":
        items = [{key: value for key, value in item.items() if key not in ("kind", "apiVersion")} for item in items]
    assert names(read({"apiVersion": "v1", "kind": kind, "items": items})) == ["ns-1/service-1", "ns-2/service-2"]


def test_json_documents_one_after_the_other() -> None:
    text = f" {json.dumps(service(1))}\n\n{json.dumps(service(2), indent=1)}\n"
    assert names(MANIFESTS.read(text, "a.json")) == ["ns-1/service-1", "ns-2/service-2"]


@pytest.mark.parametrize(
    ("version", "kind", "said"),
    [
        ("v1", "Foo", "there is no kind Foo in v1"),
        ("v1", "Servce", "there is no kind Servce in v1 (did you mean Service?)"),
        ("discovery.k8s.io/v1", "EndpointSlices", "did you mean EndpointSlice?"),
        ("discovery.k8s.io/v1", "Service", "there is no kind Service in discovery.k8s.io/v1"),
    ],
)
def test_a_kind_that_nobody_has_is_told(version: str, kind: str, said: str) -> None:
    manifest = read(service(1), {"apiVersion": version, "kind": kind, "metadata": {"name": "x"}})
    (problem,) = manifest.problems
    assert (problem.field, manifest.ignored) == ("document 2", frozenset())
    assert said in problem.message


def test_kinds_that_others_read_are_no_problem() -> None:
    manifest = read(*({"apiVersion": "v1", "kind": kind, "metadata": {}} for kind in ("ConfigMap", "Pod", "Secret")))
    assert manifest.problems == ()


def test_other_kinds_and_other_groups_are_ignored() -> None:
    manifest = read(
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}},
        {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "x"}},
    )
    assert manifest.entries == ()
    assert manifest.problems == ()
    assert manifest.ignored == {"Deployment (apps/v1)", "Service (serving.knative.dev/v1)"}


def test_an_unknown_version_of_a_known_kind_is_reported() -> None:
    (entry,) = read({**slice_of(1), "apiVersion": "discovery.k8s.io/v1alpha1"}).entries
    assert entry.objects == ()
    assert [problem.field for problem in entry.problems] == ["apiVersion"]


@pytest.mark.parametrize("document", [5, ["x"], {"metadata": {"name": "x"}}, {"kind": "Service"}])
def test_a_document_that_is_no_object_is_reported_with_its_number(document: Any) -> None:
    manifest = read(service(1), document)
    assert len(manifest.entries) == 1
    (problem,) = manifest.problems
    assert (problem.kind, problem.object.name, problem.field) == ("Manifest", "a.yaml", "document 2")


def test_no_namespace_is_default() -> None:
    value = service(1)
    del value["metadata"]["namespace"]
    assert names(read(value)) == ["default/service-1"]


@pytest.mark.parametrize(
    ("text", "file", "where"),
    [
        ("a: 1\nb: [1,\n", "a.yaml", "line 3, column 1"),
        ("a: 1\n\tb: 2\n", "a.yaml", "line 2, column 1"),
        ("a: 1\na: 2\n", "a.yaml", "line 2, column 1"),
        ('{"a": 1,\n "b" 2}', "a.json", "line 2, column 6"),
        ("a: \x00", "a.yaml", "line 1, column 4"),
        ("a: 1\nb: {{ .Release.Name }}\n", "a.yaml", "line 2, column 5"),
        ("a: &a [*a]\n", "a.yaml", "line 1, column 8"),
        ('{"a": 1, "a": 2}', "a.json", "line 1, column 1"),
    ],
)
def test_what_does_not_parse_tells_where(text: str, file: str, where: str) -> None:
    with pytest.raises(DecodeError, match=f"^{where}: "):
        MANIFESTS.read(text, file)


def test_an_unquoted_time_stays_a_text() -> None:
    text = "apiVersion: v1\nkind: Service\nmetadata: {name: a, creationTimestamp: 2026-01-01T00:00:00Z}\n"
    (entry,) = MANIFESTS.read(text + "spec: {clusterIP: 10.0.0.1, ports: [{port: 80}]}\n", "a.yaml").entries
    assert entry.problems == ()
    assert len(entry.objects) == 1


def test_the_file_that_sorts_first_has_an_object() -> None:
    second = read(service(1, ports=[{"port": 2}]), file="b.yaml")
    inventory = take_inventory([second, read(service(1), file="a.yaml")], Kind.SERVICE)
    ((_, value),) = inventory.objects.items()
    assert value == read(service(1)).entries[0].objects[0]
    ((_, (problem,)),) = inventory.problems.items()
    assert problem.message == "is also in a.yaml: vipwire uses that object, and ignores the one in b.yaml"


def test_every_kind_is_listed_even_when_empty() -> None:
    events = list(list_by_kind(take_inventory([read(service(1))], Kind.SERVICE), Kind))
    assert {event.kind: len(event.objects) for event in events} == {
        Kind.SERVICE: 1,
        Kind.ENDPOINT_SLICE: 0,
        Kind.NODE: 0,
        Kind.SERVICE_CIDR: 0,
    }


def test_differences_are_what_changed() -> None:
    before = take_inventory([read(service(1), service(2), service(3))], Kind.SERVICE)
    after = take_inventory([read(service(1), service(2, ports=[{"port": 81}]), service(4, ports=7))], Kind.SERVICE)
    events = list(diff_inventories(before, after))
    assert [(type(event), len(event.problems)) for event in events] == [(Upserted, 0), (Deleted, 0), (Deleted, 1)]
    assert list(diff_inventories(after, after)) == []


def test_a_problem_alone_is_told_and_taken_back() -> None:
    good, bad = take_inventory([read(service(1))], Kind.SERVICE), take_inventory([read(service(1), 5)], Kind.SERVICE)
    (told,) = diff_inventories(good, bad)
    assert isinstance(told, Deleted)
    assert told.name.name == "a.yaml"
    assert len(told.problems) == 1
    (taken_back,) = diff_inventories(bad, good)
    assert isinstance(taken_back, Deleted)
    assert taken_back.problems == ()
