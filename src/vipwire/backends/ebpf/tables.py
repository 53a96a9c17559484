"""One family's frontends in the kernel's maps: reads them, and writes a difference in an order that is always sound.

    members that join  ▸  endpoints into a free stretch of slots  ▸  the frontend leads there  ▸  what goes, goes

The third step is one update: a connection meets the old endpoints or the new ones. A commit that stops anywhere has
led nobody wrong, and what is not there yet is nftables'. Where in `slots` a frontend's endpoints lie does not matter.
"""

import errno
import mmap
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from vipwire.backends.ebpf.layout import FRONTEND, HEAD, slot_size, version
from vipwire.backends.ebpf.names import FRONTENDS, MEMBERS, OurKey, Ours
from vipwire.backends.ebpf.pinned import NodePins
from vipwire.backends.ebpf.stretches import FullError, Stretches
from vipwire.bpf.maps import Map
from vipwire.model.net import Family
from vipwire.reconcile.delta import Delta

_ROOM: Final = 2
"""A map that has become too small is replaced by one with so many times the room that is needed."""


class Tables:
    """The maps of one family."""

    def __init__(self, family: Family, pinned: NodePins) -> None:
        self._family, self._pins, self._each = family, pinned, slot_size(family)
        self._names = {name: name + version(family) for name in ("frontends", "slots", "members", "counts")}
        self._where: dict[bytes, tuple[int, int]] = {}
        self._members = 0
        self._free = Stretches(0)
        self._of = 0
        self._mapping: tuple[int, mmap.mmap] | None = None

    def close(self) -> None:
        """Let go of the slots' memory."""
        if self._mapping is not None:
            self._mapping[1].close()
            self._mapping = None

    def observe(self) -> Ours:
        """Read all; nothing where the maps are not there."""
        found: Ours = {}
        frontends, slots, members = (self._pins.find(self._names[name]) for name in ("frontends", "slots", "members"))
        if frontends is None or slots is None or members is None:
            return found
        where: dict[bytes, tuple[int, int]] = {}
        with _mapped(slots) as view:
            for key, value in frontends.items():
                first, count, flags, _ = FRONTEND.unpack(value)
                where[key] = first, count
                dealt = view[first * self._each : (first + count) * self._each]
                found[FRONTENDS, key] = HEAD.pack(flags) + dealt
        self._take_note(where, slots)
        before = len(found)
        found.update(((MEMBERS, key), b"") for key, _ in members.items())
        self._members = len(found) - before
        return found

    def commit(self, delta: Delta[OurKey, bytes]) -> None:
        """Write a difference. Raise FullError, with nothing in force yet, where larger maps are needed."""
        frontends, slots, members = (self._pins.held(self._names[name]) for name in ("frontends", "slots", "members"))
        if slots.number != self._of:
            self.observe()
        joining, leaving = _of(MEMBERS, delta.added), _of(MEMBERS, delta.removed)
        changed = {**_of(FRONTENDS, delta.added), **{key: new for key, (_, new) in _changes(delta)}}
        if len(self._where) + len(changed) > frontends.shape.max_entries:
            raise FullError(len(self._where) + len(changed))
        if self._members + len(joining) > members.shape.max_entries:
            raise FullError(self._members + len(joining))
        members.write(list(joining), [b"\1\0\0\0"] * len(joining))
        self._write(frontends, slots, changed)
        self._remove(frontends, _of(FRONTENDS, delta.removed))
        members.remove(leaving)
        self._members += len(joining) - len(leaving)

    def grow(self, wanted: Ours) -> None:
        """Put larger maps in the place of these, with this in them. Programs that run go on with the old ones."""
        frontends, members = _of(FRONTENDS, wanted), _of(MEMBERS, wanted)
        needed = sum(max(1, (len(value) - HEAD.size) // self._each) for value in frontends.values())
        rooms = {"frontends": len(frontends), "slots": needed, "members": len(members)}
        for name, room in rooms.items():
            before = self._pins.find(self._names[name])
            largest = max(_ROOM * room, (before.shape.max_entries if before else 0) + 1)
            self._pins.take(self._names[name], largest)
        self._where, self._members, self._of = {}, 0, 0
        self.commit(Delta(added=wanted))

    def leave_out(self, delta: Delta[OurKey, bytes]) -> None:
        """Remove what a commit that failed was about: nftables has it. As far as that is possible."""
        frontends = self._pins.find(self._names["frontends"])
        if frontends is not None:
            keys = {
                key
                for part in (delta.added, delta.changed, delta.removed)
                for space, key in part
                if space == FRONTENDS
            }
            frontends.remove(keys)
        self._of = 0

    def counted(self) -> Iterator[tuple[bytes, int]]:
        """Read what was counted: a frontend and an endpoint, and how many connections."""
        counts = self._pins.find(self._names["counts"])
        for key, value in counts.items() if counts is not None else ():
            yield key, int.from_bytes(value, "little")

    def fill(self) -> dict[str, tuple[int, int]]:
        """Tell how full each map is: elements, and room."""
        found = {}
        for name, pinned_name in self._names.items():
            if (each := self._pins.find(pinned_name)) is not None:
                used = (
                    sum(length for _, length in self._where.values())
                    if name == "slots"
                    else sum(1 for _ in each.items())
                )
                found[pinned_name] = used, each.shape.max_entries
        return found

    def forget_counts(self, known: Mapping[OurKey, bytes]) -> None:
        """Remove counts of what is gone, once the map is half full: it has room for so many pairs only."""
        counts = self._pins.find(self._names["counts"])
        if counts is None:
            return
        keys = [key for key, _ in counts.items()]
        if len(keys) > counts.shape.max_entries // 2:
            size = len(keys[0]) // 2
            counts.remove(key for key in keys if (FRONTENDS, key[:size]) not in known)

    def _take_note(self, where: dict[bytes, tuple[int, int]], slots: Map) -> None:
        self._where, self._of = where, slots.number
        self._free = Stretches(slots.shape.max_entries, where.values())

    def _write(self, frontends: Map, slots: Map, changed: Mapping[bytes, bytes]) -> None:
        now, keys, values, stretches = time.monotonic(), [], [], []
        if not changed:
            return
        view = self._writable(slots)
        for key, value in changed.items():
            length = (len(value) - HEAD.size) // self._each
            first = self._free.take(length, now)
            view[first * self._each : (first + length) * self._each] = value[HEAD.size :]
            keys.append(key)
            values.append(FRONTEND.pack(first, length, *HEAD.unpack_from(value), 0))
            stretches.append((first, length))
        frontends.write(keys, values)
        for key, stretch in zip(keys, stretches, strict=True):
            if key in self._where:
                self._free.give(*self._where[key], now)
            self._where[key] = stretch

    def _writable(self, slots: Map) -> mmap.mmap:
        """Return the slots as memory, which is kept: the kernel maps all pages at once, and a change is quicker."""
        if self._mapping is None or self._mapping[0] != slots.number:
            self.close()
            self._mapping = slots.number, slots.mapped(write=True)
        return self._mapping[1]

    def _remove(self, frontends: Map, gone: Mapping[bytes, bytes]) -> None:
        frontends.remove(gone)
        now = time.monotonic()
        for key in gone:
            if key in self._where:
                self._free.give(*self._where.pop(key), now)


def is_full(error: OSError) -> bool:
    """Report whether a map refused an element for want of room."""
    return error.errno == errno.E2BIG


def _of(space: str, objects: Mapping[OurKey, bytes]) -> dict[bytes, bytes]:
    return {key: value for (of, key), value in objects.items() if of == space}


def _changes(delta: Delta[OurKey, bytes]) -> Iterator[tuple[bytes, tuple[bytes, bytes]]]:
    return ((key, values) for (of, key), values in delta.changed.items() if of == FRONTENDS)


@contextmanager
def _mapped(slots: Map) -> Iterator[mmap.mmap]:
    view = slots.mapped(write=False)
    try:
        yield view
    finally:
        view.close()
