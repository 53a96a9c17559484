"""Zone hints by CPUs: every zone has enough endpoints, each endpoint one zone; and why not, where not."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.up.unit.cluster_here import SERVICES, Here, in_cluster, pod, service
from tests.up.unit.controllers_here import PODS, SLICES, items

from vipwire_up.controllers.endpoints.controller import EndpointController
from vipwire_up.controllers.endpoints.topology import (
    FEW_ENDPOINTS,
    FEW_FACTS,
    FEW_NODES,
    NO_BALANCE,
    NO_ZONE,
    NodeFacts,
    Shares,
    assign_zone_hints,
    compute_zone_shares,
    read_node_facts,
)

AUTO = {"service.kubernetes.io/topology-mode": "Auto"}
ZONE = "topology.kubernetes.io/zone"
ZONES = st.sampled_from(["a", "b", "c"])


def endpoint(number: int, zone: str, *, ready: bool = True) -> dict[str, Any]:
    return {"addresses": [f"10.0.0.{number}"], "zone": zone, "conditions": {"ready": ready}}


def hinted(endpoints: list[dict[str, Any]]) -> list[str]:
    return [each["hints"]["forZones"][0]["name"] if "hints" in each else "" for each in endpoints]


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([("a", 4.0), ("b", 8.0), ("b", 4.0)], Shares({"a": 0.25, "b": 0.75})),
        ([("a", 4.0), ("", 8.0)], Shares({}, FEW_FACTS)),
        ([("a", 4.0), ("b", 0.0)], Shares({}, FEW_FACTS)),
        ([("a", 4.0), ("a", 4.0)], Shares({}, FEW_NODES)),
        ([("a", 4.0), ("", None), ("b", 4.0)], Shares({"a": 0.5, "b": 0.5})),  # a control plane counts for nothing
    ],
)
def test_shares_of_zones(nodes: list[tuple[str, float | None]], expected: Shares) -> None:
    assert compute_zone_shares(NodeFacts(*each) for each in nodes) == expected


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ({"allocatable": {"cpu": "3920m"}}, NodeFacts("a", 3.92)),
        ({"allocatable": {"cpu": "4"}}, NodeFacts("a", 4.0)),
        ({"allocatable": {"cpu": "many"}}, NodeFacts("a", 0.0)),
        ({}, NodeFacts("a", 0.0)),
        ({"conditions": [{"type": "Ready", "status": "False"}]}, NodeFacts("a", None)),
    ],
)
def test_what_counts_of_a_node(node: dict[str, Any], expected: NodeFacts) -> None:
    status = {"conditions": [{"type": "Ready", "status": "True"}]} | node
    assert read_node_facts({"metadata": {"labels": {ZONE: "a"}}, "status": status}) == expected
    labels = {ZONE: "a", "node-role.kubernetes.io/control-plane": ""}
    assert read_node_facts({"metadata": {"labels": labels}, "status": status}).cpus is None


@pytest.mark.parametrize(
    ("zones", "problem", "expected"),
    [
        ("ab", "", ["a", "b"]),
        ("aaab", "", ["a", "a", "b", "b"]),
        ("a", FEW_ENDPOINTS, [""]),
        ("abx", NO_ZONE, ["", "", ""]),
        ("abb", NO_BALANCE, ["", "", ""]),  # one of two or two of three: either has 1.5 times its share
    ],
)
def test_endpoints_are_divided_or_it_is_said_why_not(zones: str, problem: str, expected: list[str]) -> None:
    endpoints = [endpoint(number, zone) for number, zone in enumerate(zones)]
    assert assign_zone_hints(endpoints, Shares({"a": 0.5, "b": 0.5})) == problem
    assert sorted(hinted(endpoints)) == expected


@given(st.lists(st.tuples(ZONES, st.booleans()), max_size=40), st.lists(st.integers(1, 64), min_size=3, max_size=3))
def test_no_zone_has_too_few_and_none_gives_without_need(listed: list[tuple[str, bool]], cpus: list[int]) -> None:
    endpoints = [endpoint(number, zone, ready=ready) for number, (zone, ready) in enumerate(listed)]
    known = compute_zone_shares(NodeFacts(zone, count) for zone, count in zip("abc", cpus, strict=True))
    problem = assign_zone_hints(endpoints, known)
    found = [zone for each, zone in zip(endpoints, hinted(endpoints), strict=True) if each["conditions"]["ready"]]
    if problem:
        assert set(found) <= {""}
        return
    assert set(hinted([each for each in endpoints if not each["conditions"]["ready"]])) <= {""}
    for zone, share in known.by_zone.items():
        least = math.ceil(len(found) * share / 1.2)
        own = sum(each["zone"] == zone for each in endpoints if each["conditions"]["ready"])
        assert found.count(zone) >= least
        assert found.count(zone) <= max(own, least)


def node(name: str, zone: str, cpu: str) -> dict[str, Any]:
    status = {"allocatable": {"cpu": cpu}, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": name, "labels": {ZONE: zone} if zone else {}}, "status": status}


def running_pod(number: int, on: str) -> dict[str, Any]:
    status = {"phase": "Running", "podIP": f"10.0.0.{number}", "conditions": [{"type": "Ready", "status": "True"}]}
    return pod(f"p{number}", metadata={"labels": {"app": "web"}}, spec={"nodeName": on}, status=status)


@in_cluster()
async def test_the_controller_hints_follows_the_nodes_and_tells_why_not(here: Here) -> None:
    async def hints(here: Here) -> list[str]:
        (found,) = await items(here, SLICES)
        return hinted(sorted(found["endpoints"], key=lambda each: str(each["addresses"])))

    controller = EndpointController(here.registry)
    value = service("web", selector={"app": "web"}, trafficDistribution="PreferClose")
    value["metadata"]["annotations"] = AUTO
    await here.post(SERVICES, value)
    for name, zone in (("n1", "a"), ("n2", "b")):
        await here.post("/api/v1/nodes", node(name, zone, "4"))
    for number, on in ((1, "n1"), (2, "n1"), (3, "n1"), (4, "n2")):
        await here.post(PODS, running_pod(number, on))
    await controller.step()
    assert await hints(here) == ["a", "a", "b", "b"]
    await here.post("/api/v1/nodes", node("n3", "", "4"))
    await controller.step()
    assert await hints(here) == ["", "", "", ""]
    await here.send("PATCH", f"{PODS}/p1", {"metadata": {"labels": {"x": "y"}}}, patch="merge-patch+json")
    await controller.step()
    events = await items(here, "/api/v1/namespaces/default/events")
    assert [(each["reason"], each["message"]) for each in events] == [
        ("TopologyAwareHintsDisabled", f"no zone hints: {FEW_FACTS}")
    ]
    await here.send("DELETE", "/api/v1/nodes/n3")
    await controller.step()
    assert await hints(here) == ["a", "a", "b", "b"]
