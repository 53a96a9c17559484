"""Tells an event loop that something in a folder has changed: inotify(7), without a thread and without waking up.

A library that polls in a thread wakes the process twenty times a second, which is most of what an idle proxy costs.
"""

import asyncio
import contextlib
import ctypes
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

_LIBC = ctypes.CDLL(None, use_errno=True)
_ATTRIB, _CLOSE_WRITE, _MOVED, _CREATE, _DELETE, _GONE = 0x4, 0x8, 0xC0, 0x100, 0x200, 0xC00
_EVENTS: Final = _ATTRIB | _CLOSE_WRITE | _MOVED | _CREATE | _DELETE | _GONE
_BUFFER: Final = 1 << 16


@contextlib.contextmanager
def changes(folders: Iterable[Path]) -> Iterator[asyncio.Event]:
    """Set the event whenever something in one of the folders, not below them, has changed; the caller clears it.

    Raises OSError where a folder cannot be watched.
    """
    loop, changed = asyncio.get_running_loop(), asyncio.Event()
    descriptor = _checked(_LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def read() -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(descriptor, _BUFFER)
        changed.set()

    try:
        for folder in folders:
            _checked(_LIBC.inotify_add_watch(descriptor, os.fsencode(folder), _EVENTS))
        loop.add_reader(descriptor, read)
        yield changed
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
