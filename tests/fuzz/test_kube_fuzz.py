"""Foreign bytes: an API server may send anything, a file may hold anything."""

import contextlib
import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.documents import read_document
from tests.fakes.objects import node, service, service_cidr, slice_of

from vipwire.errors import ConfigError, DecodeError
from vipwire.kube.access.kubeconfig import parse_kubeconfig
from vipwire.kube.manifests.documents import MANIFESTS
from vipwire.kube.proxied import ENDPOINT_SLICES, NODES, SERVICE_CIDRS, SERVICES
from vipwire.kube.watch import ResourceWatch, Sleep, WatchRequest
from vipwire.watched_objects.event import Kind

RESOURCES = [SERVICES, ENDPOINT_SLICES, NODES, SERVICE_CIDRS]
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
lines = st.one_of(
    st.binary(max_size=200),
    json_values.map(lambda value: json.dumps(value).encode()),
    st.tuples(st.sampled_from(["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR", "?"]), json_values).map(
        lambda pair: json.dumps({"type": pair[0], "object": pair[1]}).encode()
    ),
)


def mutated(value: Any, path: list[int], replacement: Any) -> Any:
    """Replace one place of a JSON value, found by numbers."""
    if not path or not isinstance(value, dict | list) or not value:
        return replacement
    if isinstance(value, dict):
        key = sorted(value)[path[0] % len(value)]
        return {**value, key: mutated(value[key], path[1:], replacement)}
    position = path[0] % len(value)
    return [*value[:position], mutated(value[position], path[1:], replacement), *value[position + 1 :]]


@given(st.sampled_from(RESOURCES), st.lists(st.tuples(st.sampled_from("plrfe"), lines), max_size=12))
def test_a_watch_never_raises_and_always_knows_what_to_do(resource: Any, story: list[tuple[str, bytes]]) -> None:
    machine = ResourceWatch(resource)
    for now, (what, data) in enumerate(story):
        assert isinstance(machine.next_action(0.5), WatchRequest | Sleep)
        match what:
            case "p":
                machine.handle_page(data, now)
            case "l":
                machine.handle_open(now)
                machine.handle_bytes(data + b"\n", now)
            case "r":
                machine.handle_refusal(400 + len(data), data, now)
            case "f":
                machine.handle_failure("x", now)
            case _:
                machine.handle_end(now)
    machine.next_action(0.5)
    assert isinstance(machine.next_action(0.5), WatchRequest)


@given(
    st.sampled_from([service(1), slice_of(1, 3), node("n"), service_cidr("c", "10.0.0.0/8")]),
    st.lists(st.integers(0, 20), min_size=1, max_size=7),
    json_values,
)
def test_one_wrong_place_in_an_object_never_raises(value: Any, path: list[int], replacement: Any) -> None:
    broken = mutated(value, path, replacement)
    objects, problems = read_document(value["kind"], broken)
    assert all(problem.kind == value["kind"] for problem in problems)
    assert len(objects) <= 1
    assert Kind(value["kind"])


@given(st.text(max_size=200), st.sampled_from(["a.yaml", "a.json"]))
def test_a_manifest_is_read_or_a_decode_error(text: str, file: str) -> None:
    with contextlib.suppress(DecodeError):
        assert MANIFESTS.read(text, file).file == file


@given(st.text(max_size=200) | json_values.map(json.dumps))
def test_a_kubeconfig_is_read_or_a_config_error(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert parse_kubeconfig(text, Path("/etc/kubeconfig")).file == "/etc/kubeconfig"
