"""A machine that announces by BGP works routes out again where something has changed, and not at each look."""

import asyncio
from typing import Any, cast

import pytest

from vipwire.model.names import ObjectName
from vipwire.watched_objects.event import Listed, Upserted
from vipwire_up.announcing.kinds import AnnounceKind, Machine, Placed
from vipwire_up.bgp import run
from vipwire_up.bgp.routes import Routed, choose_routes
from vipwire_up.bgp.run import BgpSpeaker
from vipwire_up.bgp.settings import BALANCER, BgpSettings, Peer

WEB, GATEWAY = ObjectName("default", "web"), ObjectName("default", "gateway")
LISTS: dict[AnnounceKind, Any] = {
    AnnounceKind.NODE: Machine("n1", ready=True, labels=frozenset(), excluded=False),
    AnnounceKind.SERVICE: Routed(GATEWAY, ((BALANCER, ("192.0.2.2",)),), frozenset(), None, frozenset({80})),
    AnnounceKind.SLICE: Placed(WEB, WEB, frozenset({"n1"})),
}


class Watched:
    """A BIRD that runs; it hears of every configuration, and of every look."""

    def __init__(self) -> None:
        self.applied, self.looks = asyncio.Queue[str](), asyncio.Semaphore(0)

    async def apply_configuration(self, configuration: str) -> None:
        self.applied.put_nowait(configuration)

    async def is_ready(self) -> bool:
        self.looks.release()
        return True

    async def stop(self) -> None:
        pass


def test_routes_are_worked_out_once_for_each_change(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[tuple[str, ...]] = []

    def counting(*given: Any) -> tuple[str, ...]:
        counted.append(choose_routes(*given))
        return counted[-1]

    monkeypatch.setattr(run, "choose_routes", counting)
    monkeypatch.setattr(run, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(run, "_GATHER_SECONDS", 0.0)
    asyncio.run(asyncio.wait_for(_play(counted), 60))


async def _play(counted: list[tuple[str, ...]]) -> None:
    bird, emits, listening = Watched(), asyncio.Queue[Any](), set[tuple[str, int]]()
    settings = BgpSettings(64512, (Peer("10.9.0.254", 64500),), (BALANCER,))
    speaker = BgpSpeaker(settings, "n1", ("10.9.0.1",), lambda: cast("Any", bird), lambda: frozenset(listening))

    async def follow(emit: Any) -> None:
        for kind, value in LISTS.items():
            emit(Listed(kind, (value,)))
        emits.put_nowait(emit)

    async def rested() -> int:
        before = len(counted)
        while not bird.looks.locked():
            await bird.looks.acquire()
        for _ in range(10):
            await bird.looks.acquire()
        return len(counted) - before

    task = asyncio.ensure_future(speaker.run(follow, lambda: None))
    emit = await emits.get()
    await bird.applied.get()
    assert await rested() == 0
    emit(Upserted(Routed(WEB, ((BALANCER, ("192.0.2.1",)),), frozenset(), None)))
    await bird.applied.get()
    listening.add(("192.0.2.2", 80))
    await bird.applied.get()
    assert await rested() == 0
    assert counted == [(), ("192.0.2.1",), ("192.0.2.1", "192.0.2.2")]
    task.cancel()
