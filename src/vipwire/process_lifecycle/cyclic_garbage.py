"""Sets how often Python's garbage collector runs, and returns freed memory to the kernel.

vipwire holds a million long-lived immutable values without cycles, which the collector by default examines again and
again: half of the time of a start with 10,000 Services. So it is off until the first sync is over, then ignores all
values of that time. It stays on afterwards, because each failed request leaves a cycle (its exception and the
frames).

The first list of a large cluster leaves holes in the heap of the C library, a twentieth of the process's memory.
"""

import contextlib
import gc

EVERY = (50_000, 20, 20)
"""New containers before the youngest generation is examined; rounds of that before the next older, and so on."""


def disable_collection() -> None:
    """Turn the collector off until `collect_rarely`, or until the process ends."""
    gc.disable()


def collect_rarely() -> None:
    """Turn the collector on with a high threshold; if it was off, it ignores the values of that time."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
    gc.set_threshold(*EVERY)


def return_memory() -> None:
    """Return every free page of the C library's heap to the kernel, if the library can."""
    import ctypes  # noqa: PLC0415  # costly to import, and of use after the first sync

    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
