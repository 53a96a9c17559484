"""Values that Kubernetes refuses are refused, in its words; those at the ends of what it takes are harmless."""

from pathlib import Path
from typing import Any

import pytest
from tests.up.unit.cluster_here import Here, in_cluster, play

from vipwire_up.api.bodies.quantity import MOST, read_quantity, written

PODS = "/api/v1/namespaces/default/pods"
EVENTS = "/api/v1/namespaces/default/events"
BETWEEN = "must be between 1 and 65535, inclusive"


def pod(container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """Write a Pod of one container."""
    main = {"name": "main", "image": "none"} | (container or {})
    return {"metadata": {"name": "web"}, "spec": {"containers": [main]} | spec}


def probe(**parts: Any) -> dict[str, Any]:
    """Write a Pod with a readiness probe."""
    return pod({"readinessProbe": parts})


C = "spec.containers[0]"
REFUSED: list[tuple[dict[str, Any], str]] = [
    (probe(tcpSocket={"port": 80800}), f"{C}.readinessProbe.tcpSocket.port: Invalid value: 80800: {BETWEEN}"),
    (probe(tcpSocket={"port": 0}), f"{C}.readinessProbe.tcpSocket.port: Invalid value: 0: {BETWEEN}"),
    (probe(httpGet={"port": -1}), f"{C}.readinessProbe.httpGet.port: Invalid value: -1: {BETWEEN}"),
    (probe(httpGet={"port": "UPPER"}), f'{C}.readinessProbe.httpGet.port: Invalid value: "UPPER": must be 1 to 15'),
    (probe(grpc={"port": 70000}), f"{C}.readinessProbe.grpc.port: Invalid value: 70000: {BETWEEN}"),
    (probe(), f"{C}.readinessProbe: Required value: must specify a handler type"),
    (probe(exec={}), f"{C}.readinessProbe.exec.command: Required value"),
    (
        probe(tcpSocket={"port": 80}, httpGet={"port": 80}),
        f"{C}.readinessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type",
    ),
    (
        probe(tcpSocket={"port": 80}, terminationGracePeriodSeconds=1),
        f"{C}.readinessProbe.terminationGracePeriodSeconds: Invalid value: 1: must not be set for readinessProbes",
    ),
    (
        pod({"livenessProbe": {"tcpSocket": {"port": 80}, "successThreshold": 2}}),
        f"{C}.livenessProbe.successThreshold: Invalid value: 2: must be 1",
    ),
    (
        pod({"resources": {"requests": {"cpu": "-1"}}}),
        f'{C}.resources.requests[cpu]: Invalid value: "-1": must be greater than or equal to 0',
    ),
    (
        pod({"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}),
        f'{C}.resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1',
    ),
    (pod({"volumeMounts": [{"name": "x", "mountPath": "/"}]}), f'{C}.volumeMounts[0].name: Not found: "x"'),
    (pod(volumes=[{"name": "a"}, {"name": "a"}]), 'spec.volumes[1].name: Duplicate value: "a"'),
    (
        pod(activeDeadlineSeconds=0),
        "spec.activeDeadlineSeconds: Invalid value: 0: must be greater than or equal to 1",
    ),
    (pod(nodeName="No\x1b[31m"), 'spec.nodeName: Invalid value: "No\\u001b[31m": a lowercase RFC 1123 subdomain'),
    (
        pod() | {"metadata": {"name": "web", "finalizers": ["mine"]}},
        'metadata.finalizers[0]: Invalid value: "mine": name is neither a standard finalizer name nor is it fully',
    ),
]


@pytest.mark.parametrize(("body", "message"), REFUSED, ids=[message[:60] for _, message in REFUSED])
@in_cluster()
async def test_what_is_wrong_in_a_pod_is_named_by_field(here: Here, body: dict[str, Any], message: str) -> None:
    code, status = await here.send("POST", PODS, body)
    assert (code, status["reason"]) == (422, "Invalid")
    assert status["message"].startswith(f'Pod "web" is invalid: {message}')


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
    await here.post(PODS, pod(terminationGracePeriodSeconds=seconds, nodeName="n"))
    code, gone = await here.send("DELETE", f"{PODS}/web")
    assert (code, gone["metadata"]["deletionTimestamp"]) == (200, time)
    assert (await here.send("DELETE", f"{PODS}/web?gracePeriodSeconds=0"))[0] == 200
    await here.post(PODS, pod(nodeName="n"))
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
def test_amounts_without_end_are_capped(tmp_path: Path, sent: str, stored: str) -> None:
    async def scenario(here: Here) -> None:
        made = await here.post(PODS, pod({"resources": {"limits": {"cpu": sent}}}))
        assert made["spec"]["containers"][0]["resources"]["limits"] == {"cpu": stored}

    assert written(stored) == stored
    play(tmp_path, scenario)


@pytest.mark.parametrize("text", ["", "NaN", "inf", "1e", "Gi", "1 Gi", "1" * 300, "\u0661", "--1", "0x1"])
def test_what_is_no_amount(tmp_path: Path, text: str) -> None:
    async def scenario(here: Here) -> None:
        code, _ = await here.send("POST", PODS, pod({"resources": {"limits": {"cpu": text}}}))
        assert code == 400

    assert read_quantity(text) is None
    play(tmp_path, scenario)


@pytest.mark.parametrize("port", [1 << 31, 80.5, -(1 << 40)])
@in_cluster()
async def test_a_port_is_a_whole_number_of_32_bits(here: Here, port: float) -> None:
    code, status = await here.send("POST", PODS, probe(tcpSocket={"port": port}))
    assert (code, "of type int32" in status["message"]) == (400, True)
