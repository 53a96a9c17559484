"""Connections by slot: added up by endpoint, and carried along when a pool moves to other slots. Pure.

Each slot has a number beside it, so that a program counts by one addition. Endpoints that stay in a pool take their
connections along; what those have had that go is kept in the map `counts`, by frontend and endpoint. Who connects at
the moment in which a pool moves may be left out.
"""

import struct
from collections.abc import Iterator
from typing import Final

NUMBER: Final = 8
"""How large the number of a slot is."""
Tallies = dict[bytes, int]
"""Connections by endpoint."""


def tallies(slots: bytes, hits: bytes, size: int) -> Tallies:
    """Add up the connections of some slots; an endpoint has the first bytes of a slot, so many as `size`."""
    found: Tallies = {}
    if not any(hits):
        return found
    each = len(slots) * NUMBER // len(hits)
    for index, (number,) in enumerate(struct.iter_unpack("=Q", hits)):
        if number:
            endpoint = slots[index * each : index * each + size]
            found[endpoint] = found.get(endpoint, 0) + number
    return found


def carried(slots: bytes, each: int, size: int, had: Tallies) -> bytes:
    """Write what the slots of a pool begin with, and take that away from what its endpoints have had."""
    count = len(slots) // each
    if not had:
        return bytes(count * NUMBER)
    numbers = (had.pop(slots[at : at + size], 0) for at in range(0, len(slots), each))
    return struct.pack(f"={count}Q", *numbers)


def later(now: Tallies, before: Tallies) -> Iterator[tuple[bytes, int]]:
    """List what has been added since."""
    return ((endpoint, number - before.get(endpoint, 0)) for endpoint, number in now.items())
