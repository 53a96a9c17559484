"""Statuses as they are written: what others have written stays, and times change with what they are about."""

from ipaddress import ip_network
from typing import Any

import msgspec
import pytest

from vipwire.model.names import ObjectName
from vipwire_l7.gateway.plan.address_pool import AddressPool
from vipwire_l7.gateway.plan.merged_statuses import merge_status
from vipwire_l7.gateway.watch.wire import GatewaySpec
from vipwire_l7.watch.objects import GatewayObject, IngressKind

OURS, OLD, NOW = "vipwire.io/gateway", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def condition(kind: str, status: str = "True", **more: Any) -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": kind, "message": "", "observedGeneration": 1} | more


def parent(controller: str, *conditions: dict[str, Any], name: str = "edge") -> dict[str, Any]:
    return {"parentRef": {"name": name}, "controllerName": controller, "conditions": list(conditions)}


def test_parents_of_other_controllers_stay() -> None:
    theirs = parent("example.com/gateway", condition("Accepted", lastTransitionTime=OLD))
    gone = parent(OURS, condition("Accepted", lastTransitionTime=OLD), name="gone")
    made = merge_status({"parents": [parent(OURS, condition("Accepted"))]}, {"parents": [theirs, gone]}, OURS, NOW)
    assert made["parents"] == [parent(OURS, condition("Accepted", lastTransitionTime=NOW)), theirs]


def test_a_condition_keeps_its_time_as_long_as_its_status() -> None:
    before = {
        "conditions": [condition(kind, lastTransitionTime=OLD) for kind in ("Accepted", "Programmed", "Theirs")]
    }
    ours = {"conditions": [condition("Accepted", observedGeneration=2), condition("Programmed", "False")]}
    found = {each["type"]: each["lastTransitionTime"] for each in merge_status(ours, before, OURS, NOW)["conditions"]}
    assert found == {"Accepted": OLD, "Programmed": NOW, "Theirs": OLD}


def test_a_condition_that_is_only_sometimes_there_goes() -> None:
    before = {"parents": [parent(OURS, condition("Accepted"), condition("PartiallyInvalid"))]}
    made = merge_status({"parents": [parent(OURS, condition("Accepted"))]}, before, OURS, NOW)
    assert [each["type"] for each in made["parents"][0]["conditions"]] == ["Accepted"]


def test_listeners_keep_their_times_by_name() -> None:
    before = {"listeners": [{"name": "a", "conditions": [condition("Accepted", lastTransitionTime=OLD)]}]}
    ours = {"listeners": [{"name": name, "conditions": [condition("Accepted")]} for name in ("b", "a")]}
    made = merge_status(ours, before, OURS, NOW)["listeners"]
    assert [each["conditions"][0]["lastTransitionTime"] for each in made] == [NOW, OLD]


JUNK: tuple[Any, ...] = (
    5,
    "x",
    [5, None, []],
    [{"type": [], "name": {}, "controllerName": 1, "value": []}],
    {"a": 1},
)


@pytest.mark.parametrize("junk", JUNK, ids=str)
def test_a_status_of_other_types_is_read_as_far_as_it_is_one(junk: Any) -> None:
    lists = ("parents", "listeners", "addresses", "conditions", "ancestors")
    deep = {"parents": [{"controllerName": OURS, "parentRef": junk, "conditions": junk}], "listeners": junk}
    for theirs in (junk, dict.fromkeys(lists, junk), deep):
        edge = ObjectName("infra", "edge")
        gateway = GatewayObject(IngressKind.GATEWAY, edge, GatewaySpec(), written_status=msgspec.json.encode(theirs))
        ours = {"parents": [parent(OURS, condition("Accepted"))], "listeners": [{"name": "a", "conditions": []}]}
        made = merge_status(ours | {"conditions": [condition("Accepted")]}, gateway.status, OURS, NOW)
        assert [each["parentRef"] for each in made["parents"]] == [{"name": "edge"}]
        assert [each["name"] for each in made["listeners"]] == ["a"]
        assert [each["type"] for each in made["conditions"]] == ["Accepted"]
        pool = AddressPool((ip_network("192.0.2.0/31"),))
        assert pool.assign_addresses([gateway], {}) == {gateway.name: ("192.0.2.0",)}
