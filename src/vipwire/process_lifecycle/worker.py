"""One thread for jobs that are short, but now and then take seconds.

The event loop blocks for a moment on a job: most have ended by then. A longer job continues beside the loop.

A job marked as brief runs in the loop's own thread, which saves two wake-ups: a tenth of the cost of a change of one
endpoint. If one takes long nevertheless, the next ones run in the worker thread for a while.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

MOMENT: Final = 0.01
"""Seconds for which the loop blocks on the thread at most. A quick answer of /healthz takes as long."""
LONG: Final = 0.2
"""Seconds after which a job was not brief. Probes wait for a second; a busy machine may take a tenth of one."""
WARY_SECONDS: Final = 60.0
"""Seconds after a long job in which no job counts as brief."""


class Worker(Generic[T]):
    """Runs one job at a time in a thread of its own, which starts with the first job."""

    def __init__(self, moment: float = MOMENT, clock: Callable[[], float] = time.monotonic) -> None:
        self._moment, self._clock = moment, clock
        self._wary_until = float("-inf")
        self._asked, self._ended = threading.Lock(), threading.Lock()
        self._asked.acquire()
        self._ended.acquire()
        self._job: Callable[[], T] | None = None
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._tell: Callable[[], Any] | None = None
        self._thread: threading.Thread | None = None

    async def run(self, job: Callable[[], T], *, brief: bool = False) -> T:
        """Run a job and return its result. A cancelled caller still waits for the job's end."""
        if brief and (began := self._clock()) >= self._wary_until:
            return self._run_here(job, began)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="worker", daemon=True)
            self._thread.start()
        self._job = job
        self._asked.release()
        if not self._ended.acquire(timeout=self._moment):
            await self._end()
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._result.pop()

    def _run_here(self, job: Callable[[], T], began: float) -> T:
        try:
            return job()
        finally:
            ended = self._clock()
            if ended - began > LONG:
                self._wary_until = ended + WARY_SECONDS

    def close(self) -> None:
        """End the thread. No job may be running."""
        if self._thread is not None:
            self._job = None
            self._asked.release()
            self._thread.join()
            self._thread = None

    async def _end(self) -> None:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        self._tell = lambda: loop.call_soon_threadsafe(_resolve, ended)
        try:
            if self._ended.acquire(blocking=False):  # the job may have ended before `_tell` was set
                return
            cancelled = None
            while not ended.done():
                try:
                    await asyncio.shield(ended)
                except asyncio.CancelledError as error:
                    cancelled = error
            self._ended.acquire()
            if cancelled is not None:
                self._error, self._result = None, []
                raise cancelled
        finally:
            self._tell = None

    def _work(self) -> None:
        while True:
            self._asked.acquire()
            if self._job is None:
                return
            try:
                self._result.append(self._job())
            except BaseException as error:  # noqa: BLE001  # the caller of the job gets the error
                self._error = error
            self._ended.release()
            if (tell := self._tell) is not None:
                with suppress(RuntimeError):  # the loop is closed
                    tell()


def _resolve(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)
