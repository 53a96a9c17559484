"""Limits an error in one object to that object, and notes the current activities.

Guard        suspends an object after an error until it changes, or for a delay that doubles up to five minutes
Activities   the current activities and their start times
"""

import contextlib
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager
from typing import Final, Generic, TypeVar

from msgspec import Struct

from vipwire.logging import log
from vipwire.process_lifecycle.supervision import FIRST_PAUSE, Witness, ignore_failure, shorten_error

HUNG_SECONDS: Final = 60.0
LONGEST_ASIDE: Final = 300.0

T = TypeVar("T", bound=Hashable)


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
        self._activities: dict[Activity, None] = {}

    @contextlib.contextmanager
    def of(self, part: str, thing: Hashable = None) -> Iterator[None]:
        activity = Activity(part, thing, self._clock())
        self._activities[activity] = None
        try:
            yield
        finally:
            del self._activities[activity]

    def hung(self) -> list[tuple[Activity, float]]:
        """List the activities that take too long, each with its seconds."""
        now = self._clock()
        ages = [(activity, now - activity.since) for activity in self._activities]
        return [(activity, age) for activity, age in ages if age > self._hung_after]


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
        witness: Witness = ignore_failure,
        *,
        clock: Callable[[], float] = time.monotonic,
        activities: Activities | None = None,
    ) -> None:
        self.part = part
        self._activities = activities or Activities()
        self._witness, self._clock = witness, clock
        self._suspended: dict[T, _Backoff] = {}

    @contextlib.contextmanager
    def of(self, thing: T) -> Iterator[None]:
        """Run a block that concerns one object; an error suspends the object and is not raised."""
        try:
            with self._activities.of(self.part, thing):
                yield
        except Exception as error:  # noqa: BLE001  # an error in one object must not stop the others
            self.record_failure(thing, error)
        else:
            self._suspended.pop(thing, None)

    def step(self) -> AbstractContextManager[None]:
        """Run a block that concerns the whole part; the watch reports a block that does not end."""
        return self._activities.of(self.part)

    def record_failure(self, thing: T, error: Exception) -> None:
        before, said = self._suspended.get(thing), shorten_error(error)
        times = before.times + 1 if before else 1
        pause = min(FIRST_PAUSE * 2 ** min(times, 16), LONGEST_ASIDE)
        self._suspended[thing] = _Backoff(times, self._clock() + pause, said)
        again = before is not None and before.said == said
        self._witness(self.part, thing, error, again=again)
        if not again:
            log.error(
                "a part of vipwire fails on an object; setting the object aside",
                part=self.part,
                object=show_name(thing),
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

    def seconds_left(self) -> float | None:
        """Return the seconds until a suspended object may be tried, at least `FIRST_PAUSE`; None without any."""
        due = min((each.due for each in self._suspended.values()), default=None)
        return None if due is None else max(due - self._clock(), FIRST_PAUSE)


def show_name(thing: object) -> str:
    """Write an object's name; for a key of a store, its parts."""
    return "/".join(filter(None, map(str, thing))) if isinstance(thing, tuple) else str(thing)
