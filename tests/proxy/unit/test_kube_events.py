"""Events about objects: counted, bounded, never in anyone's way."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tests.fakes.apiserver import FakeApiServer, Fault

from vipwire.kube.access.access import load_access
from vipwire.kube.events import QUEUE, EventRecorder, EventType, Subject, TokenBucket

NODE = Subject("Node", "node-0", uid="node-0")
SERVICE = Subject("Service", "web", "shop", "u-1")


def send(
    story: Callable[[FakeApiServer, EventRecorder, list[float]], Awaitable[None]], pauses: Sequence[float] = ()
) -> list[dict[str, Any]]:
    """Run a recorder against a server; the list holds the time that the recorder sees."""

    async def run() -> list[dict[str, Any]]:
        async with FakeApiServer() as server:
            clock = [1_000_000.0]
            access = load_access(None, server.url, environ={})
            recorder = EventRecorder(access, "node-0", qps=0, wall=lambda: clock[0], pauses=pauses)
            async with asyncio.TaskGroup() as group:
                task = group.create_task(recorder.run())
                await story(server, recorder, clock)
                task.cancel()
            return [stored.value for stored in server.store.shelves["events"].objects.values()]

    return asyncio.run(run())


def test_an_event_says_what_about_whom() -> None:
    async def story(_: FakeApiServer, recorder: EventRecorder, __: list[float]) -> None:
        recorder.record(SERVICE, "Conflict", "10.0.0.1:80 is another's", EventType.WARNING)
        recorder.record(NODE, "Starting", "")
        await recorder.wait_until_sent()

    conflict, starting = send(story)
    assert conflict["metadata"]["namespace"] == "shop"
    assert conflict["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Service",
        "name": "web",
        "namespace": "shop",
        "uid": "u-1",
    }
    assert (conflict["type"], conflict["reason"], conflict["count"]) == ("Warning", "Conflict", 1)
    assert conflict["reportingComponent"] == "vipwire"
    assert conflict["firstTimestamp"] == "1970-01-12T13:46:40Z"
    assert starting["metadata"]["namespace"] == "default"


def test_a_repeated_event_is_counted_for_ten_minutes() -> None:
    async def story(_: FakeApiServer, recorder: EventRecorder, clock: list[float]) -> None:
        for _turn in range(3):
            recorder.record(NODE, "Starting", "x")
            await recorder.wait_until_sent()
            clock[0] += 100
        clock[0] += 600
        recorder.record(NODE, "Starting", "x")
        await recorder.wait_until_sent()

    first, second = send(story)
    assert (first["count"], first["lastTimestamp"]) == (3, "1970-01-12T13:50:00Z")
    assert second["count"] == 1


def test_an_event_that_the_server_forgot_is_made_anew() -> None:
    async def story(server: FakeApiServer, recorder: EventRecorder, clock: list[float]) -> None:
        recorder.record(NODE, "Starting", "x")
        await recorder.wait_until_sent()
        (key,) = server.store.shelves["events"].objects
        server.store.delete("events", *key)
        clock[0] += 1
        recorder.record(NODE, "Starting", "x")
        await recorder.wait_until_sent()
        assert [seen.method for seen in server.seen] == ["POST", "PATCH", "POST"]

    (only,) = send(story)
    assert only["count"] == 1


def test_a_refused_event_is_dropped_and_the_next_one_sent() -> None:
    async def story(server: FakeApiServer, recorder: EventRecorder, _: list[float]) -> None:
        server.token = "needed"  # noqa: S105 - the test's own
        recorder.record(NODE, "A", "x")
        await recorder.wait_until_sent()
        assert recorder.dropped == 1
        server.token = ""
        recorder.record(NODE, "B", "x" * 5000)
        await recorder.wait_until_sent()

    (only,) = send(story)
    assert (only["reason"], len(only["message"])) == ("B", 1024)


def test_a_server_that_is_away_blocks_nobody() -> None:
    async def story(server: FakeApiServer, recorder: EventRecorder, _: list[float]) -> None:
        await server.stop()
        recorder.record(NODE, "A", "x")
        await recorder.wait_until_sent()
        assert recorder.dropped == 1

    assert send(story) == []


def test_an_event_is_sent_again_when_the_server_is_back() -> None:
    async def story(server: FakeApiServer, recorder: EventRecorder, _: list[float]) -> None:
        await server.stop()
        recorder.record(NODE, "A", "x")
        await asyncio.sleep(0.05)
        await server.start(port=int(server.url.rpartition(":")[2]))
        await recorder.wait_until_sent()
        assert recorder.dropped == 0

    (event,) = send(story, pauses=(0.1,) * 300)
    assert event["reason"] == "A"


def test_what_an_object_says_moves_no_cursor() -> None:
    async def story(_: FakeApiServer, recorder: EventRecorder, __: list[float]) -> None:
        recorder.record(SERVICE, "Conflict", "named \x1b[2J\nand more")
        await recorder.wait_until_sent()

    (event,) = send(story)
    assert event["message"] == "named \\u001b[2J\\nand more"


async def test_a_full_queue_drops() -> None:
    recorder = EventRecorder(load_access(None, "127.0.0.1:1", environ={}), "node-0")
    for number in range(QUEUE + 7):
        recorder.record(NODE, "A", str(number))
    assert recorder.dropped == 7


def test_a_rate_allows_a_burst_and_then_spaces() -> None:
    bucket = TokenBucket(5.0, 2)
    assert [bucket.take_token(100.0) for _ in range(4)] == [0.0, 0.0, 0.2, 0.4]
    assert bucket.take_token(110.0) == 0.0
    assert TokenBucket(0.0, 1).take_token(0.0) == 0.0


def test_faults_of_the_fake_are_answered_in_order() -> None:
    server = FakeApiServer()
    server.fail("services", Fault(500))
    server.fail("services", Fault(403))
    assert [fault.code for fault in server.faults["services"]] == [500, 403]
