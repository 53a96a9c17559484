"""A restore that is interrupted leaves the old store or the new one, or says so; an empty file is neither."""

import asyncio
import contextlib
import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.up.unit.cluster_here import running

from vipwire_up.store.backup import SKIPPED, back_up_store, restore_store
from vipwire_up.store.database import FILE_NAME, Database
from vipwire_up.store.embedded import EmbeddedStore
from vipwire_up.store.record import CompactedError, Key, StoreError, Write

pytestmark = pytest.mark.slow

OLD, NEW = 5, 2


class KilledError(BaseException):
    """What a process does not survive."""


def filled(folder: Path, count: int) -> None:
    """Fill a store, whose last changes are in its log only, as a process leaves it that is killed."""

    async def fill(here: Path) -> None:
        async with running(EmbeddedStore(Database(here))) as store:
            for number in range(count):
                key = Key("things", "default", f"n{number}")
                await store.write(Write(key, lambda revision: b"@%d" % revision, 0))
            shutil.copytree(here, folder, ignore=shutil.ignore_patterns("*-shm", "*.lock"))

    work = folder.with_name(f"{folder.name}.work")
    asyncio.run(fill(work))
    assert (folder / f"{FILE_NAME}-wal").stat().st_size > 0


def revision(folder: Path) -> int:
    """Open a store and tell how far it has come."""
    database = Database(folder)
    try:
        return database.load().revision
    finally:
        database.close()


def tried(folder: Path) -> int | str:
    """Open a store; tell how far it has come, or what to do."""
    try:
        return revision(folder)
    except StoreError as error:
        return str(error).partition("; ")[2].partition(" with")[0]


def whole(_: Path) -> None:
    """Leave a store as it is."""


def damaged(folder: Path) -> None:
    """Damage a store so that its log cannot be folded in."""
    (folder / FILE_NAME).write_bytes(b"no database" * 1000)


def killed_at(monkeypatch: pytest.MonkeyPatch, step: int) -> Callable[[], bool]:
    """Have the process die at one of its steps on the disk; give whether it was reached."""
    count = itertools.count()
    reached = False

    def counted(action: Callable[..., Any]) -> Callable[..., Any]:
        def act(*arguments: Any, **options: Any) -> Any:
            nonlocal reached
            if next(count) == step:
                reached = True
                raise KilledError
            return action(*arguments, **options)

        return act

    for name in ("rename", "link", "unlink", "fsync"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    return lambda: reached


@pytest.mark.parametrize("spoil", [whole, damaged])
def test_a_restore_can_be_killed_at_any_step(
    tmp_path: Path, spoil: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy.db"
    filled(tmp_path / "new", NEW)
    back_up_store(tmp_path / "new", copy)
    filled(tmp_path / "old", OLD)
    spoil(tmp_path / "old")
    for step in itertools.count():
        folder = tmp_path / f"step{step}"
        shutil.copytree(tmp_path / "old", folder)
        with monkeypatch.context() as patched:
            reached = killed_at(patched, step)
            with contextlib.suppress(KilledError):
                restore_store(folder, copy)
        restored = NEW + SKIPPED
        assert tried(folder) in ((OLD, restored) if spoil is whole else (restored, "restore a backup")), step
        restore_store(folder, copy)
        assert revision(folder) in (restored, restored + 1)
        assert (folder / "store.db.old").exists()
        if not reached():
            assert step > 8
            return


def test_what_a_restore_has_replaced_is_whole(tmp_path: Path) -> None:
    copy, kept = tmp_path / "copy.db", tmp_path / "kept"
    filled(tmp_path / "new", NEW)
    back_up_store(tmp_path / "new", copy)
    filled(tmp_path / "old", OLD)
    assert restore_store(tmp_path / "old", copy) == NEW + SKIPPED
    kept.mkdir()
    shutil.copy(tmp_path / "old" / "store.db.old", kept / FILE_NAME)
    assert revision(kept) == OLD


@pytest.mark.parametrize("times", [1, 3])
async def test_a_restored_store_never_uses_a_revision_twice(tmp_path: Path, times: int) -> None:
    copy, known = tmp_path / "copy.db", set[int]()
    await asyncio.to_thread(filled, tmp_path / "here", NEW)
    back_up_store(tmp_path / "here", copy)
    for attempt in range(times):
        async with running(EmbeddedStore(Database(tmp_path / "here"))) as store:
            for number in range(OLD):
                key = Key("things", "default", f"later{attempt}-{number}")
                (record,) = await store.write(Write(key, lambda revision: b"@%d" % revision, 0))
                assert record.revision not in known
                known.add(record.revision)
        floor = restore_store(tmp_path / "here", copy)
        assert floor > max(known)
        async with running(EmbeddedStore(Database(tmp_path / "here"))) as store:
            assert (store.revision, store.floor, store.count("things")) == (floor, floor, NEW)
            for since in (NEW, *known):
                with pytest.raises(CompactedError):
                    store.changes("things", since)
                with pytest.raises(CompactedError):
                    store.scan("things", at=since)


def test_a_store_without_content_does_not_begin_anew(tmp_path: Path) -> None:
    filled(tmp_path / "here", OLD)
    path = tmp_path / "here" / FILE_NAME
    path.write_bytes(b"")
    with pytest.raises(StoreError, match="is empty, and its objects are lost; restore a backup with"):
        Database(tmp_path / "here")
    assert path.read_bytes() == b""
    path.unlink()
    with pytest.raises(StoreError, match=r"is missing, but store\.db-wal is there; restore a backup with"):
        Database(tmp_path / "here")


def test_a_first_start_that_is_killed_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(4):
        folder = tmp_path / f"step{step}"
        with monkeypatch.context() as patched:
            killed_at(patched, step)
            with contextlib.suppress(KilledError):
                Database(folder).close()
        assert revision(folder) == 0
