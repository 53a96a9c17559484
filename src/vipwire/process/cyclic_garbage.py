"""Sets how often Python looks for cyclic garbage.

What vipwire holds is a million immutable values that live long and are never part of a cycle. The collector's default
looks through the newest 700 containers at a time and, while the values of a first list pile up, through all of them
again and again: half of the time of a start with 10,000 Services. Looking at 50,000 at a time costs a twentieth of
that; looking at 500,000 until the first sync is over saves nothing there, and a 25th of a start with 44,000.

It is not switched off: a failed request leaves a cycle behind (its exception and the frames), and a server may be
away for days.
"""

import gc

EVERY = (50_000, 20, 20)
"""New containers before the youngest are looked through; such rounds before the next older, and so on."""


def look_rarely() -> None:
    """Set the collector of this process."""
    gc.set_threshold(*EVERY)
