"""Health as time goes by."""

import json

import pytest

from vipwire.model.net import Family
from vipwire.model.node import Node
from vipwire.proxy_daemon.serve.health import LEAVING_TAINT, ProxyHealth, format_rfc3339

NOW = 1_790_000_000.0
V4, V6 = Family.IPV4, Family.IPV6


class Clock:
    """A monotonic clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def _health(*, synced: bool = True, clock: Clock | None = None) -> ProxyHealth:
    health = ProxyHealth((V4, V6), ("Service", "EndpointSlice"), sync_period=30.0, clock=clock or Clock())
    if synced:
        health.record_update(V4, NOW)
        health.record_update(V6, NOW - 5)
    return health


def test_while_healthy_last_updated_is_now() -> None:
    answer = _health().healthz(NOW + 10.5)
    assert answer.status == 200
    assert answer.body == (
        '{"lastUpdated":"2026-09-21T14:13:30.5Z","currentTime":"2026-09-21T14:13:30.5Z","nodeEligible":true,'
        '"healthy":true,"status":{"IPv4":{"lastUpdated":"2026-09-21T14:13:20Z","healthy":true},'
        '"IPv6":{"lastUpdated":"2026-09-21T14:13:15Z","healthy":true}}}'
    )
    assert answer.headers == {"Content-Type": "application/json", "X-Content-Type-Options": "nosniff"}


def test_while_unhealthy_last_updated_is_the_newest_familys() -> None:
    clock = Clock()
    health = _health(clock=clock)
    health.record_queued(V6)
    clock.now = 60
    answer = health.livez(NOW + 60)
    assert answer.status == 503
    assert answer.body == (
        '{"lastUpdated":"2026-09-21T14:13:20Z","currentTime":"2026-09-21T14:14:20Z","healthy":false,'
        '"status":{"IPv4":{"lastUpdated":"2026-09-21T14:13:20Z","healthy":true},'
        '"IPv6":{"lastUpdated":"2026-09-21T14:13:15Z","healthy":false}}}'
    )


def test_before_the_first_sync_the_answer_is_200_without_a_status() -> None:
    health = _health(synced=False)
    health.record_queued(V4)
    answer = health.healthz(NOW + 1000)
    assert answer.status == 200
    assert "status" not in json.loads(answer.body)


@pytest.mark.parametrize(
    ("steps", "at", "healthy"),
    [
        ([], 10_000, True),
        ([("queued", 0)], 59.999, True),
        ([("queued", 0)], 60, False),
        ([("queued", 0), ("queued", 50)], 60, False),
        ([("queued", 0), ("updated", 59)], 10_000, True),
        ([("queued", 0), ("updated", 59), ("queued", 61)], 120, True),
        ([("queued", 0), ("updated", 59), ("queued", 61)], 121, False),
        ([("queued", 0), ("updated", 100)], 101, True),
    ],
)
def test_the_oldest_waiting_change_decides(steps: list[tuple[str, float]], at: float, *, healthy: bool) -> None:
    clock = Clock()
    health = _health(clock=clock)
    for what, clock.now in steps:
        if what == "queued":
            health.record_queued(V4)
        else:
            health.record_update(V4, NOW + clock.now)
    clock.now = at
    assert health.healthy() is healthy
    for jump in (0, 3600, -3600):
        assert health.livez(NOW + at + jump).status == (200 if healthy else 503), "the wall clock may jump"


@pytest.mark.parametrize(
    ("node", "eligible"),
    [
        (Node("n"), True),
        (None, False),
        (Node("n", deleting=True), False),
        (Node("n", taints=frozenset({LEAVING_TAINT})), False),
        (Node("n", taints=frozenset({"node.kubernetes.io/unschedulable"})), True),
    ],
)
def test_a_node_that_goes_away_fails_healthz_but_not_livez(node: Node | None, *, eligible: bool) -> None:
    health = _health()
    health.record_node(node)
    answer, body = health.healthz(NOW), json.loads(health.healthz(NOW).body)
    assert (answer.status, body["nodeEligible"], body["healthy"]) == (200 if eligible else 503, eligible, True)
    assert health.livez(NOW).status == 200
    assert "nodeEligible" not in json.loads(health.livez(NOW).body)


def test_an_ineligible_node_before_the_first_sync_shows_gos_zero_time() -> None:
    health = _health(synced=False)
    health.record_node(None)
    assert json.loads(health.healthz(NOW).body)["lastUpdated"] == "0001-01-01T00:00:00Z"


def test_ready_says_what_is_awaited_until_everything_is_in_the_kernel() -> None:
    health = _health(synced=False)
    waiting = '"lists: Service, EndpointSlice", "first sync: IPv4", "first sync: IPv6"'
    assert (health.readyz().status, health.readyz().body) == (503, f'{{"ready": false, "waiting": [{waiting}]}}')
    health.record_list("Service")
    health.record_list("Service")
    health.record_update(V4, NOW)
    assert health.readyz().body == '{"ready": false, "waiting": ["lists: EndpointSlice", "first sync: IPv6"]}'
    health.record_list("EndpointSlice")
    health.record_update(V6, NOW)
    assert (health.readyz().status, health.readyz().body) == (200, '{"ready": true, "waiting": []}')
    health.record_queued(V4)
    assert health.readyz().status == 200


def test_a_failing_source_is_told_and_does_not_make_unready_or_unhealthy() -> None:
    health = ProxyHealth((V4,), (), sync_period=30.0)
    health.record_update(V4, NOW)
    health.source_failed("services", "403 Forbidden", NOW)
    assert json.loads(health.readyz().body)["sourceErrors"] == {
        "services": {"message": "403 Forbidden", "time": "2026-09-21T14:13:20Z"}
    }
    assert (health.readyz().status, health.healthz(NOW).status) == (200, 200)
    health.source_recovered("services")
    assert health.readyz().body == '{"ready": true, "waiting": []}'


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "1970-01-01T00:00:00Z"),
        (1.5, "1970-01-01T00:00:01.5Z"),
        (1.000001, "1970-01-01T00:00:01.000001Z"),
        (NOW, "2026-09-21T14:13:20Z"),
    ],
)
def test_times_are_printed_as_go_prints_them(seconds: float, text: str) -> None:
    assert format_rfc3339(seconds) == text
