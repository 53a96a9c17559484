"""The store's file: SQLite in WAL mode, one transaction for a batch of changes, durable when `append` returns.

`changes` has a row for each revision that is still needed, with the object's bytes; `objects` has the current row of
each key. A change's `previous` is the row it replaced: a watch with a selector has to know whether the object matched
before. Compaction deletes rows that are neither current, nor newer than the floor, nor the state before one of those.

synchronous=FULL syncs the log before a commit returns (SQLite's manual: in WAL mode NORMAL may lose the last commits
at a power loss). Not for two threads at once.
"""

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vipwire.file_io.files import sync_to_disk
from vipwire.file_io.private_files import make_folder
from vipwire_up.store.record import Key, Record, RecordChange, StoreError, StoreFullError

FILE_NAME: Final = "store.db"
FORMAT: Final = 1
RESTORE: Final = "restore a backup with `vipwire store restore`"
"""The remedy for a damaged store."""
_APPLICATION: Final = 0x76697077  # "vipw": application_id in the file's header
_PAGE: Final = 4096
_LOG_BYTES: Final = 4 << 20
"""Bytes that SQLite's log keeps after a checkpoint, at most an eighth of the limit."""
_PATIENCE: Final = 5.0
"""Seconds to wait for another process that uses the file."""
_FULL: Final = "no space left: the store did not make the change; free space or raise the limit"
_MOST_PAGES: Final = 0x3FFFFFFF  # SQLite's own bound
_SCHEMA: Final = """
CREATE TABLE changes (revision INTEGER PRIMARY KEY, resource TEXT NOT NULL, namespace TEXT NOT NULL,
    name TEXT NOT NULL, deleted INTEGER NOT NULL, previous INTEGER NOT NULL, value BLOB NOT NULL);
CREATE TABLE objects (resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
    revision INTEGER NOT NULL, PRIMARY KEY (resource, namespace, name)) WITHOUT ROWID;
CREATE TABLE floor (only INTEGER PRIMARY KEY CHECK (only = 1), revision INTEGER NOT NULL);
INSERT INTO floor VALUES (1, 0);
"""
COMPACT: Final = """
DELETE FROM changes WHERE revision <= :floor
    AND revision NOT IN (SELECT revision FROM objects)
    AND revision NOT IN (SELECT previous FROM changes WHERE revision > :floor)
"""


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a file: the current records, and the changes after `floor`, oldest first."""

    records: tuple[Record, ...]
    changes: tuple[RecordChange, ...]
    floor: int
    revision: int


class Database:
    """An open store file. Raises StoreError for all failures.

    `limit` bounds the bytes on the disk, the file and its log; 0 for no bound.
    """

    def __init__(self, folder: Path, *, limit: int = 0) -> None:
        self.path = folder / FILE_NAME
        with contextlib.ExitStack() as on_error:
            on_error.enter_context(lock_data_dir(folder))
            with explain_errors(self.path):
                _create_file_or_refuse(self.path)
                self._connection = _open_store(self.path)
                on_error.callback(self._connection.close)
                self._limit = limit
                kept = min(_LOG_BYTES, limit // 8) if limit else _LOG_BYTES
                self._connection.execute(f"PRAGMA journal_size_limit = {kept}")
                self._connection.execute(f"PRAGMA wal_autocheckpoint = {max(1, kept // _PAGE)}")
                self._set_page_limit(self._count_free_pages())
            self._opened = on_error.pop_all()

    def load(self) -> Contents:
        with explain_errors(self.path):
            query = self._connection.execute
            rows = query("SELECT * FROM changes ORDER BY revision").fetchall()
            (floor,) = query("SELECT revision FROM floor").fetchone()
            current = {revision for (revision,) in query("SELECT revision FROM objects")}
        records = {row[0]: Record(Key(*map(str, row[1:4])), row[0], _require_bytes(row[6])) for row in rows}
        if missing := current - records.keys():
            raise StoreError(f"{self.path}: damaged: revision {min(missing)} has no value; restore a backup")
        changes = tuple(
            RecordChange(records[row[0]], records.get(row[5]), deleted=bool(row[4])) for row in rows if row[0] > floor
        )
        newest = max((floor, *records)) if records else floor
        return Contents(tuple(records[revision] for revision in sorted(current)), changes, floor, newest)

    def _count_free_pages(self) -> int:
        """Return the pages that the file may have beside its log. Raise StoreFullError if both exceed the limit.

        A reader, such as a backup, keeps SQLite from folding the log into the file.
        """
        if not self._limit:
            return _MOST_PAGES
        if sum(self._file_sizes()) > self._limit:
            self._connection.execute("PRAGMA busy_timeout = 0")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            self._connection.execute(f"PRAGMA busy_timeout = {_PATIENCE * 1000:g}")
        file, log = self._file_sizes()
        if log and file + log > self._limit:
            raise StoreFullError(f"{self.path}: {_FULL} (a reader holds {log} bytes of the log)")
        return max(1, (self._limit - log) // _PAGE)

    def _file_sizes(self) -> tuple[int, int]:
        log = self.path.with_name(f"{self.path.name}-wal")
        return self.path.stat().st_size, log.stat().st_size if log.exists() else 0

    def _set_page_limit(self, pages: int) -> None:
        self._connection.execute(f"PRAGMA max_page_count = {pages}")

    def append(self, changes: Sequence[RecordChange], *, beyond: bool = False) -> None:
        """Commit all changes, or none when it raises. `beyond` allows them to exceed the size limit."""
        with explain_errors(self.path):
            self._set_page_limit(_MOST_PAGES if beyond else self._count_free_pages())
            self._insert_changes(changes)

    def _insert_changes(self, changes: Sequence[RecordChange]) -> None:
        with _transaction(self._connection):
            self._connection.executemany(
                "INSERT INTO changes VALUES (?, ?, ?, ?, ?, ?, ?)", map(_encode_row, changes)
            )
            for change in changes:
                if change.deleted:
                    statement = "DELETE FROM objects WHERE resource = ? AND namespace = ? AND name = ?"
                    self._connection.execute(statement, change.record.key)
                else:
                    values = (*change.record.key, change.revision)
                    self._connection.execute("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?)", values)

    def compact(self, floor: int) -> None:
        """Delete states older than `floor` that are not current."""
        with explain_errors(self.path), _transaction(self._connection):
            self._connection.execute(COMPACT, {"floor": floor})
            self._connection.execute("UPDATE floor SET revision = max(revision, ?)", (floor,))

    def close(self) -> None:
        """Close the file, with its log folded in."""
        self._opened.close()


@contextlib.contextmanager
def lock_data_dir(folder: Path) -> Iterator[None]:
    """Lock a data directory for this process; create it, readable by its owner only. Raise StoreError."""
    path = folder / "store.lock"
    make_folder(folder, "--data-dir")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror}") from error
    with contextlib.ExitStack() as opened:
        opened.callback(os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(f"{folder}: in use by another vipwire") from None
        yield


@contextlib.contextmanager
def explain_errors(path: Path, remedy: str = RESTORE) -> Iterator[None]:
    """Translate SQLite's errors to StoreError with the file and the remedy; `remedy` is for a damaged file."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        text = {
            sqlite3.SQLITE_FULL: _FULL,
            sqlite3.SQLITE_CORRUPT: f"damaged; {remedy}",
            sqlite3.SQLITE_NOTADB: f"not a database; {remedy}",
            sqlite3.SQLITE_IOERR: "the disk fails or is full: the store did not make the change",
            sqlite3.SQLITE_READONLY: "cannot be written",
            sqlite3.SQLITE_CANTOPEN: "cannot be opened",
        }.get(code, f"damaged; {remedy}" if "decode to UTF-8" in str(error) else "SQLite failed")
        kind = StoreFullError if code == sqlite3.SQLITE_FULL else StoreError
        raise kind(f"{path}: {text} ({error})") from error


def check_store_file(connection: sqlite3.Connection, path: Path, remedy: str = RESTORE) -> None:
    """Raise StoreError, with the remedy for damage, unless a file is a whole store of a known format."""
    application, version = (
        connection.execute(f"PRAGMA {p}").fetchone()[0] for p in ("application_id", "user_version")
    )
    if application != _APPLICATION:
        raise StoreError(f"{path}: not a store of vipwire")
    if version != FORMAT:
        raise StoreError(f"{path}: format {version}; this vipwire reads format {FORMAT}")
    result = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if result != "ok":
        raise StoreError(f"{path}: damaged; {remedy} ({result})")


def _connect_to_file(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=_PATIENCE)
    path.chmod(0o600)
    return connection


def _open_store(path: Path) -> sqlite3.Connection:
    """Open a store, and check it.

    A full disk has no room for the shared index of the log: then SQLite keeps the index in memory, so that the store
    can be read. No other process can read it meanwhile, so backups fail.
    """
    try:
        return _prepare_connection(_connect_to_file(path), path)
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF not in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL):
            raise
    connection = _connect_to_file(path)
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    return _prepare_connection(connection, path)


def _create_file_or_refuse(path: Path) -> None:
    if not path.exists():
        _create_file(path)
    elif path.stat().st_size == 0:
        why = "is empty, and its objects are lost"
        raise StoreError(f"{path}: {why}; {RESTORE}, or start with an empty store in another --data-dir")
    second = path.with_name(f"{path.name}.old")
    if second.exists() and second.samefile(path) and second.with_name(f"{second.name}-wal").exists():
        raise StoreError(f"{path}: an interrupted restore has moved its log aside; {RESTORE}")


def _create_file(path: Path) -> None:
    """Create an empty store, under another name until it is complete: an empty file is never a new store."""
    for left in find_leftover_files(path):
        raise StoreError(
            f"{path}: is missing, but {left.name} is there; {RESTORE}, give --store etcd if the objects are in etcd, "
            f"or start with an empty store in another --data-dir"
        )
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(unfinished, isolation_level=None)) as connection:
        unfinished.chmod(0o600)
        identity = f"PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {FORMAT};"
        connection.executescript(f"BEGIN; {_SCHEMA} {identity} COMMIT;")
    sync_to_disk(unfinished)
    unfinished.rename(path)
    sync_to_disk(path.parent)


def find_leftover_files(path: Path) -> Iterator[Path]:
    """Yield files that prove that there was a store: its log, and files that a restore moved aside or did not finish.

    So do the authority's files: the first start creates the store before them.
    """
    for suffix in ("-wal", ".old", ".restored", ".migrated"):
        beside = path.with_name(f"{path.name}{suffix}")
        if beside.exists():
            yield beside
    if any(os.path.lexists(path.with_name("pki") / name) for name in ("ca.crt", "ca.key")):
        yield path.with_name("pki")


def _prepare_connection(connection: sqlite3.Connection, path: Path) -> sqlite3.Connection:
    with contextlib.ExitStack() as on_error:
        on_error.callback(connection.close)
        check_store_file(connection, path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        on_error.pop_all()
    return connection


def _encode_row(change: RecordChange) -> tuple[int, str, str, str, bool, int, bytes]:
    previous = change.previous.revision if change.previous else 0
    return (change.revision, *change.record.key, change.deleted, previous, change.record.value)


def _require_bytes(value: object) -> bytes:
    """Return a value as bytes; SQLite returns text or a number if another program wrote one."""
    return value if isinstance(value, bytes) else str(value).encode()


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite has already rolled some failures back
            connection.execute("ROLLBACK")
        raise
