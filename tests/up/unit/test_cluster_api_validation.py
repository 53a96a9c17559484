"""Values that Kubernetes refuses are refused, in its words; those at the ends of what it takes are harmless."""

from pathlib import Path
from typing import Any

import pytest
from tests.up.unit.cluster_here import Here, cluster, in_cluster, pod

from vipwire_up.api.objects.quantity import MOST, read_quantity, write_quantity

pytestmark = pytest.mark.attack

PODS = "/api/v1/namespaces/default/pods"
EVENTS = "/api/v1/namespaces/default/events"


def probe(**parts: Any) -> dict[str, Any]:
    """Write a Pod with a readiness probe."""
    return pod(container={"readinessProbe": parts})


@pytest.mark.parametrize("amount", ["-1", "-1e999"])
@in_cluster()
async def test_a_node_has_nothing_less_than_nothing(here: Here, amount: str) -> None:
    body = {"metadata": {"name": "n"}, "status": {"capacity": {"cpu": amount}}}
    code, status = await here.send("POST", "/api/v1/nodes", body)
    assert (code, status["details"]["causes"][0]["field"]) == (422, "status.capacity.cpu")
    await here.post("/api/v1/nodes", {"metadata": {"name": "n"}})
    code, _ = await here.send("PATCH", "/api/v1/nodes/n/status", body, patch="merge-patch+json")
    assert code == 422


@pytest.mark.parametrize(
    "time",
    [
        "2026-01-01",
        "2026-01-01T00:00:00",
        "20260101T000000Z",
        "2026-W01-1T00:00:00Z",
        "2026-01-01 00:00:00Z",
        "10000-01-01T00:00:00Z",
        "2026-13-01T00:00:00Z",
        "9999-12-31T23:59:60Z",
        "\u06626-01-01T00:00:00Z",
    ],
)
@in_cluster()
async def test_times_are_those_of_rfc_3339(here: Here, time: str) -> None:
    about = {"namespace": "default", "name": "x"}
    body = {"metadata": {"name": "e"}, "involvedObject": about, "lastTimestamp": time}
    code, status = await here.send("POST", EVENTS, body)
    assert (code, "lastTimestamp: parsing time" in status["message"]) == (400, True)
    for end in ("9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999999-14:00"):
        made = await here.post(EVENTS, body | {"metadata": {"generateName": "e"}, "lastTimestamp": end})
        assert made["lastTimestamp"] == end
    table = "application/json;as=Table;v=v1;g=meta.k8s.io"
    assert (await here.send("GET", EVENTS, Accept=table))[0] == 200


@pytest.mark.parametrize(
    ("seconds", "time"),
    [
        ((1 << 63) - 1, "9999-12-31T23:59:59Z"),
        (1 << 40, "9999-12-31T23:59:59Z"),
        (-1, "2026-01-01T12:00:01Z"),
        (-(1 << 63), "2026-01-01T12:00:01Z"),
        (60, "2026-01-01T12:01:00Z"),
    ],
)
@in_cluster()
async def test_a_grace_period_of_any_length_ends_at_a_time(here: Here, seconds: int, time: str) -> None:
    await here.post(PODS, pod(spec={"terminationGracePeriodSeconds": seconds, "nodeName": "n"}))
    code, gone = await here.send("DELETE", f"{PODS}/web")
    assert (code, gone["metadata"]["deletionTimestamp"]) == (200, time)
    assert (await here.send("DELETE", f"{PODS}/web?gracePeriodSeconds=0"))[0] == 200
    await here.post(PODS, pod(spec={"nodeName": "n"}))
    code, gone = await here.send("DELETE", f"{PODS}/web?gracePeriodSeconds={seconds}")
    assert (code, gone["metadata"]["deletionTimestamp"]) == (200, time)
    code, _ = await here.send("DELETE", f"{PODS}/web", {"gracePeriodSeconds": 1 << 70})
    assert code == 400


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        ("1e999", str(MOST)),
        ("1e999999999999", str(MOST)),
        ("9" * 200, str(MOST)),
        ("1e-999", "1e-3"),
        ("100m", "100m"),
        ("1.5Gi", "1536Mi"),
        ("1e3", "1e3"),
    ],
)
async def test_amounts_without_end_are_capped(tmp_path: Path, sent: str, stored: str) -> None:
    assert write_quantity(stored) == stored
    async with cluster(tmp_path) as here:
        made = await here.post(PODS, pod(container={"resources": {"limits": {"cpu": sent}}}))
        assert made["spec"]["containers"][0]["resources"]["limits"] == {"cpu": stored}


@pytest.mark.parametrize("text", ["", "NaN", "inf", "1e", "Gi", "1 Gi", "1" * 300, "\u0661", "--1", "0x1"])
async def test_what_is_no_amount(tmp_path: Path, text: str) -> None:
    assert read_quantity(text) is None
    async with cluster(tmp_path) as here:
        code, _ = await here.send("POST", PODS, pod(container={"resources": {"limits": {"cpu": text}}}))
        assert code == 400


@pytest.mark.parametrize("port", [1 << 31, 80.5, -(1 << 40)])
@in_cluster()
async def test_a_port_is_a_whole_number_of_32_bits(here: Here, port: float) -> None:
    code, status = await here.send("POST", PODS, probe(tcpSocket={"port": port}))
    assert (code, "of type int32" in status["message"]) == (400, True)
