"""The API server's time for an object grows with the object's size, not with its square.

A body may have 50,000 values: the square of as many would stop the event loop for minutes. A long selector does not
multiply the time for a list.
"""

import copy
import gc
import json
import time
from collections.abc import Callable
from typing import Any, Final

import pytest

from vipwire_up.api.bodies.decode import Findings, decode
from vipwire_up.api.kinds.node import NODES
from vipwire_up.api.kinds.pod import PODS
from vipwire_up.api.kinds.service import SERVICES
from vipwire_up.api.metadata import check_metadata
from vipwire_up.api.objects.resource import Resource
from vipwire_up.api.patches.apply import FieldManager, Owned, apply_configuration, build_managed_fields
from vipwire_up.api.patches.field_paths import paths_of_members
from vipwire_up.api.patches.json_patch import apply_json_patch
from vipwire_up.api.patches.strategic import apply_strategic_patch
from vipwire_up.api.selectors import parse_selector
from vipwire_up.store.record import Key, Record

Act = Callable[[], object]
FEW: Final = 1_000
TIMES: Final = 4
NOW: Final = "2026-01-01T00:00:00Z"
ME: Final = FieldManager("me", "Apply")


def volumes(count: int) -> dict[str, Any]:
    return {"spec": {"volumes": [{"name": f"v{number}", "emptyDir": {}} for number in range(count)]}}


def finalizers(count: int) -> dict[str, Any]:
    return {"metadata": {"name": "a", "finalizers": [f"a.org/f{number}" for number in range(count)]}}


def annotations(count: int) -> dict[str, Any]:
    return {"metadata": {"name": "a", "annotations": {f"a{number}": "b" for number in range(count)}}}


def ports(count: int) -> dict[str, Any]:
    return {"spec": {"ports": [{"name": f"p{number}", "port": number + 1} for number in range(count)]}}


def addresses(count: int) -> dict[str, Any]:
    return {"status": {"addresses": [{"type": "InternalIP", "address": f"fd00::{each:x}"} for each in range(count)]}}


def patched(resource: Resource, value: dict[str, Any], patch: dict[str, Any]) -> Act:
    return lambda: apply_strategic_patch(value, patch, resource.type)


def applied(resource: Resource, live: dict[str, Any], wanted: dict[str, Any]) -> Act:
    """Apply fields over those that the same manager applied before."""
    before = {ME: Owned(frozenset(paths_of_members(live, resource.type)), NOW)}
    return lambda: apply_configuration(live, wanted, resource.type, ME, before, force=True, now=NOW)


def checked(resource: Resource, value: dict[str, Any]) -> Act:
    new = {"metadata": {"name": "a"}, "spec": {}} | value
    return lambda: [*check_metadata(resource, new, None), *resource.check(new, new if resource is NODES else None)]


def written(resource: Resource, value: dict[str, Any]) -> Act:
    new = {"metadata": {"name": "a"}} | value
    return lambda: build_managed_fields(resource, {}, copy.copy(new), ME, NOW)


def removed(count: int) -> Act:
    patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": finalizers(count)["metadata"]["finalizers"]}}
    return patched(PODS, {"metadata": {"finalizers": [f"b.org/{number}" for number in range(count)]}}, patch)


def retained(count: int) -> Act:
    names = [f"b{number}" for number in range(count)]
    return patched(PODS, annotations(count), {"metadata": {"annotations": {"$retainKeys": names}}})


def operated(count: int) -> Act:
    adds = [{"op": "add", "path": f"/metadata/annotations/b{number}", "value": ""} for number in range(count)]
    return lambda: apply_json_patch(annotations(0), adds)


COSTS: Final[dict[str, Callable[[int], Act]]] = {
    "strategic merge of elements": lambda count: patched(PODS, volumes(count), volumes(count)),
    "strategic merge of values": lambda count: patched(PODS, finalizers(count), finalizers(2 * count)),
    "strategic deletion of values": removed,
    "strategic retention": retained,
    "JSON patch": operated,
    "apply of the same": lambda count: applied(PODS, volumes(count), volumes(count)),
    "apply without elements": lambda count: applied(SERVICES, ports(count), ports(0)),
    "apply without entries": lambda count: applied(PODS, annotations(count), {}),
    "apply without values": lambda count: applied(PODS, finalizers(count), {}),
    "ownership": lambda count: written(SERVICES, ports(count)),
    "types": lambda count: lambda: decode(volumes(count), PODS.type, Findings()),
    "checks of finalizers": lambda count: checked(PODS, finalizers(count)),
    "checks of volumes": lambda count: checked(PODS, volumes(count)),
    "checks of addresses": lambda count: checked(NODES, addresses(count)),
}


def seconds(act: Act) -> float:
    """Return the CPU seconds of the shortest of three runs."""
    found = []
    for _ in range(3):
        gc.collect()
        begun = time.thread_time()
        act()
        found.append(time.thread_time() - begun)
    return min(found)


@pytest.mark.parametrize("cost", COSTS)
def test_the_time_for_an_object_grows_with_its_size(cost: str) -> None:
    few, many = seconds(COSTS[cost](FEW)), seconds(COSTS[cost](TIMES * FEW))
    assert many < 2 * TIMES * few, f"{few * 1000:.1f} ms, then {many * 1000:.1f} ms"


@pytest.mark.parametrize("question", ["labels", "fields"])
def test_the_time_for_a_list_does_not_grow_with_the_selector(question: str) -> None:
    value = json.dumps({"metadata": {"name": "a", "namespace": "b", "labels": {"l1": "b", "l2": "b"}}}).encode()
    record = Record(Key(PODS.id, "b", "a"), 1, value)

    def listed(count: int) -> Act:
        labels = ",".join(f"l{number}!=a" for number in range(count))
        fields = ",".join(f"metadata.namespace!=a{number}" for number in range(count))
        selector = parse_selector(PODS, "", *((labels, "") if question == "labels" else ("", fields)))
        assert selector.matches(record)
        return lambda: [selector.matches(record) for _ in range(1_000)]

    few, many = seconds(listed(10)), seconds(listed(4_000))
    assert many < 2 * few, f"{few * 1000:.1f} ms, then {many * 1000:.1f} ms"
