"""Reads one family's frontends from the kernel's maps, and writes a difference in an order that is always safe.

    new members  ▸  endpoints into a free stretch of slots  ▸  the frontend refers to the stretch  ▸  removals

The third step is one update: a connection gets old or new endpoints. A commit may stop anywhere; rules serve missing
frontends. The place of endpoints in `slots` is free; counts move along.
"""

import errno
import mmap
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Final, NamedTuple

from vipwire.linux.bpf.maps import Map
from vipwire.model.net import Family
from vipwire.modes.ebpf.counts import NUMBER, CountedConnections, Tallies, carry_counts, read_tallies, subtract_counts
from vipwire.modes.ebpf.layout import (
    FRONTEND,
    FRONTENDS,
    HEAD,
    MEMBERS,
    OurKey,
    Ours,
    choose_family_suffix,
    endpoint_size,
    slot_size,
)
from vipwire.modes.ebpf.pinned import NodePins
from vipwire.reconcile.delta import Delta

COOLING_SECONDS: Final = 1.0


class SlotsFullError(Exception):
    """The array of slots has no free stretch of this length: a larger one is needed."""


class Stretches:
    """The free stretches of an array of slots; `taken` are (first, length).

    Stretches are grouped by length, because most pools have few lengths. A returned stretch rests for a second,
    because a program may still read it.
    """

    def __init__(self, size: int, taken: Iterable[tuple[int, int]] = ()) -> None:
        self.size, self.end = size, 0
        self._free: dict[int, list[int]] = {}
        self._cooling: deque[tuple[float, int, int]] = deque()
        for first, length in sorted(taken):
            if first > self.end:
                self._free.setdefault(first - self.end, []).append(self.end)
            self.end = max(self.end, first + length)

    def reserve(self, length: int, now: float) -> int:
        """Take a stretch; return its first slot. Raise SlotsFullError if none is free."""
        while self._cooling and self._cooling[0][0] <= now:
            _, first, free = self._cooling.popleft()
            self._free.setdefault(free, []).append(first)
        if self._free.get(length):
            return self._free[length].pop()
        if self.end + length <= self.size:
            self.end += length
            return self.end - length
        for longer in sorted(each for each, firsts in self._free.items() if each > length and firsts):
            first = self._free[longer].pop()
            self._free.setdefault(longer - length, []).append(first + length)
            return first
        raise SlotsFullError(length)

    def release(self, first: int, length: int, now: float) -> None:
        if length:
            self._cooling.append((now + COOLING_SECONDS, first, length))


_LOOKED_UP: Final = ("frontends", "slots", "members")
_ROOM: Final = 2
"""A larger map gets this multiple of the needed room."""


class _Memory(NamedTuple):
    """The memory of the slots and of their numbers, and the ids of their maps."""

    maps: tuple[int, int]
    slots: mmap.mmap
    hits: mmap.mmap

    def close(self) -> None:
        self.slots.close()
        self.hits.close()


class _Outgrown(NamedTuple):
    """The stretches of frontends in replaced maps, and the counts so far."""

    memory: _Memory
    where: dict[bytes, tuple[int, int]]
    counted: dict[bytes, Tallies]


class Tables:
    """The maps of one family."""

    def __init__(self, family: Family, pinned: NodePins) -> None:
        self._pins, self._each, self._size = pinned, slot_size(family), endpoint_size(family)
        self._names = {
            name: name + choose_family_suffix(family) for name in (*_LOOKED_UP, "hits", "counts", "peers", "affinity")
        }
        self.counted = CountedConnections(family, pinned)
        self._where: dict[bytes, tuple[int, int]] = {}
        self._members = 0
        self._free = Stretches(0)
        self._of = 0
        self._memory: _Memory | None = None
        self._outgrown: _Outgrown | None = None

    def close(self) -> None:
        for each in (self._memory, self._outgrown and self._outgrown.memory):
            if each is not None:
                each.close()
        self._memory = self._outgrown = None

    def observe(self) -> Ours:
        """Read all objects; empty without maps."""
        found: Ours = {}
        frontends, slots, members = (self._pins.find(self._names[name]) for name in _LOOKED_UP)
        if frontends is None or slots is None or members is None:
            return found
        where: dict[bytes, tuple[int, int]] = {}
        with closing(slots.map_memory(write=False)) as view:
            for key, value in frontends.items():
                first, count, head = FRONTEND.unpack(value)
                where[key] = first, count
                dealt = view[first * self._each : (first + count) * self._each]
                found[FRONTENDS, key] = HEAD.pack(head) + dealt
        self._record_frontends(where, slots)
        before = len(found)
        found.update(((MEMBERS, key), b"") for key, _ in members.items())
        self._members = len(found) - before
        return found

    def commit(self, delta: Delta[OurKey, bytes]) -> None:
        """Write a difference. Raise SlotsFullError, before any change, if larger maps are needed."""
        frontends, slots, members = (self._pins.require_map(self._names[name]) for name in _LOOKED_UP)
        if slots.number != self._of:
            self.observe()
        joining, leaving = _select_entries(MEMBERS, delta.added), _select_entries(MEMBERS, delta.removed)
        changed = _select_entries(FRONTENDS, delta.written)
        if len(self._where) + len(changed) > frontends.shape.max_entries:
            raise SlotsFullError(len(self._where) + len(changed))
        if self._members + len(joining) > members.shape.max_entries:
            raise SlotsFullError(self._members + len(joining))
        members.write(list(joining), [b"\1\0\0\0"] * len(joining))
        self._write_frontends(frontends, slots, changed)
        self._remove_frontends(frontends, _select_entries(FRONTENDS, delta.removed))
        members.remove(leaving)
        self._members += len(joining) - len(leaving)

    def enlarge_maps(self, wanted: Ours) -> None:
        """Replace these maps by larger ones with `wanted` in them. Attached programs continue with the old ones."""
        frontends, members = _select_entries(FRONTENDS, wanted), _select_entries(MEMBERS, wanted)
        needed = sum(max(1, (len(value) - HEAD.size) // self._each) for value in frontends.values())
        rooms = {"frontends": len(frontends), "slots": needed, "members": len(members)}
        self._keep_outgrown_counts()
        for name, room in rooms.items():
            before = self._pins.find(self._names[name])
            largest = max(_ROOM * room, (before.shape.max_entries if before else 0) + 1)
            self._pins.open_or_create(self._names[name], largest)
        self._where, self._members, self._of = {}, 0, 0
        self.commit(Delta(added=wanted))

    def collect_outgrown_counts(self) -> None:
        """Keep the counts of replaced maps, once no program uses them."""
        found, self._outgrown = self._outgrown, None
        if found is not None:
            for key, stretch in found.where.items():
                now = self._read_tallies(found.memory, stretch)
                self._keep_counts(key, subtract_counts(now, found.counted[key]))
            found.memory.close()

    def forget_objects(self, delta: Delta[OurKey, bytes]) -> None:
        """Remove the objects of a failed commit as far as possible: the rules serve them."""
        frontends = self._pins.find(self._names["frontends"])
        if frontends is not None:
            parts = (*delta.added, *delta.changed, *delta.removed)
            frontends.remove({key for space, key in parts if space == FRONTENDS})
        self._of = 0

    def measure_map_fill(self) -> dict[str, tuple[int, int]]:
        found = {}
        for name, pinned_name in self._names.items():
            if (each := self._pins.find(pinned_name)) is not None and each.shape.max_entries > 1:
                in_use = sum(length for _, length in self._where.values())
                used = in_use if name in ("slots", "hits") else sum(1 for _ in each.items())
                found[pinned_name] = used, each.shape.max_entries
        return found

    def _record_frontends(self, where: dict[bytes, tuple[int, int]], slots: Map) -> None:
        """Note the slots of frontends; keep counts of slots that a foreign program took from a frontend."""
        if (memory := self._memory) is not None:
            same = memory.maps[0] == slots.number
            for key, stretch in self._where.items():
                if not same or where.get(key) != stretch:
                    self._keep_counts(key, self._read_tallies(memory, stretch).items())
        self._where, self._of = where, slots.number
        self._free = Stretches(slots.shape.max_entries, where.values())

    def _write_frontends(self, frontends: Map, slots: Map, changed: Mapping[bytes, bytes]) -> None:
        now, led, stretches = time.monotonic(), {}, {}
        if not changed:
            return
        memory, had, gone = self._mmap_slots(slots), {}, {}
        for key, value in changed.items():
            dealt = value[HEAD.size :]
            length = len(dealt) // self._each
            first = self._free.reserve(length, now)
            had[key] = self._read_tallies(memory, self._where[key]) if key in self._where else {}
            gone[key] = dict(had[key])
            memory.slots[first * self._each : (first + length) * self._each] = dealt
            memory.hits[first * NUMBER : (first + length) * NUMBER] = carry_counts(
                dealt, self._each, self._size, gone[key]
            )
            led[key] = FRONTEND.pack(first, length, *HEAD.unpack_from(value))
            stretches[key] = first, length
        frontends.write(list(led), list(led.values()))
        for key, stretch in stretches.items():
            if key in self._where:
                self._release_slots(key, had[key], gone[key], now)
            self._where[key] = stretch

    def _remove_frontends(self, frontends: Map, gone: Iterable[bytes]) -> None:
        known = [key for key in gone if key in self._where]
        frontends.remove(gone)
        for key in known:
            self._release_slots(key, {}, {}, time.monotonic())
            del self._where[key]

    def _release_slots(self, key: bytes, had: Tallies, gone: Tallies, now: float) -> None:
        """Free the former slots of a frontend; keep the counts of removed endpoints and of late connections."""
        stretch = self._where[key]
        if self._memory is not None:
            self._keep_counts(key, (*gone.items(), *subtract_counts(self._read_tallies(self._memory, stretch), had)))
        self._free.release(*stretch, now)

    def _keep_counts(self, key: bytes, counted: Iterable[tuple[bytes, int]]) -> None:
        self.counted.keep_counts((key + endpoint, number) for endpoint, number in counted)

    def _read_tallies(self, memory: _Memory, stretch: tuple[int, int]) -> Tallies:
        first, count = stretch
        hits = memory.hits[first * NUMBER : (first + count) * NUMBER]
        return read_tallies(memory.slots[first * self._each : (first + count) * self._each], hits, self._size)

    def _keep_outgrown_counts(self) -> None:
        """Keep the counts so far. Programs count until they use the larger maps: see `collect_outgrown_counts`."""
        self.collect_outgrown_counts()
        if (slots := self._pins.find(self._names["slots"])) is None:
            return
        memory, self._memory = self._mmap_slots(slots), None
        counted = {key: self._read_tallies(memory, stretch) for key, stretch in self._where.items()}
        for key, each in counted.items():
            self._keep_counts(key, each.items())
        self._outgrown = _Outgrown(memory, self._where, counted)

    def _mmap_slots(self, slots: Map) -> _Memory:
        """Return the slots as memory, mapped once: the kernel maps all pages at once, and later changes are fast."""
        hits = self._pins.require_map(self._names["hits"])
        if hits.shape.max_entries < slots.shape.max_entries:
            hits = self._pins.open_or_create(self._names["hits"], slots.shape.max_entries)
        maps = slots.number, hits.number
        if self._memory is None or self._memory.maps != maps:
            if self._memory is not None:
                self._memory.close()
            self._memory = _Memory(maps, slots.map_memory(write=True), hits.map_memory(write=True))
        return self._memory


def is_map_full(error: OSError) -> bool:
    """Report whether a map refused an element because it is full or frozen."""
    return error.errno in (errno.E2BIG, errno.EPERM)


def _select_entries(space: str, objects: Mapping[OurKey, bytes]) -> dict[bytes, bytes]:
    return {key: value for (of, key), value in objects.items() if of == space}
