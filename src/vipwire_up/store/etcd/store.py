"""The store on etcd. Several processes write; each shows the state that one watch of the whole prefix tells it.

    submit ─▶ transaction at etcd, on mod revisions ─▶ watch ─▶ visible: readers, watches, and then the future

A write is acknowledged when a majority of etcd's members has it and this process shows it. It has no revision before:
so this process starts no second write of a key before the first is decided (`wait_until_decided`).

At start a process reads the state of some thousand revisions ago, and the changes since: so a client that was
connected to another API server can resume its watch.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any, Final

from vipwire.logging import log
from vipwire_up.store.etcd.client import CertificateError, Client
from vipwire_up.store.etcd.layout import Layout, build_change, encode_at_revision
from vipwire_up.store.etcd.transactions import Gathering, Transactions
from vipwire_up.store.record import (
    CompactedError,
    ConflictError,
    ForeignStoreError,
    Key,
    Record,
    RecordChange,
    Step,
    StoreError,
    StoreUnavailableError,
    UnknownOutcomeError,
    Write,
    is_object,
)
from vipwire_up.store.visible import KEEP_CHANGES, Visible, set_error, set_result

COMPACT_SECONDS: Final = 300.0
_REPLAYED: Final = 5000
_SHOWN_SECONDS: Final = 5.0
_LAG_SECONDS: Final = 1.0
_ELSEWHERE_SECONDS: Final = 0.25
"""Seconds to wait for a change before the watch is opened again, if calls already go to another member."""
_AGAIN_SECONDS: Final = 0.5
_HOME_SECONDS: Final = 2.0
_MEET_EVERY: Final = 5
"""On one of so many looks, also ask the other members for their cluster."""
_START_SECONDS: Final = 60.0
_UNSEEN: Final = 1000
"""Revisions that another server may have shown, and this one not, before etcd was restored."""
_PENDING: Final = -1
"""The revision of a record that is being written."""


class EtcdStore(Visible):
    """Objects with etcd's revisions. See `Store` for the contract. Call `open` first.

    `transactions` also has the owner of the prefix.
    """

    shared: Final = True
    expires: Final = True

    def __init__(
        self, client: Client, prefix: str, is_sound: Callable[[Record], bool] = is_object, *, keep: int = KEEP_CHANGES
    ) -> None:
        super().__init__(is_sound, keep=keep)
        self._client, self._layout = client, Layout(prefix)
        self.transactions = Transactions(client, self._layout)
        self._pending: dict[Key, tuple[RecordChange, asyncio.Event]] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._gathering = Gathering(self.transactions, self._start_task)
        self._asked: asyncio.Future[None] | None = None
        self._asking = asyncio.Lock()
        self._broken = self._foreign = ""
        self._reread = self._restored = False
        self._reading: asyncio.Task[StoreError | CompactedError | None] | None = None
        self._moving = False

    @property
    def trouble(self) -> str:
        return self._foreign or self._broken or self._client.trouble

    @property
    def note(self) -> str:
        return self._client.note

    async def open(self, patience: float = _START_SECONDS) -> None:
        """Read all objects. Wait for etcd, and log that; raise StoreError if it does not answer."""
        await self._client.check_certificates()
        end, told = asyncio.get_running_loop().time() + patience, False
        while True:
            try:
                await self._client.choose_member()
                await self._load_state(_REPLAYED)
            except (CertificateError, UnknownOutcomeError, StoreUnavailableError) as error:
                if isinstance(error, CertificateError) or asyncio.get_running_loop().time() >= end:
                    raise
                if not told:
                    log.warning("waiting for etcd", error=error)
                told = True
            else:
                return

    async def _ask_newest(self) -> tuple[int, int]:
        """Ask for the newest revisions. Raise and record ForeignStoreError if the prefix is not this cluster's."""
        try:
            found = await self.transactions.read_newest_revision()
        except ForeignStoreError as error:
            self._record_foreign(str(error))
            raise
        self._record_foreign("")
        return found

    def _record_foreign(self, foreign: str) -> None:
        before, self._foreign = self._foreign, foreign
        if foreign and not before:
            log.error("reads return old objects, and writes fail", error=foreign)
        elif before and not foreign:
            log.info("etcd's prefix belongs to this cluster again", prefix=self._layout.prefix)

    async def _load_state(self, replayed: int) -> None:
        marker, newest = await self._ask_newest()
        at = max(newest - replayed, 1)
        try:
            state = await self.transactions.read_state(at)
        except CompactedError:
            at = min(await self._oldest_history() or newest, newest)
            state = await self.transactions.read_state(at)
        records = [Record(key, revision, encode_at_revision(value, revision)) for key, revision, value in state]
        self._show_state(records, (), at, at)
        await self._replay_history(marker)

    async def _oldest_history(self) -> int:
        """Return etcd's compacted revision, which etcd reports to a watch from an older one; or 0."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START_SECONDS):
                async with contextlib.aclosing(self._client.watch(*self._layout.everything, 1)) as answers:
                    async for answer in answers:
                        if answer.canceled or answer.events:
                            return int(answer.compact_revision)
        return 0

    async def _replay_history(self, revision: int) -> None:
        if self.revision >= revision:
            return
        try:
            async with asyncio.timeout(_START_SECONDS), contextlib.aclosing(self._watch_prefix()) as answers:
                async for answer in answers:
                    self._publish_answer(answer)
                    if self.revision >= revision:
                        return
        except CompactedError:
            await self._load_state(0)
        except TimeoutError:
            raise StoreUnavailableError("etcd: the watch has missed changes") from None

    def _watch_prefix(self) -> AsyncGenerator[Any, None]:
        return self._client.watch(*self._layout.everything, self.revision + 1)

    def head(self, key: Key) -> Record | None:
        pending = self._pending.get(key)
        if pending is None:
            return self.read(key)
        return None if pending[0].deleted else pending[0].record

    async def wait_until_decided(self, key: Key) -> None:
        while (pending := self._pending.get(key)) is not None:
            await pending[1].wait()

    async def wait_for_newest(self) -> None:
        """Wait until all acknowledged writes are visible. Concurrent callers share one request."""
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_future()
            self._start_task(self._confirm_newest(self._asked))
        revision = self._asked
        await asyncio.shield(revision)

    async def _confirm_newest(self, answer: "asyncio.Future[None]") -> None:
        try:
            async with self._asking:
                self._asked = None  # a later caller may have seen writes after this request
                newest, _ = await self._ask_newest()
            await self._wait_until_shown(newest)
        except TimeoutError:
            set_error(answer, StoreUnavailableError("etcd: the watch lags behind"))
        except (StoreError, asyncio.CancelledError) as error:
            set_error(answer, error if isinstance(error, StoreError) else StoreError("the store is shutting down"))
        else:
            set_result(answer, None)

    def submit(self, steps: Iterable[Step]) -> "asyncio.Future[tuple[Record, ...]]":
        """Begin a transaction. Raise ConflictError at once for conflicts that are visible here."""
        listed = tuple(steps)
        for step in listed:
            found = self.read(step.key)
            actual = found.revision if found else 0
            if isinstance(step, Write) and step.key in self._pending:
                raise ConflictError(step.key, step.expected, _PENDING, self.revision)
            if actual != step.expected:
                raise ConflictError(step.key, step.expected, actual, self.revision)
        values = tuple(step.encode(0) for step in listed if isinstance(step, Write))
        done: asyncio.Future[tuple[Record, ...]] = asyncio.get_running_loop().create_future()
        decided = asyncio.Event()
        for step, value in zip((step for step in listed if isinstance(step, Write)), values, strict=True):
            record = Record(step.key, _PENDING, value)
            self._pending[step.key] = RecordChange(record, self.read(step.key), deleted=step.deletes), decided
        self._start_task(self._commit_transaction(listed, values, done, decided))
        return done

    async def write(self, *steps: Step) -> tuple[Record, ...]:
        return await asyncio.shield(self.submit(steps))

    async def _commit_transaction(
        self,
        steps: Sequence[Step],
        values: Sequence[bytes],
        done: "asyncio.Future[tuple[Record, ...]]",
        decided: asyncio.Event,
    ) -> None:
        writes = [step for step in steps if isinstance(step, Write)]
        try:
            revision = await self._make_transaction(steps, values)
            with contextlib.suppress(TimeoutError):  # the write succeeded, even if not visible here yet
                await self._wait_until_shown(revision)
        except asyncio.CancelledError:
            set_error(done, UnknownOutcomeError("the store is shutting down"))
            raise
        except Exception as error:  # noqa: BLE001  # the waiting callers get the error
            if isinstance(error, ForeignStoreError):
                self._record_foreign(str(error))
            set_error(done, error)
        else:
            made = zip(writes, values, strict=True)
            set_result(done, tuple(Record(w.key, revision, encode_at_revision(v, revision)) for w, v in made))
        finally:
            for write in writes:
                del self._pending[write.key]
            decided.set()

    async def _make_transaction(self, steps: Sequence[Step], values: Sequence[bytes]) -> int:
        """Make a transaction; return its revision, which no earlier transaction had."""
        shown = self.revision
        if self._restored:
            raise StoreUnavailableError("etcd was restored: reading all objects again")
        revision = await self._gathering.commit(steps, values)
        if revision <= shown:
            raise UnknownOutcomeError("etcd was restored during the change")
        return revision

    async def _wait_until_shown(self, revision: int) -> None:
        elsewhere = self._client.watched != self._client.server
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ELSEWHERE_SECONDS if elsewhere else _LAG_SECONDS):
                await self.wait_for_revision(revision)
        if self.revision < revision:
            if self._reading is not None:
                self._reading.cancel()
            async with asyncio.timeout(_SHOWN_SECONDS):
                await self.wait_for_revision(revision)

    async def compact(self, floor: int) -> None:
        """Delete history up to a revision, here and in etcd."""
        floor = min(floor, self.revision)
        self._history.drop(floor)
        _, known = await self.transactions.compact(floor, -1)
        await self.transactions.compact(floor, known)

    async def run(self) -> None:
        """Follow etcd until cancelled. Pending writes then have an unknown outcome."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                tasks.create_task(self._follow_etcd(tasks))
                tasks.create_task(self._compact_now_and_then())
                tasks.create_task(self._look_at_etcd_now_and_then())
        finally:
            self._tasks = None
            await self._client.close()

    def _start_task(self, work: Any) -> None:
        if self._tasks is None:
            work.close()
            raise StoreError("the store does not run")
        self._tasks.create_task(work)

    async def _follow_etcd(self, tasks: asyncio.TaskGroup) -> None:
        """Publish the watch's changes; begin again, with another member, whenever it breaks."""
        while True:
            self._reading = tasks.create_task(self._read_watch())
            await asyncio.wait((self._reading,))
            error = None if self._reading.cancelled() else self._reading.result()
            moving, self._moving = self._moving, False
            if moving and error is None:
                continue
            if isinstance(error, CompactedError):
                log.warning("etcd has compacted unread changes; reading all objects again")
                await self._report_success(self._load_state(0))
            elif str(error or "") != self._broken:
                log.warning("the watch of etcd broke; opening a new one", error=error or "the watch lagged behind")
                self._broken = str(error or "")
            await asyncio.sleep(0.1)
            while not await self._report_success(self._reload_state()):  # noqa: ASYNC110  # etcd does not report its return
                await asyncio.sleep(_AGAIN_SECONDS)

    async def _read_watch(self) -> StoreError | CompactedError | None:
        """Publish the watch's changes until it breaks; return why."""
        try:
            async with contextlib.aclosing(self._watch_prefix()) as answers:
                async for answer in answers:
                    self._broken = ""
                    self._publish_answer(answer)
        except (StoreError, CompactedError) as error:
            return error
        return None

    async def _report_success(self, work: Any) -> bool:
        """Await `work`; keep the text of its error; report success."""
        try:
            await work
        except StoreError as error:
            self._broken = str(error)
            return False
        return True

    async def _reload_state(self) -> None:
        """If etcd was restored, read all objects again, at a revision beyond all that any server has shown."""
        _, revision = await self._ask_newest()
        if self._reread or revision < self.revision:
            self._reread = self._restored = True
            log.error("etcd has an older revision: etcd was restored", seen=self.revision, now=revision)
            await self.transactions.continue_after(self.revision + _UNSEEN)
            await self.transactions.void_history()
            await self._load_state(0)
            self._reread = self._restored = False

    def _publish_answer(self, answer: Any) -> None:
        """Publish the changes of a watch's answer. Raise CompactedError, or StoreError if it was cancelled."""
        if answer.canceled:
            if answer.compact_revision:
                raise CompactedError(self.revision, answer.compact_revision)
            raise StoreUnavailableError(f"etcd: the watch was cancelled: {answer.cancel_reason}")
        if not answer.events:
            return
        self._check_notes(answer.events)
        changes, latest = list[RecordChange](), dict[Key, Record | None]()
        for event in answer.events:
            key = self._layout.parse_key(event.kv.key)
            if key is None or event.kv.mod_revision <= self.revision:
                continue
            previous = latest[key] if key in latest else self.read(key)
            if (change := build_change(key, event, previous)) is not None:
                changes.append(change)
                latest[key] = None if change.deleted else change.record
        self._publish_changes(changes, max(self.revision, answer.events[-1].kv.mod_revision))
        for change in changes:
            if not change.deleted and not self._is_sound(change.record):
                self._damaged[change.record.key] = change.record
                self._history.drop(change.revision)  # watching clients list again, without it
        if floor := self._history.excess_floor():
            self._history.drop(floor)

    def _check_notes(self, events: Iterable[Any]) -> None:
        """Raise ForeignStoreError if the prefix's owner changes, CompactedError if another server found a restore."""
        for event in events:
            if event.kv.key == self._layout.restored:
                raise CompactedError(self.revision, event.kv.mod_revision)
            if event.kv.key == self._layout.cluster and event.kv.value != self.transactions.owner != b"":
                self._reread = True  # all objects may disappear with the owner
                raise ForeignStoreError(
                    f"etcd's prefix {self._layout.prefix} is empty, or belongs to another cluster"
                )

    async def _compact_now_and_then(self) -> None:
        """Compact etcd to the revision of one interval ago, as kube-apiserver does; one process at a time does."""
        known, before = 0, self.revision
        while True:
            await asyncio.sleep(COMPACT_SECONDS)
            with contextlib.suppress(StoreError, CompactedError):
                if before:
                    _, known = await self.transactions.compact(before, known)
            before = self.revision

    async def _look_at_etcd_now_and_then(self) -> None:
        """Check that etcd is still this cluster's; return to the member of this machine, with the watch as well."""
        for number in itertools.count(1):
            await asyncio.sleep(_HOME_SECONDS)
            if await self._client.switch_to_own_member() and self._reading is not None:
                self._moving = self._reading.cancel()
            with contextlib.suppress(StoreError):
                is_due = self._client.trouble or number % _MEET_EVERY == 0
                if is_due and await self._client.choose_member(self.transactions.owner):
                    self._reread = True
                    if self._reading is not None:
                        self._reading.cancel()
                await self._ask_newest()
