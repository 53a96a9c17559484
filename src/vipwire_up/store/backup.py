"""Backup of a store in use, and restore into an unused data directory.

A backup is a store file of its own: one consistent revision, checked before it gets its name. Restore checks the
backup first, and keeps the replaced store beside it, so that a wrong file does no harm.

A restored store continues beyond the revisions of the backup and of the replaced store, and has no history: a client
that knows a revision of either gets 410 and lists again.
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from vipwire.file_io.files import check_owner, create_file, sync_to_disk
from vipwire_up.store.database import COMPACT, FILE_NAME, RESTORE, check_store_file, explain_errors, lock_data_dir
from vipwire_up.store.record import StoreError

SKIPPED: Final = 1_000_000
"""Revisions after the backup that a restore skips: the replaced store may be unreadable, or on another machine."""
_NEWEST: Final = "SELECT max(coalesce((SELECT max(revision) FROM changes), 0), (SELECT revision FROM floor))"


def back_up_store(folder: Path, target: Path) -> int:
    """Copy the store of a data directory into a new file; return its revision. The store may be in use."""
    source = folder / FILE_NAME
    if not source.exists():
        raise StoreError(f"{source}: no such store")
    if target.exists():
        raise StoreError(f"{target}: exists; a backup does not overwrite")
    return _copy_store(source, target)


def restore_store(folder: Path, source: Path) -> int:
    """Copy a backup into a data directory; return its new revision. The old store becomes `store.db.old`.

    At any moment `store.db` is the old store or the new one, whole: an interrupted restore can be run again.
    """
    if not source.exists():
        raise StoreError(f"{source}: no such backup")
    target = folder / FILE_NAME
    with lock_data_dir(folder):
        fresh = folder / "store.db.restored"
        fresh.unlink(missing_ok=True)
        revision = max(_copy_store(source, fresh, "take another backup") + SKIPPED, _read_newest_revision(target) + 1)
        _delete_history(fresh, revision)
        if target.exists():
            _keep_old_store(target)
        fresh.rename(target)
        sync_to_disk(folder)
    return revision


def _copy_store(source: Path, target: Path, remedy: str = RESTORE) -> int:
    unfinished = target.with_name(f"{target.name}.part")
    try:
        unfinished.unlink(missing_ok=True)
        check_owner(target.parent, "the folder of the backup")
        create_file(unfinished, b"")
        with (
            explain_errors(source, remedy),
            closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as origin,
        ):
            check_store_file(origin, source, remedy)
            with explain_errors(unfinished), closing(sqlite3.connect(unfinished)) as copy:
                origin.backup(copy)
                copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it
                check_store_file(copy, unfinished)
                revision = int(copy.execute(_NEWEST).fetchone()[0])
        sync_to_disk(unfinished)
        unfinished.rename(target)
        sync_to_disk(target.parent)
    except OSError as error:
        raise StoreError(f"{target}: cannot be written: {error.strerror}") from error
    finally:
        unfinished.unlink(missing_ok=True)
    return revision


def _read_newest_revision(path: Path) -> int:
    """Return the newest revision of a store; 0 if it is missing or unreadable."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            return int(connection.execute(_NEWEST).fetchone()[0])
    except (sqlite3.Error, TypeError, ValueError):
        return 0


def _delete_history(path: Path, revision: int) -> None:
    """Delete the history of a store that is not in use, and continue after a revision."""
    with explain_errors(path), closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(COMPACT, {"floor": revision})
        connection.execute("UPDATE floor SET revision = ?", (revision,))
    sync_to_disk(path)


def _keep_old_store(path: Path) -> None:
    """Link a store as `store.db.old` and empty its log: SQLite reads the log into any file named store.db.

    So the log is folded in before another file gets that name. If that fails, the store is damaged: the log moves to
    the second name.
    """
    second = path.with_name(f"{path.name}.old")
    log = path.with_name(f"{path.name}-wal")
    folded = _checkpoint_log(path)
    if not (second.exists() and second.samefile(path)):  # an interrupted restore of a damaged store leaves both names
        _replace_with_link(path, second)
        second_log = path.with_name(f"{path.name}.old-wal")
        if folded or not log.exists():
            second_log.unlink(missing_ok=True)
        else:
            _replace_with_link(log, second_log)
    sync_to_disk(path.parent)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    sync_to_disk(path.parent)


def _checkpoint_log(path: Path) -> bool:
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error:
        return False
    return not path.with_name(f"{path.name}-wal").exists()


def _replace_with_link(path: Path, second: Path) -> None:
    made = second.with_name(f"{second.name}.part")
    made.unlink(missing_ok=True)
    made.hardlink_to(path)
    made.rename(second)
