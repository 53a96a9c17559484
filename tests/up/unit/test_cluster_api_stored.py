"""What is stored is read as the API reads bodies: both refuse the same, for every kind that is served."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from vipwire.kube.errors import ApiError
from vipwire_up.api.bodies.decode import Findings, decode
from vipwire_up.api.damaged_records import is_readable
from vipwire_up.api.kinds.catalogue import RESOURCES
from vipwire_up.api.objects.resource import Resource
from vipwire_up.api.objects.schema import Shape, Type
from vipwire_up.store.record import Key, Record

VALUES: tuple[Any, ...] = (
    *("", "x", "7", "1Gi", "YQ==", "a\n", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00.000001+02:00"),
    *(True, 0, -1, 1 << 31, -(1 << 31) - 1, 1 << 63, 1.5, [], [7], {}, {"a": 7}, None),
)


def places(kind: Type, depth: int = 4) -> Iterator[tuple[str, ...]]:
    """Yield the path of every field, through the first element of lists and maps."""
    if kind.shape in (Shape.LIST, Shape.MAP) and kind.element is not None:
        yield from ((kind.shape.value, *rest) for rest in ((), *places(kind.element, depth)))
    elif kind.shape is Shape.OBJECT and depth:
        for name, field in kind.fields.items():
            yield from ((name, *rest) for rest in ((), *places(field.type, depth - 1)))


def built(path: tuple[str, ...], value: Any) -> Any:
    for step in reversed(path):
        value = [value] if step == "list" else {"a": value} if step == "map" else {step: value}
    return value


def accepted(resource: Resource, value: Any) -> bool:
    try:
        decode(value, resource.type, Findings())
    except ApiError:
        return False
    return True


@pytest.mark.parametrize("resource", RESOURCES, ids=[each.id for each in RESOURCES])
def test_what_is_stored_is_readable_exactly_if_a_body_would_be(resource: Resource) -> None:
    names = {"name": "a", "namespace": "default" if resource.namespaced else ""}
    for path in places(resource.type):
        if path[:2] in {("metadata",), ("metadata", "name"), ("metadata", "namespace")}:
            continue
        for value in VALUES:
            body = built(path, value)
            body["metadata"] = {**body.get("metadata", {}), **names}
            record = Record(Key(resource.id, names["namespace"], "a"), 1, json.dumps(body).encode())
            assert is_readable(record) is accepted(resource, body), (path, value)


def test_a_kind_that_is_not_served_any_more_is_held_to_its_metadata() -> None:
    key = Key("widgets.example.org", "", "a")
    assert is_readable(Record(key, 1, b'{"metadata":{"name":"a"},"spec":7}'))
    assert not is_readable(Record(key, 1, b'{"metadata":{"name":"b"}}'))
