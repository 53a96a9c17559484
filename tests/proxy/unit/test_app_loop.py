"""The loop lets nobody wait for a sync, and lets nobody touch the engine during one."""

import asyncio
import gc
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from vipwire.kube.contact import Health
from vipwire.process_lifecycle import cyclic_garbage
from vipwire.proxy_daemon.loop import ProxyParts, SyncLoop
from vipwire.proxy_daemon.serve.metrics import Metrics
from vipwire.watched_objects.event import Deleted, Kind


@dataclass
class SlowEngine:
    """An engine whose syncs last until they are let go, and that notes what it is asked."""

    running: threading.Event = field(default_factory=threading.Event)
    let_go: threading.Event = field(default_factory=threading.Event)
    asked: list[str] = field(default_factory=list)
    lines: tuple[()] = ()
    node: None = None
    settled: threading.Event = field(default_factory=threading.Event)
    store: Any = field(default_factory=type("Store", (), {"waiting": False}))

    def due(self, now: float) -> float | None:
        del now
        if "sync" in self.asked:
            self.settled.set()
        return None

    def apply(self, event: object) -> tuple[()]:
        del event
        self.asked.append("event")
        return ()

    def read_ahead(self) -> None:
        self.asked.append("ahead")

    def record_node_change(self) -> None:
        self.asked.append("node")

    def has_few_changes(self, now: float) -> bool:
        del now
        return False

    def sync(self, now: float) -> list[object]:
        del now
        self.running.set()
        assert self.let_go.wait(60)
        self.asked.append("sync")
        return []


class NoAddresses:
    """A watch of addresses that never change."""

    def __init__(self) -> None:
        self._ends = socket.socketpair()

    def fileno(self) -> int:
        return int(self._ends[0].fileno())

    def close(self) -> None:
        for end in self._ends:
            end.close()


class Unasked:
    """Ejections that nobody asks for."""

    def watch_and_report(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass


class Nothing:
    """A part of which nothing is asked for that matters here."""

    complete = True

    def source_failed(self, *_: object) -> None:
        pass

    async def move(self) -> tuple[()]:
        return ()


def loop_of(
    engine: SlowEngine, addresses: NoAddresses, source: object = None, part: object = None, ports: object = None
) -> SyncLoop:
    nothing = cast("Any", part or Nothing())
    return SyncLoop(
        ProxyParts(
            engine=cast("Any", engine),
            source=cast("Any", source),
            health=nothing,
            metrics=Metrics("nftables"),
            reporter=nothing,
            addresses=cast("Any", addresses),
            flows=nothing,
            ports=cast("Any", ports or nothing),
            ejections=cast("Any", Unasked()),
            in_cluster=False,
        )
    )


async def ended(task: "asyncio.Task[None]") -> None:
    """Cancel a loop, and wait until it has done what it does then."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def during_a_sync(
    act: Callable[[SyncLoop, SlowEngine, "asyncio.Task[None]"], None], given: SlowEngine | None = None
) -> SlowEngine:
    """Run a loop, act while it syncs (in the event loop's own thread), and let the sync end."""
    engine, addresses = given or SlowEngine(), NoAddresses()

    async def play() -> None:
        loop = loop_of(engine, addresses)
        loop.emit(Deleted(Kind.SERVICE, cast("Any", "a")))
        task = asyncio.get_running_loop().create_task(loop.run())
        assert await asyncio.to_thread(engine.running.wait, 60)
        act(loop, engine, task)
        engine.let_go.set()
        assert task.cancelling() or await asyncio.to_thread(engine.settled.wait, 60)
        await ended(task)

    with closing(addresses):
        asyncio.run(play())
    return engine


def test_what_arrives_during_a_sync_waits_for_its_end() -> None:
    def act(loop: SyncLoop, engine: SlowEngine, task: "asyncio.Task[None]") -> None:
        del task
        loop.emit(Deleted(Kind.SERVICE, cast("Any", "b")))
        loop.sync_again()
        assert engine.asked == ["event", "ahead"]

    assert during_a_sync(act).asked[:5] == ["event", "ahead", "sync", "event", "node"]


def test_a_loop_that_is_cancelled_finishes_its_sync() -> None:
    def act(loop: SyncLoop, engine: SlowEngine, task: "asyncio.Task[None]") -> None:
        del loop, engine
        task.cancel()

    assert during_a_sync(act).asked == ["event", "ahead", "sync"]


class ReadingEngine(SlowEngine):
    """An engine that reads ahead until it is let go."""

    def read_ahead(self) -> None:
        self.running.set()
        assert self.let_go.wait(60)
        super().read_ahead()


def test_the_first_sync_waits_until_what_is_read_ahead_is_read() -> None:
    assert during_a_sync(lambda *_: None, ReadingEngine()).asked == ["event", "ahead", "sync"]


def test_a_loop_that_is_cancelled_finishes_what_is_read_ahead() -> None:
    def act(loop: SyncLoop, engine: SlowEngine, task: "asyncio.Task[None]") -> None:
        del loop, engine
        task.cancel()

    assert during_a_sync(act, ReadingEngine()).asked == ["event", "ahead"]


@pytest.fixture
def resting() -> Iterator[None]:
    """Let the collector rest, and leave it as it was."""
    before = gc.get_threshold()
    cyclic_garbage.disable_collection()
    yield
    gc.set_threshold(*before)
    gc.enable()
    gc.unfreeze()


class FailingSource:
    """A source that cannot be read."""

    def health(self) -> tuple[Health, ...]:
        return (Health("services", error="away"),)


@pytest.mark.usefixtures("resting")
async def test_a_source_that_fails_before_the_first_sync_lets_garbage_be_looked_for() -> None:
    addresses = NoAddresses()
    with closing(addresses):
        async with asyncio.timeout(60):
            loop = loop_of(SlowEngine(), addresses, FailingSource())
            task = asyncio.get_running_loop().create_task(loop.check_surroundings())
            await asyncio.sleep(0)
            assert gc.isenabled()
            await ended(task)


@dataclass
class PutOffEngine(SlowEngine):
    """An engine that is due after these seconds each time that it is asked, then never."""

    waits: Iterator[float | None] = field(default_factory=lambda: iter(()))

    def due(self, now: float) -> float | None:
        del now
        wait = next(self.waits, None)
        if wait is None and "sync" in self.asked:
            self.settled.set()
        return wait


@pytest.mark.parametrize(("waits", "syncs"), [((None, 0.001, 0.001), 1), ((None, 0.001, 0.001, 0.0), 2)])
def test_a_timer_that_rings_for_what_was_put_off_makes_no_sync(waits: tuple[float | None, ...], syncs: int) -> None:
    engine = during_a_sync(lambda *_: None, PutOffEngine(waits=iter(waits)))
    assert engine.asked.count("sync") == syncs
