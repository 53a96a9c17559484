"""Machines and their Leases: a Node is Ready while it is heard of; the endpoints on one that is lost leave."""

from pathlib import Path
from typing import Any

import pytest
from tests.fakes.clock import Clock
from tests.up.unit.cluster_here import Here, in_cluster
from tests.up.unit.controllers_here import SLICES, allocating_cluster

from vipwire_up.api.kinds.node import NODES
from vipwire_up.api.objects.resource import Object, Resource
from vipwire_up.controllers.endpoints.controller import EndpointController
from vipwire_up.nodes.heartbeat import Heartbeat
from vipwire_up.nodes.name_claim import NameClaim, NameStillHeldError, NameTakenError
from vipwire_up.nodes.objects import LocalObjects
from vipwire_up.nodes.readiness import NodeReadiness


async def ready(here: Here, name: str) -> dict[str, Any]:
    _, node = await here.send("GET", f"/api/v1/nodes/{name}")
    return next(dict(each) for each in node["status"]["conditions"] if each["type"] == "Ready")


async def machine(here: Here, name: str, seconds: int = 40) -> Heartbeat:
    found = Heartbeat(
        LocalObjects(here.registry, "test"), name, lambda: ([], {}), here.clock, NameClaim(name, seconds)
    )
    await here.send("POST", "/api/v1/namespaces", {"metadata": {"name": "kube-node-lease"}})
    await found.declare_node()
    await found.renew_once()
    return found


async def pass_time(here: Here, readiness: NodeReadiness, clock: Clock, seconds: int) -> None:
    for _ in range(seconds):
        clock.now += 1
        await readiness.step(here.registry)


@in_cluster()
async def test_a_machine_is_ready_until_its_lease_is_over_and_again_when_it_is_back(here: Here) -> None:
    clock = Clock()
    readiness = NodeReadiness(here.registry.store, clock=clock)
    long, short = await machine(here, "long"), await machine(here, "short", seconds=5)
    by_hand = {"metadata": {"name": "hand"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    await here.send("POST", "/api/v1/nodes", by_hand)
    await readiness.step(here.registry)
    await pass_time(here, readiness, clock, 4)
    assert (await ready(here, "short"))["status"] == "True"
    await pass_time(here, readiness, clock, 1)
    assert (await ready(here, "short"))["reason"] == "NodeStatusUnknown"
    await pass_time(here, readiness, clock, 35)
    assert [(await ready(here, name))["status"] for name in ("long", "hand")] == ["Unknown", "True"]
    here.clock.move(seconds=45)
    await short.renew_once()
    await long.renew_once()
    await readiness.step(here.registry)
    await pass_time(here, readiness, clock, 4)
    assert [(await ready(here, name))["status"] for name in ("long", "short")] == ["True", "True"]
    _, events = await here.send("GET", "/api/v1/namespaces/default/events")
    assert sorted(each["involvedObject"]["name"] for each in events["items"]) == ["long", "short"]


@in_cluster()
async def test_who_has_listened_all_the_time_judges_at_once_when_it_is_elected(here: Here) -> None:
    clock = Clock()
    readiness = NodeReadiness(here.registry.store, clock=clock)
    await machine(here, "far", seconds=5)
    for _ in range(5):
        await readiness.record_renewals()
        clock.now += 1
    assert (await ready(here, "far"))["status"] == "True"
    await readiness.step(here.registry)
    assert (await ready(here, "far"))["status"] == "Unknown"


@in_cluster()
async def test_time_in_which_the_judge_slept_counts_for_nobody(here: Here) -> None:
    clock = Clock()
    readiness = NodeReadiness(here.registry.store, clock=clock)
    await machine(here, "far", seconds=5)
    await readiness.step(here.registry)
    clock.now += 3600
    await readiness.step(here.registry)
    assert (await ready(here, "far"))["status"] == "True"
    await pass_time(here, readiness, clock, 5)
    assert (await ready(here, "far"))["status"] == "Unknown"


def rivals(here: Here, clock: Clock) -> tuple[Heartbeat, Heartbeat]:
    """Make two machines of one name."""
    objects, claims = LocalObjects(here.registry, "test"), (NameClaim("n1", 8, word, clock=clock) for word in "ab")
    first, second = (Heartbeat(objects, "n1", lambda: ([], {}), here.clock, claim) for claim in claims)
    return first, second


@in_cluster()
async def test_a_machine_that_is_alive_keeps_its_name_and_another_one_of_it_is_refused(here: Here) -> None:
    clock = Clock()
    first, second = rivals(here, clock)
    await here.send("POST", "/api/v1/namespaces", {"metadata": {"name": "kube-node-lease"}})
    await first.renew_once()
    with pytest.raises(NameStillHeldError, match="another machine was Node n1"):
        await second.renew_once()
    clock.now += 7
    with pytest.raises(NameStillHeldError):
        await second.renew_once()
    here.clock.move(seconds=7)
    await first.renew_once()
    with pytest.raises(NameTakenError, match="another running machine is Node n1"):
        await second.renew_once()


@in_cluster()
async def test_a_machine_that_comes_back_after_another_took_its_name_is_refused(here: Here) -> None:
    clock = Clock()
    first, second = rivals(here, clock)
    await here.send("POST", "/api/v1/namespaces", {"metadata": {"name": "kube-node-lease"}})
    await first.renew_once()
    with pytest.raises(NameStillHeldError):
        await second.renew_once()
    clock.now += 7.9
    assert first.holds_name()
    with pytest.raises(NameStillHeldError):
        await second.renew_once()
    clock.now += 0.1
    assert not first.holds_name()
    await second.renew_once()
    with pytest.raises(NameStillHeldError):
        await first.renew_once()
    assert (first.holds_name(), second.holds_name()) == (False, True)
    here.clock.move(seconds=2)
    await second.renew_once()
    with pytest.raises(NameTakenError):
        await first.renew_once()


@in_cluster()
async def test_a_name_whose_node_is_lost_is_free_at_once_unless_its_machine_was_heard_since(here: Here) -> None:
    clock = Clock()
    first, second = rivals(here, clock)
    await here.send("POST", "/api/v1/namespaces", {"metadata": {"name": "kube-node-lease"}})
    readiness = NodeReadiness(here.registry.store, clock=clock)
    await first.renew_once()
    await pass_time(here, readiness, clock, 9)
    assert (await ready(here, "n1"))["reason"] == "NodeStatusUnknown"
    await second.renew_once()
    assert second.holds_name()
    await pass_time(here, readiness, clock, 9)
    assert (await ready(here, "n1"))["reason"] == "NodeStatusUnknown"
    here.clock.move(seconds=9)
    lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1"
    assert (await here.send("PATCH", lease, {"spec": {"leaseTransitions": 9}}, patch="merge-patch+json"))[0] == 200
    with pytest.raises(NameStillHeldError):  # the second was heard, and has not declared its Node yet
        await first.renew_once()


@in_cluster()
async def test_a_node_that_somebody_deletes_is_made_again(here: Here) -> None:
    found = await machine(here, "gone")
    assert (await here.send("DELETE", "/api/v1/nodes/gone"))[0] == 200
    await found.renew_once()
    assert (await ready(here, "gone"))["status"] == "True"


async def test_the_endpoints_on_a_machine_that_is_lost_leave_and_come_back(tmp_path: Path) -> None:
    async def ready_ones(here: Here, controller: EndpointController) -> set[str]:
        await controller.step()
        _, found = await here.send("GET", SLICES)
        return {
            endpoint["addresses"][0]
            for each in found["items"]
            for endpoint in each["endpoints"]
            if endpoint["conditions"]["ready"] and endpoint["conditions"]["serving"]
        }

    async with allocating_cluster(tmp_path) as here:
        clock = Clock()
        readiness, controller = NodeReadiness(here.registry.store, clock=clock), EndpointController(here.registry)
        there = await machine(here, "there", seconds=5)
        spec = {"selector": {"app": "web"}, "ports": [{"port": 80}]}
        assert (
            await here.send(
                "POST", "/api/v1/namespaces/default/services", {"metadata": {"name": "web"}, "spec": spec}
            )
        )[0] == 201
        for name, node, address in (("a", "there", "10.1.0.5"), ("b", "elsewhere", "10.1.0.6")):
            status = {"phase": "Running", "podIP": address, "conditions": [{"type": "Ready", "status": "True"}]}
            pod = {"metadata": {"name": name, "labels": {"app": "web"}}, "status": status}
            pod["spec"] = {"nodeName": node, "containers": [{"name": "c", "image": "none"}]}
            assert (await here.send("POST", "/api/v1/namespaces/default/pods", pod))[0] == 201
        assert await ready_ones(here, controller) == {"10.1.0.5", "10.1.0.6"}
        await readiness.step(here.registry)
        await pass_time(here, readiness, clock, 5)
        assert await ready_ones(here, controller) == {"10.1.0.6"}
        here.clock.move(seconds=5)
        await there.renew_once()
        assert await ready_ones(here, controller) == {"10.1.0.5", "10.1.0.6"}


class Counted(LocalObjects):
    """Counts reads of Nodes."""

    reads = 0

    async def read(self, resource: Resource, namespace: str, name: str) -> Object | None:
        self.reads += resource is NODES
        return await super().read(resource, namespace, name)


@in_cluster()
async def test_a_renewal_checks_the_node_seldom_but_after_a_late_or_refused_one_at_once(here: Here) -> None:
    clock, objects = Clock(), Counted(here.registry, "test")
    beating = Heartbeat(objects, "n1", lambda: ([], {}), here.clock, NameClaim("n1", 40, clock=clock))
    await here.send("POST", "/api/v1/namespaces", {"metadata": {"name": "kube-node-lease"}})
    await beating.renew()

    async def checks(*seconds: float) -> list[bool]:
        found = []
        for each in seconds:
            before, clock.now = objects.reads, clock.now + each
            here.clock.move(seconds=each)
            await beating.renew()
            assert beating.holds_name()
            found.append(objects.reads > before)
        return found

    assert await checks(*[10] * 8) == [False, False, False, True] * 2
    assert await checks(10, 41, 10) == [False, True, False]
    lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1"
    assert (await here.send("DELETE", "/api/v1/nodes/n1"))[0] == 200
    assert (await here.send("DELETE", lease))[0] == 200  # as garbage collection does
    assert await checks(10) == [True]
    assert (await ready(here, "n1"))["status"] == "True"
