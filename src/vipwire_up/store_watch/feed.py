"""Feeds controllers with the store's changes since they last looked.

A feed holds a revision. The first look tells of everything, as new; so does one too late for what the store
remembers. It never waits for a reader, and a reader that failed half way can be told everything again.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from vipwire.process_lifecycle.supervision import Guard
from vipwire_up.api.objects.resource import Resource
from vipwire_up.store.record import CompactedError, FutureRevisionError, Key, RecordChange
from vipwire_up.store.store import Store

RETRY_SECONDS: Final = 1.0


class Feed:
    """Follows some resources of a store."""

    def __init__(self, store: Store, resources: Iterable[Resource]) -> None:
        self._store = store
        self._resources = tuple(resource.id for resource in resources)
        self._seen = 0

    def look(self) -> tuple[Sequence[RecordChange], bool]:
        """Return the changes since the last look, in the order of resources; and whether it is everything anew."""
        until = self._store.revision
        try:
            changes = self._since(self._seen) if self._seen else None
        except (CompactedError, FutureRevisionError):  # it was reset: everything anew
            changes = None
        self._seen = until
        if changes is not None:
            return changes, False
        return [RecordChange(record, None) for name in self._resources for record in self._store.scan(name)], True

    def follow(self, forget: Callable[[], None], note: Callable[[RecordChange], None], guard: Guard[Key]) -> None:
        """Read and note each change; before a complete list, forget what is known.

        An object that cannot be noted is left out.
        """
        changes, anew = self.look()
        if anew:
            forget()
        for change in changes:
            with guard.of(change.record.key):
                note(change)

    def again(self) -> None:
        """Make the next look list everything."""
        self._seen = 0

    async def run(self, step: Callable[[], Awaitable[bool | None]], guard: Guard[Key]) -> None:
        """Step at once and when there is something to look at, until cancelled; `guard` is told of each step.

        A step that says that something is left to do is made again a little later, whatever happens. After one that
        fails, the next look tells of everything.
        """
        while True:
            try:
                with guard.step():
                    left = await step()
            except Exception:
                self.again()
                raise
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_SECONDS if left else None):
                    await self.wait()

    async def wait(self) -> None:
        """Wait until there is something to look at."""
        with contextlib.suppress(CompactedError, FutureRevisionError):  # the next look tells of everything
            while self._seen and not self._since(self._seen):
                self._seen = self._store.revision
                await self._store.until(self._seen + 1)

    def _since(self, revision: int) -> list[RecordChange]:
        return [change for name in self._resources for change in self._store.changes(name, revision)]
