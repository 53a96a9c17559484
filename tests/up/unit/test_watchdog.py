"""An error in an object ends there. What hangs is told: an object, a step of a part, code that holds the loop."""

import asyncio
import threading
import time
from collections.abc import Hashable

import pytest
from tests.fakes.clock import Clock

from vipwire.process_lifecycle.supervision import Begun
from vipwire_up.watchdog.guard import Activities, Guard
from vipwire_up.watchdog.watchdog import LoopWatch, WatchedSupervisor


def test_what_an_object_raises_ends_at_the_object() -> None:
    seen: list[tuple[str, Hashable, str, bool]] = []

    def witness(part: str, thing: Hashable, error: Exception, *, again: bool) -> None:
        seen.append((part, thing, str(error), again))

    guard, done = Guard[tuple[str, str, str]]("probes", witness), []
    for number in (1, 0, 2, 0):
        with guard.of(("pods", "default", str(number))):
            done.append(1 // number)
    assert done == [1, 0]
    said = ("probes", ("pods", "default", "0"), "integer division or modulo by zero")
    assert seen == [(*said, False), (*said, True)]


def test_an_object_is_put_aside_for_longer_each_time_and_forgotten_when_it_is_well() -> None:
    clock = Clock(0.0)
    guard, pauses = Guard[str]("any", clock=clock), []
    for _ in range(12):
        guard.record_failure("x", ValueError("no"))
        assert not guard.ready("x")
        before, left = clock.now, guard.seconds_left()
        while not guard.ready("x"):
            clock.now += 1
        pauses.append(clock.now - before)
        assert (left, guard.seconds_left()) == (pauses[-1], 1.0)
        assert guard.due() == ("x",)
    assert pauses == [2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300, 300]
    with guard.of("x"):
        pass
    assert (guard.ready("x"), guard.due(), guard.seconds_left()) == (True, (), None)


def test_cancelling_passes_a_guard() -> None:
    with pytest.raises(asyncio.CancelledError), Guard[str]("any").of("x"):
        raise asyncio.CancelledError


@pytest.mark.slow
async def test_an_object_that_a_part_does_not_come_back_from_is_told(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[tuple[str, Hashable, str]] = []
    clock, told = Clock(0.0), asyncio.Event()

    def witness(part: str, thing: Hashable, error: Exception, *, again: bool) -> None:  # noqa: ARG001
        heard.append((part, thing, str(error)))
        told.set()

    supervisor = WatchedSupervisor(witness, activities=Activities(clock, hung_after=60.0))
    guard, way_out = supervisor.guard("endpoints"), asyncio.Event()

    async def hang(_: Begun) -> None:
        with guard.step(), guard.of(("services", "default", "web")):
            await way_out.wait()

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        part = tasks.create_task(supervisor.keep("endpoints", hang))
        watch = tasks.create_task(supervisor.watch())
        await asyncio.sleep(0)
        clock.now = 59.0
        assert supervisor.troubles() == {"endpoints": ""}
        clock.now = 75.0
        await told.wait()
        why = supervisor.troubles()["endpoints"]
        assert why.startswith("has made no progress for 75 s")
        assert supervisor.failures["endpoints"] == 2  # the object, and the step that it is a part of
        way_out.set()
        await part
        assert supervisor.troubles() == {"endpoints": ""}
        watch.cancel()
    assert ("endpoints", ("services", "default", "web"), "no progress for 75 s") in heard
    assert "a part hangs" in caplog.text


@pytest.mark.slow
def test_a_loop_that_stands_still_is_told_with_the_line() -> None:
    heard, told = list[str](), threading.Event()

    def tell(where: str) -> None:
        heard.append(where)
        told.set()

    with LoopWatch(tell, after=0.1, news=600.0) as loop:
        assert loop.last == ""
        assert told.wait(60)
        loop.beat()
        assert loop.last == heard[0], "for a while it is told that it has stood still"
    assert heard[0].startswith("blocked for 0 s or more in ")
    assert "threading.py" in heard[0]


@pytest.mark.slow
async def test_a_supervisor_counts_it_and_says_so_where_readiness_is_asked(caplog: pytest.LogCaptureFixture) -> None:
    supervisor = WatchedSupervisor(stall_after=0.05)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        watch = tasks.create_task(supervisor.watch())
        await asyncio.sleep(0)
        limit = time.monotonic() + 60
        while not supervisor.failures["event loop"]:  # code that does not give way
            assert time.monotonic() < limit
        while "event loop" not in supervisor.troubles():  # noqa: ASYNC110  # a log tells nobody
            await asyncio.sleep(0)
        assert supervisor.troubles()["event loop"].startswith("blocked for ")
        watch.cancel()
    assert "the event loop is blocked" in caplog.text
