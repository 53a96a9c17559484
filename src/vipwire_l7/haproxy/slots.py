"""Servers of a backend as slots that are made ahead.

HAProxy 2.6 takes new addresses for a server at run time, so a backend has more servers than endpoints. An endpoint
keeps its slot as long as it lives: others in the same pool come and go without touching it. HAProxy opens a file for
each slot, so few are to spare: a pool that outgrows them takes a spare backend, or waits for a reload.
"""

from collections.abc import Sequence
from typing import TypeAlias

from vipwire_l7.plan.sites import Server

Slots: TypeAlias = tuple[Server | None, ...]


def size_for(count: int) -> int:
    """Choose how many slots to make for so many endpoints: a quarter to spare, one at least."""
    return count + max(1, count // 4)


def fill(slots: Slots, servers: Sequence[Server]) -> Slots:
    """Assign a slot to every server, its old one if it has one; add slots when they are too few.

    >>> len(fill((), ()))
    1
    """
    wanted = {_key(server): server for server in servers}
    kept = [wanted.pop(_key(slot), None) if slot else None for slot in slots]
    if len(slots) < len(servers) or not slots:
        kept += [None] * (size_for(len(servers)) - len(slots))
    fresh = iter(wanted.values())
    return tuple(slot if slot is not None else next(fresh, None) for slot in kept)


def used(slots: Slots) -> int:
    """Count the slots up to the last server."""
    return next((number for number in range(len(slots), 0, -1) if slots[number - 1] is not None), 0)


def _key(server: Server) -> tuple[bytes, int]:
    return server.endpoint.address, server.port
