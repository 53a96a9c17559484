"""Distributes new connections over a pool: algorithm and weights.

A mode assigns connections to the slots of a pool; a target has slots in proportion to its weight. Maglev uses a table
of fixed size: when a target goes, hardly any slot of the others moves (Eisenbud et al., "Maglev: A Fast and Reliable
Software Network Load Balancer", NSDI 2016, section 3.4).
"""

import enum
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar

from vipwire.model.value import Value

T = TypeVar("T")

MAGLEV_SLOTS = 16381
"""A prime, so that every skip visits every slot. At this size less than 1 % of the connections move needlessly."""
_MAGLEV_SLOTS_LARGE = 65521
_MAGLEV_MANY = 30
"""More targets than this need the larger table for that 1 %."""


class Algorithm(enum.Enum):
    """The choice of a target; the value is that of the annotation `vipwire.io/algorithm`.

    The hashes take the client's address, Maglev its port too, so that every node chooses alike.
    """

    __hash__ = object.__hash__  # enum's own hashes the name in Python at each look-up of a key

    RANDOM = "random"
    ROUND_ROBIN = "round-robin"
    SOURCE_HASH = "source-hash"
    MAGLEV = "maglev"


class Spread(Value, frozen=True):
    """The distribution over a pool. `weights` has a number from 1 to 1000 for each target, or is empty: all equal.

    An annotation's weight is at most 100; with slow start, all weights are in tenths.
    """

    algorithm: Algorithm = Algorithm.RANDOM
    weights: tuple[int, ...] = ()


EVENLY = Spread()
"""Random and equal, as in kube-proxy."""


def fill_slots(spread: Spread, pool: Sequence[T], names: Sequence[bytes], most: int) -> tuple[T, ...]:
    """Assign a pool's targets to at most `most` slots. `names` identify the targets, the same on every node."""
    if spread.algorithm is Algorithm.MAGLEV:
        return tuple(pool[index] for index in _build_maglev_table(tuple(names), spread.weights))
    if not spread.weights:
        return tuple(pool[:most])
    divisor = math.gcd(*spread.weights)
    weights = [weight // divisor for weight in spread.weights]
    if (total := sum(weights)) > most:
        weights = [max(1, weight * (most - len(weights)) // total) for weight in weights]
    return tuple(pool[index] for index in _interleave_by_weight(weights))


def _interleave_by_weight(weights: Sequence[int]) -> list[int]:
    """Interleave the slots of targets, for a smooth round robin (nginx's smooth weighted order)."""
    total, order = sum(weights), []
    credit = [0] * len(weights)
    for _ in range(total):
        credit = [have + weight for have, weight in zip(credit, weights, strict=True)]
        best = max(range(len(credit)), key=credit.__getitem__)
        credit[best] -= total
        order.append(best)
    return order


@lru_cache(maxsize=64)
def _build_maglev_table(names: tuple[bytes, ...], weights: tuple[int, ...]) -> tuple[int, ...]:
    """Fill the table: in each round every target takes the next free slot of its own permutation of all slots.

    A target with less than the greatest weight skips rounds in proportion.
    """
    size = MAGLEV_SLOTS if len(names) <= _MAGLEV_MANY else _MAGLEV_SLOTS_LARGE
    weights = weights or (1,) * len(names)
    greatest = max(weights)
    table = [-1] * size
    place = [_hash_name(name, b"place") % size for name in names]
    skip = [_hash_name(name, b"skip") % (size - 1) + 1 for name in names]
    credit = [0] * len(names)
    filled = 0
    while True:
        for index in range(len(names)):
            credit[index] += weights[index]
            if credit[index] < greatest:
                continue
            credit[index] -= greatest
            at = place[index]
            while table[at] >= 0:
                at = (at + skip[index]) % size
            table[at] = index
            place[index] = (at + skip[index]) % size
            filled += 1
            if filled == size:
                return tuple(table)


def _hash_name(name: bytes, use: bytes) -> int:
    import hashlib  # noqa: PLC0415  # as costly to import as 20 modules of ours, and few want Maglev

    return int.from_bytes(hashlib.blake2b(name, digest_size=8, key=use).digest())
