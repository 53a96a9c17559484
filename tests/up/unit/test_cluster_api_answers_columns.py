"""What `kubectl get` shows of each kind, and the ages in it."""

from datetime import UTC, datetime
from typing import Any

import pytest

from vipwire_up.api.bodies.protobuf import fields_by_number
from vipwire_up.api.kinds.catalogue import RESOURCES
from vipwire_up.api.objects.columns import format_duration
from vipwire_up.api.objects.resource import Resource
from vipwire_up.api.objects.schema import Shape, Type

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
BY_KIND = {resource.kind: resource for resource in RESOURCES}
READY = {"type": "Ready", "status": "True"}
FOUR = [{"addresses": [f"10.0.0.{number}"]} for number in range(1, 5)]


@pytest.mark.parametrize(
    ("kind", "value", "cells"),
    [
        (
            "Service",
            {"spec": {"type": "LoadBalancer", "clusterIP": "10.0.0.1"}},
            "LoadBalancer 10.0.0.1 <pending> <none>",
        ),
        (
            "Service",
            {"spec": {"type": "LoadBalancer"}, "status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}},
            "LoadBalancer <none> 1.2.3.4 <none>",
        ),
        ("Service", {"spec": {"type": "ExternalName", "externalName": "a.b"}}, "ExternalName <none> a.b <none>"),
        ("Service", {"spec": {"type": "ClusterIP", "externalIPs": ["9.9.9.9"]}}, "ClusterIP <none> 9.9.9.9 <none>"),
        (
            "Node",
            {"status": {"conditions": [READY]}, "spec": {"unschedulable": True}},
            "Ready,SchedulingDisabled",
        ),
        ("Node", {"metadata": {"labels": {"node-role.kubernetes.io/worker": ""}}}, "Unknown worker"),
        (
            "Pod",
            {"spec": {"containers": [{}]}, "status": {"phase": "Running", "conditions": [READY]}},
            "1/1 Running 0",
        ),
        ("Pod", {"metadata": {"deletionTimestamp": "x"}, "spec": {"containers": [{}]}}, "0/1 Terminating 0"),
        (
            "Pod",
            {"status": {"containerStatuses": [{"restartCount": 2, "state": {"waiting": {"reason": "Bad"}}}]}},
            "0/0 Bad 2",
        ),
        (
            "Endpoints",
            {"subsets": [{"addresses": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}], "ports": [{"port": 80}]}]},
            "10.0.0.1:80,[fd00::1]:80",
        ),
        (
            "EndpointSlice",
            {"addressType": "IPv4", "endpoints": FOUR, "ports": [{"port": 80}]},
            "IPv4 80 10.0.0.1,10.0.0.2,10.0.0.3 + 1 more...",
        ),
        ("ConfigMap", {"data": {"a": ""}, "binaryData": {"b": ""}}, "2"),
        ("Secret", {"type": "Opaque", "data": {"a": ""}}, "Opaque 1"),
        ("Namespace", {"status": {"phase": "Active"}}, "Active"),
        ("Lease", {"spec": {"holderIdentity": "me"}}, "me"),
        (
            "Ingress",
            {"spec": {"ingressClassName": "c", "rules": [{"host": "a.b"}, {}], "tls": [{}]}},
            "c a.b,*  80, 443",
        ),
        ("IngressClass", {"spec": {"controller": "x/y"}}, "x/y <none>"),
        ("ServiceCIDR", {"spec": {"cidrs": ["10.0.0.0/24", "fd00::/112"]}}, "10.0.0.0/24,fd00::/112"),
        (
            "IPAddress",
            {"spec": {"parentRef": {"resource": "services", "namespace": "default", "name": "web"}}},
            "services/default/web",
        ),
        (
            "Event",
            {"type": "Normal", "reason": "Why", "involvedObject": {"kind": "Pod", "name": "p"}, "message": "so\n"},
            "Normal Why pod/p so",
        ),
    ],
)
def test_cells(kind: str, value: dict[str, Any], cells: str) -> None:
    value = {"metadata": {}} | value
    shown = [column.cell(value, NOW) for column in BY_KIND[kind].columns if column.priority == 0]
    text = " ".join(str(cell) for cell in shown)
    assert cells in text


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.kind)
def test_an_empty_object_can_be_shown(resource: Resource) -> None:
    for column in resource.columns:
        assert column.cell({"metadata": {}}, NOW) is not None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0s"),
        (119, "119s"),
        (120, "2m"),
        (185, "3m5s"),
        (600, "10m"),
        (3 * 3600, "3h"),
        (3 * 3600 + 60, "3h1m"),
        (47 * 3600, "47h"),
        (48 * 3600, "2d"),
        (3 * 86400 + 3600, "3d1h"),
        (100 * 86400, "100d"),
        (800 * 86400, "2y70d"),
        (9 * 365 * 86400, "9y"),
    ],
)
def test_ages_are_kubernetes(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.kind)
def test_no_two_fields_have_the_same_number_in_protobuf(resource: Resource) -> None:
    for kind in _objects(resource.type, set()):
        fields = [field for field in kind.fields.values() if field.number]
        assert len({field.number for field in fields}) == len(fields), kind.name
        assert fields_by_number(kind) or not fields, "custom resources have no numbers"


def _objects(kind: Type, seen: set[Type]) -> set[Type]:
    if kind.element is not None:
        return _objects(kind.element, seen)
    if kind.shape is Shape.OBJECT and kind not in seen:
        seen.add(kind)
        for field in kind.fields.values():
            _objects(field.type, seen)
    return seen
