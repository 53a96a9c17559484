"""The visible state of a store, in memory: the current records of each resource, and the recent changes.

Reads and watches use only this. The engines publish changes once they are durable, in the order of their revisions;
the changes of one revision come together.

A damaged record, after damage or an edit of the file, is put aside: lists and watches leave it out until a client
deletes it.
"""

import asyncio
from bisect import bisect_right
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from operator import attrgetter
from typing import Any, Final, TypeVar
from weakref import WeakSet

from vipwire_up.store.record import CompactedError, FutureRevisionError, Key, Record, RecordChange, is_object


def find_sound_revision(
    changes: Iterable[RecordChange], floor: int, is_sound: Callable[[Record], bool] = is_object
) -> int:
    """Return the revision after which all changes, and the states before them, are sound; at least `floor`."""
    for change in changes:
        states = (change.record,) if change.previous is None else (change.record, change.previous)
        if not all(map(is_sound, states)):
            floor = max(floor, change.revision)
    return floor


KEEP_CHANGES: Final = 10_000
KEEP_BYTES: Final = 16 << 20
T = TypeVar("T")
_REVISION = attrgetter("revision")


class History:
    """Changes after `floor`, by resource; keeps `keep` changes, or KEEP_BYTES of them.

    A watch has no queue: it holds a revision, and asks for the changes after it. A slow reader costs nothing; once
    its history is dropped, it gets Kubernetes' 410 (Gone).
    """

    def __init__(self, floor: int, changes: Iterable[RecordChange], keep: int) -> None:
        self.floor, self._keep = floor, keep
        self._count = self._bytes = 0
        self._log: defaultdict[str, list[RecordChange]] = defaultdict(list)
        for change in changes:
            self.add(change)

    def add(self, change: RecordChange) -> None:
        """Add a change; changes come in the order of their revisions."""
        self._log[change.record.key.resource].append(change)
        self._count += 1
        self._bytes += len(change.record.value)

    def changes_since(self, resource: str, revision: int) -> list[RecordChange]:
        """Return a resource's changes after a revision. Raise CompactedError if some were dropped."""
        if revision < self.floor:
            raise CompactedError(revision, self.floor)
        log = self._log[resource]
        return log[bisect_right(log, revision, key=_REVISION) :]

    def undo_changes(self, records: dict[Key, Record], resource: str, revision: int) -> None:
        """Turn a resource's current records into those of an older revision."""
        for change in reversed(self.changes_since(resource, revision)):
            if change.previous is None:
                records.pop(change.record.key, None)
            else:
                records[change.record.key] = change.previous

    def excess_floor(self) -> int:
        """Return the floor up to which history should be dropped, 0 for none: at twice the kept amount."""
        over = max(self._count - self._keep, 0)
        if self._count <= 2 * self._keep and self._bytes <= 2 * KEEP_BYTES:
            return 0
        ordered = sorted((change for log in self._log.values() for change in log), key=_REVISION)
        size = self._bytes - sum(len(change.record.value) for change in ordered[:over])
        while size > KEEP_BYTES and over < len(ordered):
            size -= len(ordered[over].record.value)
            over += 1
        return ordered[over - 1].revision if over else 0

    def drop(self, floor: int) -> None:
        self.floor = max(self.floor, floor)
        for log in self._log.values():
            end = bisect_right(log, floor, key=_REVISION)
            self._count -= end
            self._bytes -= sum(len(change.record.value) for change in log[:end])
            del log[:end]


class Changed:
    """The resources, of some, that have changed since the last `take`."""

    def __init__(self, resources: Iterable[str]) -> None:
        self.resources, self._names, self._since = frozenset(resources), frozenset[str](), 0
        self._event = asyncio.Event()

    def note(self, resources: Iterable[str], since: int) -> None:
        """Record a change of resources after a revision."""
        if names := self.resources.intersection(resources):
            self._since = self._since if self._names else since
            self._names |= names
            self._event.set()

    def take(self) -> tuple[frozenset[str], int]:
        """Return the changed resources, and a revision before their changes."""
        names, self._names = self._names, frozenset()
        self._event.clear()
        return names, self._since

    async def wait(self) -> None:
        await self._event.wait()


class Visible:
    """Records with revisions, and their history, which has at most `keep` changes.

    Records that `is_sound` refuses are damaged.
    """

    def __init__(self, is_sound: Callable[[Record], bool] = is_object, *, keep: int = KEEP_CHANGES) -> None:
        self.revision = 0
        self._is_sound, self._keep = is_sound, keep
        self._moved: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._followers = WeakSet[Changed]()
        self._show_state((), (), 0, 0)

    def _show_state(
        self, records: Iterable[Record], changes: Iterable[RecordChange], floor: int, revision: int
    ) -> None:
        """Show a state with its history after `floor`; watches of the earlier state end."""
        self._records: defaultdict[str, dict[Key, Record]] = defaultdict(dict)
        self._damaged: dict[Key, Record] = {}
        for record in records:
            self._records[record.key.resource][record.key] = record
            if not self._is_sound(record):
                self._damaged[record.key] = record
        noted = tuple(changes)
        floor = find_sound_revision(noted, floor, self._is_sound)
        kept = (change for change in noted if change.revision > floor)
        self._history = History(floor, kept, self._keep)
        self._sorted: dict[str, list[Key]] = {}
        before, self.revision = self.revision, revision
        self._wake_watches({*self._moved, *(name for each in self._followers for name in each.resources)}, before)

    @property
    def floor(self) -> int:
        return self._history.floor

    def read(self, key: Key) -> Record | None:
        return self._records[key.resource].get(key)

    def scan(self, resource: str, *, at: int | None = None) -> Sequence[Record]:
        records = self._records[resource]
        if at is None or at == self.revision:
            if resource not in self._sorted:
                self._sorted[resource] = sorted(records)
            return [records[key] for key in self._sorted[resource]]
        if at > self.revision:
            raise FutureRevisionError(at, self.revision)
        old = dict(records)
        self._history.undo_changes(old, resource, at)
        return [old[key] for key in sorted(old)]

    def count(self, resource: str) -> int:
        return len(self._records[resource])

    def damaged(self, resource: str = "") -> Sequence[Record]:
        return [each for each in self._damaged.values() if resource in ("", each.key.resource)]

    def is_damaged(self, record: Record) -> bool:
        return self._damaged.get(record.key) is record

    async def wait_for_revision(self, revision: int) -> None:
        while self.revision < revision:
            await self._moved[""].wait()

    def changes(self, resource: str, since: int) -> Sequence[RecordChange]:
        if since > self.revision:
            raise FutureRevisionError(since, self.revision)
        return self._history.changes_since(resource, since)

    async def watch(self, resource: str, since: int) -> AsyncIterator[Sequence[RecordChange]]:
        while True:
            moved = self._moved[resource]
            batch = self.changes(resource, since)
            if batch:
                since = batch[-1].revision
                yield batch
            else:
                since = max(since, self.revision)
                await moved.wait()

    def follow(self, resources: Iterable[str]) -> Changed:
        changed = Changed(resources)
        self._followers.add(changed)
        return changed

    async def wait_for_change(self, resource: str) -> None:
        await self._moved[resource].wait()

    def _publish_changes(self, changes: Sequence[RecordChange], revision: int) -> None:
        """Make changes visible, and then the revision."""
        for change in changes:
            key = change.record.key
            records = self._records[key.resource]
            self._damaged.pop(key, None)
            if change.deleted or change.previous is None:
                self._sorted.pop(key.resource, None)
            if change.deleted:
                records.pop(key, None)
            else:
                records[key] = change.record
            self._history.add(change)
        before, self.revision = self.revision, revision
        self._wake_watches({change.record.key.resource for change in changes} | {""}, before)

    def _wake_watches(self, resources: Collection[str], since: int) -> None:
        for resource in resources:
            self._moved.pop(resource, asyncio.Event()).set()
        for each in tuple(self._followers):
            each.note(resources, since)


def set_result(future: "asyncio.Future[T]", result: T) -> None:
    """Set a future's result unless its caller has cancelled it."""
    if not future.done():
        future.set_result(result)


def set_error(future: "asyncio.Future[Any]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # the caller may no longer wait
