"""Endpoints: which Pods are, how they are spread over slices, and that slices change only where they must."""

import random
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.up.unit.cluster_here import SERVICES, Here, in_cluster, service
from tests.up.unit.controllers_here import ENDPOINTS, PODS, SLICES, clock, items, listed_names
from tests.up.unit.up_here import whole, write

from vipwire_up.controllers.endpoints.arrange import MOST, Arrangement, Slice, arrange_slices
from vipwire_up.controllers.endpoints.controller import EndpointController
from vipwire_up.controllers.endpoints.endpoints import Group, format_ports_key, group_pod_endpoints
from vipwire_up.controllers.endpoints.legacy import build_endpoints_object
from vipwire_up.controllers.endpoints.selection import Selection
from vipwire_up.controllers.hooks import delete_endpoints_of_service

GROUP = Group("IPv4", format_ports_key(({"name": "", "port": 8080, "protocol": "TCP"},)))
SELECTOR = {"app": "web"}
NO_FINALIZERS: dict[str, Any] = {"metadata": {"finalizers": None}}


def pod(name: str, address: str, *, ready: bool = True, **spec: Any) -> dict[str, Any]:
    container = {"name": "web", "image": "none", "ports": [{"name": "http", "containerPort": 8080}]}
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "labels": dict(SELECTOR)},
        "spec": {"containers": [container]} | spec,
        "status": {"phase": "Running", "podIP": address, "conditions": conditions},
    }


def web(**spec: Any) -> dict[str, Any]:
    value = service("web", selector=SELECTOR, ipFamilies=["IPv4"], clusterIP="10.96.0.1", **spec)
    value["metadata"] |= {"namespace": "default", "uid": "uid-web"}
    return value


def endpoint(number: int) -> dict[str, Any]:
    return {"addresses": [f"10.0.{number // 250}.{number % 250 + 1}"], "conditions": {"ready": True}}


def apply(existing: list[Slice], plan: Arrangement) -> list[Slice]:
    update = dict(plan.update)
    kept = [Slice(s.name, s.group, update.get(s.name, s.endpoints)) for s in existing if s.name not in plan.delete]
    return kept + [Slice(f"new-{len(existing)}-{n}", group, listed) for n, (group, listed) in enumerate(plan.create)]


def test_a_hundred_to_a_slice() -> None:
    plan = arrange_slices([], {GROUP: [endpoint(n) for n in range(250)]}, ["IPv4"])
    assert [len(listed) for _, listed in plan.create] == [100, 100, 50]


def test_one_that_comes_or_goes_changes_one_slice() -> None:
    wanted = [endpoint(n) for n in range(250)]
    there = apply([], arrange_slices([], {GROUP: wanted}, ["IPv4"]))
    assert arrange_slices(there, {GROUP: wanted}, ["IPv4"]) == Arrangement()
    gone = arrange_slices(there, {GROUP: wanted[1:]}, ["IPv4"])
    assert ([name for name, _ in gone.update], gone.create, gone.delete) == ([there[0].name], (), ())
    come = arrange_slices(there, {GROUP: [*wanted, endpoint(900)]}, ["IPv4"])
    assert ([name for name, _ in come.update], come.create, come.delete) == ([there[2].name], (), ())
    swap = arrange_slices(there, {GROUP: [*wanted[1:], endpoint(900)]}, ["IPv4"])
    assert ([name for name, _ in swap.update], swap.create) == ([there[0].name], ())


@given(st.lists(st.sets(st.integers(0, 400), max_size=300), max_size=6), st.randoms(use_true_random=False))
def test_slices_hold_what_is_wanted_and_then_rest(rounds: list[set[int]], chance: random.Random) -> None:
    there: list[Slice] = []
    for numbers in rounds:
        wanted = [endpoint(n) for n in numbers]
        chance.shuffle(wanted)
        there = apply(there, arrange_slices(there, {GROUP: wanted} if wanted else {}, ["IPv4"]))
        held = [e["addresses"][0] for s in there for e in s.endpoints]
        assert sorted(held) == sorted(e["addresses"][0] for e in wanted)
        assert all(len(s.endpoints) <= MOST for s in there)
        assert len(there) == 1 or all(s.endpoints for s in there)
        assert there
        assert arrange_slices(there, {GROUP: wanted} if wanted else {}, ["IPv4"]) == Arrangement()


@pytest.mark.parametrize(
    ("change", "publish", "expected"),
    [
        ({}, False, (True, True, False)),
        ({"ready": False}, False, (False, False, False)),
        ({"ready": False}, True, (True, False, False)),
        ({"going": True}, False, (False, True, True)),
        ({"going": True, "ready": False}, False, (False, False, True)),
    ],
)
def test_conditions(change: dict[str, bool], *, publish: bool, expected: tuple[bool, ...]) -> None:
    value = pod("a", "10.0.0.1", ready=change.get("ready", True))
    if change.get("going"):
        value["metadata"]["deletionTimestamp"] = "2026-01-01T12:00:00Z"
    ((found,),) = group_pod_endpoints(web(publishNotReadyAddresses=publish), [value], {}).values()
    conditions = found["conditions"]
    assert (conditions["ready"], conditions["serving"], conditions["terminating"]) == expected


def test_pods_that_are_no_endpoints() -> None:
    ended, nowhere = pod("a", "10.0.0.1"), pod("b", "")
    ended["status"]["phase"] = "Succeeded"
    special = [pod("c", "127.0.0.1"), pod("d", "169.254.1.1"), pod("e", "224.0.0.1"), pod("f", "0.0.0.0")]
    assert group_pod_endpoints(web(), [ended, nowhere, pod("six", "fd00::1"), *special], {}) == {}


def test_named_target_ports_are_each_pods_own() -> None:
    other = pod("b", "10.0.0.2")
    other["spec"]["containers"][0]["ports"][0]["containerPort"] = 9090
    found = group_pod_endpoints(web(ports=[{"port": 80, "targetPort": "http"}]), [pod("a", "10.0.0.1"), other], {})
    assert [(group.port_list[0]["port"], len(listed)) for group, listed in found.items()] == [(8080, 1), (9090, 1)]
    nameless = group_pod_endpoints(web(ports=[{"port": 80, "targetPort": "nothing"}]), [pod("a", "10.0.0.1")], {})
    assert [group.port_list for group in nameless] == [[]]


def test_zones_hints_and_hostnames() -> None:
    here = pod("a", "10.0.0.1", nodeName="n1", hostname="first", subdomain="web")
    ((found,),) = group_pod_endpoints(web(trafficDistribution="PreferSameNode"), [here], {"n1": "z1"}).values()
    assert (found["nodeName"], found["zone"], found["hostname"]) == ("n1", "z1", "first")
    assert found["hints"] == {"forZones": [{"name": "z1"}], "forNodes": [{"name": "n1"}]}
    ((plain,),) = group_pod_endpoints(web(), [here], {"n1": "z1"}).values()
    assert "hints" not in plain


def test_endpoints_objects_are_cut_at_a_thousand() -> None:
    value = build_endpoints_object(web(), {GROUP: [endpoint(n) for n in range(1001)]})
    assert len(value["subsets"][0]["addresses"]) == 1000
    assert value["metadata"]["annotations"] == {"endpoints.kubernetes.io/over-capacity": "truncated"}


labels = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy"), max_size=3)


@given(st.lists(labels, max_size=6), st.lists(labels, max_size=6), labels)
def test_the_index_finds_what_a_search_finds(
    selectors: list[dict[str, str]], pods: list[dict[str, str]], moved: dict[str, str]
) -> None:
    index = Selection()
    for number, selector in enumerate(selectors):
        index.put_service(("ns", str(number)), selector)
    for number, given_labels in enumerate([*pods[:-1], moved] if pods else []):
        index.put_pod(("ns", str(number)), pods[number])
        index.put_pod(("ns", str(number)), given_labels)
        found = {name for _, name in index.services_of(("ns", str(number)))}
        assert found == {str(n) for n, s in enumerate(selectors) if s and s.items() <= given_labels.items()}
        for _, name in index.services():
            assert (("ns", str(number)) in index.pods_of(("ns", name))) == (name in found)
    assert set(index.services()) == {("ns", str(n)) for n, s in enumerate(selectors) if s}


async def shown(here: Here) -> list[tuple[str, list[tuple[str, bool]]]]:
    return sorted(
        (
            value["metadata"]["labels"]["kubernetes.io/service-name"],
            [(each["addresses"][0], each["conditions"]["ready"]) for each in value.get("endpoints", ())],
        )
        for value in await items(here, SLICES)
    )


@in_cluster()
async def test_the_controller_follows_services_and_pods(here: Here) -> None:
    controller = EndpointController(here.registry)
    await here.post(SERVICES, service("web", selector=SELECTOR))
    await controller.step()
    assert await shown(here) == [("web", [])]
    await here.post(PODS, pod("a", "10.0.0.1"))
    await here.post(PODS, pod("b", "10.0.0.2", ready=False))
    await controller.step()
    assert await shown(here) == [("web", [("10.0.0.1", True), ("10.0.0.2", False)])]
    (legacy,) = await items(here, ENDPOINTS)
    (subset,) = legacy["subsets"]
    assert (subset["addresses"][0]["ip"], subset["notReadyAddresses"][0]["ip"]) == ("10.0.0.1", "10.0.0.2")
    before = here.store.revision
    await controller.step()
    assert here.store.revision == before
    status = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    await here.send("PATCH", f"{PODS}/b/status", status, patch="strategic-merge-patch+json")
    await controller.step()
    assert await shown(here) == [("web", [("10.0.0.1", True), ("10.0.0.2", True)])]
    await here.send("DELETE", f"{PODS}/a?gracePeriodSeconds=0")
    await controller.step()
    assert await shown(here) == [("web", [("10.0.0.2", True)])]
    await here.send("DELETE", f"{SERVICES}/web")
    await controller.step()
    assert (await shown(here), await items(here, ENDPOINTS)) == ([], [])


@in_cluster()
async def test_a_slice_that_others_spoil_is_mended_by_a_new_controller(here: Here) -> None:
    await here.post(SERVICES, service("web", selector=SELECTOR))
    await here.post(PODS, pod("a", "10.0.0.1"))
    await EndpointController(here.registry).step()
    (made,) = await items(here, SLICES)
    path = f"{SLICES}/{made['metadata']['name']}"
    controller = EndpointController(here.registry)
    await controller.step()
    await here.send("PATCH", path, {"endpoints": []}, patch="merge-patch+json")
    assert await shown(here) == [("web", [])]
    await controller.step()
    assert await shown(here) == [("web", [("10.0.0.1", True)])]
    await here.send("DELETE", path)
    await controller.step()
    assert await shown(here) == [("web", [("10.0.0.1", True)])]


@in_cluster()
async def test_endpoints_made_by_hand_are_mirrored(here: Here) -> None:
    controller = EndpointController(here.registry)
    await here.post(SERVICES, service("db"))
    subset = {
        "addresses": [{"ip": "192.0.2.1"}, {"ip": "192.0.2.1"}],
        "notReadyAddresses": [{"ip": "192.0.2.2"}],
        "ports": [{"port": 5432}],
    }
    await here.post(ENDPOINTS, {"metadata": {"name": "db"}, "subsets": [subset]})
    await controller.step()
    assert await shown(here) == [("db", [("192.0.2.1", True), ("192.0.2.2", False)])]
    (mirror,) = await items(here, SLICES)
    owner = mirror["metadata"]["ownerReferences"][0]
    assert (owner["kind"], mirror["ports"][0]["port"]) == ("Endpoints", 5432)
    await here.send("DELETE", f"{ENDPOINTS}/db")
    await controller.step()
    assert await shown(here) == []


@in_cluster(make_hooks=lambda store: (partial(delete_endpoints_of_service, store, clock),))
async def test_endpoints_made_by_hand_go_with_their_service(here: Here) -> None:
    controller = EndpointController(here.registry)
    subset = {"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 5432}]}
    for name in ("db", "alone"):
        await here.post(ENDPOINTS, {"metadata": {"name": name}, "subsets": [subset]})
    await here.post(SERVICES, service("db"))
    await controller.step()
    assert await shown(here) == [("db", [("192.0.2.1", True)])]
    await here.send("DELETE", f"{SERVICES}/db?dryRun=All")
    assert await listed_names(here, ENDPOINTS) == ["alone", "db"]
    before = here.store.revision
    await here.send("DELETE", f"{SERVICES}/db")
    assert (await listed_names(here, ENDPOINTS), here.store.revision) == (["alone"], before + 2)
    await here.post(SERVICES, service("db"))  # a new one of the same name does not inherit them
    await controller.step()
    assert await shown(here) == []
    await here.send("DELETE", f"{SERVICES}/db")

    await here.post(ENDPOINTS, {"metadata": {"name": "kept", "finalizers": ["example.com/x"]}, "subsets": [subset]})
    await here.post(SERVICES, service("kept"))
    await here.send("DELETE", f"{SERVICES}/kept")
    code, kept = await here.send("GET", f"{ENDPOINTS}/kept")
    assert (code, bool(kept["metadata"]["deletionTimestamp"])) == (200, True)
    code, _ = await here.send("PATCH", f"{ENDPOINTS}/kept", NO_FINALIZERS, patch="merge-patch+json")
    assert (code, await listed_names(here, ENDPOINTS)) == (200, ["alone"])


@in_cluster()
async def test_slices_of_other_hands_are_left_alone(here: Here) -> None:
    await here.post(SERVICES, service("web"))
    body = {
        "metadata": {"name": "mine", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["192.0.2.9"], "conditions": {"ready": True}}],
        "ports": [{"port": 80}],
    }
    await here.post(SLICES, body)
    await EndpointController(here.registry).step()
    assert await shown(here) == [("web", [("192.0.2.9", True)])]


@in_cluster()
async def test_a_service_whose_slices_are_refused_costs_no_other_its_slices(here: Here) -> None:
    spoilt = service("spoilt", selector=SELECTOR)
    spoilt["spec"]["ports"][0]["protocol"] = "BOGUS"
    await write(here.store, whole(spoilt | {"apiVersion": "v1", "kind": "Service"}))
    controller = EndpointController(here.registry)
    await here.post(PODS, pod("a", "10.0.0.1"))
    await controller.step()
    await here.post(SERVICES, service("sound", selector=SELECTOR))
    await controller.step()
    names = [value["metadata"]["generateName"] for value in await items(here, SLICES)]
    assert names == ["sound-"]
