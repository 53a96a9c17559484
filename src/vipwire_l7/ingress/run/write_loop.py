"""Decides when a writer looks for what the API server is to be told: not while everything is as it was.

A look takes longer the more objects there are; the question whether anything has changed does not. So a writer looks
when what it wants to write is another, when objects of the kinds that it reads have changed, when it has become the
one who writes, and when it may try again what it asked for before. It asks now and then, and at once when it is
woken.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Final, Generic, TypeVar

from vipwire.kube.errors import FencedError
from vipwire_l7.ingress.watch.objects import IngressKind
from vipwire_l7.ingress.watch.snapshot import Snapshot

_EVERY: Final = 0.25
"""Seconds between two questions whether anything has changed."""
_Key = TypeVar("_Key", bound=Hashable)
_Wanted = TypeVar("_Wanted")


class WriteLoop(Generic[_Key]):
    """Calls one writer. A key is what it writes at a time; `kinds` are those that it reads in the snapshot."""

    def __init__(self, snapshot: Snapshot, kinds: Iterable[IngressKind], leading: Callable[[], bool]) -> None:
        self._snapshot, self._kinds, self._leading = snapshot, frozenset(kinds), leading
        self._waiting: dict[_Key, float] = {}
        """When each may be written again."""
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Ask now whether anything has changed."""
        self._woken.set()

    def retry(self, key: _Key, after: float) -> None:
        """Call the writer after so many seconds, whatever happens; until then `waits` holds."""
        self._waiting[key] = asyncio.get_running_loop().time() + after

    def waits(self, key: _Key) -> bool:
        """Report whether it is too early to write what was written, or refused, a moment ago."""
        return key in self._waiting

    async def run(self, wanted: Callable[[], _Wanted | None], write: Callable[[_Wanted], Awaitable[None]]) -> None:
        """Call `write` with what is wanted until cancelled; None is not written.

        What is wanted is never changed in place: while it is the same object, it says the same.
        """
        written: tuple[_Wanted, int] | None = None
        while True:
            is_due, events = self._end_waits(), self._snapshot.events(self._kinds)
            what = wanted() if self._leading() else None
            if what is None:
                written = None
            elif is_due or written is None or written[0] is not what or written[1] != events:
                written = what, events
                with contextlib.suppress(FencedError):  # another replica goes on
                    await write(what)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_EVERY):
                    await self._woken.wait()
            self._woken.clear()

    def _end_waits(self) -> bool:
        """Report whether a wait is over."""
        now = asyncio.get_running_loop().time()
        over = [key for key, until in self._waiting.items() if until <= now]
        for key in over:
            del self._waiting[key]
        return bool(over)
