"""What the store holds cannot keep `vipwire up` from starting, nor end it: others are served, and it is told why."""

from pathlib import Path
from typing import Any

import pytest
from tests.up.unit.cluster_here import pod, running
from tests.up.unit.up_here import Up, put, up

from vipwire_up.store.database import Database
from vipwire_up.store.embedded import EmbeddedStore
from vipwire_up.store.record import Key, Write

pytestmark = [pytest.mark.attack, pytest.mark.slow]
EVENTS = "/api/v1/namespaces/default/events"
ENDLESS = 2**63 - 1


def probed(**probe: Any) -> dict[str, Any]:
    how = {"failureThreshold": 1, "periodSeconds": 1} | probe
    return pod("bad", {"readinessProbe": how}, status={"phase": "Running", "podIP": "127.0.0.1"})


def node(name: str, cpus: str) -> dict[str, Any]:
    status = {"allocatable": {"cpu": cpus}, "conditions": [{"type": "Ready", "status": "True"}]}
    labels = {"topology.kubernetes.io/zone": f"zone-{name}"}
    return {"kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}


AUTO = {
    "kind": "Service",
    "metadata": {"name": "auto", "annotations": {"service.kubernetes.io/topology-mode": "Auto"}},
    "spec": {"type": "ClusterIP", "clusterIP": "None", "selector": {"app": "good"}, "ports": [{"port": 80}]},
}
ORPHAN = {
    "kind": "Pod",
    "metadata": {
        "name": "orphan",
        "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "gone"}],
    },
    "spec": {"nodeName": "here", "terminationGracePeriodSeconds": ENDLESS, "containers": [{"name": "web"}]},
}
GOING = {
    "kind": "Pod",
    "metadata": {"name": "going", "deletionTimestamp": "nonsense", "finalizers": 5},
    "spec": {"containers": [{"name": "web"}]},
}
OBJECTS: dict[str, list[dict[str, Any]]] = {
    "a port beyond all": [probed(tcpSocket={"port": 80800})],
    "a port below all": [probed(httpGet={"port": -1})],
    "numbers without end": [probed(tcpSocket={"port": 1}, periodSeconds=-5, timeoutSeconds=ENDLESS**3)],
    "an Event at the end of time": [
        {"kind": "Event", "metadata": {"name": "late"}, "lastTimestamp": "9999-12-31T23:59:59Z"},
        {"kind": "Event", "metadata": {"name": "early"}, "lastTimestamp": "0001-01-01T00:00:00+14:00"},
        {"kind": "Event", "metadata": {"name": "placeless"}, "lastTimestamp": "2026-01-01T00:00:00"},
    ],
    "a grace period without end": [ORPHAN],
    "an object that goes, without a time": [GOING],
    "CPUs that add up to nothing": [node("a", "1"), node("b", "-1"), AUTO],
    "CPUs without end": [node("a", "1e999"), node("b", "1e308"), node("c", "1e308"), node("d", "NaN"), AUTO],
    "ranges that are none": [{"kind": "ServiceCIDR", "metadata": {"name": "bad"}, "spec": {"cidrs": ["x", 7]}}],
    "an address of no address": [{"kind": "IPAddress", "metadata": {"name": "x"}, "spec": {"parentRef": 5}}],
    "a Service of nothing": [{"kind": "Service", "metadata": {"name": "bad", "labels": [1]}, "spec": ["x"]}],
    "a Node like this one": [{"kind": "Node", "metadata": {"name": "here", "labels": 3}, "status": [1]}],
    "the API's own Service": [{"kind": "Service", "metadata": {"name": "kubernetes"}, "spec": 7}],
    "slices and Endpoints": [
        {"kind": "EndpointSlice", "metadata": {"name": "s", "labels": {"kubernetes.io/service-name": "good",
         "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"}}, "endpoints": [5]},
        {"kind": "Endpoints", "metadata": {"name": "e"}, "subsets": 9},
        {"kind": "Pod", "metadata": {"name": "p", "labels": {"app": "good"}}, "spec": {"containers": 3},
         "status": {"phase": "Running", "podIP": "10.1.0.9"}},
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", OBJECTS)
async def test_it_starts_and_serves_others_whatever_the_store_holds(tmp_path: Path, name: str) -> None:
    await put(tmp_path, *OBJECTS[name])
    for _ in range(2):  # also at the next start
        async with up(tmp_path, node="here") as here:
            await here.serves_others()
            assert not here.running.done()
            for path in ("services/good", "pods/good"):
                assert (await here.ask("DELETE", f"/api/v1/namespaces/default/{path}"))[0] == 200


async def test_a_probe_that_cannot_be_asked_is_a_bad_answer(tmp_path: Path) -> None:
    await put(tmp_path, probed(tcpSocket={"port": 80800}))
    async with up(tmp_path) as here:
        told = await here.until(EVENTS, lambda value: value["reason"] == "Unhealthy")
        assert "80800 is not a port" in told["message"]


async def test_what_an_object_makes_a_part_raise_is_told_in_an_event_and_counted(tmp_path: Path) -> None:
    await put(tmp_path, GOING)
    async with up(tmp_path) as here:
        told = await here.until(EVENTS, lambda value: value["reason"] == "PartFailed")
        assert told["involvedObject"]["name"] == "going"
        assert told["message"].startswith("garbage collection cannot use this object, and ignores it: ")
        code, text = await here.ask("GET", "/metrics")
        (line,) = [each for each in text.splitlines() if 'part="garbage collection"' in each]
        assert code == 200
        assert line.startswith("vipwire_up_part_failures_total{")
        assert float(line.rpartition(" ")[2]) >= 1
        code, text = await here.ask("GET", "/readyz?verbose")
        assert (code, "[+]part-garbage-collection ok" in text) == (200, True), "an object is no part's failure"


TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}


async def listed(here: Up, path: str) -> tuple[int, list[str]]:
    async with here.session.get(here.url + path, headers=TABLE) as response:
        answer = await response.json()
        return response.status, [row["object"]["metadata"]["name"] for row in answer.get("rows", ())]


@pytest.mark.parametrize("body", [b"no JSON", b"[]", b'{"metadata":7}', b'{"metadata":{},"spec":[1],"status":"x"}'])
@pytest.mark.parametrize("plural", ["pods", "services", "configmaps", "events", "endpoints"])
async def test_what_is_no_object_is_listed_and_can_be_deleted(tmp_path: Path, plural: str, body: bytes) -> None:
    async with running(EmbeddedStore(Database(tmp_path))) as store:
        await store.write(Write(Key(plural, "default", "garbage"), lambda _: body, 0))
    async with up(tmp_path) as here:
        path = f"/api/v1/namespaces/default/{plural}"
        for each in (path, f"{path}/garbage"):
            code, names = await listed(here, each)
            assert (code, "garbage" in names) == (200, True)
        assert (await here.ask("DELETE", f"{path}/garbage"))[0] == 200
        assert "garbage" not in (await listed(here, path))[1]
