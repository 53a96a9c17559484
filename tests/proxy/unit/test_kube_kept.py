"""A source that fails is told, as its health too, and runs again."""

import asyncio
from collections.abc import Callable

import pytest
from tests.fakes.event_log import EventLog

from vipwire.kube.client import KeptSource
from vipwire.kube.contact import Health
from vipwire.watched_objects.event import Event, Kind, Listed, Object


class Failing:
    """Fails once after it has told of one kind."""

    def __init__(self) -> None:
        self.runs = 0

    def health(self) -> tuple[Health, ...]:
        return (Health("files", synced=True),)

    async def run(self, emit: Callable[[Event], None]) -> None:
        self.runs += 1
        emit(Listed(Kind.SERVICE, ()))
        if self.runs == 1:
            raise RuntimeError("unthought of")
        await asyncio.Event().wait()


@pytest.mark.slow
async def test_a_source_that_fails_is_told_and_runs_again() -> None:
    failing, log = Failing(), EventLog()
    source = KeptSource[Kind, Object](failing)
    assert source.health() == failing.health()
    task = asyncio.ensure_future(source.run(log))
    await log.until(lambda: failing.runs == 2)
    *_, own = source.health()
    assert (own.resource, own.total) == ("source", 1)
    assert "unthought of" in own.error
    task.cancel()
