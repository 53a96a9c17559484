"""Counts the connections that programs made: by slot in `hits`, and in `counts` those of former slots.

A program counts a socket that it connects; nftables rules count connections with DNAT. No connection is both, so
vipwire adds them. Each slot has a number, so a program counts with one addition. When a pool moves to other slots,
counts move along; counts of removed endpoints go to the map `counts`. A connection during a move may be missed.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from typing import Final

from vipwire.linux.bpf.maps import Map
from vipwire.model.net import Family
from vipwire.modes.ebpf.layout import (
    FRONTEND,
    FRONTENDS,
    OurKey,
    choose_family_suffix,
    endpoint_size,
    read_endpoint,
    slot_size,
)
from vipwire.modes.ebpf.pinned import NodePins
from vipwire.modes.ebpf.render import list_map_keys
from vipwire.plan.plan import ServicePlan
from vipwire.reconcile.counts import Counts, EndpointName, Measure

NUMBER: Final = 8
"""Bytes of a slot's number."""
Tallies = dict[bytes, int]
"""Connections by endpoint."""


def read_tallies(slots: bytes, hits: bytes, size: int) -> Tallies:
    """Add up the connections of some slots; an endpoint is the first `size` bytes of a slot."""
    found: Tallies = {}
    if not any(hits):
        return found
    each = len(slots) * NUMBER // len(hits)
    for index, (number,) in enumerate(struct.iter_unpack("=Q", hits)):
        if number:
            endpoint = slots[index * each : index * each + size]
            found[endpoint] = found.get(endpoint, 0) + number
    return found


def carry_counts(slots: bytes, each: int, size: int, had: Tallies) -> bytes:
    """Return the initial numbers of a pool's slots, and subtract them from `had`."""
    count = len(slots) // each
    if not had:
        return bytes(count * NUMBER)
    numbers = (had.pop(slots[at : at + size], 0) for at in range(0, len(slots), each))
    return struct.pack(f"={count}Q", *numbers)


def subtract_counts(now: Tallies, before: Tallies) -> Iterator[tuple[bytes, int]]:
    return ((endpoint, number - before.get(endpoint, 0)) for endpoint, number in now.items())


def add_connections(
    counts: Counts, family: Family, plans: Iterable[ServicePlan], pairs: Iterable[tuple[bytes, int]]
) -> None:
    """Add the connections of (frontend, endpoint) pairs to the counts of nftables' rules."""
    names = {
        place: frontend.port_name
        for plan in plans
        for frontend in plan.frontends
        for place in list_map_keys(plan, frontend.key)
    }
    size = family.bits // 8 + 4
    for pair, connections in pairs:
        name = names.get(pair[:size])
        if name is not None:
            endpoint = EndpointName(name, *read_endpoint(pair[size:]))
            counts.add_endpoint(Measure.CONNECTIONS, endpoint, connections)


class CountedConnections:
    """The connections of one family, by pairs of a frontend and an endpoint."""

    def __init__(self, family: Family, pinned: NodePins) -> None:
        self._family, self._pins, self._version = family, pinned, choose_family_suffix(family)

    def read(self) -> Iterator[tuple[bytes, int]]:
        """Read all pairs. A pair may come twice: with its current and its former slots."""
        for counts in self._open_kept_maps():
            for pair, value in counts.items():
                yield pair, int.from_bytes(value, "little")
        yield from self.read_slot_counts()

    def read_slot_counts(self) -> Iterator[tuple[bytes, int]]:
        found = [self._pins.find(name + self._version) for name in ("frontends", "slots", "hits")]
        frontends, slots, hits = found
        if frontends is None or slots is None or hits is None:
            return
        each, size = slot_size(self._family), endpoint_size(self._family)
        with closing(slots.map_memory(write=False)) as places, closing(hits.map_memory(write=False)) as numbers:
            for key, value in frontends.items():
                first, count, _ = FRONTEND.unpack(value)
                counted = numbers[first * NUMBER : (first + count) * NUMBER]
                dealt = places[first * each : (first + count) * each]
                for endpoint, number in read_tallies(dealt, counted, size).items():
                    yield key + endpoint, number

    def keep_counts(self, pairs: Iterable[tuple[bytes, int]]) -> None:
        """Add the connections of former slots. A full map loses them."""
        added = {pair: number for pair, number in pairs if number > 0}
        if not added:
            return
        counts = self._pins.require_map(f"counts{self._version}")
        before = {pair: int.from_bytes(counts.lookup(pair) or b"", "little") for pair in added}
        counts.write_what_fits(
            {pair: (before[pair] + number).to_bytes(8, "little") for pair, number in added.items()}
        )

    def forget_frontends(self, known: Mapping[OurKey, bytes]) -> None:
        """Remove the counts of deleted frontends, once the map is half full."""
        for counts in self._open_kept_maps():
            keys = [key for key, _ in counts.items()]
            if len(keys) > counts.shape.max_entries // 2:
                size = len(keys[0]) // 2
                counts.remove(key for key in keys if (FRONTENDS, key[:size]) not in known)

    def _open_kept_maps(self) -> list[Map]:
        """Open the maps by pairs: of former slots, and of connections with client affinity."""
        found = (self._pins.find(name + self._version) for name in ("counts", "sticky"))
        return [each for each in found if each is not None]
