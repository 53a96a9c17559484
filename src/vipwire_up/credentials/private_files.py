"""Files that their owner alone can read, written whole or not at all, whenever the machine stops."""

import os
from pathlib import Path


def write_private(path: Path, content: bytes) -> None:
    """Write a file; what was there stays until the new content is on the disk. Raise OSError."""
    fresh = path.with_name(f"{path.name}.new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(path)
    except OSError:
        fresh.unlink(missing_ok=True)  # a full disk needs the space
        raise
    _sync_folder(path.parent)


def update_private(path: Path, content: bytes) -> None:
    """Write a file unless it holds this already: then a full disk does no harm. Raise OSError."""
    try:
        if path.read_bytes() == content:
            return
    except FileNotFoundError:
        pass
    write_private(path, content)


def _sync_folder(folder: Path) -> None:
    """Write the folder to the disk, so that the new name is there too."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
