"""Whatever a client sends, decoders give a value or the API's own error; and laws of patches and ownership."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from vipwire.kube.errors import ApiError
from vipwire_up.api.bodies.decode import Findings, decode
from vipwire_up.api.bodies.parsing import find_repeated_fields, parse_yaml
from vipwire_up.api.bodies.protobuf import decode_body
from vipwire_up.api.kinds.catalogue import RESOURCES
from vipwire_up.api.kinds.service import SERVICES
from vipwire_up.api.objects.resource import Resource
from vipwire_up.api.objects.schema import Shape, Type
from vipwire_up.api.patches.apply import (
    FieldManager,
    apply_configuration,
    assign_changed_fields,
    read_ownership,
    write_ownership,
)
from vipwire_up.api.patches.field_paths import paths_from_fields, paths_of_members, paths_to_fields
from vipwire_up.api.patches.json_patch import apply_json_patch, apply_merge_patch
from vipwire_up.api.patches.strategic import apply_strategic_patch
from vipwire_up.api.selectors import parse_labels

SCALARS = st.none() | st.booleans() | st.integers(-5, 70000) | st.text(max_size=5) | st.floats(allow_nan=False)
NAMES = st.sampled_from(
    ["metadata", "spec", "status", "ports", "port", "name", "labels", "$patch", "finalizers", "x"]
)
VALUES = st.recursive(
    SCALARS,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(NAMES, below, max_size=4),
    max_leaves=12,
)
TEXTS = st.sampled_from(
    ["", "a", "A", "None", "10.0.0.1", "fd00::/64", "Cluster", "Local", "NodePort", "TCP", "\x00"]
)
KINDS = st.sampled_from(RESOURCES)


def typed(kind: Type, depth: int = 0) -> st.SearchStrategy[Any]:
    """Values that mostly are of a type."""
    if kind.shape is Shape.OBJECT and depth < 4:
        optional = {name: typed(field.type, depth + 1) for name, field in kind.fields.items()}
        return st.fixed_dictionaries({}, optional=optional)
    if kind.shape is Shape.LIST and kind.element is not None:
        return st.lists(typed(kind.element, depth + 1), max_size=2)
    if kind.shape is Shape.MAP and kind.element is not None:
        return st.dictionaries(st.sampled_from(["a", "b/c"]), typed(kind.element, depth + 1), max_size=2)
    if kind.shape is Shape.ANY:
        return st.just({}) | st.just({"x": 1})
    return {
        "string": TEXTS,
        "intstr": st.integers(-1, 70000) | TEXTS,
        "bool": st.booleans(),
        "int32": st.integers(-1, 70000),
        "int64": st.integers(-1, 70000),
        "quantity": st.just("1Gi"),
        "bytes": st.just("YQ=="),
    }.get(kind.name, st.just("2026-01-01T00:00:00Z"))


def tried(action: Callable[[], Any]) -> tuple[Any, int]:
    """Do something; give its value and 0, or None and the code of the API's error."""
    try:
        return action(), 0
    except ApiError as error:
        return None, error.code


@given(KINDS, VALUES)
def test_a_body_is_decoded_or_refused(resource: Resource, value: Any) -> None:
    found, code = tried(lambda: decode(value, resource.type, Findings()))
    assert code in (0, 400)
    if not code:
        again = Findings()
        assert decode(found, resource.type, again) == found
        assert again.unknown == []


@given(KINDS, st.binary(max_size=200), st.binary(max_size=20))
def test_protobuf_is_decoded_or_refused(resource: Resource, raw: bytes, rest: bytes) -> None:
    kind = resource.kind.encode()
    meta = b"\x0a\x02v1" + b"\x12" + bytes([len(kind)]) + kind
    size = len(raw)
    length = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
    body = b"k8s\x00" + b"\x0a" + bytes([len(meta)]) + meta + b"\x12" + length + raw + rest
    for sent in (body, rest, raw):
        found, code = tried(lambda sent=sent: decode_body(sent, {resource.kind: resource.type}))  # type: ignore[misc]
        assert code in (0, 400, 415)
        assert code or json.loads(json.dumps(found))["kind"] == resource.kind


@given(st.text(alphabet='ab=!,() in"notx/.-', max_size=30))
def test_a_selector_is_read_or_refused(text: str) -> None:
    conditions, code = tried(lambda: parse_labels(text))
    assert code in (0, 400)
    assert conditions is None or conditions.match({}) in (True, False)


@given(st.text(alphabet="{}[]:, \"'&*!|>-#%ab1\t\n", max_size=40) | st.binary(max_size=40).map(repr))
def test_any_body_is_read_or_refused(text: str) -> None:
    for body in (text.encode(), b"{" + text.encode()):
        _, code = tried(lambda body=body: parse_yaml(body))  # type: ignore[misc]
        assert code in (0, 400)
        assert all(isinstance(each, str) for each in find_repeated_fields(body))


@given(VALUES, VALUES)
def test_patches_give_a_value_or_are_refused_and_leave_what_was_there(value: Any, patch: Any) -> None:
    before = json.dumps(value)
    apply_merge_patch(value, patch)
    assert tried(lambda: apply_json_patch(value, patch))[1] in (0, 400, 413, 422)
    assert tried(lambda: apply_strategic_patch(value, patch, SERVICES.type))[1] in (0, 400)
    assert json.dumps(value) == before


SPECS = st.builds(
    lambda numbers, labels, affinity: {
        "metadata": {"labels": labels},
        "spec": {
            "ports": [{"port": n, "protocol": "TCP", "name": f"p{n}"} for n in numbers],
            "sessionAffinity": affinity,
        },
    },
    st.lists(st.integers(1, 4), unique=True, min_size=1, max_size=3),
    st.dictionaries(st.sampled_from(["a", "b", "c"]), st.sampled_from(["1", "2"]), min_size=1, max_size=2),
    st.sampled_from(["None", "ClientIP"]),
)


@given(SPECS)
def test_fields_are_what_they_were_when_written_and_read(value: Any) -> None:
    paths = paths_of_members(value, SERVICES.type).keys()
    assert set(paths_from_fields(json.loads(json.dumps(paths_to_fields(paths))))) == set(paths)


@given(SPECS, SPECS)
def test_an_apply_gives_its_manager_what_it_wants_and_is_the_same_twice(first: Any, second: Any) -> None:
    me = FieldManager("me", "Apply")
    live, owned = apply_configuration({}, first, SERVICES.type, me, {}, force=False, now="1")
    live, owned = apply_configuration(live, second, SERVICES.type, me, owned, force=False, now="2")
    assert paths_of_members(live, SERVICES.type) == paths_of_members(second, SERVICES.type)
    again = apply_configuration(live, second, SERVICES.type, me, owned, force=False, now="3")
    assert again == (live, owned)


@given(SPECS, SPECS, SPECS)
def test_with_force_a_manager_has_its_way_and_takes_nothing_else(mine: Any, theirs: Any, more: Any) -> None:
    me, other = FieldManager("me", "Apply"), FieldManager("other", "Apply")
    live, owned = apply_configuration({}, theirs, SERVICES.type, other, {}, force=False, now="1")
    live, owned = apply_configuration(live, mine, SERVICES.type, me, owned, force=True, now="2")
    live, owned = apply_configuration(live, more, SERVICES.type, me, owned, force=True, now="3")
    found, wanted, kept = (paths_of_members(value, SERVICES.type) for value in (live, more, theirs))
    assert found.items() >= wanted.items()
    # what only the other one holds is as it was: all that I never touched, unless it was taken from it
    untouched = kept.keys() - wanted.keys() - paths_of_members(mine, SERVICES.type).keys()
    held = owned[other].paths if other in owned else frozenset()
    assert all(found.get(path) == kept[path] for path in untouched & held)


@given(SPECS, SPECS)
def test_after_an_update_every_field_has_an_owner(first: Any, second: Any) -> None:
    owned = assign_changed_fields({}, FieldManager("a"), {}, first, SERVICES.type, "1")
    owned = assign_changed_fields(owned, FieldManager("b"), first, second, SERVICES.type, "2")
    held = frozenset().union(*(entry.paths for entry in owned.values()))
    assert held == paths_of_members(second, SERVICES.type, whole=True).keys()
    assert read_ownership(write_ownership(owned)) == {who: entry for who, entry in owned.items() if entry.paths}


@given(KINDS.flatmap(lambda resource: st.tuples(st.just(resource), typed(resource.type))))
def test_what_decodes_can_be_checked_shown_and_owned(pair: tuple[Resource, Any]) -> None:
    resource, value = pair
    found, code = tried(lambda: decode(value, resource.type, Findings()))
    assert code in (0, 400)
    if code:
        return
    found["metadata"] |= {"name": "x", "namespace": "default"}
    resource.prepare(found, None)
    assert all(cause.message for cause in resource.check(found, None))
    json.dumps([column.cell(found, datetime(2026, 1, 1, tzinfo=UTC)) for column in resource.columns])
    paths_to_fields(paths_of_members(found, resource.type))
