"""A worker's jobs run in its thread; the loop waits for a moment only, and nobody leaves a job behind."""

import asyncio
import gc
import threading
from collections.abc import Callable
from functools import partial

import pytest

from vipwire.process_lifecycle.worker import LONG, WARY_SECONDS, Worker


def run(job: Callable[[], object], moment: float) -> object:
    async def asked() -> object:
        worker = Worker[object](moment)
        try:
            assert await worker.run(threading.get_ident) != threading.get_ident()
            return await worker.run(job)
        finally:
            worker.close()

    return asyncio.run(asked())


@pytest.mark.parametrize("moment", [0.0, 30.0], ids=["beside the loop", "within a moment"])
def test_a_job_returns_what_it_returns_and_raises_what_it_raises(moment: float) -> None:
    def fail() -> None:
        raise ValueError("no")

    assert run(lambda: 7, moment) == 7
    with pytest.raises(ValueError, match="no"):
        run(fail, moment)


async def test_the_loop_goes_on_while_a_job_takes_longer() -> None:
    let_go = threading.Event()
    worker = Worker[str](0.001)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(worker.run(lambda: "done" if let_go.wait(60) else "stuck"))
        for _ in range(3):
            await asyncio.sleep(0)
        assert not running.done()
        let_go.set()
    worker.close()
    assert running.result() == "done"


async def test_who_is_cancelled_waits_for_the_end_and_the_next_job_is_another() -> None:
    let_go, ended = threading.Event(), threading.Event()

    def slow() -> int:
        assert let_go.wait(60)
        ended.set()
        return 1

    worker = Worker[int](0.0)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(worker.run(slow))
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.sleep(0)
        assert not running.done()
        let_go.set()
    assert running.cancelled()
    assert ended.is_set()
    result = await worker.run(lambda: 2)
    worker.close()
    assert result == 2


async def test_the_error_of_a_job_whose_caller_is_cancelled_is_not_logged() -> None:
    let_go = threading.Event()

    def fail() -> int:
        assert let_go.wait(60)
        raise ValueError("no")

    logged: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
    worker = Worker[int](0.0)
    running = asyncio.get_running_loop().create_task(worker.run(fail))
    await asyncio.sleep(0)
    running.cancel()
    let_go.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    worker.close()
    gc.collect()
    assert logged == []


async def test_thousands_of_jobs_at_the_edge_of_a_moment() -> None:
    worker = Worker[int](0.00001)
    results = [await worker.run(lambda number=number: number) for number in range(2000)]  # type: ignore[misc]
    worker.close()
    assert results == list(range(2000))


async def test_a_brief_job_runs_in_the_loop_until_one_has_taken_long() -> None:
    now = 0.0

    def where(takes: float = 0.0) -> int:
        nonlocal now
        now += takes
        return threading.get_ident()

    worker = Worker[int](30.0, lambda: now)
    lasting = (0.0, LONG, 1.0, 0.0)
    here = [await worker.run(partial(where, seconds), brief=True) for seconds in lasting]
    now += WARY_SECONDS
    here += [await worker.run(where, brief=True), await worker.run(where)]
    worker.close()
    assert [each == threading.get_ident() for each in here] == [True, True, True, False, True, False]
