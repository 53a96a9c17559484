"""Writes desired objects to an API server, from the elected replica.

Comparing desired and known objects costs more with more objects; asking for changes does not. So a writer compares
only when its desired objects changed, the known objects changed, its replica was elected, or a pause ended. Its owner
wakes it for the first three, and it compares every `_EVERY` seconds in any case. A replica that is no longer elected
sends no write: the client is a `FencedObjects`. After a write or a refusal, an object pauses.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, NamedTuple, TypeVar

from vipwire.kube.access.access import Access
from vipwire.kube.errors import REQUEST_ERRORS, ApiError, OtherReplicaElectedError
from vipwire.kube.objects import FencedObjects
from vipwire.logging import log

_EVERY: Final = 10.0
_GONE: Final = 404
_CONFLICT: Final = 409
_Key = TypeVar("_Key", bound=Hashable)
_Wanted = TypeVar("_Wanted")


class Pauses(NamedTuple):
    """Seconds without writing an object: after a refusal, a write (the watch may be late) and a conflict.

    `conflict` None: as after a refusal. Otherwise conflicts are ordinary, because writes name a resourceVersion.
    """

    refused: float
    written: float = 0.0
    conflict: float | None = None


class WriteLoop(Generic[_Key]):
    """The loop of one writer. A key names one written object; `changes` counts changes of the known objects."""

    def __init__(
        self, access: Access, manager: str, leading: Callable[[], bool], changes: Callable[[], int], pauses: Pauses
    ) -> None:
        self._access, self._manager, self._leading = access, manager, leading
        self._changes, self._pauses = changes, pauses
        self._waiting: dict[_Key, float] = {}
        """When each key may be written again."""
        self._woken = asyncio.Event()

    def wake(self) -> None:
        self._woken.set()

    def waits(self, key: _Key) -> bool:
        return key in self._waiting

    async def run(
        self, wanted: Callable[[], _Wanted | None], keep: Callable[[FencedObjects, _Wanted], Awaitable[None]]
    ) -> None:
        """Call `keep` with the result of `wanted` until cancelled; None is not written.

        `wanted` must return a new object for each change.
        """
        async with FencedObjects(self._access, self._manager, self._leading) as objects:
            kept: tuple[_Wanted, int] | None = None
            loop = asyncio.get_running_loop()
            while True:
                is_due, changes = self._end_waits(), self._changes()
                what = wanted() if self._leading() else None
                if what is None:
                    kept = None
                elif is_due or kept is None or kept[0] is not what or kept[1] != changes:
                    kept = what, changes
                    try:
                        await keep(objects, what)
                    except OtherReplicaElectedError:  # another replica continues
                        kept = None
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(min((loop.time() + _EVERY, *self._waiting.values()))):
                        await self._woken.wait()
                self._woken.clear()

    async def write(self, key: _Key, send: Callable[[], Awaitable[object]], failure: str, **fields: object) -> bool:
        """Send a write unless it is too early; report whether the API server took it. `failure` is for the log.

        Raise OtherReplicaElectedError if this replica is no longer elected.
        """
        if self.waits(key):
            return False
        try:
            await send()
        except REQUEST_ERRORS as error:
            conflict = self._pauses.conflict
            if conflict is not None and isinstance(error, ApiError) and error.code == _CONFLICT:
                self.pause(key, conflict)
            else:
                self.pause(key, self._pauses.refused)
                if not isinstance(error, ApiError) or error.code != _GONE:  # the watch reports deleted objects
                    log.warning(failure, **fields, error=error)
            return False
        if self._pauses.written:
            self.pause(key, self._pauses.written)
        return True

    def pause(self, key: _Key, seconds: float) -> None:
        """Pause a key; then wake the writer in any case."""
        self._waiting[key] = asyncio.get_running_loop().time() + seconds

    def _end_waits(self) -> bool:
        now = asyncio.get_running_loop().time()
        over = [key for key, until in self._waiting.items() if until <= now]
        for key in over:
            del self._waiting[key]
        return bool(over)
