"""The store: reads from memory, writes through the disk, and watches. One event loop uses it.

A write is checked and numbered at once, against everything that was submitted before it; it is *visible* and
acknowledged when the disk has it. While one transaction is on its way to the disk, the next writes gather, and go
together in one commit: that is what makes a thousand small writes a second out of a disk that syncs in milliseconds.

    submit ─▶ head (what later writes are checked against) ─▶ commit, in a thread ─▶ visible: readers, watches, future

When a commit fails, the disk holds what it held: the writes of that batch and all that were built on them fail, and
head becomes what is visible again. Where there is no space, the file first forgets its past.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from vipwire.cluster.store.damage import is_object, sound_after
from vipwire.cluster.store.database import Database
from vipwire.cluster.store.history import History
from vipwire.cluster.store.record import (
    ConflictError,
    FullError,
    FutureRevisionError,
    Key,
    Record,
    RecordChange,
    StoreError,
    Write,
)

KEEP_CHANGES: Final = 10_000
KEEP_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class _Submission:
    changes: tuple[RecordChange, ...]
    done: "asyncio.Future[tuple[Record, ...]]"


class Store:
    """Objects with revisions. `run` must be running for writes to be answered.

    What the file holds and `is_sound` refuses is damaged.
    """

    def __init__(
        self,
        database: Database,
        is_sound: Callable[[Record], bool] = is_object,
        *,
        keep: int = KEEP_CHANGES,
        keep_bytes: int = KEEP_BYTES,
    ) -> None:
        contents = database.load()
        self.revision = contents.revision
        self._database = database
        self._records: defaultdict[str, dict[Key, Record]] = defaultdict(dict)
        for record in contents.records:
            self._records[record.key.resource][record.key] = record
        self._damaged = {record.key: record for record in contents.records if not is_sound(record)}
        floor = sound_after(contents.changes, contents.floor, is_sound)
        changes = (change for change in contents.changes if change.revision > floor)
        self._history = History(floor, changes, keep=keep, keep_bytes=keep_bytes)
        self._sorted: dict[str, list[Key]] = {}
        self._head: dict[Key, RecordChange] = {}
        self._head_revision = self.revision
        self._forgotten = 0
        self._waiting: list[_Submission] = []
        self._submitted = asyncio.Event()
        self._moved: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    @property
    def floor(self) -> int:
        """The revision that history starts after."""
        return self._history.floor

    def read(self, key: Key) -> Record | None:
        """Read an object as the disk has it."""
        return self._records[key.resource].get(key)

    def head(self, key: Key) -> Record | None:
        """Read an object as it will be when all that was submitted is on the disk: what a new write builds on."""
        change = self._head.get(key)
        if change is None:
            return self.read(key)
        return None if change.deleted else change.record

    def scan(self, resource: str, *, at: int | None = None) -> Sequence[Record]:
        """List a resource, ordered by namespace and name: now, or as it was at a revision.

        Raise CompactedError for one that is too old, FutureRevisionError for one that is not reached.
        """
        records = self._records[resource]
        if at is None or at == self.revision:
            if resource not in self._sorted:
                self._sorted[resource] = sorted(records)
            return [records[key] for key in self._sorted[resource]]
        if at > self.revision:
            raise FutureRevisionError(at, self.revision)
        old = dict(records)
        self._history.undo(old, resource, at)
        return [old[key] for key in sorted(old)]

    def count(self, resource: str) -> int:
        """Count the objects of a resource."""
        return len(self._records[resource])

    def damaged(self, resource: str = "") -> Sequence[Record]:
        """List the records that are no objects: of a resource, or all."""
        return [each for each in self._damaged.values() if resource in ("", each.key.resource)]

    def is_damaged(self, record: Record) -> bool:
        """Tell whether a record is no object."""
        return self._damaged.get(record.key) is record

    async def until(self, revision: int) -> None:
        """Wait until a revision is visible."""
        while self.revision < revision:
            await self._moved[""].wait()

    def changes(self, resource: str, since: int) -> Sequence[RecordChange]:
        """List the changes of a resource after a revision, oldest first. Raise as `scan`."""
        if since > self.revision:
            raise FutureRevisionError(since, self.revision)
        return self._history.since(resource, since)

    async def watch(self, resource: str, since: int) -> AsyncIterator[Sequence[RecordChange]]:
        """Follow a resource from a revision, in batches, without end. Raise CompactedError when it falls behind."""
        while True:
            moved = self._moved[resource]
            batch = self.changes(resource, since)
            if batch:
                since = batch[-1].revision
                yield batch
            else:
                since = max(since, self.revision)
                await moved.wait()

    async def moved(self, resource: str) -> None:
        """Wait for the next change of a resource."""
        await self._moved[resource].wait()

    def submit(self, writes: Iterable[Write]) -> "asyncio.Future[tuple[Record, ...]]":
        """Check and number writes, which are made together or not at all; the future is done when they are durable.

        Raise ConflictError at once if one finds its key in another state than it expects. The future raises
        StoreError if the disk does not take them.
        """
        revision, changes, seen = self._head_revision, [], dict[Key, RecordChange]()
        for write in writes:
            earlier = seen.get(write.key)
            previous = self.head(write.key) if earlier is None else None if earlier.deleted else earlier.record
            actual = previous.revision if previous else 0
            if actual != write.expected:
                raise ConflictError(write.key, write.expected, actual)
            revision += 1
            record = Record(write.key, revision, write.encode(revision))
            seen[write.key] = RecordChange(record, previous, deleted=write.deletes)
            changes.append(seen[write.key])
        self._head_revision = revision
        self._head.update(seen)
        done: asyncio.Future[tuple[Record, ...]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Submission(tuple(changes), done))
        self._submitted.set()
        return done

    async def write(self, *writes: Write) -> tuple[Record, ...]:
        """Submit writes and wait until they are durable. A caller that is cancelled does not take them back."""
        return await asyncio.shield(self.submit(writes))

    async def run(self) -> None:
        """Commit what is submitted, until cancelled; then finish what has begun and close the file.

        The thread is waited for, even by who is cancelled twice: a file is not closed under a transaction.
        """
        try:
            with ThreadPoolExecutor(1, thread_name_prefix="store") as disk:
                while True:
                    await self._submitted.wait()
                    await self._commit(disk)
                    await self._compact(disk)
        finally:
            self._fail(self._take(), StoreError("the store is shutting down"))
            self._database.close()

    def _take(self) -> list[_Submission]:
        batch, self._waiting = self._waiting, []
        self._submitted.clear()
        return batch

    async def _commit(self, disk: ThreadPoolExecutor) -> None:
        batch = self._take()
        changes = [change for submission in batch for change in submission.changes]
        work = asyncio.get_running_loop().run_in_executor(disk, self._append, changes, self.revision)
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait([work])
            self._settle(batch, changes, work.exception())
            raise
        except StoreError as error:
            self._settle(batch, changes, error)
        else:
            self._settle(batch, changes, None)

    def _append(self, changes: list[RecordChange], visible: int) -> None:
        """Commit changes, in the thread. If there is no space, drop the history before `visible` from the file.

        What fills a store can be deleted in any case, even though a deletion is first written down itself. Watches go
        on from memory; after a restart they list again.
        """
        with contextlib.suppress(FullError):
            self._database.append(changes)
            return
        if visible != self._forgotten:
            self._database.compact(visible)
            self._forgotten = visible
        self._database.append(changes, beyond=all(change.deleted for change in changes))

    def _settle(self, batch: list[_Submission], changes: list[RecordChange], error: BaseException | None) -> None:
        if error is None:
            self._publish(changes)
            for submission in batch:
                if not submission.done.done():
                    submission.done.set_result(tuple(change.record for change in submission.changes))
            return
        self._fail([*batch, *self._take()], error)
        self._head.clear()
        self._head_revision = self.revision

    def _fail(self, batch: list[_Submission], error: BaseException) -> None:
        for submission in batch:
            if not submission.done.done():
                submission.done.set_exception(error)
                submission.done.exception()  # nobody need be waiting any more

    def _publish(self, changes: list[RecordChange]) -> None:
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
            if self._head.get(key) is change:
                del self._head[key]
        self.revision = changes[-1].revision if changes else self.revision
        for resource in {change.record.key.resource for change in changes} | {""}:
            self._moved.pop(resource, asyncio.Event()).set()

    async def _compact(self, disk: ThreadPoolExecutor) -> None:
        if floor := self._history.excess():
            with contextlib.suppress(StoreError):  # a full disk: rows that are left over go with the next compaction
                await self.compact(floor, disk)

    async def compact(self, floor: int, disk: ThreadPoolExecutor | None = None) -> None:
        """Forget history up to a revision: who still needs it is told so by CompactedError."""
        floor = min(floor, self.revision)
        if floor <= self._history.floor:
            return
        self._history.drop(floor)
        await asyncio.get_running_loop().run_in_executor(disk, self._database.compact, floor)
