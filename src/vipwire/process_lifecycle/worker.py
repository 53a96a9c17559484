"""One thread for jobs that are short, but now and then take seconds.

The event loop blocks for a moment on a job: most have ended by then. A longer job continues beside the loop.

A job marked as brief runs in the loop's own thread, which saves two wake-ups: a tenth of the cost of a change of one
endpoint. If one takes long nevertheless, the next ones run in the worker thread for a while.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Generic, TypeVar

T = TypeVar("T")

MOMENT: Final = 0.01
"""Seconds for which the loop blocks on the thread at most. A quick answer of /healthz takes as long."""
LONG: Final = 0.2
"""Seconds after which a job was not brief. Probes wait for a second; a busy machine may take a tenth of one."""
WARY_SECONDS: Final = 60.0
"""For these seconds after a long job, the loop expects every job to be long."""


class Worker(Generic[T]):
    """Runs one job at a time in a thread of its own, which starts with the first job."""

    def __init__(self, moment: float = MOMENT, clock: Callable[[], float] = time.monotonic) -> None:
        self._moment, self._clock = moment, clock
        self._wary_until = float("-inf")
        self._thread = ThreadPoolExecutor(1, "worker")

    async def run(self, job: Callable[[], T], *, brief: bool = False) -> T:
        """Run a job and return its result. A cancelled caller still waits for the job's end."""
        if brief and (began := self._clock()) >= self._wary_until:
            return self._run_in_callers_thread(job, began)
        running = self._thread.submit(job)
        try:
            running.exception(self._moment)
        except TimeoutError:
            await _end(running)
        return running.result()

    def _run_in_callers_thread(self, job: Callable[[], T], began: float) -> T:
        try:
            return job()
        finally:
            ended = self._clock()
            if ended - began > LONG:
                self._wary_until = ended + WARY_SECONDS

    def close(self) -> None:
        """End the thread. No job may be running."""
        self._thread.shutdown()


async def _end(running: Future[T]) -> None:
    """Wait for a job's end; raise CancelledError afterwards if the caller was cancelled."""
    ended, cancelled = asyncio.wrap_future(running), None
    while not ended.done():
        try:
            await asyncio.wait((ended,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        ended.exception()  # asyncio logs an exception that its future keeps
        raise cancelled
