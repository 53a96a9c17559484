"""Parts that run side by side in one process: none of them ends another, and no object ends a part.

    Supervisor   runs each part by itself. One that fails is told and run again, after a second at first, after a
                 minute at most. `troubles` tells which do not run, for a readiness page
    Guard        what a part does about one object. What the object makes it raise is told, and the object is put
                 aside: it is looked at again when it changes, and after a while that doubles up to five minutes
    Activities   what is under way, and since when: parts note it while they work
    LoopWatch    a thread that the loop has to answer every second; where it stands still, the thread says where

A part that opens what an operator has chosen (a port, an interface) calls `begun` when it is open. A VipwireError
before that is a refusal to start, in words for the operator; after that it is a failure like all others. Nothing that
hangs is ended: what hangs at a disk or a socket hangs again. It is told, so that whoever watches can act.
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


FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0
LONGEST_ASIDE: Final = 300.0
SOUND_SECONDS: Final = 10.0
"""A part that has run for so long has recovered."""

T = TypeVar("T", bound=Hashable)
Begun: TypeAlias = Callable[[], None]
Work: TypeAlias = Callable[[Begun], Awaitable[None]]


class Witness(Protocol):
    """Called at each failure with the part, the object ("" for the part itself), and whether it repeats itself."""

    def __call__(self, part: str, thing: Hashable, error: Exception, *, again: bool) -> None:
        """Note a failure."""


def _nobody(part: str, thing: Hashable, error: Exception, *, again: bool) -> None:
    """Ignore a failure."""


class _Suspension(Struct):
    """How often an object has failed, when it is due again (monotonic seconds), and its last error."""

    times: int
    due: float
    said: str


class Guard(Generic[T]):
    """Keeps what one object makes a part raise to that object."""

    def __init__(
        self,
        part: str,
        witness: Witness = _nobody,
        *,
        clock: Callable[[], float] = time.monotonic,
        steps: Activities | None = None,
    ) -> None:
        self.part = part
        self._steps = steps or Activities()
        self._witness, self._clock = witness, clock
        self._suspended: dict[T, _Suspension] = {}

    @contextlib.contextmanager
    def of(self, thing: T) -> Iterator[None]:
        """Run a block that concerns one object; what it raises puts the object aside and ends here."""
        try:
            with self._steps.of(self.part, thing):
                yield
        except Exception as error:  # noqa: BLE001  # whatever an object causes: all others go on
            self.failed(thing, error)
        else:
            self._suspended.pop(thing, None)

    def step(self) -> AbstractContextManager[None]:
        """Do in here what concerns the part as a whole, so that it is noticed if it does not end."""
        return self._steps.of(self.part)

    def failed(self, thing: T, error: Exception) -> None:
        """Put an object aside for an error."""
        before, said = self._suspended.get(thing), in_short(error)
        times = before.times + 1 if before else 1
        pause = min(FIRST_PAUSE * 2 ** min(times, 16), LONGEST_ASIDE)
        self._suspended[thing] = _Suspension(times, self._clock() + pause, said)
        again = before is not None and before.said == said
        self._witness(self.part, thing, error, again=again)
        if not again:
            log.error(
                "an object makes a part fail; it is put aside, all others go on",
                part=self.part,
                object=_name(thing),
                error=said,
            )

    def ready(self, thing: T) -> bool:
        """Report whether an object may be looked at: it is not aside, or its time has come."""
        suspension = self._suspended.get(thing)
        return suspension is None or suspension.due <= self._clock()

    def due(self) -> tuple[T, ...]:
        """List the objects that were put aside and are to be looked at again."""
        return tuple(thing for thing in self._suspended if self.ready(thing))

    def forget(self, thing: T) -> None:
        """Remove an object that no longer exists."""
        self._suspended.pop(thing, None)

    @property
    def holds(self) -> bool:
        """Whether any object is aside."""
        return bool(self._suspended)


class _Part(Struct):
    begun: bool
    first_pause: float
    pause: float
    trouble: str = ""

    def begin(self) -> None:
        """Note that it has opened what it opens."""
        self.begun = True

    def recover(self) -> None:
        """Note that it has run for long enough."""
        self.trouble, self.pause = "", self.first_pause


class Supervisor:
    """Runs parts, and counts what fails: `failures` by part, with what objects make them raise."""

    def __init__(
        self,
        witness: Witness = _nobody,
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
        """Build the guard of a part."""
        self.failures[part] += 0
        return Guard(part, self._count, steps=self._steps)

    def troubles(self) -> Mapping[str, str]:
        """Return what is wrong with each part that runs, or should; "" for nothing."""
        troubles = {name: part.trouble for name, part in self._parts.items()}
        for step, age in self._steps.hung():
            troubles[step.part] = troubles.get(step.part) or f"does not go on since {age:.0f} s{_about(step.thing)}"
        return troubles | ({"event loop": self._loop} if self._loop else {})

    def forget(self, name: str) -> None:
        """Remove a part that is not to run any more."""
        self._parts.pop(name, None)

    async def watch(self) -> None:
        """Tell of what hangs, until cancelled: steps that do not end, and an event loop that stands still."""
        with LoopWatch(self._stands_still, after=self._stall_after) as loop:
            while True:
                loop.beat()
                self._loop = loop.last
                for step, age in self._steps.hung():
                    if not step.told:
                        step.told = True
                        error = TimeoutError(f"it does not go on since {age:.0f} s")
                        log.error("a part hangs", part=step.part, object=_name(step.thing or ""), error=str(error))
                        self._count(step.part, step.thing or "", error, again=False)
                await asyncio.sleep(LOOK_SECONDS)

    def _stands_still(self, where: str) -> None:
        log.error("the event loop stands still: nothing is answered meanwhile", error=where)
        self.failures["event loop"] += 1

    async def keep(self, name: str, work: Work, *, opens: bool = False) -> None:
        """Run a part until it ends by itself, whatever it raises. Raise its VipwireError if it `opens` and cannot."""
        part = self._parts[name] = _Part(not opens, self._first_pause, self._first_pause)
        self.failures[name] += 0
        while True:
            sound = asyncio.get_running_loop().call_later(self._sound_after, part.recover)
            try:
                await work(part.begin)
            except Exception as error:  # noqa: BLE001  # whatever it is: all others go on
                if not part.begun and (refusal := told_plainly(error)) is not None:
                    raise refusal from None
                self._failed(name, part, error)
            else:
                part.recover()
                return
            finally:
                sound.cancel()
            await asyncio.sleep(part.pause)
            part.pause = min(part.pause * 2, LONGEST_PAUSE)

    def _failed(self, name: str, part: _Part, error: Exception) -> None:
        again, part.trouble = part.trouble == in_short(error), in_short(error)
        log.error(
            "a part has failed; all others go on, and it is run again",
            part=name,
            error=part.trouble,
            again_in_seconds=part.pause,
        )
        self._count(name, "", error, again=again)

    def _count(self, part: str, thing: Hashable, error: Exception, *, again: bool) -> None:
        self.failures[part] += 1
        self._witness(part, thing, error, again=again)


def in_short(error: BaseException) -> str:
    """Write an error in a line: ours in their words, all others with their kind and where they came from."""
    plain = told_plainly(error)
    if plain is not None:
        return str(plain)
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    text = f"{type(error).__name__}: {error}{where}"[:400]
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def _about(thing: object) -> str:
    return f" ({_name(thing)})" if thing else ""


def _name(thing: object) -> str:
    """Write an object's name; a key of a store is its parts."""
    return "/".join(filter(None, map(str, thing))) if isinstance(thing, tuple) else str(thing)
