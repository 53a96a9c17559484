"""Assigns endpoints to the server slots of a backend.

HAProxy 2.6 can change a server's address at run time, but not add servers with all options, so a backend has more
servers than endpoints. An endpoint keeps its slot as long as it exists, even if all others change. HAProxy opens a
descriptor for each slot, so few slots are spare. A pool that outgrows its slots moves to a spare backend, or
waits for a reload.
"""

from collections.abc import Sequence
from typing import TypeAlias

from vipwire_l7.plan.sites import Server

Slots: TypeAlias = tuple[Server | None, ...]


def choose_size(count: int) -> int:
    """Choose the number of slots for so many endpoints: a quarter to spare, at least one."""
    return count + max(1, count // 4)


def fill_slots(slots: Slots, servers: Sequence[Server]) -> Slots:
    """Assign a slot to every server, its old one if it has one; add slots if there are too few.

    >>> len(fill((), ()))
    1
    """
    wanted = {_get_address_and_port(server): server for server in servers}
    kept = [wanted.pop(_get_address_and_port(slot), None) if slot else None for slot in slots]
    if len(slots) < len(servers) or not slots:
        kept += [None] * (choose_size(len(servers)) - len(slots))
    fresh = iter(wanted.values())
    return tuple(slot if slot is not None else next(fresh, None) for slot in kept)


def count_used_slots(slots: Slots) -> int:
    """Count the slots up to the last server."""
    return next((number for number in range(len(slots), 0, -1) if slots[number - 1] is not None), 0)


def _get_address_and_port(server: Server) -> tuple[bytes, int]:
    return server.endpoint.address, server.port
