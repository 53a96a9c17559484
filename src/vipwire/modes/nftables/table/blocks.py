"""Handles the slots of a pool as one object, a *block*: the reconciler only compares objects.

    service-endpoints   frontend . slot 1 : target  ┐
                        frontend . slot 2 : target  ├─▶ ("service-endpoints", frontend . slot 1) : Block(targets, 3)
                        frontend . slot 3 : target  ┘

A block is one key, one value and one entry in each dictionary. Transactions and texts contain its elements. A block
has all elements of its frontend and policy, whoever added them, so no two objects have an element in common.
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


def split_block(key: bytes, block: Block) -> dict[bytes, Object]:
    """Return the elements of a block."""
    data, size, elements = block
    if elements:
        return dict(elements)
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


def find_missing(key: bytes, block: Block, other: Object) -> dict[bytes, Object]:
    """Return the elements of a block that another value of the same key lacks."""
    elements = split_block(key, block)
    if not isinstance(other, Block):
        return elements
    there = split_block(key, other)
    return {each: data for each, data in elements.items() if there.get(each) != data}


def encode_block(key: bytes, block: Block) -> list[bytes]:
    """Encode the elements of a planned block, in pieces."""
    data, size, _ = block
    rows = encode_run(key[:-4], _list_slots(key[-4:], size), data)
    return [b"".join(rows[at : at + _PIECE]) for at in range(0, size, _PIECE)]


def count_elements(objects: Mapping[ObjectKey, Object]) -> Counter[str]:
    """Count the elements of each set, and the objects of each other kind."""
    counts = Counter(map(_SET_NAME, objects))
    for (name, _), value in objects.items():
        if type(value) is Block:
            counts[name] += value.size - 1
    return counts


def form_blocks(elements: dict[bytes, Object], planned: Iterable[tuple[bytes, Block]]) -> dict[bytes, Block]:
    """Form blocks of all elements, which this empties. Equal blocks are the planned ones."""
    found: dict[bytes, Block] = {}
    for key, block in planned:
        wanted = split_block(key, block)
        if wanted.items() <= elements.items():
            found[key] = block
            for each in wanted:
                del elements[each]
    pools: dict[bytes, dict[bytes, Object]] = {}
    for each, value in elements.items():
        first = int.from_bytes(each[-4:], sys.byteorder) & ~0xFFFF | 1
        pools.setdefault(each[:-4] + handle_bytes(first), {})[each] = value
    elements.clear()
    for key, pool in pools.items():
        pool.update(split_block(key, found[key]) if key in found else {})
        slots = (pool.get(key[:-4] + slot) for slot in _list_slots(key[-4:], len(pool)))
        plain = [data for data in slots if isinstance(data, bytes)]
        others = () if len(plain) == len(pool) else tuple(pool.items())
        found[key] = Block(b"" if others else b"".join(plain), len(pool), others)
    return found
