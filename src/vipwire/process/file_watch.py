"""Yields a file's content whenever it changes.

Looked at is the content and not the file's time, because a ConfigMap is mounted as a link to a link: `config.conf`
points into `..data`, which the kubelet points to another folder. So the folders of the name and of what it leads to
are watched, and, where that is impossible or hears nothing (a network file system), the file is read now and then.
A file that is no link is known by its name: what others write beside it, as each proxy its record, wakes nobody.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Final

_LOOK_SECONDS: Final = 2.0
"""How often a file is read although nothing was heard of its folder."""
_LOCAL_LOOK_SECONDS: Final = 60.0
"""The same where every change of the folder is heard: only a folder above can be exchanged."""
_SETTLE_SECONDS: Final = 0.05
"""Writers do several things to a folder at once: they are one change."""


async def contents(path: Path) -> AsyncIterator[bytes | None]:
    """Yield the content of a file, and again whenever it is another one; None while it cannot be read."""
    last = await asyncio.to_thread(_content, path)
    yield last
    while True:
        watched = await asyncio.to_thread(_watched, path)
        async with contextlib.aclosing(_hints(*watched)) as hints:
            async for _ in hints:
                now = await asyncio.to_thread(_content, path)
                if now != last:
                    last = now
                    yield now
                if await asyncio.to_thread(_watched, path) != watched:
                    break


async def _hints(folders: frozenset[Path], only: str) -> AsyncGenerator[None, None]:
    """Yield when something may have changed in the folders, or what has the one name there; and now and then."""
    if not folders:
        await asyncio.sleep(_LOOK_SECONDS)
        yield
        return
    from vipwire.process.folder_watch import changes  # noqa: PLC0415  # it takes ctypes, while lists are under way

    local = await asyncio.to_thread(_all_heard, folders)
    try:
        with changes(folders, only) as changed:
            yield  # what came before somebody listened
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOCAL_LOOK_SECONDS if local else _LOOK_SECONDS):
                        await changed.wait()
                        await asyncio.sleep(_SETTLE_SECONDS)
                changed.clear()
                yield
    except OSError:  # a folder has gone meanwhile, or the kernel has no more watches to give
        await asyncio.sleep(_LOOK_SECONDS)
        yield


def _watched(path: Path) -> tuple[frozenset[Path], str]:
    """Find the folders whose changes may change what the name leads to, and the one name that counts there."""
    wanted = (path.parent, path.resolve().parent) if path.parent.exists() else (path.parent,)
    return frozenset(folder for folder in wanted if folder.is_dir()), "" if path.is_symlink() else path.name


def _all_heard(folders: frozenset[Path]) -> bool:
    from vipwire.process.folder_watch import hears_all  # noqa: PLC0415

    return all(map(hears_all, folders))


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
