"""Sets how often Python looks for cyclic garbage, and gives freed memory back to the kernel.

What vipwire holds is a million immutable values that live long and are never part of a cycle. The collector's default
looks through the newest 700 containers at a time and, while the values of a first list pile up, through all of them
again and again: half of the time of a start with 10,000 Services. So it looks at nothing until the first sync is
over, and never again at what is there then; and from there on at 50,000 new containers at a time.

It is not switched off for good: a failed request leaves a cycle behind (its exception and the frames), and a server
may be away for days. Therefore a start that does not come to its first sync looks again, too.

The first list of a large cluster leaves holes all over the heap of the C library, a twentieth of all that the process
holds. It has no use for them as long as nothing of that size comes again.
"""

import contextlib
import gc

EVERY = (50_000, 20, 20)
"""New containers before the youngest are looked through; such rounds before the next older, and so on."""


def rest() -> None:
    """Look at nothing until `look_rarely`, or until the process has ended."""
    gc.disable()


def look_rarely() -> None:
    """Look rarely from now on, and only at what is made from now on if the collector has rested."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
    gc.set_threshold(*EVERY)


def give_back() -> None:
    """Give back every free page of the C library's heap. Where it cannot, nothing is done."""
    import ctypes  # noqa: PLC0415  # costly to import, and of use after the first sync

    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
