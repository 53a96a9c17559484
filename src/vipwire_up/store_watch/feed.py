"""Feeds controllers with the store's changes since their last look.

A feed holds a revision. The first look returns all objects as new; so does a look after the store has dropped the
history. A feed never blocks the store, and a reader that failed half way can have all objects again.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from vipwire_up.api.objects.resource import Resource
from vipwire_up.store.record import CompactedError, FutureRevisionError, Key, RecordChange
from vipwire_up.store.store import Store
from vipwire_up.watchdog.guard import Guard

RETRY_SECONDS: Final = 1.0


class Feed:
    """Follows some resources of a store."""

    def __init__(self, store: Store, resources: Iterable[Resource]) -> None:
        self._store = store
        self._resources = tuple(resource.id for resource in resources)
        self._seen = 0

    def look(self) -> tuple[Sequence[RecordChange], bool]:
        """Return the changes since the last look, in the order of resources, and whether this is a complete list."""
        until = self._store.revision
        try:
            changes = self._list_changes(self._seen) if self._seen else None
        except (CompactedError, FutureRevisionError):  # history dropped, or the store was reset: list all again
            changes = None
        self._seen = until
        if changes is not None:
            return changes, False
        return [RecordChange(record, None) for name in self._resources for record in self._store.scan(name)], True

    def follow(self, forget: Callable[[], None], note: Callable[[RecordChange], None], guard: Guard[Key]) -> None:
        """Pass each change to `note`; before a complete list, call `forget`.

        An object for which `note` raises is left out.
        """
        changes, anew = self.look()
        if anew:
            forget()
        for change in changes:
            with guard.of(change.record.key):
                note(change)

    def again(self) -> None:
        self._seen = 0

    async def run(self, step: Callable[[], Awaitable[float | None]], guard: Guard[Key]) -> None:
        """Call `step` at once and after changes, until cancelled; `guard` hears of each step.

        If a step returns seconds, it is called again after them, even without a change. After a step that raises, the
        next look lists all objects.
        """
        while True:
            try:
                with guard.step():
                    left = await step()
            except Exception:
                self.again()
                raise
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self.wait()

    async def wait(self) -> None:
        with contextlib.suppress(CompactedError, FutureRevisionError):  # the next look lists all objects
            while self._seen and not self._list_changes(self._seen):
                self._seen = self._store.revision
                await self._store.wait_for_revision(self._seen + 1)

    def _list_changes(self, revision: int) -> list[RecordChange]:
        return [change for name in self._resources for change in self._store.changes(name, revision)]
