"""Reports changes of files and folders to an event loop by inotify(7), without a thread or polling.

FileWatch compares a file's content, not its time, because a ConfigMap is mounted as a link to a link: `config.conf`
points into `..data`, which the kubelet points to another folder. So it watches the folders of the name and of the
link's target, and the file itself, which may be a mount. If inotify is impossible or hears nothing (a network file
system), it reads the file now and then. For a file that is no link only its own name counts, so that writes of other
proxies beside it wake no process.
"""

import asyncio
import contextlib
import errno
import os
import struct
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from msgspec import Struct

from vipwire.logging import log

_ATTRIB, _CLOSE_WRITE, _MOVED, _CREATE, _DELETE, _GONE = 0x4, 0x8, 0xC0, 0x100, 0x200, 0xC00
_EVENTS: Final = _ATTRIB | _CLOSE_WRITE | _MOVED | _CREATE | _DELETE | _GONE
_BUFFER: Final = 1 << 16
_EVENT: Final = struct.Struct("@i8xI")
"""struct inotify_event: watch, mask, cookie, the length of the name, and the name, which ends with zeros."""
_LOST: Final = -1
"""The watch of IN_Q_OVERFLOW: the kernel dropped events."""
QUIET_SECONDS: Final = 0.05
"""A writer changes several things in a folder at once: after so many seconds without a change it is done."""
_OTHERS_SECONDS: Final = 0.1, 1.0
"""Seconds without listening after events of other names: at first, at most."""
_AT_ONCE: Final = 0.02
"""Seconds. An event of another name this soon after a pause means that other programs write all the time."""
_LOOK_SECONDS: Final = 2.0
"""Seconds between reads of a file whose folder may report nothing, and the pause before inotify is tried again."""
_LOCAL_LOOK_SECONDS: Final = 60.0
"""The same if every change of the folder is reported: only a folder above can be replaced."""
_LOCAL: Final = frozenset(
    (0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0x2FC12FC1, 0x01021994, 0x858458F6, 0x794C7630)
)
"""ext2 to ext4, xfs, btrfs, f2fs, zfs, tmpfs, ramfs, overlay (statfs(2)): no other kernel changes their files."""
_LIMITS: Final = {errno.EMFILE: "fs.inotify.max_user_instances", errno.ENOSPC: "fs.inotify.max_user_watches"}
"""The kernel settings whose limit causes these errors of inotify (inotify(7))."""


class _Listener(Struct, eq=False):
    """A waiting task. `names` are those that count; None for all. The empty name is the folder itself."""

    names: frozenset[bytes] | None
    changed: asyncio.Event


class FileWatch:
    """Watches files and folders by one inotify instance, open while anything is watched. For one event loop.

    A user has few instances (128 by default), so the parts of a process share one.
    """

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._listeners: dict[int, list[_Listener]] = {}
        """By watch: two names of a folder have one watch."""
        self._pause: asyncio.TimerHandle | None = None
        self._pause_seconds, self._began = 0.0, 0.0
        self._is_limit_told = False

    @contextlib.contextmanager
    def watch_changes(self, folders: Iterable[Path], only: str = "") -> Iterator[asyncio.Event]:
        """Set the event whenever an entry of one of the folders (not below) has changed; the caller clears it.

        `only` is the name that counts; events of others are ignored, as other programs may write there all the time.
        Raise OSError if a folder cannot be watched.
        """
        listener = _Listener(frozenset((os.fsencode(only), b"")) if only else None, asyncio.Event())
        try:
            descriptor = self._open_inotify()
            for folder in folders:
                watch = _check_result(_libc().inotify_add_watch(descriptor, os.fsencode(folder), _EVENTS))
                self._listeners.setdefault(watch, []).append(listener)
            yield listener.changed
        finally:
            self._remove_listener(listener)

    async def yield_change_hints(
        self, folders: Iterable[Path], *, every: float, settle: float = QUIET_SECONDS, only: str = ""
    ) -> AsyncGenerator[None, None]:
        """Yield when the caller should look: at once, after each change, and after `every` seconds without one.

        Changes in quick succession are one, for at most `settle` seconds. `only` as in `watch_changes`. Ends, after a
        pause, if a folder was removed, or the kernel has no more instances or watches.
        """
        try:
            with self.watch_changes(folders, only) as changed:
                yield  # for changes before the watch
                while True:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(every):
                            await changed.wait()
                    await _wait_until_quiet(changed, settle)
                    yield
        except OSError as error:
            self._warn_of_limit(error)
            yield
            await asyncio.sleep(_LOOK_SECONDS)

    async def yield_contents(self, path: Path) -> AsyncIterator[bytes | None]:
        """Yield the content of a file, now and after each change; None while the file cannot be read."""
        last = await asyncio.to_thread(_read_content, path)
        yield last
        while True:
            watched = folders, only = await asyncio.to_thread(_find_watched_paths, path)
            every = _LOCAL_LOOK_SECONDS if await asyncio.to_thread(_are_all_watchable, folders) else _LOOK_SECONDS
            async with contextlib.aclosing(self.yield_change_hints(folders, every=every, only=only)) as times:
                async for _ in times:
                    now = await asyncio.to_thread(_read_content, path)
                    if now != last:
                        last = now
                        yield now
                    if await asyncio.to_thread(_find_watched_paths, path) != watched:
                        break

    def _open_inotify(self) -> int:
        if self._descriptor is None:
            self._descriptor = _check_result(_libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
            self._listen()
        return self._descriptor

    def _remove_listener(self, listener: _Listener) -> None:
        """Remove the watches of this listener alone; close the instance after the last."""
        for watch, listeners in list(self._listeners.items()):
            listeners[:] = [each for each in listeners if each is not listener]
            if not listeners:
                del self._listeners[watch]
                _libc().inotify_rm_watch(self._descriptor, watch)  # EINVAL: the folder and its watch are gone
        if self._descriptor is not None and not self._listeners:
            if self._pause is not None:
                self._pause.cancel()
                self._pause = None
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    def _listen(self) -> None:
        if self._descriptor is not None:
            loop = asyncio.get_running_loop()
            self._began, self._pause = loop.time(), None
            loop.add_reader(self._descriptor, self._read_events)

    def _read_events(self) -> None:
        if self._descriptor is None:
            return
        heard = False
        with contextlib.suppress(BlockingIOError):
            for watch, name in _split_events(os.read(self._descriptor, _BUFFER)):
                everybody = (each for listeners in self._listeners.values() for each in listeners)
                for listener in everybody if watch == _LOST else self._listeners.get(watch, ()):
                    if listener.names is None or name in listener.names:
                        heard = True
                        listener.changed.set()
            if not heard:
                self._pause_listening()

    def _pause_listening(self) -> None:
        """Listen again after a pause: a hundred proxies may write there, each several times a second."""
        assert self._descriptor is not None  # noqa: S101  # it was read just now
        loop, (least, most) = asyncio.get_running_loop(), _OTHERS_SECONDS
        loop.remove_reader(self._descriptor)
        is_busy = loop.time() - self._began < _AT_ONCE
        self._pause_seconds = min(2 * max(self._pause_seconds, least), most) if is_busy else least
        self._pause = loop.call_later(self._pause_seconds, self._listen)

    def _warn_of_limit(self, error: OSError) -> None:
        """Log once that vipwire polls, if a limit of inotify is the reason."""
        if (setting := _LIMITS.get(error.errno or 0)) and not self._is_limit_told:
            self._is_limit_told = True
            log.warning(
                "cannot watch files by inotify; reading them every two seconds",
                error=error.strerror,
                remedy=f"raise {setting} (sysctl), a limit for all processes of this user",
            )


async def _wait_until_quiet(changed: asyncio.Event, most: float) -> None:
    """Wait until nothing has changed for a moment, and clear the event."""
    until = time.monotonic() + most
    while changed.is_set() and time.monotonic() < until:
        changed.clear()
        await asyncio.sleep(QUIET_SECONDS)
    changed.clear()


def _split_events(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the watch and the name of each event; the empty name is the folder itself."""
    at = 0
    while at < len(data):
        watch, length = _EVENT.unpack_from(data, at)
        at += _EVENT.size
        yield watch, data[at : at + length].rstrip(b"\0")
        at += length


def _find_watched_paths(path: Path) -> tuple[frozenset[Path], str]:
    """Return the paths to watch for changes of the link's target, and the one name that counts in folders."""
    file = path.resolve() if path.parent.exists() else path
    found = (each for each in (path.parent, file.parent, file) if each.exists())
    return frozenset(found), "" if path.is_symlink() else path.name


def _are_all_watchable(folders: frozenset[Path]) -> bool:
    return bool(folders) and all(map(reports_all_changes, folders))


def _read_content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def reports_all_changes(folder: Path) -> bool:
    """Report whether only this kernel changes the folder, so that inotify reports every change."""
    found = _ctypes().create_string_buffer(512)  # struct statfs begins with the type
    if _libc().statfs(os.fsencode(folder), found) != 0:
        return False
    return struct.unpack_from("@l", found)[0] & 0xFFFFFFFF in _LOCAL


@cache
def _ctypes() -> ModuleType:
    import ctypes  # noqa: PLC0415  # costly to import: a thread does, after the first sync

    return ctypes


@cache
def _libc() -> Any:
    return _ctypes().CDLL(None, use_errno=True)


def _check_result(result: int) -> int:
    if result < 0:
        number = _ctypes().get_errno()
        raise OSError(number, os.strerror(number))
    return result
