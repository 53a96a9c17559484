"""Maps of bpf(2): creates, opens, writes and reads them, many elements at once.

A map exists while a program uses it, a descriptor is open, or a name in bpffs refers to it (`pins`).
"""

import errno
import mmap
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Self

from vipwire.linux.bpf.elf import MapShape
from vipwire.linux.bpf.syscall import BpfCommand, address_of, buffer_of, call_bpf, read_object_info

ARRAY: Final = 2
_SOCKET_STORAGE: Final = 24
_READ_ONLY_FOR_PROGRAMS: Final = 1 << 7
_FEW: Final = 4
"""If there are fewer elements than this, vipwire writes each by its own call, not in a batch."""
_AT_ONCE: Final = 16384


class Map:
    """A map by its descriptor."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        data = read_object_info(descriptor)
        self.shape = MapShape(*struct.unpack_from("=I4xIIII", data))
        (self.number,) = struct.unpack_from("=I", data, 4)

    @classmethod
    def create(cls, name: str, shape: MapShape) -> Self:
        """Create an empty map. For socket storage the kernel requires BTF types."""
        types = _storage_types(shape.value_size) if shape.kind == _SOCKET_STORAGE else -1
        try:
            words = (max(types, 0), 1, 2) if types >= 0 else (0, 0, 0)
            attributes = struct.pack("=IIIIIII16sIIIII", *shape, 0, 0, name.encode()[:15], 0, *words, 0)
            return cls(call_bpf(BpfCommand.MAP_CREATE, attributes))
        finally:
            if types >= 0:
                os.close(types)

    @classmethod
    def constants(cls, name: str, data: bytes) -> Self:
        """Create a read-only map that holds these bytes."""
        made = cls.create(name, MapShape(ARRAY, 4, len(data), 1, _READ_ONLY_FOR_PROGRAMS))
        made.write([bytes(4)], [data])
        call_bpf(BpfCommand.MAP_FREEZE, struct.pack("=I", made.descriptor))
        return made

    def close(self) -> None:
        os.close(self.descriptor)

    def lookup(self, key: bytes) -> bytes | None:
        """Read one element; None if missing."""
        where, found = buffer_of(key), buffer_of(self.shape.value_size)
        try:
            call_bpf(
                BpfCommand.MAP_LOOKUP,
                struct.pack("=I4xQQQ", self.descriptor, address_of(where), address_of(found), 0),
            )
        except OSError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        return found.raw

    def write(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Write elements in order. Raise OSError; E2BIG if the map is full, with some elements written."""
        if len(keys) < _FEW:
            for key, value in zip(keys, values, strict=True):
                where, what = buffer_of(key), buffer_of(value)
                attributes = struct.pack("=I4xQQQ", self.descriptor, address_of(where), address_of(what), 0)
                call_bpf(BpfCommand.MAP_UPDATE, attributes)
            return
        all_keys, all_values = bytearray(b"".join(keys)), bytearray(b"".join(values))
        call_bpf(BpfCommand.UPDATE_BATCH, self._read_batch(0, 0, all_keys, all_values, len(keys)))

    def write_what_fits(self, elements: Mapping[bytes, bytes]) -> None:
        """Write elements while the map has room. Raise OSError for any other reason."""
        try:
            self.write(list(elements), list(elements.values()))
        except OSError as error:
            if error.errno != errno.E2BIG:
                raise

    def remove(self, keys: Iterable[bytes]) -> None:
        """Delete elements; ignores missing ones."""
        for key in keys:
            where = buffer_of(key)
            try:
                call_bpf(BpfCommand.MAP_DELETE, struct.pack("=I4xQ", self.descriptor, address_of(where)))
            except OSError as error:
                if error.errno != errno.ENOENT:
                    raise

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Read all elements of a hash, in batches; concurrent changes may be missed."""
        key_size, value_size = self.shape.key_size, self.shape.value_size
        position, room, first = buffer_of(max(key_size, 8)), _AT_ONCE, True
        while True:
            keys, values = bytearray(key_size * room), bytearray(value_size * room)
            start = 0 if first else address_of(position)
            attributes = buffer_of(self._read_batch(start, address_of(position), keys, values, room))
            try:
                call_bpf(BpfCommand.LOOKUP_BATCH, attributes)
                last = False
            except OSError as error:
                if error.errno == errno.ENOSPC:  # one bucket holds more elements than the buffer
                    room *= 2
                    continue
                if error.errno != errno.ENOENT:
                    raise
                last = True
            (count,) = struct.unpack_from("=I", attributes, 32)
            for index in range(count):
                yield (
                    bytes(keys[index * key_size : (index + 1) * key_size]),
                    bytes(values[index * value_size : (index + 1) * value_size]),
                )
            if last:
                return
            first = False

    def map_memory(self, *, write: bool) -> mmap.mmap:
        each = compute_stride(self.shape)
        size = -(-self.shape.max_entries * each // mmap.PAGESIZE) * mmap.PAGESIZE
        access = mmap.PROT_READ | (mmap.PROT_WRITE if write else 0)
        return mmap.mmap(self.descriptor, size, mmap.MAP_SHARED, access)

    def _read_batch(self, start: int, end: int, keys: bytearray, values: bytearray, count: int) -> bytes:
        return struct.pack(
            "=QQQQIIQQ", start, end, address_of(keys), address_of(values), count, self.descriptor, 0, 0
        )


def compute_stride(shape: MapShape) -> int:
    """Return the distance between elements of an array, in bytes."""
    return (shape.value_size + 7) & ~7


def _storage_types(size: int) -> int:
    """Load the BTF types of a socket-storage map: int as its key, int[n] as its value (btf.rst)."""
    names = b"\0int\0"
    types = struct.pack("=IIII", 1, 1 << 24, 4, 1 << 24 | 32)
    types += struct.pack("=IIIIII", 0, 3 << 24, 0, 1, 1, size // 4)
    blob = buffer_of(
        struct.pack("=HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(names)) + types + names
    )
    return call_bpf(BpfCommand.BTF_LOAD, struct.pack("=QQIII", address_of(blob), 0, len(blob), 0, 0))
