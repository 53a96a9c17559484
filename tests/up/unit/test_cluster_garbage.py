"""What has to go, goes; and hooks between requests and the store are taken back when nothing comes of it."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.up.unit.cluster_here import SERVICES, Here, cluster, in_cluster, service

from vipwire.kube.errors import ApiError
from vipwire.model.times import format_time
from vipwire_up.api.admission import AdmissionRequest, Admitted, Operation
from vipwire_up.api.change import Options
from vipwire_up.api.kinds.service import SERVICES as SERVICE_KIND
from vipwire_up.api.kinds.small_kinds import CONFIG_MAPS
from vipwire_up.api.objects.errors import forbidden_object
from vipwire_up.api.objects.object import value_encoder
from vipwire_up.controllers.garbage_collector import GarbageCollector
from vipwire_up.store.record import Key, Write

MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"


def config_map(name: str, *owners: Any) -> dict[str, Any]:
    references = [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
        for owner in owners
    ]
    return {"metadata": {"name": name, "ownerReferences": references}}


async def names(here: Here) -> list[str]:
    return [item["metadata"]["name"] for item in (await here.send("GET", MAPS))[1]["items"]]


async def settle(here: Here) -> None:
    """Collect until nothing changes any more."""
    collector, before = GarbageCollector(here.registry), -1
    while before != here.store.revision:
        before = here.store.revision
        await collector.step()


@pytest.mark.parametrize(
    ("propagation", "left"),
    [("Background", ["shared"]), ("Foreground", ["shared"]), ("Orphan", ["child", "grandchild", "shared"])],
)
@in_cluster()
async def test_dependents_go_with_their_last_owner(here: Here, propagation: str, left: list[str]) -> None:
    owner, keeper = await here.post(MAPS, config_map("owner")), await here.post(MAPS, config_map("keeper"))
    child = await here.post(MAPS, config_map("child", owner))
    await here.post(MAPS, config_map("grandchild", child))
    await here.post(MAPS, config_map("shared", owner, keeper))
    collector = GarbageCollector(here.registry)
    await collector.step()
    await here.send("DELETE", f"{MAPS}/owner?propagationPolicy={propagation}")
    for _ in range(8):
        await collector.step()
    assert await names(here) == sorted(["keeper", *left])
    _, found = await here.send("GET", f"{MAPS}/shared")
    owners = [reference["name"] for reference in found["metadata"].get("ownerReferences", ())]
    assert owners == ["keeper"]


@in_cluster()
async def test_an_owner_that_never_was_counts_as_gone_unless_its_kind_is_not_known_here(here: Here) -> None:
    await here.post(MAPS, config_map("child", {"metadata": {"name": "none", "uid": "none"}}))
    foreign = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "elsewhere"}
    await here.post(MAPS, {"metadata": {"name": "brought-along", "ownerReferences": [foreign]}})
    await settle(here)
    assert await names(here) == ["brought-along"]


@in_cluster()
async def test_a_namespace_goes_when_it_is_empty_and_takes_nothing_new(here: Here) -> None:
    await here.post("/api/v1/namespaces", {"metadata": {"name": "shop"}})
    inside = "/api/v1/namespaces/shop/services"
    held = service("held")
    held["metadata"]["finalizers"] = ["example.com/wait"]
    await here.post(inside, held)
    await here.post(inside, service("free"))
    code, gone = await here.send("DELETE", "/api/v1/namespaces/shop")
    assert (code, gone["status"]["phase"]) == (200, "Terminating")
    code, status = await here.send("POST", inside, service("late"))
    why = "unable to create new content in namespace shop because it is being terminated"
    assert (code, status["message"]) == (403, f'services "late" is forbidden: {why}')
    await settle(here)
    _, left = await here.send("GET", inside)
    assert [item["metadata"]["name"] for item in left["items"]] == ["held"]
    _, going = await here.send("GET", "/api/v1/namespaces/shop")
    assert [entry["message"] for entry in going["status"]["conditions"]] == [
        "Some resources are remaining: services. has 1 resource instances",
        "Some content in the namespace has finalizers remaining: example.com/wait in 1 resource instances",
    ]
    before = here.store.revision
    here.clock.move(seconds=1)
    await settle(here)
    assert here.store.revision == before  # it is told once
    await here.send("PATCH", f"{inside}/held", {"metadata": {"finalizers": None}}, patch="merge-patch+json")
    await settle(here)
    assert (await here.send("GET", "/api/v1/namespaces/shop"))[0] == 404
    code, status = await here.send("DELETE", "/api/v1/namespaces/default")
    assert (code, status["message"]) == (403, 'namespaces "default" is forbidden: this namespace may not be deleted')


@in_cluster()
async def test_a_pod_on_a_node_is_terminating_for_its_grace_period(here: Here) -> None:
    spec = {"nodeName": "n", "terminationGracePeriodSeconds": 20, "containers": [{"name": "a", "image": "none"}]}
    await here.post(PODS, {"metadata": {"name": "p"}, "spec": spec})
    _, found = await here.send("DELETE", f"{PODS}/p")
    assert found["metadata"]["deletionTimestamp"] == "2026-01-01T12:00:20Z"
    here.clock.move(seconds=19)
    await settle(here)
    assert (await here.send("GET", f"{PODS}/p"))[0] == 200
    here.clock.move(seconds=1)
    await settle(here)
    assert (await here.send("GET", f"{PODS}/p"))[0] == 404


@in_cluster()
async def test_events_go_after_an_hour(here: Here) -> None:
    about = {"kind": "Pod", "name": "p", "namespace": "default"}
    events = "/api/v1/namespaces/default/events"
    await here.post(events, {"metadata": {"name": "e"}, "involvedObject": about})
    here.clock.move(minutes=59)
    await settle(here)
    assert (await here.send("GET", f"{events}/e"))[0] == 200
    here.clock.move(minutes=2)
    await settle(here)
    assert (await here.send("GET", f"{events}/e"))[0] == 404
    series = {"count": 2, "lastObservedTime": format_time(here.clock.now)}
    first = {"firstTimestamp": format_time(here.clock.now - timedelta(minutes=50))}
    await here.post(events, {"metadata": {"name": "e"}, "involvedObject": about, "series": series} | first)
    for minutes, code in ((59, 200), (2, 404)):
        here.clock.move(minutes=minutes)
        await settle(here)
        assert (await here.send("GET", f"{events}/e"))[0] == code


@in_cluster()
async def test_what_went_while_it_was_too_far_behind_is_gone(here: Here) -> None:
    collector = GarbageCollector(here.registry)
    owner = await here.post(MAPS, config_map("owner"))
    await here.post(MAPS, config_map("child", owner))
    await collector.step()
    await here.send("DELETE", f"{MAPS}/owner")
    await here.store.compact(here.store.revision)
    await collector.step()
    assert await names(here) == []


@in_cluster()
async def test_it_runs_and_follows(here: Here) -> None:
    owner = await here.post(MAPS, config_map("owner"))
    await here.post(MAPS, config_map("child", owner))
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(GarbageCollector(here.registry).run())
        await here.send("DELETE", f"{MAPS}/owner")
        while await names(here):
            await here.store.wait_for_revision(here.store.revision)
        running.cancel()


class Addresses:
    """A hook that gives every Service the next address, notes it in an object, and refuses the name `no`."""

    def __init__(self) -> None:
        self.given: list[str] = []
        self.freed: list[str] = []

    def admit(self, attempt: AdmissionRequest) -> Admitted | None:
        if attempt.resource.kind != "Service":
            return None
        if attempt.operation is Operation.DELETE:
            assert attempt.old is not None
            self.freed.append(attempt.old["spec"]["clusterIP"])
            return None
        if attempt.operation is not Operation.CREATE or attempt.new is None:
            return None
        if attempt.name == "no":
            raise forbidden_object("services", "no", "the hook does not want it")
        address = f"10.0.0.{len(self.given) + 1}"
        attempt.new["spec"] |= {"clusterIP": address, "clusterIPs": [address]}
        self.given.append(address)
        note = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": address, "namespace": "default", "uid": "-"},
        }
        return Admitted(
            (Write(Key(CONFIG_MAPS.id, "default", address), value_encoder(note), 0),),
            lambda: self.given.remove(address),
        )


async def test_a_hook_changes_adds_refuses_and_is_taken_back(tmp_path: Path) -> None:
    hook = Addresses()
    async with cluster(tmp_path, hooks=(hook.admit,)) as here:
        made = await here.post(SERVICES, service("web"))
        assert (made["spec"]["clusterIP"], await names(here)) == ("10.0.0.1", ["10.0.0.1"])
        assert (await here.send("POST", SERVICES, service("no")))[0] == 403
        assert (await here.send("POST", f"{SERVICES}?dryRun=All", service("dry")))[0] == 201
        assert (await here.send("POST", SERVICES, service("bad", ports=[])))[0] == 422
        assert hook.given == ["10.0.0.1"]
        await here.send("DELETE", f"{SERVICES}/web")
        assert hook.freed == ["10.0.0.1"]
        hook.given.clear()  # it forgets: now the object that it wants to add is there already
        code, status = await here.send("POST", SERVICES, service("again"))
        assert (code, status["message"]) == (409, 'configmaps "10.0.0.1" already exists')
        assert hook.given == []
        with pytest.raises(ApiError):
            here.registry.read(CONFIG_MAPS, "default", "again")


async def test_who_stops_waiting_for_a_write_does_not_take_it_back(tmp_path: Path) -> None:
    hook = Addresses()
    async with cluster(tmp_path, hooks=(hook.admit,)) as here:
        written = here.store.revision + 2
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(here.registry.create(SERVICE_KIND, "default", service("web"), Options()))
            await asyncio.sleep(0)  # it begins, and waits for the disk
            assert here.store.head(Key("services", "default", "web"))
            asking.cancel()
        await here.store.wait_for_revision(written)
        assert (await here.send("GET", f"{SERVICES}/web"))[1]["spec"]["clusterIP"] == "10.0.0.1"
        assert hook.given == ["10.0.0.1"]
