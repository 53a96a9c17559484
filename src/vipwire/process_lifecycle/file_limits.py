"""Raises the limit of open files: each connection needs one, and distributions allow 1,024."""

import resource
from contextlib import suppress
from pathlib import Path
from typing import Final

WANTED: Final = 1 << 20


def raise_limit(wanted: int = WANTED) -> int:
    """Raise RLIMIT_NOFILE as far as this user may, at most to `wanted`; return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted
    with suppress(OSError, ValueError):
        most = min(wanted, int(Path("/proc/sys/fs/nr_open").read_text(encoding="ascii")))
    for limits in ((most, max(most, hard)), (min(most, hard), hard)):
        if limits[0] <= soft:
            break
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            return limits[0]
    return soft
