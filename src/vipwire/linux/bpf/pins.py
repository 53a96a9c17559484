"""Names in bpffs: a named object stays in the kernel when its process ends, and the next process opens it."""

import errno
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from vipwire.errors import UnsupportedError
from vipwire.linux.bpf.syscall import BpfCommand, address_of, buffer_of, call_bpf, mount_filesystem

BPFFS: Final = Path("/sys/fs/bpf")
OURS: Final = BPFFS / "vipwire"
"""The folder of vipwire, with a folder for each network namespace (a node of this machine)."""
_KIND: Final = "bpf"


def open_pinned(path: Path) -> int | None:
    """Open the object at this path; None if missing."""
    name = buffer_of(bytes(path) + b"\0")
    try:
        return call_bpf(BpfCommand.OPEN_PINNED, struct.pack("=QII", address_of(name), 0, 0))
    except OSError as error:
        if error.errno == errno.ENOENT:
            return None
        raise


@contextmanager
def hold_pinned_open(path: Path) -> Iterator[int | None]:
    """Open the object at this path for the block, as `open_pinned` does."""
    descriptor = open_pinned(path)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def pin(descriptor: int, path: Path) -> None:
    """Pin an object at this path, replacing another one atomically."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"new_{path.name}")
    with suppress(FileNotFoundError):
        draft.unlink()
    name = buffer_of(bytes(draft) + b"\0")
    call_bpf(BpfCommand.PIN, struct.pack("=QII", address_of(name), descriptor, 0))
    draft.replace(path)


def build_node_path(cookie: int) -> Path:
    return OURS / f"{cookie:x}"


def is_mounted(path: Path = BPFFS, mounts: Path = Path("/proc/self/mounts")) -> bool:
    lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    return any(line.split()[1:3] == [str(path), _KIND] for line in lines)


def require_mounted(path: Path = BPFFS, *, may_mount: bool, could_mount: bool = False) -> None:
    """If bpffs is not mounted, mount it (`may_mount`). Raise UnsupportedError if that fails or is not allowed.

    `could_mount`, for commands that only read: this process could mount bpffs, so do nothing.
    """
    if is_mounted(path) or could_mount:
        return
    reason = ""
    if may_mount:
        try:
            mount_filesystem("bpffs", str(path), _KIND, "mode=0700")
        except OSError as error:
            reason = f" ({os.strerror(error.errno or 0)})"
        else:
            return
    raise UnsupportedError(
        f"no bpffs at {path}, where ebpf mode keeps its programs{reason}: run `mount -t bpf bpffs {path}` on the "
        "node, and in a Pod mount that folder by hostPath"
    )
