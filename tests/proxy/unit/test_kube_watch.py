"""The list and watch protocol, by hand: no server, no clock, no chance."""

import json
from typing import Any

import pytest
from tests.fakes.objects import node, service

from vipwire.kube.proxied import SERVICE_CIDRS, SERVICES, ProxyResource, build_own_node_resource
from vipwire.kube.watch import LEAST_WATCH, ResourceWatch, Sleep, WatchRequest
from vipwire.model.names import ObjectName
from vipwire.watched_objects.event import Deleted, Kind, Listed, Object, Upserted

Json = dict[str, Any]
LATER = 60.0
"""Long enough after the start for a watch to have lived."""


def versioned(value: Json, version: int) -> Json:
    return {**value, "metadata": {**value["metadata"], "resourceVersion": str(version)}}


def page(*items: Any, version: str = "10", more: str = "") -> bytes:
    return json.dumps({"metadata": {"resourceVersion": version, "continue": more}, "items": items}).encode()


def line(kind: str, value: Any) -> bytes:
    return json.dumps({"type": kind, "object": value}).encode() + b"\n"


def status(code: int, reason: str = "") -> bytes:
    return json.dumps({"kind": "Status", "code": code, "reason": reason, "message": f"said {code}"}).encode()


def request(watch: ResourceWatch[Kind, Object]) -> dict[str, str]:
    action = watch.next_action(0.0)
    assert isinstance(action, WatchRequest)
    return dict(action.query)


def slept(watch: ResourceWatch[Kind, Object], chance: float = 0.0) -> float:
    action = watch.next_action(chance)
    assert isinstance(action, Sleep)
    return action.seconds


def watching(resource: ProxyResource = SERVICES, *items: Any) -> ResourceWatch[Kind, Object]:
    """Bring a machine to the point where its watch from version 10 is open."""
    watch = ResourceWatch(resource)
    request(watch)
    assert len(watch.handle_page(page(*items), 0.0)) == 1
    assert request(watch)["resourceVersion"] == "10"
    watch.handle_open(0.0)
    return watch


def test_a_list_is_asked_for_in_chunks_and_told_of_when_complete() -> None:
    watch = ResourceWatch(SERVICES)
    assert request(watch) == {
        "labelSelector": "!service.kubernetes.io/service-proxy-name",
        "fieldSelector": "spec.clusterIP!=None",
        "limit": "500",
    }
    assert watch.handle_page(page(service(1), more="next"), 0.0) == []
    assert request(watch)["continue"] == "next"
    (event,) = watch.handle_page(page(service(2)), 0.0)
    assert isinstance(event, Listed)
    assert [str(item.name) for item in event.objects] == ["ns-1/service-1", "ns-2/service-2"]
    assert watch.health(LATER).synced


def test_a_watch_asks_for_bookmarks_and_lasts_five_to_ten_minutes() -> None:
    watch = ResourceWatch(build_own_node_resource("me"))
    request(watch)
    watch.handle_page(page(node("me")), 0.0)
    assert request(watch) == {
        "fieldSelector": "metadata.name=me",
        "watch": "true",
        "resourceVersion": "10",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": "300",
    }
    action = watch.next_action(0.999)
    assert isinstance(action, WatchRequest)
    assert 590 < int(dict(action.query)["timeoutSeconds"]) < 600


def test_one_broken_object_of_a_list_costs_only_itself() -> None:
    watch = ResourceWatch(SERVICES)
    request(watch)
    items = [service(1), service(2, ports="80"), 5, service(3)]
    (event,) = watch.handle_page(page(*items), 0.0)
    assert isinstance(event, Listed)
    assert [str(item.name) for item in event.objects] == ["ns-1/service-1", "ns-3/service-3"]
    assert [(str(problem.object), problem.field) for problem in event.problems] == [
        ("ns-2/service-2", "spec.ports"),
        ("items[2]", ""),
    ]


def test_changes_become_events_however_the_bytes_are_cut() -> None:
    watch = watching()
    data = line("ADDED", service(1)) + line("MODIFIED", service(1, ports=[])) + line("DELETED", service(1))
    events = [event for index in range(len(data)) for event in watch.handle_bytes(data[index : index + 1], 1.0)]
    assert [type(event) for event in events] == [Upserted, Upserted, Deleted]
    assert events[2] == Deleted(Kind.SERVICE, ObjectName("ns-1", "service-1"))


def test_an_object_that_becomes_headless_is_deleted_and_one_that_always_was_is_not_news() -> None:
    watch = watching(SERVICES, service(1))
    headless = {"clusterIP": "None", "clusterIPs": ["None"]}
    assert watch.handle_bytes(line("MODIFIED", service(1, **headless)), 1.0) == [
        Deleted(Kind.SERVICE, ObjectName("ns-1", "service-1"))
    ]
    assert watch.handle_bytes(line("MODIFIED", service(1, **headless)), 1.0) == []
    assert watch.handle_bytes(line("DELETED", service(1, **headless)), 1.0) == []


def test_an_object_that_breaks_is_deleted_with_its_problem() -> None:
    watch = watching(SERVICES, service(1))
    (event,) = watch.handle_bytes(line("MODIFIED", service(1, ports=7)), 1.0)
    assert isinstance(event, Deleted)
    assert [problem.field for problem in event.problems] == ["spec.ports"]


def test_an_ended_watch_goes_on_from_the_last_version() -> None:
    watch = watching()
    watch.handle_bytes(line("ADDED", versioned(service(1), 11)), 1.0)
    watch.handle_bytes(line("BOOKMARK", {"metadata": {"resourceVersion": "99"}}), 1.0)
    watch.handle_end(LATER)
    assert request(watch)["resourceVersion"] == "99"
    assert watch.health(LATER).error == ""


def test_a_line_cut_by_a_broken_connection_is_asked_for_again() -> None:
    watch = watching()
    watch.handle_bytes(line("ADDED", versioned(service(1), 11)) + b'{"type":"MODIFIED","obj', LATER)
    watch.handle_failure("connection reset", LATER)
    assert slept(watch) == 0.8
    assert request(watch)["resourceVersion"] == "11"
    assert watch.handle_bytes(line("MODIFIED", versioned(service(1), 12)), LATER) != []


def test_a_watch_that_ends_at_once_is_not_asked_for_at_once() -> None:
    watch = watching()
    watch.handle_end(0.1)
    assert slept(watch) == 0.8


@pytest.mark.parametrize("way", ["status", "event"])
def test_410_lists_again_at_once_and_replaces(way: str) -> None:
    watch = watching(SERVICES, service(1))
    if way == "event":
        assert watch.handle_bytes(line("ERROR", json.loads(status(410, "Expired"))), LATER) == []
        assert watch.broken
    else:
        assert watch.handle_refusal(410, status(410), LATER) == []
    assert "resourceVersion" not in request(watch)
    (event,) = watch.handle_page(page(service(2), version="50"), LATER)
    assert isinstance(event, Listed)
    assert [str(item.name) for item in event.objects] == ["ns-2/service-2"]
    assert request(watch)["resourceVersion"] == "50"
    assert watch.handle_bytes(line("DELETED", service(1)), LATER) == []


def test_410_again_and_again_is_slowed_down() -> None:
    watch = watching()
    watch.handle_refusal(410, status(410), 0.1)
    assert slept(watch) == 0.8
    assert "resourceVersion" not in request(watch)


def test_a_continue_token_that_expires_lists_again_in_one_piece() -> None:
    watch = ResourceWatch(SERVICES)
    request(watch)
    watch.handle_page(page(service(1), more="old"), 0.0)
    request(watch)
    assert watch.handle_refusal(410, status(410, "Expired"), 0.0) == []
    query = request(watch)
    assert "limit" not in query
    assert "continue" not in query
    (event,) = watch.handle_page(page(service(2)), 0.0)
    assert isinstance(event, Listed)
    assert [str(item.name) for item in event.objects] == ["ns-2/service-2"]


def test_a_failure_within_a_list_goes_on_with_the_next_chunk() -> None:
    watch = ResourceWatch(SERVICES)
    request(watch)
    watch.handle_page(page(service(1), more="next"), 0.0)
    request(watch)
    watch.handle_refusal(500, b"", 0.0)
    assert slept(watch) == 0.8
    assert request(watch)["continue"] == "next"
    (event,) = watch.handle_page(page(service(2)), 0.0)
    assert isinstance(event, Listed)
    assert len(event.objects) == 2


@pytest.mark.parametrize("code", [401, 403, 404, 429, 500, 503])
def test_a_refusal_is_retried_and_told_in_health(code: int) -> None:
    watch = ResourceWatch(SERVICES)
    request(watch)
    assert watch.handle_refusal(code, status(code), 7.0) == []
    health = watch.health(LATER)
    assert (health.error, health.since, health.synced) == (f"list: {code} said {code}", 7.0, False)
    assert slept(watch) == 0.8
    assert "resourceVersion" not in request(watch)


def test_retry_after_is_obeyed_within_reason() -> None:
    watch = ResourceWatch(SERVICES)
    request(watch)
    watch.handle_refusal(429, b"", 0.0, retry_after=17.0)
    assert slept(watch) == 17.0
    request(watch)
    watch.handle_refusal(429, b"", 0.0, retry_after=1e9)
    assert slept(watch) == 120.0


def test_waits_double_up_to_thirty_seconds_with_chance_added() -> None:
    watch = ResourceWatch(SERVICES)
    waits = []
    for _ in range(9):
        request(watch)
        watch.handle_failure("refused", 0.0)
        waits.append(slept(watch))
    assert waits == pytest.approx([0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0, 30.0])
    request(watch)
    assert watch.health(LATER).failures == 9


def test_chance_spreads_waits() -> None:
    watch = ResourceWatch(SERVICES)
    request(watch)
    watch.handle_failure("refused", 0.0)
    assert slept(watch, 0.999) == pytest.approx(1.2, abs=0.01)


def test_a_server_that_lists_well_and_breaks_every_watch_is_slowed_down() -> None:
    watch = ResourceWatch(SERVICES)
    waits = []
    for _ in range(4):
        request(watch)
        watch.handle_page(page(), 0.0)
        request(watch)
        watch.handle_open(0.0)
        watch.handle_bytes(b"garbage\n", 0.0)
        waits.append(slept(watch))
    assert waits == pytest.approx([0.8, 1.6, 3.2, 6.4])


def test_a_watch_that_lived_ends_the_row_of_failures() -> None:
    watch = watching()
    for _ in range(3):
        watch.handle_failure("refused", 0.0)
        slept(watch)
        request(watch)
    watch.handle_open(0.0)
    watch.handle_failure("reset", LATER)
    assert slept(watch) == 0.8


@pytest.mark.parametrize(
    "data",
    [
        b"garbage\n",
        b'{"type":"ADDED"}\n',
        b'{"type":"ADDED","object":5}\n',
        b'{"type":"STRANGE","object":{}}\n',
        b'{"type":"ERROR","object":{"code":422}}\n',
        b'{"type":"ERROR","object":[]}\n',
        b'{"type":"ADDED","object":{"metadata":{}}}\n',
        b"\xff\xfe\n",
    ],
)
def test_garbage_lists_again_after_a_wait(data: bytes) -> None:
    watch = watching(SERVICES, service(1))
    assert watch.handle_bytes(data, LATER) == []
    assert watch.broken
    watch.handle_end(LATER)
    assert watch.health(LATER).error
    assert slept(watch) == 0.8
    assert "resourceVersion" not in request(watch)


def test_a_server_error_within_a_watch_goes_on_from_the_last_version() -> None:
    watch = watching()
    watch.handle_bytes(line("ERROR", {"code": 504, "reason": "Timeout"}), LATER)
    assert slept(watch) == 0.8
    assert request(watch)["resourceVersion"] == "10"


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"items":[]}', b'{"metadata":{"resourceVersion":5}}'])
def test_a_list_that_is_none_is_asked_for_again(body: bytes) -> None:
    watch = ResourceWatch(SERVICES)
    request(watch)
    assert watch.handle_page(body, 0.0) == []
    assert not watch.health(LATER).synced
    assert slept(watch) == 0.8


def test_a_server_that_knows_no_field_selector_of_services_is_asked_without() -> None:
    watch = ResourceWatch(SERVICES)
    request(watch)
    assert watch.handle_refusal(400, status(400), 0.0) == []
    assert "fieldSelector" not in request(watch)
    watch.handle_refusal(400, status(400), 0.0)
    assert slept(watch) == 0.8


def test_the_selector_of_the_own_node_is_never_dropped() -> None:
    watch = ResourceWatch(build_own_node_resource("me"))
    request(watch)
    watch.handle_refusal(400, status(400), 0.0)
    assert slept(watch) == 0.8
    assert request(watch)["fieldSelector"] == "metadata.name=me"


@pytest.mark.parametrize("code", [403, 404])
def test_service_cidrs_that_are_not_served_count_as_none(code: int) -> None:
    watch = ResourceWatch(SERVICE_CIDRS)
    request(watch)
    assert watch.handle_refusal(code, status(code), 0.0) == [Listed(Kind.SERVICE_CIDR, ())]
    assert watch.health(LATER).synced
    assert watch.health(LATER).note
    assert 300 <= slept(watch) <= 600
    request(watch)
    assert watch.handle_refusal(code, status(code), 0.0) == []
    assert 300 <= slept(watch) <= 600


def test_service_cidrs_that_were_served_are_not_forgotten_by_a_refusal() -> None:
    watch = watching(SERVICE_CIDRS)
    assert watch.handle_refusal(403, status(403), LATER) == []
    assert slept(watch) == 0.8


def test_an_endless_line_is_given_up() -> None:
    watch = watching()
    for _ in range(65):
        watch.handle_bytes(b"x" * (1 << 20), LATER)
    assert watch.broken
    assert watch.handle_bytes(b"more\n", LATER) == []


@pytest.mark.parametrize("kind", ["ADDED", "MODIFIED", "DELETED", "BOOKMARK"])
def test_a_watch_that_goes_back_lists_again_and_reports_it_once(kind: str) -> None:
    watch = watching(SERVICES, service(1))
    assert watch.handle_bytes(line(kind, versioned(service(2), 9)), LATER) == []
    assert watch.broken
    assert watch.health(LATER).error == (
        "watch: resourceVersion 9 after 10: an administrator restored the server's store"
    )
    watch.handle_end(LATER)
    slept(watch)
    assert "watch" not in request(watch)
    (event,) = watch.handle_page(page(service(3), version="9"), LATER)
    assert isinstance(event, Listed)
    assert watch.health(LATER).total == 1
    assert request(watch)["resourceVersion"] == "9"


def test_a_list_that_goes_back_is_taken_and_reported_once() -> None:
    watch = watching(SERVICES, service(1))
    watch.handle_refusal(410, status(410, "Expired"), LATER)
    request(watch)
    (event,) = watch.handle_page(page(service(2), version="9"), LATER)
    assert isinstance(event, Listed)
    assert watch.health(LATER).error == (
        "list: resourceVersion 9 after 10: an administrator restored the server's store"
    )
    slept(watch)
    assert request(watch)["resourceVersion"] == "9"
    watch.handle_open(LATER)
    assert watch.handle_bytes(line("ADDED", versioned(service(3), 10)), 2 * LATER)
    assert not watch.health(2 * LATER).error


@pytest.mark.parametrize("sent", [b"", line("BOOKMARK", versioned(service(1), 10))])
def test_a_watch_that_hears_nothing_in_all_its_time_is_followed_by_a_list(sent: bytes) -> None:
    """A server whose versions went back is silent until they are higher than the watch's."""
    watch = watching()
    watch.handle_bytes(sent, 1.0)
    watch.handle_end(LEAST_WATCH)
    assert ("watch" in request(watch)) is bool(sent)


def test_versions_that_are_no_numbers_are_not_compared() -> None:
    watch = watching()
    for version in ("z", "a", "999999999999999999999", "-5"):
        value = service(1)
        value = {**value, "metadata": {**value["metadata"], "resourceVersion": version}}
        assert len(watch.handle_bytes(line("MODIFIED", value), LATER)) == 1
        assert request(watch)["resourceVersion"] == version
        watch.handle_open(LATER)
