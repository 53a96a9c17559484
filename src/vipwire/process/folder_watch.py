"""Tells an event loop that something in a folder has changed: inotify(7), without a thread and without waking up.

A library that polls in a thread wakes the process twenty times a second, which is most of what an idle proxy costs.
"""

import asyncio
import contextlib
import ctypes
import os
import struct
import time
from collections.abc import AsyncGenerator, Iterable, Iterator
from pathlib import Path
from typing import Final

_LIBC = ctypes.CDLL(None, use_errno=True)
_ATTRIB, _CLOSE_WRITE, _MOVED, _CREATE, _DELETE, _GONE = 0x4, 0x8, 0xC0, 0x100, 0x200, 0xC00
_EVENTS: Final = _ATTRIB | _CLOSE_WRITE | _MOVED | _CREATE | _DELETE | _GONE
_BUFFER: Final = 1 << 16
_LENGTH: Final = struct.Struct("@12xI")
_EVENT_SIZE: Final = 16
"""struct inotify_event: watch, mask, cookie, the length of the name, and the name, which ends with zeros."""
QUIET_SECONDS: Final = 0.05
"""Writers do several things to a folder at once: after so long without another one they are done."""
_OTHERS_SECONDS: Final = 0.1, 1.0
"""For so long nobody listens after something happened to other names than the one that counts: at first, at most."""
_AT_ONCE: Final = 0.02
"""Seconds. Who hears of others so soon after a pause is in a folder to which others write all the time."""
_AGAIN_SECONDS: Final = 2.0
"""The pause of who cannot watch, before he tries again."""
_LOCAL: Final = frozenset(
    (0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0x2FC12FC1, 0x01021994, 0x858458F6, 0x794C7630)
)
"""ext2 to ext4, xfs, btrfs, f2fs, zfs, tmpfs, ramfs, overlay (statfs(2)): no other kernel changes their files."""


@contextlib.contextmanager
def changes(folders: Iterable[Path], only: str = "") -> Iterator[asyncio.Event]:
    """Set the event whenever something in one of the folders, not below them, has changed; the caller clears it.

    `only`: the name that counts; what happens to others in the folders is passed over, for others may write there
    all the time. Raises OSError where a folder cannot be watched.
    """
    loop, changed = asyncio.get_running_loop(), asyncio.Event()
    wanted = {os.fsencode(only), b""}
    descriptor = _checked(_LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    pause: asyncio.TimerHandle | None = None
    least, most = _OTHERS_SECONDS
    seconds, began = least, loop.time()

    def listen() -> None:
        nonlocal began
        began = loop.time()
        loop.add_reader(descriptor, read)

    def read() -> None:
        nonlocal pause, seconds
        with contextlib.suppress(BlockingIOError):
            names = _names(os.read(descriptor, _BUFFER))
            if not only or wanted & names:
                changed.set()
            else:  # a hundred proxies may write there, each several times a second
                loop.remove_reader(descriptor)
                seconds = min(2 * seconds, most) if loop.time() - began < _AT_ONCE else least
                pause = loop.call_later(seconds, listen)

    try:
        for folder in folders:
            _checked(_LIBC.inotify_add_watch(descriptor, os.fsencode(folder), _EVENTS))
        listen()
        yield changed
    finally:
        if pause is not None:
            pause.cancel()
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def hints(
    folders: Iterable[Path], *, every: float, settle: float = QUIET_SECONDS, only: str = ""
) -> AsyncGenerator[None, None]:
    """Yield when it is time to look: at once, when a change is over, and `every` so many seconds without one.

    Changes that follow each other are one, for at most `settle` seconds. `only` as in `changes`. It ends, after a
    pause, where a folder has gone meanwhile, or the kernel has no more watches to give.
    """
    try:
        with changes(folders, only) as changed:
            yield  # what came before somebody listened
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(every):
                        await changed.wait()
                await _settled(changed, settle)
                yield
    except OSError:
        yield
        await asyncio.sleep(_AGAIN_SECONDS)


async def _settled(changed: asyncio.Event, most: float) -> None:
    """Wait until nothing has changed for a moment, and clear the event."""
    until = time.monotonic() + most
    while changed.is_set() and time.monotonic() < until:
        changed.clear()
        await asyncio.sleep(QUIET_SECONDS)
    changed.clear()


def _names(events: bytes) -> set[bytes]:
    """Name what events are about; the empty name is a folder itself, or events that the kernel had no room for."""
    names, at = set(), 0
    while at < len(events):
        (length,) = _LENGTH.unpack_from(events, at)
        at += _EVENT_SIZE
        names.add(events[at : at + length].rstrip(b"\0"))
        at += length
    return names


def hears_all(folder: Path) -> bool:
    """Report whether this kernel makes every change in a folder, and so can tell of it."""
    found = ctypes.create_string_buffer(512)  # struct statfs begins with the type
    if _LIBC.statfs(os.fsencode(folder), found) != 0:
        return False
    return struct.unpack_from("@l", found)[0] & 0xFFFFFFFF in _LOCAL


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
