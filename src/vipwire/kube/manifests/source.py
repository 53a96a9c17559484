"""Folders and files of manifests as a source of events: reads at start, then watches.

Of a folder, files directly in it count if they end in .yaml, .yml or .json and do not begin with a dot. A broken file
keeps its last good objects, including those missing while one of its documents is unreadable; so does a path that
vanishes completely. A file that leaves a folder removes its objects. If two files have the same object, the file
whose path sorts first wins, and the other gets a problem. A file's own problems are reported like those of an object
that never exists.

Changes are seen by inotify, and by comparing the files' times every few seconds, because link targets elsewhere and
network file systems make no events here. A mounted ConfigMap swaps a link in its folder, editors rename a new file
over the old one; both change the folder, which is what is watched (of a single file, its folder).
"""

import asyncio
import logging
import os
import select
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Generic, TypeAlias

from vipwire.config.yaml_values import find_place_in_error
from vipwire.errors import ConfigError, DecodeError
from vipwire.file_io.file_watch import FileWatch
from vipwire.kube.contact import Health
from vipwire.kube.manifests.documents import Manifest, ManifestObject, ManifestReader, file_problem
from vipwire.kube.resource import describe_unexpected, format_value
from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire.watched_objects.event import Deleted, EventOf, K, Listed, T, Upserted

SUFFIXES = (".yaml", ".yml", ".json")
SETTLE: Final = 0.4
"""Seconds within which successive changes are read together."""
LOOK: Final = 2.0
"""Seconds between looks at the files' times without an event."""

MOST_BYTES: Final = 64 << 20
"""A larger file is not read."""
PIPE_SECONDS: Final = 10.0
"""Seconds without data after which a named pipe is left alone."""
FRESH = 5.0
"""Seconds for which vipwire takes an empty file for one that a program still writes."""

Signature: TypeAlias = tuple[int, int, int, int]
_UNREAD: Final[Signature] = (0, 0, 0, 0)
"""The signature of an unreadable file: it is tried at every look."""
_KINDS: Final = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

_log = logging.getLogger(__name__)


Key: TypeAlias = tuple[K, ObjectName]


@dataclass(frozen=True, slots=True)
class Inventory(Generic[K, T]):
    """All objects and all problems of a set of files."""

    objects: Mapping[Key[K], T] = field(default_factory=dict)
    problems: Mapping[Key[K], tuple[Problem, ...]] = field(default_factory=dict)


def take_inventory(
    manifests: Iterable[Manifest[K, T]], files_are: K, file_problems: Iterable[Problem] = ()
) -> Inventory[K, T]:
    """Merge files and `file_problems` of unreadable ones; problems of files have the kind `files_are`."""
    objects: dict[Key[K], T] = {}
    problems: dict[Key[K], tuple[Problem, ...]] = {}
    owners: dict[Key[K], str] = {}
    for manifest in sorted(manifests, key=lambda manifest: manifest.file):
        for problem in manifest.problems:
            _add_problems(problems, (files_are, problem.object), (problem,))
        for entry in manifest.entries:
            _add_entry(entry, manifest.file, objects, problems, owners)
    for problem in file_problems:
        _add_problems(problems, (files_are, problem.object), (problem,))
    return Inventory(objects, problems)


def list_by_kind(inventory: Inventory[K, T], kinds: Iterable[K]) -> Iterator[Listed[K, T]]:
    """Yield one `Listed` for every kind, also for empty ones, because the start waits for each."""
    for kind in kinds:
        objects = tuple(value for (of, _), value in inventory.objects.items() if of is kind)
        problems = (problems for (of, _), problems in inventory.problems.items() if of is kind)
        yield Listed(kind, objects, tuple(problem for group in problems for problem in group))


def diff_inventories(before: Inventory[K, T], after: Inventory[K, T]) -> Iterator[EventOf[K, T]]:
    """Yield the changed objects, and objects with only changed problems."""
    keys = {**before.objects, **after.objects, **before.problems, **after.problems}
    for key in keys:
        old, new = before.objects.get(key), after.objects.get(key)
        problems = after.problems.get(key, ())
        if old == new and before.problems.get(key, ()) == problems:
            continue
        yield Deleted(*key, problems) if new is None else Upserted(new, problems)


def _add_entry(
    entry: ManifestObject[K, T],
    file: str,
    objects: dict[Key[K], T],
    problems: dict[Key[K], tuple[Problem, ...]],
    owners: dict[Key[K], str],
) -> None:
    keys = tuple((entry.kind, name) for name in entry.names)
    taken = next((key for key in keys if key in owners), None)
    if taken is not None:
        message = f"is also in {owners[taken]}: vipwire uses that object, and ignores the one in {file}"
        _add_problems(problems, taken, (Problem(entry.kind.value, entry.name, "metadata.name", message),))
        return
    owners.update(dict.fromkeys(keys, file))
    objects.update(zip(keys, entry.objects, strict=False))
    _add_problems(problems, keys[0], entry.problems)


def _add_problems(problems: dict[Key[K], tuple[Problem, ...]], key: Key[K], more: tuple[Problem, ...]) -> None:
    if more:
        problems[key] = problems.get(key, ()) + more


@dataclass(frozen=True, slots=True)
class _File(Generic[K, T]):
    signature: Signature
    manifest: Manifest[K, T]
    problem: Problem | None = None


class ManifestSource(Generic[K, T]):
    """Reads and watches manifests. Raises ConfigError at once if a path does not exist."""

    def __init__(
        self, paths: Iterable[Path], reader: ManifestReader[K, T], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._paths = tuple(dict.fromkeys(Path(os.path.abspath(path)) for path in paths))  # noqa: PTH100 - keeps links
        for path in self._paths:
            if not path.exists():
                raise ConfigError(f"--manifests: {path} does not exist (allowed: a folder or a file)")
        self._clock, self._reader, self._watch = clock, reader, FileWatch()
        self._files: dict[str, _File[K, T]] = {}
        self._gone: dict[str, Problem] = {}
        self._health: dict[str, Health] = {}

    def health(self) -> tuple[Health, ...]:
        """Return the health of each path, with its unreadable file if any."""
        return tuple(self._health.get(str(path), Health(str(path))) for path in self._paths)

    async def run(self, emit: Callable[[EventOf[K, T]], None]) -> None:
        """Emit everything once, then changes, until cancelled. `emit` must be quick and must not raise."""
        inventory = await asyncio.to_thread(self.read_inventory)
        for first in list_by_kind(inventory, self._reader.kinds):
            emit(first)
        self._record_health()
        while True:
            folders = self._read_folder_identities()
            async with aclosing(
                self._watch.yield_change_hints(map(Path, folders), every=LOOK, settle=SETTLE)
            ) as times:
                async for _ in times:
                    before, inventory = inventory, await asyncio.to_thread(self.read_inventory)
                    for event in diff_inventories(before, inventory):
                        emit(event)
                    self._record_health()
                    if self._read_folder_identities() != folders:
                        break

    def _read_folder_identities(self) -> dict[str, tuple[int, int]]:
        """Return the folders to watch with their identity: a replaced folder needs a new watch."""
        folders = {}
        for path in self._paths:
            folder = path if path.is_dir() else path.parent
            try:
                status = folder.stat()
            except OSError:
                continue
            folders[str(folder)] = (status.st_dev, status.st_ino)
        return folders

    def read_inventory(self) -> Inventory[K, T]:
        """Read the changed files, and merge."""
        files: dict[str, _File[K, T]] = {}
        for path in self._paths:
            files.update(self._read_path(path))
        self._files = files
        problems = [*self._gone.values(), *(file.problem for file in files.values() if file.problem)]
        return take_inventory((file.manifest for file in files.values()), self._reader.kinds[0], problems)

    def _read_path(self, path: Path) -> dict[str, _File[K, T]]:
        """Read a path's files. If one vanishes meanwhile, list again: the whole folder may have vanished."""
        files: dict[str, _File[K, T] | None] = {}
        for _ in range(3):
            found = self._list_folder(path)
            if found is None:
                return {name: file for name, file in self._files.items() if _is_below(name, path)}
            files = {name: self._read_file(name) for name in found}
            if None not in files.values():
                break
        return {name: file for name, file in files.items() if file is not None}

    def _list_folder(self, path: Path) -> list[str] | None:
        """List a path's files; None (and a problem) if the path is missing or unreadable."""
        name = str(path)
        try:
            if not stat.S_ISDIR(path.stat().st_mode):
                found = [name]
            else:
                with os.scandir(path) as entries:
                    found = [entry.path for entry in entries if _is_manifest(entry)]
        except OSError as error:
            self._gone[name] = file_problem(
                name, "", f"cannot read the file, its last valid objects stay: {error.strerror}"
            )
            return None
        self._gone.pop(name, None)
        return found

    def _read_file(self, name: str) -> _File[K, T] | None:
        """Read a file if it changed; None if it vanished since the listing."""
        known = self._files.get(name)
        try:
            status = os.stat(name)  # noqa: PTH116 - a string all along
            if known is not None and (known.signature == _compute_signature(status) or _is_being_written(status)):
                return known
            manifest = self._reader.read(
                _decode_text(_read_content(name, status, is_named=Path(name) in self._paths)), name
            )
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not os.path.islink(name):  # noqa: PTH114 - as above
                return None
            return _keep_old_objects(name, known, _UNREAD, error)
        except Exception as error:  # noqa: BLE001 - an error in one file must not stop the others
            return _keep_old_objects(name, known, _compute_signature(status), error)
        if manifest.problems and known is not None:
            manifest = _keep_missing(manifest, known.manifest)
        if manifest.ignored:
            _log.info("%s: ignoring kinds: %s", manifest.file, ", ".join(sorted(manifest.ignored)))
        return _File(_compute_signature(status), manifest)

    def _record_health(self) -> None:
        for path in self._paths:
            name = str(path)
            problem = self._gone.get(name) or next(
                (file.problem for key, file in sorted(self._files.items()) if file.problem and _is_below(key, path)),
                None,
            )
            before = self._health.get(name)
            total = before.total if before else 0
            if problem is None:
                self._health[name] = Health(name, synced=True, total=total)
            elif before is None or before.error != str(problem):
                since = before.since if before and before.error else self._clock()
                self._health[name] = Health(
                    name, synced=True, error=str(problem), since=since, failures=1, total=total + 1
                )


def _keep_missing(manifest: Manifest[K, T], before: Manifest[K, T]) -> Manifest[K, T]:
    """Keep missing objects of a file with an unreadable document, which may contain them."""
    there = {(entry.kind, name) for entry in manifest.entries for name in entry.names}
    missing = (entry for entry in before.entries if not any((entry.kind, name) in there for name in entry.names))
    return replace(manifest, entries=(*manifest.entries, *missing))


def _keep_old_objects(name: str, known: _File[K, T] | None, signature: Signature, error: Exception) -> _File[K, T]:
    good: Manifest[K, T] = known.manifest if known else Manifest(format_value(name))
    return _File(signature, good, file_problem(name, *_split_error(error)))


def _is_manifest(entry: os.DirEntry[str]) -> bool:
    return entry.name.endswith(SUFFIXES) and not entry.name.startswith(".")


def _compute_signature(status: os.stat_result) -> Signature:
    if stat.S_ISFIFO(status.st_mode):  # a pipe never repeats its data
        return status.st_dev, status.st_ino, 0, 0
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _read_content(name: str, status: os.stat_result, *, is_named: bool) -> bytes:
    """Read a file, or a pipe that an operator named (`/dev/stdin`). Opening a device can do harm."""
    is_pipe = stat.S_ISFIFO(status.st_mode)
    if not stat.S_ISREG(status.st_mode) and not (is_pipe and is_named):
        raise DecodeError(f": is {_KINDS.get(stat.S_IFMT(status.st_mode), 'something else')}, not a file")
    content, ready = bytearray(), select.poll()
    descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        ready.register(descriptor, select.POLLIN)
        while max(len(content), status.st_size) <= MOST_BYTES:
            if not ready.poll(PIPE_SECONDS * 1000 if is_pipe else 0):
                raise DecodeError(": its end does not come")
            if not (more := os.read(descriptor, 1 << 20)):
                return bytes(content)
            content += more
    finally:
        os.close(descriptor)
    raise DecodeError(f": is larger than {MOST_BYTES >> 20} MiB")


def _decode_text(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = find_place_in_error(content[: error.start].decode(errors="replace"))
        raise DecodeError(f"{place}: is not UTF-8: {error.reason}") from error


def _is_being_written(status: os.stat_result) -> bool:
    """Report whether a file was just emptied, as `cp` does before it writes; the next look believes it."""
    return status.st_size == 0 and time.time() - status.st_mtime < FRESH


def _is_below(name: str, path: Path) -> bool:
    return name == str(path) or Path(name).parent == path


def _split_error(error: Exception) -> tuple[str, str]:
    """Split an error into its place in the file and its text."""
    if isinstance(error, DecodeError):
        where, _, message = str(error).partition(": ")
        return where, f"{message}; its last valid objects stay"
    reason = (error.strerror or error) if isinstance(error, OSError) else describe_unexpected(error)
    return "", f"cannot read the file, its last valid objects stay: {reason}"
