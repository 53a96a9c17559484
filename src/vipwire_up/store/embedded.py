"""The embedded store: writes go to SQLite's file, in the data directory of one process. One event loop uses it.

A write is checked and numbered at once, against all writes submitted before it; it is *visible* and acknowledged when
it is on disk. While one transaction is on its way to the disk, the next writes gather and share one commit: so a disk
that syncs in milliseconds takes a thousand small writes a second.

    submit ─▶ head (what later writes are checked against) ─▶ commit, in a thread ─▶ visible: readers, watches, future

When a commit fails, the disk keeps its state: the writes of that batch and all later ones fail, and head becomes the
visible state again. If the disk is full, the file first deletes its history.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from vipwire_up.store.database import Database
from vipwire_up.store.record import (
    Check,
    ConflictError,
    Key,
    Record,
    RecordChange,
    Step,
    StoreError,
    StoreFullError,
    is_object,
)
from vipwire_up.store.visible import KEEP_CHANGES, Visible, set_error, set_result


@dataclass(frozen=True, slots=True)
class _Submission:
    changes: tuple[RecordChange, ...]
    done: "asyncio.Future[tuple[Record, ...]]"


class EmbeddedStore(Visible):
    """Objects with revisions, without gaps from 1. See `Store` for the contract.

    Records that `is_sound` refuses are damaged.
    """

    shared: Final = False
    expires: Final = False
    trouble: Final = ""
    note: Final = ""

    def __init__(
        self, database: Database, is_sound: Callable[[Record], bool] = is_object, *, keep: int = KEEP_CHANGES
    ) -> None:
        super().__init__(is_sound, keep=keep)
        contents = database.load()
        self._database = database
        self._show_state(contents.records, contents.changes, contents.floor, contents.revision)
        self._head: dict[Key, RecordChange] = {}
        self._head_revision = self.revision
        self._forgotten = 0
        self._waiting: list[_Submission] = []
        self._submitted = asyncio.Event()

    def head(self, key: Key) -> Record | None:
        change = self._head.get(key)
        if change is None:
            return self.read(key)
        return None if change.deleted else change.record

    async def wait_for_newest(self) -> None:
        """Return at once: no other process writes."""

    async def wait_until_decided(self, key: Key) -> None:
        """Return at once: a new write starts from submitted ones."""

    def submit(self, steps: Iterable[Step]) -> "asyncio.Future[tuple[Record, ...]]":
        """Check and number writes, committed together or not at all; the future is done when they are durable.

        Raise ConflictError at once if a key is in another state than a write expects.
        """
        revision, changes, seen = self._head_revision, [], dict[Key, RecordChange]()
        for step in steps:
            earlier = seen.get(step.key)
            previous = self.head(step.key) if earlier is None else None if earlier.deleted else earlier.record
            actual = previous.revision if previous else 0
            if actual != step.expected:
                raise ConflictError(step.key, step.expected, actual)
            if isinstance(step, Check):
                continue
            revision += 1
            record = Record(step.key, revision, step.encode(revision))
            seen[step.key] = RecordChange(record, previous, deleted=step.deletes)
            changes.append(seen[step.key])
        self._head_revision = revision
        self._head.update(seen)
        done: asyncio.Future[tuple[Record, ...]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Submission(tuple(changes), done))
        self._submitted.set()
        return done

    async def write(self, *steps: Step) -> tuple[Record, ...]:
        return await asyncio.shield(self.submit(steps))

    async def run(self) -> None:
        """Commit submitted writes until cancelled; then finish the current ones and close the file.

        It waits for the thread even if cancelled twice: the file must not be closed under a transaction.
        """
        try:
            with ThreadPoolExecutor(1, thread_name_prefix="store") as disk:
                while True:
                    await self._submitted.wait()
                    await self._commit_batch(disk)
                    await self._compact_excess(disk)
        finally:
            for each in self._take_batch():
                set_error(each.done, StoreError("the store is shutting down"))
            self._database.close()

    def _take_batch(self) -> list[_Submission]:
        batch, self._waiting = self._waiting, []
        self._submitted.clear()
        return batch

    async def _commit_batch(self, disk: ThreadPoolExecutor) -> None:
        batch = self._take_batch()
        changes = [change for submission in batch for change in submission.changes]
        work = asyncio.get_running_loop().run_in_executor(disk, self._write_changes, changes, self.revision)
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait([work])
            self._complete_batch(batch, changes, work.exception())
            raise
        except StoreError as error:
            self._complete_batch(batch, changes, error)
        else:
            self._complete_batch(batch, changes, None)

    def _write_changes(self, changes: list[RecordChange], visible: int) -> None:
        """Commit changes, in the thread. If there is no space, drop the history before `visible` from the file.

        Deletions must work on a full disk, although they also write first. Watches go on from memory; after a restart
        clients list again.
        """
        with contextlib.suppress(StoreFullError):
            self._database.append(changes)
            return
        if visible != self._forgotten:
            self._database.compact(visible)
            self._forgotten = visible
        self._database.append(changes, beyond=all(change.deleted for change in changes))

    def _complete_batch(
        self, batch: list[_Submission], changes: list[RecordChange], error: BaseException | None
    ) -> None:
        if error is None:
            self._publish_changes(changes, changes[-1].revision if changes else self.revision)
            for change in changes:
                if self._head.get(change.record.key) is change:
                    del self._head[change.record.key]
            for submission in batch:
                set_result(submission.done, tuple(change.record for change in submission.changes))
            return
        for submission in (*batch, *self._take_batch()):
            set_error(submission.done, error)
        self._head.clear()
        self._head_revision = self.revision

    async def _compact_excess(self, disk: ThreadPoolExecutor) -> None:
        if floor := self._history.excess_floor():
            with contextlib.suppress(StoreError):  # a full disk: the next compaction deletes the remaining rows
                await self.compact(floor, disk)

    async def compact(self, floor: int, disk: ThreadPoolExecutor | None = None) -> None:
        floor = min(floor, self.revision)
        if floor <= self._history.floor:
            return
        self._history.drop(floor)
        await asyncio.get_running_loop().run_in_executor(disk, self._database.compact, floor)
