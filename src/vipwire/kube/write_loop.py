"""Writes objects to an API server as they are wanted, from the one replica that is elected.

A writer compares what it wants with what it knows of the API server's objects. That takes longer the more objects
there are; the question whether anything has changed does not. So a writer looks when what it wants is another, when
the objects that it knows have changed, when its replica has become the elected one, and when a pause is over. It asks
now and then, and at once when it is woken.

No write of a replica that is no longer elected is sent: the client is a `FencedObjects`. After a write, and after a
refusal, an object is left alone for a while.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, NamedTuple, TypeVar

from vipwire.kube.access.access import Access
from vipwire.kube.errors import REQUEST_ERRORS, ApiError, FencedError
from vipwire.kube.objects import FencedObjects
from vipwire.logging import log

_EVERY: Final = 0.25
"""Seconds between two questions whether anything has changed."""
_GONE: Final = 404
_CONFLICT: Final = 409
_Key = TypeVar("_Key", bound=Hashable)
_Wanted = TypeVar("_Wanted")


class Pauses(NamedTuple):
    """Seconds for which an object is not written: after a refusal, a write (the watch may be late) and a conflict.

    None for `conflict`: as after any refusal. Else a conflict is ordinary, for the writes name a resourceVersion.
    """

    refused: float
    written: float = 0.0
    conflict: float | None = None


class WriteLoop(Generic[_Key]):
    """The loop of one writer. A key is what it writes at a time; `changes` counts changes of the known objects."""

    def __init__(
        self, access: Access, manager: str, leading: Callable[[], bool], changes: Callable[[], int], pauses: Pauses
    ) -> None:
        self._access, self._manager, self._leading = access, manager, leading
        self._changes, self._pauses = changes, pauses
        self._waiting: dict[_Key, float] = {}
        """When each may be written again."""
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Ask now whether anything has changed."""
        self._woken.set()

    def waits(self, key: _Key) -> bool:
        """Report whether it is too early to write what was written, or refused, a moment ago."""
        return key in self._waiting

    async def run(
        self, wanted: Callable[[], _Wanted | None], keep: Callable[[FencedObjects, _Wanted], Awaitable[None]]
    ) -> None:
        """Call `keep` with what is wanted until cancelled; None is not written.

        What is wanted is never changed in place: while it is the same object, it says the same.
        """
        async with FencedObjects(self._access, self._manager, self._leading) as objects:
            kept: tuple[_Wanted, int] | None = None
            while True:
                is_due, changes = self._end_waits(), self._changes()
                what = wanted() if self._leading() else None
                if what is None:
                    kept = None
                elif is_due or kept is None or kept[0] is not what or kept[1] != changes:
                    kept = what, changes
                    with contextlib.suppress(FencedError):  # another replica goes on
                        await keep(objects, what)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_EVERY):
                        await self._woken.wait()
                self._woken.clear()

    async def write(self, key: _Key, send: Callable[[], Awaitable[object]], failure: str, **fields: object) -> bool:
        """Send a write unless it is too early; report whether the API server took it. `failure` is for the log.

        Raise FencedError if this replica is no longer the elected one.
        """
        if self.waits(key):
            return False
        try:
            await send()
        except REQUEST_ERRORS as error:
            conflict = self._pauses.conflict
            if conflict is not None and isinstance(error, ApiError) and error.code == _CONFLICT:
                self._pause(key, conflict)
            else:
                self._pause(key, self._pauses.refused)
                if not isinstance(error, ApiError) or error.code != _GONE:  # the watch tells of what is gone
                    log.warning(failure, **fields, error=error)
            return False
        if self._pauses.written:
            self._pause(key, self._pauses.written)
        return True

    def _pause(self, key: _Key, seconds: float) -> None:
        """Leave an object alone; then call the writer, whatever happens."""
        self._waiting[key] = asyncio.get_running_loop().time() + seconds

    def _end_waits(self) -> bool:
        now = asyncio.get_running_loop().time()
        over = [key for key, until in self._waiting.items() if until <= now]
        for key in over:
            del self._waiting[key]
        return bool(over)
