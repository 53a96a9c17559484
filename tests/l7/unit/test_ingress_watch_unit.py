"""Objects on the wire, and what has been touched."""

from typing import Any, cast

import msgspec
import pytest

from vipwire.errors import DecodeError
from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire.watched_objects.event import Deleted, Listed, Upserted
from vipwire_l7.watch.convert import is_host
from vipwire_l7.watch.kinds import MANIFESTS, RESOURCES
from vipwire_l7.watch.objects import (
    INGRESS_KINDS,
    BackendEndpoint,
    BackendSlice,
    Ingress,
    IngressClass,
    IngressKind,
    PathType,
    Usability,
)
from vipwire_l7.watch.snapshot import ChangeExtent, Snapshot


def converted(kind: IngressKind, source: dict[str, Any]) -> tuple[Any, tuple[Problem, ...]]:
    return RESOURCES[kind].convert(msgspec.convert(source, RESOURCES[kind].type))


META = {"name": "web", "namespace": "default"}


def paths(*entries: dict[str, Any]) -> tuple[Any, str]:
    backend = {"service": {"name": "web", "port": {"number": 80}}}
    rule = {"host": "a.org", "http": {"paths": [{"backend": backend} | entry for entry in entries]}}
    made, problems = converted(IngressKind.INGRESS, {"metadata": META, "spec": {"rules": [rule]}})
    return made, "\n".join(map(str, problems))


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        *((text, True) for text in ("a.org", "*.a.org", "localhost", "x" * 63)),
        *((text, False) for text in ("*", "a.*.org", "A.org", "a_b", "a..b", "a.org:80", "a b", "a\n", "x" * 64)),
    ],
)
def test_hosts(text: str, valid: bool) -> None:  # noqa: FBT001  # a row of the table
    assert is_host(text) is valid


def test_bad_paths_cost_only_themselves() -> None:
    made, told = paths(
        {"path": "/a b"}, {"path": "no", "pathType": "Prefix"}, {"path": "/ok", "pathType": "Exact"}, {}
    )
    assert [(rule.path, rule.type) for rule in made.rules] == [
        ("/ok", PathType.EXACT),
        ("/", PathType.IMPLEMENTATION_SPECIFIC),
    ]
    assert "spec.rules[0].http.paths[0].path: '/a b' is no path" in told
    assert "spec.rules[0].http.paths[1].path: 'no' is no path" in told


def test_the_class_of_the_spec_comes_before_the_annotation() -> None:
    meta = META | {"annotations": {"kubernetes.io/ingress.class": "old"}}
    assert (
        converted(IngressKind.INGRESS, {"metadata": meta, "spec": {"ingressClassName": "new"}})[0].class_name == "new"
    )
    assert converted(IngressKind.INGRESS, {"metadata": meta})[0].class_name == "old"


@pytest.mark.parametrize(
    ("conditions", "use"),
    [
        ({}, Usability.READY),
        ({"ready": True}, Usability.READY),
        ({"ready": False}, Usability.NOT_READY),
        ({"ready": False, "serving": True, "terminating": True}, Usability.DRAINING),
        ({"ready": False, "serving": False, "terminating": True}, Usability.NOT_READY),
    ],
)
def test_conditions(conditions: dict[str, bool], use: Usability) -> None:
    assert slice_of("10.0.0.1", **conditions).endpoints == (BackendEndpoint(b"\x0a\x00\x00\x01", use),)  # type: ignore[arg-type]


def slice_of(*addresses: str, **conditions: bool) -> BackendSlice:
    meta = {"name": "s", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}}
    endpoints = [{"addresses": [address], "conditions": conditions} for address in addresses]
    source = {"metadata": meta, "addressType": "IPv4", "endpoints": endpoints, "ports": [{"port": 80}]}
    return cast("BackendSlice", converted(IngressKind.SLICE, source)[0])


def test_hints_tell_zones() -> None:
    hints = {"forZones": [{"name": "a"}, {}, {"name": "b"}]}
    meta = {"name": "s", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}}
    source = {"metadata": meta, "addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"], "hints": hints}]}
    (made,) = converted(IngressKind.SLICE, source)[0].endpoints
    assert made.zones == ("a", "b")


def test_a_service_tells_where_it_is_reached() -> None:
    status = {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}, {"hostname": "edge.example.com"}]}}
    source = {"metadata": META, "spec": {"externalIPs": ["192.0.2.1", "192.0.2.2"]}, "status": status}
    assert converted(IngressKind.SERVICE, source)[0].published == ("192.0.2.1", "edge.example.com", "192.0.2.2")


def test_what_is_no_address_and_no_name_is_left_out() -> None:
    assert slice_of("x", "10.0.0.256", "fd00::1").endpoints == ()
    spec = {"type": "ExternalName", "externalName": "local_host", "ports": []}
    assert converted(IngressKind.SERVICE, {"metadata": META, "spec": spec})[0] is None


def listed(snapshot: Snapshot) -> Snapshot:
    for kind in INGRESS_KINDS:
        assert not snapshot.complete
        snapshot.apply(Listed(cast("Any", kind), ()))
    assert snapshot.complete
    return snapshot


def test_endpoints_touch_their_service_and_classes_the_structure() -> None:
    snapshot = listed(Snapshot())
    assert snapshot.take_touched() == ChangeExtent(structure=True)
    web = ObjectName("default", "web")
    snapshot.apply(Upserted(cast("Any", slice_of("10.0.0.1"))))
    assert snapshot.take_touched() == ChangeExtent(frozenset({web}))
    snapshot.apply(Upserted(cast("Any", slice_of("10.0.0.1"))))
    assert not snapshot.take_touched()
    snapshot.apply(Deleted(cast("Any", IngressKind.SLICE), ObjectName("default", "s")))
    assert snapshot.take_touched() == ChangeExtent(frozenset({web}))
    assert snapshot.list_slices(web) == ()
    snapshot.apply(Upserted(cast("Any", Ingress(web))))
    assert snapshot.take_touched() == ChangeExtent(named=frozenset({(IngressKind.INGRESS, web)}))
    snapshot.apply(Upserted(cast("Any", Ingress(web, addresses=("192.0.2.1",)))))
    assert not snapshot.take_touched()
    snapshot.apply(Upserted(cast("Any", IngressClass(ObjectName("", "vipwire")))))
    assert snapshot.take_touched() == ChangeExtent(structure=True)


def test_a_list_replaces_what_was_there() -> None:
    snapshot = listed(Snapshot())
    kind = cast("Any", IngressKind.INGRESS)
    first, second = Ingress(ObjectName("a", "one")), Ingress(ObjectName("a", "two"))
    problem = Problem("Ingress", first.name, "spec", "is odd")
    snapshot.apply(Listed(kind, cast("Any", (first,)), (problem,)))
    assert list(snapshot.problems) == [problem]
    snapshot.apply(Listed(kind, cast("Any", (second,))))
    assert list(snapshot.ingresses) == [second.name]
    assert not list(snapshot.problems)


def test_manifests_are_read_kind_by_kind() -> None:
    text = """
kind: Ingress
apiVersion: networking.k8s.io/v1
metadata: {name: web}
---
kind: Deployment
apiVersion: apps/v1
metadata: {name: web}
---
kind: Ingress
apiVersion: networking.k8s.io/v1
metadata: {name: broken}
spec: {rules: 7}
---
- just a list
"""
    manifest = MANIFESTS.read(text, "f.yaml")
    assert [str(entry.name) for entry in manifest.entries] == ["default/web", "default/broken"]
    assert manifest.ignored == {"Deployment (apps/v1)"}
    assert "Expected `array | null`, got `int`" in str(manifest.entries[1].problems[0])
    assert len(manifest.problems) == 1
    with pytest.raises(DecodeError):
        MANIFESTS.read("a: [", "f.yaml")
