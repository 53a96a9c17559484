"""Folders and files that only their owner can read: credentials and data of `vipwire up` and layer 7."""

from pathlib import Path

from vipwire.errors import ConfigError
from vipwire.file_io.files import check_owner, make_folders, replace_file


def make_folder(path: Path, flag: str) -> None:
    """Create the folder of a flag unless it exists. Raise ConfigError, also as `check_owner` does."""
    try:
        make_folders(path, 0o700)
    except OSError as error:
        raise ConfigError(f"{flag} {path}: {error.strerror}") from error
    check_owner(path, flag)


def write_private(path: Path, content: bytes) -> None:
    """Replace a file that only its owner can read, durably. Raise OSError."""
    replace_file(path, content, mode=0o600, durable=True)


def update_private(path: Path, content: bytes) -> None:
    """Write a private file unless it has this content, so that a full disk does no harm. Raise OSError."""
    try:
        if path.read_bytes() == content:
            return
    except FileNotFoundError:
        pass
    write_private(path, content)
