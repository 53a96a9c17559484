"""Parts that run side by side in one process: no part ends another, and no object ends a part.

    Supervisor   runs each part, and restarts a failed one after a second at first, after a minute at most
    Guard        suspends an object after an error until it changes, or for a delay that doubles up to five minutes
    Activities   the current activities and their start times
    LoopWatch    a thread that checks every second whether the loop responds, and reports where it hangs

A part that opens something the operator configured (a port, an interface) calls `begun` when that is open. A
VipwireError before that stops vipwire with a message for the operator; a later one is a failure of the part. vipwire
reports parts that hang but does not end them, because they would hang at the same disk or socket again.
"""

import asyncio
import contextlib
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, Generic, Protocol, Self, TypeAlias, TypeVar

from msgspec import Struct

from vipwire.errors import told_plainly
from vipwire.logging import log

HUNG_SECONDS: Final = 60.0
STALL_SECONDS: Final = 5.0


class Activity(Struct, eq=False):
    """An activity of a part; `thing` is its object, None for the part's own work."""

    part: str
    thing: Hashable
    since: float
    told: bool = False


class Activities:
    """The current activities in one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, hung_after: float = HUNG_SECONDS) -> None:
        self._clock, self._hung_after = clock, hung_after
        self._activities: dict[int, Activity] = {}

    @contextlib.contextmanager
    def of(self, part: str, thing: Hashable = None) -> Iterator[None]:
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
    """Reports the current line if the thread that made this does not call `beat` for `after` seconds.

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


FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0
LONGEST_ASIDE: Final = 300.0
SOUND_SECONDS: Final = 10.0
"""Seconds after which a running part has recovered."""

T = TypeVar("T", bound=Hashable)
Begun: TypeAlias = Callable[[], None]
Work: TypeAlias = Callable[[Begun], Awaitable[None]]


class Witness(Protocol):
    """Called at each failure with the part, the object ("" for the part itself), and whether the error repeats."""

    def __call__(self, part: str, thing: Hashable, error: Exception, *, again: bool) -> None:
        """Note a failure."""


def _ignore_failure(part: str, thing: Hashable, error: Exception, *, again: bool) -> None:
    """Ignore a failure."""


class _Backoff(Struct):
    """An object's number of failures, the time of its next try (monotonic seconds), and its last error."""

    times: int
    due: float
    said: str


class Guard(Generic[T]):
    """Limits the errors of an object to that object."""

    def __init__(
        self,
        part: str,
        witness: Witness = _ignore_failure,
        *,
        clock: Callable[[], float] = time.monotonic,
        steps: Activities | None = None,
    ) -> None:
        self.part = part
        self._steps = steps or Activities()
        self._witness, self._clock = witness, clock
        self._suspended: dict[T, _Backoff] = {}

    @contextlib.contextmanager
    def of(self, thing: T) -> Iterator[None]:
        """Run a block that concerns one object; an error suspends the object and is not raised."""
        try:
            with self._steps.of(self.part, thing):
                yield
        except Exception as error:  # noqa: BLE001  # an error in one object must not stop the others
            self.record_failure(thing, error)
        else:
            self._suspended.pop(thing, None)

    def step(self) -> AbstractContextManager[None]:
        """Run a block that concerns the whole part; the watch reports a block that does not end."""
        return self._steps.of(self.part)

    def record_failure(self, thing: T, error: Exception) -> None:
        before, said = self._suspended.get(thing), in_short(error)
        times = before.times + 1 if before else 1
        pause = min(FIRST_PAUSE * 2 ** min(times, 16), LONGEST_ASIDE)
        self._suspended[thing] = _Backoff(times, self._clock() + pause, said)
        again = before is not None and before.said == said
        self._witness(self.part, thing, error, again=again)
        if not again:
            log.error(
                "a part of vipwire fails on an object; setting the object aside",
                part=self.part,
                object=_name(thing),
                error=said,
            )

    def ready(self, thing: T) -> bool:
        """Report whether an object may be tried: it is not suspended, or its delay has passed."""
        suspension = self._suspended.get(thing)
        return suspension is None or suspension.due <= self._clock()

    def due(self) -> tuple[T, ...]:
        return tuple(thing for thing in self._suspended if self.ready(thing))

    def forget(self, thing: T) -> None:
        self._suspended.pop(thing, None)

    @property
    def holds(self) -> bool:
        return bool(self._suspended)


class _Part(Struct):
    begun: bool
    first_pause: float
    pause: float
    trouble: str = ""

    def begin(self) -> None:
        self.begun = True

    def recover(self) -> None:
        self.trouble, self.pause = "", self.first_pause


class Supervisor:
    """Runs parts, and counts failures: `failures` by part, including those of objects."""

    def __init__(
        self,
        witness: Witness = _ignore_failure,
        *,
        sound_after: float = SOUND_SECONDS,
        first_pause: float = FIRST_PAUSE,
        steps: Activities | None = None,
        stall_after: float = STALL_SECONDS,
    ) -> None:
        self._steps, self._loop, self._stall_after = steps or Activities(), "", stall_after
        self._witness, self._sound_after, self._first_pause = witness, sound_after, first_pause
        self._parts: dict[str, _Part] = {}
        self.failures: Counter[str] = Counter()

    def guard(self, part: str) -> Guard[Any]:
        self.failures[part] += 0
        return Guard(part, self._count, steps=self._steps)

    def troubles(self) -> Mapping[str, str]:
        """Return the error of each part that should run; "" for none."""
        troubles = {name: part.trouble for name, part in self._parts.items()}
        for step, age in self._steps.hung():
            troubles[step.part] = troubles.get(step.part) or (
                f"has made no progress for {age:.0f} s{_show_thing(step.thing)}"
            )
        return troubles | ({"event loop": self._loop} if self._loop else {})

    def forget(self, name: str) -> None:
        self._parts.pop(name, None)

    async def watch(self) -> None:
        """Log activities and event loops that hang, until cancelled."""
        with LoopWatch(self._stands_still, after=self._stall_after) as loop:
            while True:
                loop.beat()
                self._loop = loop.last
                for step, age in self._steps.hung():
                    if not step.told:
                        step.told = True
                        error = TimeoutError(f"no progress for {age:.0f} s")
                        log.error("a part hangs", part=step.part, object=_name(step.thing or ""), error=str(error))
                        self._count(step.part, step.thing or "", error, again=False)
                await asyncio.sleep(self._stall_after / 2)

    def _stands_still(self, where: str) -> None:
        log.error("the event loop is blocked; vipwire answers no requests", error=where)
        self.failures["event loop"] += 1

    async def keep(self, name: str, work: Work, *, opens: bool = False) -> None:
        """Run a part until it returns, again after errors. If it `opens`, raise a VipwireError before `begun`."""
        part = self._parts[name] = _Part(not opens, self._first_pause, self._first_pause)
        self.failures[name] += 0
        while True:
            sound = asyncio.get_running_loop().call_later(self._sound_after, part.recover)
            try:
                await work(part.begin)
            except Exception as error:  # noqa: BLE001  # an error in one part must not stop the others
                if not part.begun and (refusal := told_plainly(error)) is not None:
                    raise refusal from None
                self._record_failure(name, part, error)
            else:
                part.recover()
                return
            finally:
                sound.cancel()
            await asyncio.sleep(part.pause)
            part.pause = min(part.pause * 2, LONGEST_PAUSE)

    def _record_failure(self, name: str, part: _Part, error: Exception) -> None:
        again, part.trouble = part.trouble == in_short(error), in_short(error)
        log.error(
            "a part of vipwire has failed; restarting the part",
            part=name,
            error=part.trouble,
            again_in_seconds=part.pause,
        )
        self._count(name, "", error, again=again)

    def _count(self, part: str, thing: Hashable, error: Exception, *, again: bool) -> None:
        self.failures[part] += 1
        self._witness(part, thing, error, again=again)


def in_short(error: BaseException) -> str:
    """Write an error in one line: vipwire's own text, else the kind of the error and its place in the code."""
    plain = told_plainly(error)
    if plain is not None:
        return str(plain)
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    text = f"{type(error).__name__}: {error}{where}"[:400]
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def _show_thing(thing: object) -> str:
    return f" ({_name(thing)})" if thing else ""


def _name(thing: object) -> str:
    """Write an object's name; for a key of a store, its parts."""
    return "/".join(filter(None, map(str, thing))) if isinstance(thing, tuple) else str(thing)
