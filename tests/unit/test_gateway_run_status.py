"""Statuses as they are written: what others have written stays, and times change with what they are about."""

from typing import Any

from vipwire.gateway.run.status import merged

OURS, OLD, NOW = "vipwire.io/gateway", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def condition(kind: str, status: str = "True", **more: Any) -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": kind, "message": "", "observedGeneration": 1} | more


def parent(controller: str, *conditions: dict[str, Any], name: str = "edge") -> dict[str, Any]:
    return {"parentRef": {"name": name}, "controllerName": controller, "conditions": list(conditions)}


def test_parents_of_other_controllers_stay() -> None:
    theirs = parent("example.com/gateway", condition("Accepted", lastTransitionTime=OLD))
    gone = parent(OURS, condition("Accepted", lastTransitionTime=OLD), name="gone")
    made = merged({"parents": [parent(OURS, condition("Accepted"))]}, {"parents": [theirs, gone]}, OURS, NOW)
    assert made["parents"] == [parent(OURS, condition("Accepted", lastTransitionTime=NOW)), theirs]


def test_a_condition_keeps_its_time_as_long_as_its_status() -> None:
    before = {
        "conditions": [condition(kind, lastTransitionTime=OLD) for kind in ("Accepted", "Programmed", "Theirs")]
    }
    ours = {"conditions": [condition("Accepted", observedGeneration=2), condition("Programmed", "False")]}
    found = {each["type"]: each["lastTransitionTime"] for each in merged(ours, before, OURS, NOW)["conditions"]}
    assert found == {"Accepted": OLD, "Programmed": NOW, "Theirs": OLD}


def test_a_condition_that_is_only_sometimes_there_goes() -> None:
    before = {"parents": [parent(OURS, condition("Accepted"), condition("PartiallyInvalid"))]}
    made = merged({"parents": [parent(OURS, condition("Accepted"))]}, before, OURS, NOW)
    assert [each["type"] for each in made["parents"][0]["conditions"]] == ["Accepted"]


def test_listeners_keep_their_times_by_name() -> None:
    before = {"listeners": [{"name": "a", "conditions": [condition("Accepted", lastTransitionTime=OLD)]}]}
    ours = {"listeners": [{"name": name, "conditions": [condition("Accepted")]} for name in ("b", "a")]}
    made = merged(ours, before, OURS, NOW)["listeners"]
    assert [each["conditions"][0]["lastTransitionTime"] for each in made] == [NOW, OLD]
