"""The first files of a kernel that boots without a disk, as pure bytes.

They are a cpio archive of the kind "newc": Documentation/driver-api/early-userspace/buffer-format.rst of the kernel.
"""

from collections.abc import Iterable, Sequence

_MAGIC, _LAST = "070701", "TRAILER!!!"
_FOLDER, _PROGRAM = 0o040755, 0o100755


def archive(folders: Iterable[str], programs: Iterable[tuple[str, bytes]]) -> bytes:
    """Write an archive of folders (parents first) and files that may be executed, by paths without a slash."""
    entries = [(name, _FOLDER, b"") for name in folders] + [(name, _PROGRAM, data) for name, data in programs]
    entries.append((_LAST, 0, b""))
    return b"".join(_entry(number, *each) for number, each in enumerate(entries))


def _entry(inode: int, name: str, mode: int, data: bytes) -> bytes:
    fields: Sequence[int] = (inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
    head = (_MAGIC + "".join(f"{each:08X}" for each in fields) + name + "\0").encode()
    return _filled(head) + _filled(data)


def _filled(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)
