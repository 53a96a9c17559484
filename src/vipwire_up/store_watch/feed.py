"""Feeds controllers with the store's changes since their last look.

A feed knows which of its resources have changed; other changes do not wake it. The first look returns all objects as
new; so does a look after the store has dropped the history. A feed never blocks the store, and a reader that failed
half way can have all objects again.
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
        self._changed = store.follow(self._resources)
        self._anew = True

    def read_changes(self) -> tuple[Sequence[RecordChange], bool]:
        """Return the changes since the last look, in the order of resources, and whether this is a complete list."""
        anew, self._anew = self._anew, False
        names, since = self._changed.take()
        if not anew:
            with contextlib.suppress(CompactedError, FutureRevisionError):  # else list all again
                return [
                    change for name in self._resources if name in names for change in self._store.changes(name, since)
                ], False
        return [RecordChange(record, None) for name in self._resources for record in self._store.scan(name)], True

    def pass_changes(
        self, forget: Callable[[], None], note: Callable[[RecordChange], None], guard: Guard[Key]
    ) -> None:
        """Pass each change to `note`; before a complete list, call `forget`.

        An object for which `note` raises is left out.
        """
        changes, anew = self.read_changes()
        if anew:
            forget()
        for change in changes:
            with guard.of(change.record.key):
                note(change)

    def list_again(self) -> None:
        self._anew = True

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
                self.list_again()
                raise
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self.wait_for_change()

    async def wait_for_change(self) -> None:
        if not self._anew:
            await self._changed.wait()
