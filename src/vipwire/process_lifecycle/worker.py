"""One thread for work that is nearly always short and now and then takes seconds.

The event loop waits for a job as long as a moment: most have ended by then, and nothing but two wake-ups was paid for
the thread. A longer one goes on beside the loop, which then answers others.

A job that is brief, as far as anybody can tell, runs in the loop's own thread: two wake-ups are a tenth of what a
change of one endpoint costs. Should one take long all the same, the next ones run in the thread for a while.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

MOMENT: Final = 0.01
"""Seconds for which the loop waits for the thread at most. A quick answer of /healthz takes as long."""
LONG: Final = 0.2
"""Seconds after which a job was not brief. Probes wait for a second; a busy machine takes a tenth of one at times."""
WARY_SECONDS: Final = 60.0
"""For so long no job counts as brief after one that was not."""


class Worker(Generic[T]):
    """Runs one job at a time in a thread of its own, which starts with the first."""

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
        """Run a job and return what it returns. Who is cancelled meanwhile still waits for its end."""
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
        """End the thread. Nothing may run."""
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
            if self._ended.acquire(blocking=False):  # just now: whoever ended it may have seen nobody to tell
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
            except BaseException as error:  # noqa: BLE001  # raised where the job was asked for
                self._error = error
            self._ended.release()
            if (tell := self._tell) is not None:
                with suppress(RuntimeError):  # the loop was closed: nobody waits
                    tell()


def _resolve(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)
