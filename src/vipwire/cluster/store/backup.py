"""Backup of a store while it is used, and restore into a data directory that nobody uses.

A backup is a store file of its own: one consistent revision, checked before it gets its name. Restore checks the
backup first, and keeps what it replaces beside it, so that a wrong file costs nothing.
"""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from vipwire.cluster.store.database import FILE_NAME, RESTORE, check, explained, lock
from vipwire.cluster.store.record import StoreError


def backup(folder: Path, target: Path) -> int:
    """Copy the store of a data directory into a new file; tell its revision. The store may be in use."""
    source = folder / FILE_NAME
    if not source.exists():
        raise StoreError(f"{source}: no such store")
    if target.exists():
        raise StoreError(f"{target}: exists; a backup does not overwrite")
    return _copy(source, target)


def restore(folder: Path, source: Path) -> int:
    """Put a backup's contents into a data directory; tell their revision. What was there becomes `store.db.old`."""
    if not source.exists():
        raise StoreError(f"{source}: no such backup")
    target = folder / FILE_NAME
    with lock(folder):
        fresh = folder / "store.db.restored"
        fresh.unlink(missing_ok=True)
        revision = _copy(source, fresh, "take another backup")
        if target.exists():
            _move_aside(target)
        fresh.rename(target)
        _sync(folder)
    return revision


def _copy(source: Path, target: Path, remedy: str = RESTORE) -> int:
    unfinished = target.with_name(f"{target.name}.part")
    try:
        unfinished.unlink(missing_ok=True)
        unfinished.touch(mode=0o600)
        with (
            explained(source, remedy),
            closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as origin,
        ):
            check(origin, source, remedy)
            with explained(unfinished), closing(sqlite3.connect(unfinished)) as copy:
                origin.backup(copy)
                copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it
                check(copy, unfinished)
                query = "SELECT max(coalesce((SELECT max(revision) FROM changes), 0), (SELECT revision FROM floor))"
                revision = int(copy.execute(query).fetchone()[0])
        _sync(unfinished)
        unfinished.rename(target)
        _sync(target.parent)
    except OSError as error:
        raise StoreError(f"{target}: cannot be written: {error.strerror}") from error
    finally:
        unfinished.unlink(missing_ok=True)
    return revision


def _move_aside(path: Path) -> None:
    """Rename a store with its log, which belongs to it."""
    for suffix in ("-wal", "-shm"):
        beside = path.with_name(path.name + suffix)
        if beside.exists():
            beside.rename(path.with_name(f"{path.name}.old{suffix}"))
    path.rename(path.with_name(f"{path.name}.old"))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
