"""The store: what is written is read, in order, after a restart, and not at all when it was refused."""

import asyncio
import contextlib
import json
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from tests.up.unit.cluster_here import running

from vipwire_up.store.backup import SKIPPED, back_up_store, restore_store
from vipwire_up.store.database import FILE_NAME, Database
from vipwire_up.store.embedded import EmbeddedStore
from vipwire_up.store.record import (
    CompactedError,
    ConflictError,
    Key,
    Record,
    RecordChange,
    StoreError,
    StoreFullError,
    Write,
)


def key(name: str, resource: str = "things") -> Key:
    return Key(resource, "default", name)


def value(name: str, text: str) -> bytes:
    """Make an object: what is none would be put aside at the next start."""
    return json.dumps({"metadata": {"name": name, "namespace": "default"}, "text": text}).encode()


def put(name: str, text: str = "", expected: int = 0) -> Write:
    return Write(key(name), lambda revision: value(name, f"{text}@{revision}"), expected)


def remove(name: str, expected: int) -> Write:
    return Write(key(name), lambda revision: value(name, f"last@{revision}"), expected, deletes=True)


def values(records: object) -> list[str]:
    return [json.loads(record.value)["text"] for record in records]  # type: ignore[attr-defined]


def opened(folder: Path, keep: int = 100) -> EmbeddedStore:
    return EmbeddedStore(Database(folder), keep=keep)


async def test_writes_that_wait_are_seen_by_later_ones_but_not_by_readers(tmp_path: Path) -> None:
    async with running(opened(tmp_path)) as store:
        waiting = store.submit([put("a")])
        assert store.read(key("a")) is None
        assert store.head(key("a")) == Record(key("a"), 1, value("a", "@1"))
        with pytest.raises(ConflictError):
            store.submit([put("a")])
        changed = store.submit([put("a", "new", expected=1)])
        await waiting
        await changed
        assert values(store.scan("things")) == ["new@2"]


async def test_a_revision_is_not_used_again_after_the_last_objects_deletion_and_compaction(tmp_path: Path) -> None:
    async with running(opened(tmp_path)) as store:
        await store.write(put("a"))
        await store.write(remove("a", 1))
        await store.compact(2)
    async with running(opened(tmp_path)) as again:
        assert (again.revision, again.floor) == (2, 2)
        (record,) = await again.write(put("a"))
        assert record.revision == 3


async def test_history_is_bounded_and_compaction_keeps_what_later_changes_came_from(tmp_path: Path) -> None:
    async with running(opened(tmp_path, keep=10)) as store:
        await store.write(put("old"))
        for number in range(50):
            await store.write(put("a", str(number), store.revision if number else 0))
        assert store.floor >= 51 - 2 * 10
        floor = store.floor
    async with running(opened(tmp_path, keep=10)) as again:
        assert again.floor == floor
        assert [change.revision for change in again.changes("things", floor)] == list(range(floor + 1, 52))
        assert all(change.previous for change in again.changes("things", floor))
        assert values(again.scan("things")) == ["49@51", "@1"]
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as file:
        assert file.execute("SELECT count(*) FROM changes").fetchone()[0] <= 2 * 10 + 2


async def test_a_full_disk_refuses_what_was_built_on_the_refused_too_and_keeps_the_rest(tmp_path: Path) -> None:
    async with running(EmbeddedStore(Database(tmp_path, limit=80 << 10))) as store:
        await store.write(put("small"))
        large = Write(key("large"), lambda _: b"x" * (200 << 10), 0)
        failing = store.submit([large])
        built_on_it = store.submit([put("large", "smaller", 2), put("other")])
        for refused in (failing, built_on_it):
            with pytest.raises(StoreError, match=r"store\.db: no space left"):
                await refused
        assert store.revision == 1
        assert store.head(key("large")) is None
        (after,) = await store.write(put("after"))
        assert after.revision == 2
    async with running(opened(tmp_path)) as again:
        assert values(again.scan("things")) == ["@2", "@1"]


async def test_a_full_file_forgets_the_past_before_it_refuses_and_can_be_emptied(tmp_path: Path) -> None:
    text = "x" * 4000
    async with running(EmbeddedStore(Database(tmp_path, limit=80 << 10))) as store:
        for revision in range(100):  # of which the file could hold a quarter
            await store.write(put("a", text, revision))
        assert len(store.changes("things", 0)) == 100
        names = [f"b{number}" for number in range(50)]
        with pytest.raises(StoreError, match="no space left"):
            await asyncio.gather(*(store.write(put(name, text)) for name in names))
        with contextlib.suppress(StoreError):
            for name in names:
                await store.write(put(name, text))
        count = store.count("things")
        assert 10 < count < 30
        for name in names[:3]:
            found = store.read(key(name))
            assert found is not None
            await store.write(Write(key(name), lambda _: text.encode(), found.revision, deletes=True))
        await store.write(put("c", text))
    async with running(opened(tmp_path)) as again:
        assert len(again.scan("things")) == count - 2
        assert again.floor >= 100
        with pytest.raises(CompactedError):
            again.changes("things", 99)


class SlowDatabase(Database):
    """A database whose disk takes its time."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.begun, self.go_on = threading.Event(), threading.Event()

    def append(self, changes: Sequence[RecordChange], *, beyond: bool = False) -> None:
        self.begun.set()
        assert self.go_on.wait(60)
        super().append(changes, beyond=beyond)


async def test_who_is_cancelled_twice_does_not_close_the_file_under_a_transaction(tmp_path: Path) -> None:
    database = SlowDatabase(tmp_path)
    store = EmbeddedStore(database)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(store.run())
        store.submit([put("a")])
        await asyncio.to_thread(database.begun.wait)
        threading.Timer(0.1, database.go_on.set).start()  # by then it is cancelled
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
    with closing(Database(tmp_path)) as again:
        assert values(again.load().records) == ["@1"]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    first = Database(tmp_path)
    with pytest.raises(StoreError, match="in use by another vipwire"):
        Database(tmp_path)
    first.close()
    Database(tmp_path).close()


def _garbage(path: Path) -> None:
    path.write_bytes(b"no database" * 1000)


def _hole(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096 * 2 : 4096 * 3] = bytes(4096)
    path.write_bytes(content)


def _foreign(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE something (else_ TEXT)")


def _newer(path: Path) -> None:
    with closing(sqlite3.connect(path)) as file:
        file.execute("PRAGMA user_version = 9")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_garbage, "not a database; restore a backup"),
        (_hole, "damaged"),
        (_foreign, "not a store of vipwire"),
        (_newer, "format 9; this vipwire reads format 1"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_and_left_alone(
    tmp_path: Path, spoil: Callable[[Path], None], message: str
) -> None:
    _filled(tmp_path, 20)
    path = tmp_path / FILE_NAME
    spoil(path)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=message) as refused:
        Database(tmp_path)
    assert str(path) in str(refused.value)
    assert path.read_bytes() == before


def _filled(folder: Path, count: int) -> None:
    async def fill() -> None:
        async with running(opened(folder)) as store:
            await store.write(*(put(f"n{number}", "x" * 1000) for number in range(count)))

    asyncio.run(fill())


def test_text_that_is_no_text_any_more_is_damage(tmp_path: Path) -> None:
    _filled(tmp_path, 20)
    path = tmp_path / FILE_NAME
    path.write_bytes(path.read_bytes().replace(b"things", b"\xffhings"))
    with closing(Database(tmp_path)) as database, pytest.raises(StoreError, match="damaged; restore a backup"):
        database.load()


def test_a_backup_of_a_store_in_use_is_restored_elsewhere_and_over_a_damaged_one(tmp_path: Path) -> None:
    here, copy = tmp_path / "here", tmp_path / "copy.db"

    async def scenario() -> None:
        async with running(opened(here)) as store:
            await store.write(put("a"))
            assert await asyncio.to_thread(back_up_store, here, copy) == 1
            await store.write(put("b"))

    asyncio.run(scenario())
    _garbage(here / FILE_NAME)
    assert restore_store(here, copy) == 1 + SKIPPED
    assert (here / "store.db.old").read_bytes().startswith(b"no database")

    async def after() -> None:
        async with running(opened(here)) as store:
            assert values(store.scan("things")) == ["@1"]
            (record,) = await store.write(put("c"))
            assert record.revision == 2 + SKIPPED

    asyncio.run(after())


def test_backup_and_restore_refuse_what_would_lose_something(tmp_path: Path) -> None:
    here, copy = tmp_path / "here", tmp_path / "copy.db"
    with pytest.raises(StoreError, match="no such store"):
        back_up_store(here, copy)
    _filled(here, 3)
    back_up_store(here, copy)
    with pytest.raises(StoreError, match="does not overwrite"):
        back_up_store(here, copy)
    in_use = Database(here)
    with pytest.raises(StoreError, match="in use"):
        restore_store(here, copy)
    in_use.close()
    before = (here / FILE_NAME).read_bytes()
    with pytest.raises(StoreError, match="no such backup"):
        restore_store(here, tmp_path / "none.db")
    _garbage(copy)
    with pytest.raises(StoreError, match=r"copy\.db: not a database; take another backup"):
        restore_store(here, copy)
    with pytest.raises(StoreError, match="cannot be written"):
        back_up_store(here, tmp_path / "no such folder" / "copy.db")
    assert (here / FILE_NAME).read_bytes() == before
    assert not list(tmp_path.rglob("*.part"))


def _on_disk(folder: Path) -> tuple[int, int]:
    """Return the bytes of the file and of its log."""
    file, log = (folder / f"{FILE_NAME}{suffix}" for suffix in ("", "-wal"))
    return file.stat().st_size, log.stat().st_size


@pytest.mark.parametrize("limit", [0, 4 << 20])
async def test_the_log_shrinks_again_and_counts(tmp_path: Path, limit: int) -> None:
    """A reader, such as a backup, keeps SQLite from writing the log into the file."""
    big = "x" * 20_000
    async with running(EmbeddedStore(Database(tmp_path, limit=limit), keep=10)) as store:
        (made,) = await store.write(put("one", big))
        largest = 0
        with closing(sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM changes").fetchone()
            for _ in range(400):
                with contextlib.suppress(StoreFullError):
                    (made,) = await store.write(put("one", big, made.revision))
                largest = max(largest, sum(_on_disk(tmp_path)))
        assert largest <= limit + (1 << 19) if limit else largest > 8 << 20, largest
        for _ in range(60):
            (made,) = await store.write(put("one", big, made.revision))
        assert _on_disk(tmp_path)[1] <= (limit // 8 or 4 << 20) + (1 << 19), _on_disk(tmp_path)
        assert not limit or sum(_on_disk(tmp_path)) <= limit + (1 << 19), _on_disk(tmp_path)
