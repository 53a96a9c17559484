"""Writes files atomically, and manages the files of each network namespace in the state directory.

vipwire cannot know that a namespace is gone: a process in another pid namespace, or a socket, may keep it. So vipwire
removes the files (proxy-NETNS.json, changes-NETNS.jsonl, announced-NETNS.json) that no running proxy writes:

    of another boot                                 no cookie outlives the machine's start
    unchanged for a day                             a running proxy touches its file every `SIGN_SECONDS`
    unchanged for minutes, and not among the last   a machine on which namespaces come and go
"""

import contextlib
import errno
import fcntl
import os
import re
import socket
import stat
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from vipwire.errors import ConfigError

SIGN_SECONDS: Final = 30.0
KEPT: Final = 16
"""Namespaces without a running proxy whose files are kept for a day."""
_SILENT_SECONDS: Final = 10 * SIGN_SECONDS
_OLD_SECONDS: Final = 24 * 3600.0
_SO_NETNS_COOKIE: Final = 71
_NOBODY: Final = 65534
_MOST_LINKS: Final = 40
_COOKIE: Final = struct.Struct("Q")
_FILE: Final = re.compile(r"(?:proxy|changes|announced)-(.+?)\.(?:jsonl?(?:\.new)?|new|lock)")
_BY_COOKIE: Final = re.compile(r"([0-9a-f]{8})-\d+")


def build_state_path(state_dir: str, what: str, suffix: str, namespace: str = "") -> Path:
    """Return the path of a namespace's file in the state directory; of this thread's by default."""
    return Path(state_dir) / f"{what}-{namespace or _name_network_namespace()}.{suffix}"


def remove_files_of_gone_namespaces(folder: Path, own: Path) -> None:
    """Remove the files of namespaces that are gone, but none of the namespace of the file `own`.

    Also removes the lock files of early versions, if they are the only files of their namespace.
    """
    by_namespace: dict[str, list[Path]] = {}
    for path in folder.iterdir():
        if match := _FILE.fullmatch(path.name):
            by_namespace.setdefault(match[1], []).append(path)
    mine = _FILE.fullmatch(own.name)
    signs = {
        name: _find_last_modification(paths) for name, paths in by_namespace.items() if not (mine and name == mine[1])
    }
    for name in _find_stale_namespaces(signs, time.time()):
        _remove_files(by_namespace[name])
    for name, paths in by_namespace.items():
        if all(path.suffix == ".lock" for path in paths) or (mine and name == mine[1]):
            _remove_files([path for path in paths if path.suffix == ".lock"])


def _find_stale_namespaces(signs: Mapping[str, float], now: float) -> list[str]:
    boot = _read_boot_id()
    last = sorted(signs, key=signs.__getitem__, reverse=True)
    return [
        name
        for place, name in enumerate(last)
        if (boot and (match := _BY_COOKIE.fullmatch(name)) and match[1] != boot)
        or now - signs[name] > _OLD_SECONDS
        or (place >= KEPT and now - signs[name] > _SILENT_SECONDS)
    ]


def _find_last_modification(paths: list[Path]) -> float:
    times = [0.0]
    for path in paths:
        with contextlib.suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(times)


def _remove_files(paths: list[Path]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()


def _name_network_namespace() -> str:
    """Return a name of this thread's network namespace that is unique until the machine stops.

    The kernel reuses inode numbers of namespaces, but not cookies (socket(7), Linux 5.14).
    """
    boot = _read_boot_id()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as any_socket:
            (cookie,) = _COOKIE.unpack(any_socket.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, _COOKIE.size))
    except OSError:
        return _name_netns_inode()
    return f"{boot}-{cookie}" if boot else _name_netns_inode()


def read_boot_id() -> str:
    """Return the id of this boot of the machine. Raise OSError."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def read_netns_inode() -> int:
    """Return the inode number of this thread's network namespace. Raise OSError."""
    return os.stat("/proc/thread-self/ns/net").st_ino  # noqa: PTH116 - a name below /proc


def _read_boot_id() -> str:
    try:
        return read_boot_id().partition("-")[0]
    except OSError:
        return ""


def _name_netns_inode() -> str:
    try:
        return str(read_netns_inode())
    except OSError:
        return "unknown"


def make_folders(path: Path, mode: int = 0o755) -> None:
    """Make a folder and its parents, writable for their owner alone regardless of the umask. Raise OSError."""
    for each in reversed(path.parents):
        each.mkdir(mode=0o755, exist_ok=True)
    path.mkdir(mode=mode, exist_ok=True)


@contextlib.contextmanager
def hold_lock(descriptor: int) -> Iterator[None]:
    """Hold the lock of an open file or folder, and close the descriptor at the end. Raise OSError."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def check_owner(path: Path, flag: str) -> None:
    """Raise ConfigError if a user other than root or ours can replace a file or folder, or a folder's files.

    That user owns the file or folder, a folder above it or a link that leads to it, or may write to a folder above it
    that has no sticky bit. A missing file has no owner.
    """
    try:
        way = _list_path(path)
    except OSError:
        return
    for place in way:
        try:
            found = place.lstat()
        except OSError:
            return
        is_named = place in (path.absolute(), way[-1])
        trusted = {0, os.geteuid(), *([_NOBODY] if not is_named and _root_is_nobody() else [])}
        if found.st_uid not in trusted and is_named:
            raise ConfigError(
                f"{flag} {path}: user {found.st_uid} owns this folder and can replace its files: choose another "
                f"folder, or chown it to user {os.geteuid()}"
            )
        if found.st_uid not in trusted:
            raise ConfigError(
                f"{flag} {path}: user {found.st_uid} owns {place} and can replace this folder: choose another folder"
            )
        if place != way[-1] and _others_may_write(found):
            raise ConfigError(
                f"{flag} {path}: other users may write to {place} and can replace this folder: choose another "
                f"folder, or run chmod go-w {place}"
            )


def _list_path(path: Path) -> list[Path]:
    """List the folders and links that lead to a file, from the root on, and the file. Raise OSError."""
    place, found = Path("/"), [Path("/")]
    parts, links = list(path.absolute().parts[:0:-1]), 0
    while parts:
        if (part := parts.pop()) == "..":
            place = place.parent
            continue
        place /= part
        found.append(place)
        if place.is_symlink():
            if (links := links + 1) > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            target = place.readlink()
            parts += target.parts[::-1]
            place = place.parent
    return found


def _others_may_write(found: os.stat_result) -> bool:
    by_group = found.st_mode & stat.S_IWGRP and found.st_gid not in (0, os.getegid())
    may_write = by_group or found.st_mode & stat.S_IWOTH
    return bool(stat.S_ISDIR(found.st_mode) and may_write and not found.st_mode & stat.S_ISVTX)


def _root_is_nobody() -> bool:
    """Report whether this is a user namespace, where the machine's root appears as nobody."""
    try:
        return Path("/proc/self/uid_map").read_text(encoding="ascii").split()[1:] != ["0", "4294967295"]
    except OSError:
        return False


def write_named(path: Path, content: bytes, flag: str) -> None:
    """Write a file of the user's flag atomically. Raise OSError, and ConfigError as `check_owner` does.

    Follows a link of root or this user. Keeps a file's mode. Writes to this user's pipes and to devices such as
    /dev/stdout directly.
    """
    check_owner(path, flag)
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG | 0o644
    if stat.S_ISREG(mode):
        replace_file(path.resolve(), content, mode=stat.S_IMODE(mode))
        return
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC), "wb") as file:
        file.write(content)


def append_to(path: Path, content: bytes) -> None:
    """Append to a file; create it if missing. Raise OSError, also for a link."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o644), "ab") as file:
        file.write(content)


def replace_file(path: Path, content: bytes, *, mode: int = 0o644, durable: bool = False) -> None:
    """Replace a file atomically. With `durable`, the file is on the disk at return. Raise OSError."""
    fresh = path.with_name(f"{path.name}.new")
    try:
        fresh.unlink(missing_ok=True)  # the draft of a process that was killed
        create_file(fresh, content, mode=mode, durable=durable)
        fresh.rename(path)
    except OSError as error:
        error.filename = str(path)
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)  # a full disk needs the space
        raise
    if durable:
        sync_to_disk(path.parent)


def create_file(path: Path, content: bytes, *, mode: int = 0o600, durable: bool = False) -> None:
    """Create a file. Raise FileExistsError if the name exists, also as a link; OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            if durable:
                os.fsync(file.fileno())
    except OSError as error:  # the error of a full disk has no file name
        error.filename = str(path)
        raise


def sync_to_disk(path: Path) -> None:
    """Write a file, or a folder's entries, to the disk. Raise OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
