"""Notices what hangs: an activity of a part that does not end, and code that holds the event loop.

    Activities  what is under way, and since when: parts note it while they work
    LoopWatch   a thread that the loop has to answer every second; where it stands still, the thread says where

Nothing is ended: what hangs at a disk or a socket hangs again. It is told, so that whoever watches can act.
"""

import contextlib
import sys
import threading
import time
import traceback
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Final, Self

from msgspec import Struct

HUNG_SECONDS: Final = 60.0
STALL_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 1.0


class Activity(Struct, eq=False):
    """Something that a part does; `thing` is the object that it is about, None for the part's own work."""

    part: str
    thing: Hashable
    since: float
    told: bool = False


class Activities:
    """What is under way in one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, hung_after: float = HUNG_SECONDS) -> None:
        self._clock, self._hung_after = clock, hung_after
        self._activities: dict[int, Activity] = {}

    @contextlib.contextmanager
    def of(self, part: str, thing: Hashable = None) -> Iterator[None]:
        """Note an activity while this is entered."""
        activity = Activity(part, thing, self._clock())
        self._activities[id(activity)] = activity
        try:
            yield
        finally:
            del self._activities[id(activity)]

    def hung(self) -> list[tuple[Activity, float]]:
        """List the activities that take too long, each with its seconds."""
        now = self._clock()
        ages = [(activity, now - activity.since) for activity in self._activities.values()]
        return [(activity, age) for activity, age in ages if age > self._hung_after]


class LoopWatch:
    """Tells when the thread that made it does not call `beat` for `after` seconds: in which line it is.

    `tell` is called in another thread, once for each time that it stands still.
    """

    def __init__(self, tell: Callable[[str], None], *, after: float = STALL_SECONDS, news: float = 10.0) -> None:
        self._tell, self._after, self._news = tell, after, news
        self._watched = threading.get_ident()
        self._stop = threading.Event()
        self._heard = self._until = time.monotonic()
        self._last, self._told = "", False
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        """Begin to watch."""
        self.beat()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Watch no more."""
        self._stop.set()
        self._thread.join()

    def beat(self) -> None:
        """Show that the loop runs."""
        now = time.monotonic()
        if self._told:
            self._told, self._until = False, now + self._news
        self._heard = now

    @property
    def last(self) -> str:
        """Where it stood still a moment ago; "" if it did not."""
        return self._last if self._told or time.monotonic() < self._until else ""

    def _run(self) -> None:
        while not self._stop.wait(min(LOOK_SECONDS, self._after / 4)):
            seconds = time.monotonic() - self._heard
            if seconds > self._after and not self._told:
                self._last = f"stood still for {seconds:.0f} s or more in {_place(self._watched)}"
                self._told = True
                self._tell(self._last)


def _place(thread: int) -> str:
    """Name the lines in which a thread is: ours, and the innermost."""
    stack = traceback.extract_stack(sys._current_frames().get(thread))  # noqa: SLF001  # documented, in spite of its name
    ours = [frame for frame in stack if "vipwire" in frame.filename]
    shown = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in (*ours[-2:], *stack[-1:])]
    return ", ".join(dict.fromkeys(shown)) or "no line"
