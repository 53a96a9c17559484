"""Gives back to the kernel what the C library keeps of freed memory.

A first list of a large cluster leaves holes all over the heap: a twentieth of all that the process holds. It has no
use for them as long as nothing of that size comes again.
"""

import contextlib


def give_back() -> None:
    """Give back every free page. Where the C library cannot, nothing is done."""
    import ctypes  # noqa: PLC0415  # costly to import, and of use after the first sync

    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
