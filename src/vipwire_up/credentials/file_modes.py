"""Tells which files of a data directory other users of the machine can read or change."""

import stat
from pathlib import Path
from typing import Final

from vipwire.process import log

_SECRET: Final = ("pki/*.key", "*.kubeconfig", "tokens.csv", "store.db*")
_PUBLIC: Final = (".", "pki", "pki/*.crt", "revoked", "member.json")


def tell_loose_modes(folder: Path) -> None:
    """Log a warning for each secret that others can read, and for each file and folder that others can change."""
    for patterns, bits, remedy in ((_SECRET, 0o077, "go-rwx"), (_PUBLIC, 0o022, "go-w")):
        for path in (folder / each for pattern in patterns for each in sorted(_found(folder, pattern))):
            try:
                mode = stat.S_IMODE(path.stat().st_mode)
            except OSError:  # the file is gone, or a link leads nowhere: who opens it tells
                continue
            if mode & bits:
                what = "change" if mode & 0o022 else "read"
                log.warning(
                    f"other users can {what} this file: set its mode", file=path, mode=f"{mode:04o}", chmod=remedy
                )


def _found(folder: Path, pattern: str) -> list[Path]:
    return [folder / pattern] if "*" not in pattern else list(folder.glob(pattern))
