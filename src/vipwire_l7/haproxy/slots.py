"""Servers of a backend as slots that are made ahead.

HAProxy 2.6 takes new addresses for a server at run time, so a backend has more servers than endpoints. An endpoint
keeps its slot as long as it lives: others in the same pool come and go without touching it. Only when the slots are
too few is there a reload, and then their number doubles.
"""

from collections.abc import Sequence
from typing import TypeAlias

from vipwire_l7.plan.sites import Server

LEAST = 4
Slots: TypeAlias = tuple[Server | None, ...]


def size_for(count: int) -> int:
    """Choose how many slots to make for so many endpoints: a power of two, with a quarter to spare."""
    size = LEAST
    while size < count + max(1, count // 4):
        size *= 2
    return size


def fill(slots: Slots, servers: Sequence[Server]) -> Slots:
    """Assign a slot to every server, its old one if it has one; add slots when they are too few.

    >>> len(fill((), ()))
    4
    """
    wanted = {_key(server): server for server in servers}
    kept = [wanted.pop(_key(slot), None) if slot else None for slot in slots]
    if len(slots) < len(servers) or not slots:
        kept += [None] * (size_for(len(servers)) - len(slots))
    fresh = iter(wanted.values())
    return tuple(slot if slot is not None else next(fresh, None) for slot in kept)


def _key(server: Server) -> tuple[bytes, int]:
    return server.endpoint.address, server.port
