"""Yields a file's content whenever it changes.

Looked at is the content and not the file's time, because a ConfigMap is mounted as a link to a link: `config.conf`
points into `..data`, which the kubelet points to another folder. So the folders of the name and of what it leads to
are watched, and, where that is impossible or hears nothing (a network file system), the file is read now and then.
A file that is no link is known by its name: what others write beside it, as each proxy its record, wakes nobody.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

_LOOK_SECONDS: Final = 2.0
"""How often a file is read although nothing was heard of its folder."""
_LOCAL_LOOK_SECONDS: Final = 60.0
"""The same where every change of the folder is heard: only a folder above can be exchanged."""


async def contents(path: Path) -> AsyncIterator[bytes | None]:
    """Yield the content of a file, and again whenever it is another one; None while it cannot be read."""
    last = await asyncio.to_thread(_content, path)
    yield last
    while True:
        watched = folders, only = await asyncio.to_thread(_watched, path)
        every = _LOCAL_LOOK_SECONDS if await asyncio.to_thread(_all_heard, folders) else _LOOK_SECONDS
        from vipwire.process.folder_watch import hints  # noqa: PLC0415  # the thread has imported it by now

        async with contextlib.aclosing(hints(folders, every=every, only=only)) as times:
            async for _ in times:
                now = await asyncio.to_thread(_content, path)
                if now != last:
                    last = now
                    yield now
                if await asyncio.to_thread(_watched, path) != watched:
                    break


def _watched(path: Path) -> tuple[frozenset[Path], str]:
    """Find the folders whose changes may change what the name leads to, and the one name that counts there."""
    wanted = (path.parent, path.resolve().parent) if path.parent.exists() else (path.parent,)
    return frozenset(folder for folder in wanted if folder.is_dir()), "" if path.is_symlink() else path.name


def _all_heard(folders: frozenset[Path]) -> bool:
    from vipwire.process.folder_watch import hears_all  # noqa: PLC0415

    return bool(folders) and all(map(hears_all, folders))


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
