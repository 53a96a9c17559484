"""The record that a running proxy keeps in its state directory: start time, flags, last sync.

The commands that look read it, so that they see what the proxy sees without being given its flags again. There is
one record for each network namespace, for that is what a proxy programs:

    proxy-NETNS.json    the record, replaced as a whole
    proxy-NETNS.lock    locked for as long as the proxy lives: the kernel lets go of it however the process ends

A record without its lock is that of a proxy that has ended (`ended` is set) or died.
"""

import asyncio
import contextlib
import enum
import fcntl
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

from vipwire.process import log

_VERSION: Final = 1
_LOOK_SECONDS: Final = 1.0
_SIGN_SECONDS: Final = 30.0
"""A record is written when it changes, and this often as a sign of life."""
_OLD_SECONDS: Final = 24 * 3600.0
_SO_NETNS_COOKIE: Final = 71
_COOKIE: Final = struct.Struct("Q")


class ProxyState(enum.Enum):
    """Whether a proxy runs in this network namespace; the value is what is printed."""

    RUNNING = "running"
    ENDED = "ended"
    DIED = "died"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class ProxyRecord:
    """One proxy. Times are seconds since the epoch.

    `flags` are those that would start it again, what a configuration file says included. `synced` has the time at
    which each family was last as wanted, `failing` what is wrong with each source of objects,
    `problems` what an operator should know besides.
    """

    pid: int
    started: float
    version: str
    node: str
    mode: str
    flags: tuple[str, ...] = ()
    synced: Mapping[str, float | None] = field(default_factory=dict)
    failing: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    seen: float = 0.0
    ended: float | None = None
    reason: str = ""
    format: int = _VERSION


_READER: Final = msgspec.json.Decoder(ProxyRecord)


def read_record(state_dir: str, namespace: str = "") -> tuple[ProxyState, ProxyRecord | None]:
    """Return how the proxy of this network namespace is. Never raises: what cannot be read is not there."""
    path = _path(state_dir, namespace)
    try:
        record = _READER.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError):
        record = None
    if record is None or record.format != _VERSION:
        return ProxyState.NONE, None
    if _locked(path.with_suffix(".lock")):
        return ProxyState.RUNNING, record
    return (ProxyState.DIED if record.ended is None else ProxyState.ENDED), record


@contextlib.contextmanager
def recorded(state_dir: str, namespace: str = "") -> Iterator["Recorder"]:
    """Keep the record while a proxy runs. Where that is impossible the proxy runs without one."""
    path = _path(state_dir, namespace)
    lock = _lock(path.with_suffix(".lock"))
    if lock is None:
        yield Recorder(None)
        return
    _forget_old(path)
    try:
        yield Recorder(path)
    finally:
        os.close(lock)


class Recorder:
    """Writes one proxy's record; nowhere if `path` is None."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._last: ProxyRecord | None = None

    async def run(self, look: Callable[[], ProxyRecord]) -> None:
        """Write what `look` says whenever it is something else, until cancelled."""
        while self._path is not None:
            self.write(look())
            await asyncio.sleep(_LOOK_SECONDS)

    def write(self, record: ProxyRecord) -> None:
        """Write a record, if it says anything new or the last sign of life is old."""
        now, last = time.time(), self._last
        if self._path is None or (last and replace(last, seen=0.0) == record and now - last.seen < _SIGN_SECONDS):
            return
        self._last = replace(record, seen=now)
        draft = self._path.with_suffix(".new")
        try:
            draft.write_bytes(msgspec.json.encode(self._last))
            draft.chmod(0o644)
            draft.replace(self._path)
        except OSError as error:
            log.detail(2, "the record of this proxy cannot be written", path=self._path, error=error)

    def end(self, reason: str) -> None:
        """Write that the proxy has ended."""
        if self._last is not None:
            self.write(replace(self._last, seen=0.0, ended=time.time(), reason=reason))


def _path(state_dir: str, namespace: str) -> Path:
    return Path(state_dir) / f"proxy-{namespace or _network_namespace()}.json"


def _network_namespace() -> str:
    """Name this thread's network namespace, as no other is named before the machine is shut down.

    The kernel gives the number of a namespace's inode to the next one, but a cookie (socket(7), Linux 5.14) only once
    in a boot.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as any_socket:
            (cookie,) = _COOKIE.unpack(any_socket.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, _COOKIE.size))
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").partition("-")[0]
    except OSError:
        return _inode()
    return f"{boot}-{cookie}"


def _inode() -> str:
    """Return the number of this process's network namespace, as `lsns -t net` does."""
    try:
        return str(os.stat("/proc/self/ns/net").st_ino)  # noqa: PTH116 - a name below /proc
    except OSError:
        return "unknown"


def _lock(path: Path) -> int | None:
    """Take the lock of a proxy that runs; None if it cannot be had."""
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    except OSError as error:
        log.detail(2, "no record of this proxy is kept", path=path, error=error)
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        log.warning("another proxy runs in this network namespace; no record of this one is kept", lock=path)
        os.close(file)
        return None
    return file


def _locked(path: Path) -> bool:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False


def _forget_old(path: Path) -> None:
    """Remove the records of namespaces whose proxies are long gone."""
    for other in path.parent.glob("proxy-*.json"):
        with contextlib.suppress(OSError):
            if other != path and time.time() - other.stat().st_mtime > _OLD_SECONDS:
                lock = other.with_suffix(".lock")
                if not _locked(lock):
                    other.unlink()
                    lock.unlink(missing_ok=True)
