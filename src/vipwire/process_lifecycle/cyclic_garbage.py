"""Sets how often Python's garbage collector runs, and how much freed memory the C library keeps.

vipwire holds a million long-lived immutable values without cycles, which the collector by default examines again and
again: half of the time of a start with 10,000 Services. So it is off until the first sync is over, then ignores all
values of that time. It stays on afterwards, because each failed request leaves a cycle (its exception and the
frames).

The C library by default keeps a heap for each thread, and freed blocks of up to 32 MB: a tenth of the memory of a
proxy.
"""

import contextlib
import gc
from typing import Final

_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8
"""Options of malloc.h."""
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


def limit_heap() -> None:
    """Let all threads share one heap of the C library, which returns large freed blocks, if the library can."""
    with contextlib.suppress(ImportError, AttributeError, OSError):
        import _ctypes  # noqa: PLC0415  # ctypes itself takes 3 ms more, before the first sync

        mallopt = _ctypes.dlsym(_ctypes.dlopen("libc.so.6", 0), "mallopt")
        for option in ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, 256 << 10)):
            _ctypes.call_function(mallopt, option)
