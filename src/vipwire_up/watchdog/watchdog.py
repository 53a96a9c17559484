"""Reports parts and event loops that hang.

vipwire reports parts that hang but does not end them, because they would hang at the same disk or socket again.
"""

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self

from vipwire.logging import log
from vipwire.process_lifecycle.supervision import FIRST_PAUSE, Supervisor, Witness, ignore_failure
from vipwire_up.watchdog.guard import Activities, Guard, show_name

STALL_SECONDS: Final = 5.0


class LoopWatch:
    """A thread that reports the current line if the thread that made this does not call `beat` for `after` seconds.

    Another thread calls `tell`, once per hang.
    """

    def __init__(self, tell: Callable[[str], None], *, after: float = STALL_SECONDS, news: float = 10.0) -> None:
        self._tell, self._after, self._news = tell, after, news
        self._watched = threading.get_ident()
        self._stop = threading.Event()
        self._heard = self._until = time.monotonic()
        self._last, self._told = "", False
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        self.beat()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def beat(self) -> None:
        now = time.monotonic()
        if self._told:
            self._told, self._until = False, now + self._news
        self._heard = now

    @property
    def last(self) -> str:
        """The line where the loop hung a moment ago; "" if it did not."""
        return self._last if self._told or time.monotonic() < self._until else ""

    def _run(self) -> None:
        while not self._stop.wait(self._after / 2):
            seconds = time.monotonic() - self._heard
            if seconds > self._after and not self._told:
                self._last = f"blocked for {seconds:.0f} s or more in {_describe_stack(self._watched)}"
                self._told = True
                self._tell(self._last)


def _describe_stack(thread: int) -> str:
    """Return a thread's two innermost lines of vipwire, and its innermost line."""
    stack = traceback.extract_stack(sys._current_frames().get(thread))  # noqa: SLF001  # documented, in spite of its name
    ours = [frame for frame in stack if "vipwire" in frame.filename]
    shown = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in (*ours[-2:], *stack[-1:])]
    return ", ".join(dict.fromkeys(shown)) or "no line"


class WatchedSupervisor(Supervisor):
    """Also counts failures of objects, and reports hanging parts."""

    def __init__(
        self,
        witness: Witness = ignore_failure,
        *,
        first_pause: float = FIRST_PAUSE,
        activities: Activities | None = None,
        stall_after: float = STALL_SECONDS,
    ) -> None:
        super().__init__(witness, first_pause=first_pause)
        self._activities, self._loop, self._stall_after = activities or Activities(), "", stall_after

    def guard(self, part: str) -> Guard[Any]:
        self.failures[part] += 0
        return Guard(part, self.count_failure, activities=self._activities)

    def troubles(self) -> Mapping[str, str]:
        """Return the error of each part that should run; "" for none."""
        troubles = dict(super().troubles())
        for activity, age in self._activities.hung():
            about = f" ({show_name(activity.thing)})" if activity.thing else ""
            troubles[activity.part] = troubles.get(activity.part) or f"has made no progress for {age:.0f} s{about}"
        return troubles | ({"event loop": self._loop} if self._loop else {})

    async def watch(self) -> None:
        """Log activities and event loops that hang, until cancelled."""
        with LoopWatch(self._stands_still, after=self._stall_after) as loop:
            while True:
                loop.beat()
                self._loop = loop.last
                for activity, age in self._activities.hung():
                    if not activity.told:
                        activity.told = True
                        thing, error = activity.thing or "", TimeoutError(f"no progress for {age:.0f} s")
                        log.error("a part hangs", part=activity.part, object=show_name(thing), error=str(error))
                        self.count_failure(activity.part, thing, error, again=False)
                await asyncio.sleep(self._stall_after / 2)

    def _stands_still(self, where: str) -> None:
        log.error("the event loop is blocked; vipwire answers no requests", error=where)
        self.failures["event loop"] += 1
