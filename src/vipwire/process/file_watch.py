"""Yields a file's content whenever it changes.

Looked at is the content and not the file's time, because a ConfigMap is mounted as a link to a link: `config.conf`
points into `..data`, which the kubelet points to another folder. So the folders of the name and of what it leads to
are watched, and, where that is impossible or hears nothing (a network file system), the file is read now and then.
"""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from watchfiles import awatch

_LOOK_SECONDS: Final = 2.0
"""How often a file is read although nothing was heard of its folder."""


async def contents(path: Path) -> AsyncIterator[bytes | None]:
    """Yield the content of a file, and again whenever it is another one; None while it cannot be read."""
    last = await asyncio.to_thread(_content, path)
    yield last
    while True:
        folders = await asyncio.to_thread(_folders, path)
        async for _ in _hints(folders):
            now = await asyncio.to_thread(_content, path)
            if now != last:
                last = now
                yield now
            if await asyncio.to_thread(_folders, path) != folders:
                break


async def _hints(folders: frozenset[Path]) -> AsyncIterator[None]:
    """Yield when something may have changed in the folders, and now and then."""
    if not folders:
        await asyncio.sleep(_LOOK_SECONDS)
        yield
        return
    stop = threading.Event()
    try:
        every = int(_LOOK_SECONDS * 1000)
        heard = awatch(
            *folders, watch_filter=None, recursive=False, rust_timeout=every, yield_on_timeout=True, stop_event=stop
        )
        async for _ in heard:
            yield
    except OSError:  # a folder has gone meanwhile, or the kernel has no more watches to give
        await asyncio.sleep(_LOOK_SECONDS)
        yield
    finally:
        stop.set()


def _folders(path: Path) -> frozenset[Path]:
    """Find the folders whose changes may change what the name leads to."""
    wanted = (path.parent, path.resolve().parent) if path.parent.exists() else (path.parent,)
    return frozenset(folder for folder in wanted if folder.is_dir())


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
