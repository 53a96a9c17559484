"""Handles the slots of a pool as one object, a *block*: the reconciler only compares objects.

    service-endpoints   frontend . slot 1 : target  ┐
                        frontend . slot 2 : target  ├─▶ ("service-endpoints", frontend . slot 1) : Block(targets, 3)
                        frontend . slot 3 : target  ┘

A block is one key, one value and one entry in each dictionary. Transactions and texts contain its elements.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from operator import itemgetter
from typing import Final, TypeAlias

from vipwire.linux.netlink.nftables.elements import encode_run
from vipwire.modes.nftables.table.names import Block, Object, ObjectKey, handle_bytes

BLOCKED: Final = ("service-endpoints", "nodeport-endpoints")
"""The maps whose elements form blocks."""
_PIECE: Final = 64
"""Elements that are encoded in one piece. A message of a transaction contains whole pieces."""
_SET_NAME = itemgetter(0)
Planned: TypeAlias = dict[str, list[tuple[bytes, Block]]]
"""The planned blocks, by map."""


@lru_cache(maxsize=4096)
def _list_slots(first: bytes, count: int) -> tuple[bytes, ...]:
    number = int.from_bytes(first, sys.byteorder)
    return tuple(map(handle_bytes, range(number, number + count)))


def split_block(key: bytes, block: Block) -> dict[bytes, bytes]:
    """Return the elements of a block, in the order of their slots."""
    data, size = block
    width, frontend = len(data) // size, key[:-4]
    keys = [frontend + slot for slot in _list_slots(key[-4:], size)]
    return dict(zip(keys, [data[at : at + width] for at in range(0, len(data), width)], strict=True))


def split_blocks(objects: Iterable[tuple[ObjectKey, Object]]) -> Iterator[tuple[ObjectKey, Object]]:
    """Replace blocks by their elements."""
    for key, value in objects:
        if isinstance(value, Block):
            name = key[0]
            yield from (((name, each), data) for each, data in split_block(key[1], value).items())
        else:
            yield key, value


def find_missing(key: bytes, block: Block, other: Object) -> dict[bytes, bytes]:
    """Return the elements of a block that another value of the same key lacks."""
    elements = split_block(key, block)
    if not isinstance(other, Block):
        return elements
    there = split_block(key, other)
    return {each: data for each, data in elements.items() if there.get(each) != data}


def encode_block(key: bytes, block: Block) -> list[bytes]:
    """Encode the elements of a block, in pieces."""
    data, size = block
    rows = encode_run(key[:-4], _list_slots(key[-4:], size), data)
    return [b"".join(rows[at : at + _PIECE]) for at in range(0, size, _PIECE)]


def count_elements(objects: Mapping[ObjectKey, Object]) -> Counter[str]:
    """Count the elements of each set, and the objects of each other kind."""
    counts = Counter(map(_SET_NAME, objects))
    for (name, _), value in objects.items():
        if type(value) is Block:
            counts[name] += value.size - 1
    return counts


def form_blocks(
    elements: dict[bytes, bytes], planned: Iterable[tuple[bytes, Block]]
) -> Iterator[tuple[bytes, Block]]:
    """Form blocks of all elements, which this empties: the planned blocks where all of their elements are there."""
    for key, block in planned:
        wanted = split_block(key, block)
        if wanted.items() <= elements.items():
            yield key, block
            for each in wanted:
                del elements[each]
    pools: dict[bytes, list[tuple[int, bytes]]] = {}
    for key, data in elements.items():
        pools.setdefault(key[:-4], []).append((int.from_bytes(key[-4:], sys.byteorder), data))
    elements.clear()
    for frontend, slots in pools.items():
        slots.sort()
        start = 0
        for end in range(1, len(slots) + 1):
            if end == len(slots) or slots[end][0] != slots[start][0] + end - start:
                part = slots[start:end]
                yield frontend + handle_bytes(part[0][0]), Block(b"".join([data for _, data in part]), len(part))
                start = end
