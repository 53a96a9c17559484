"""How one of a pool's targets is chosen, in the matches that iptables has. Pure.

    random        -m statistic --mode random   each rule takes its share of what the rules before it have left
    round-robin   -m statistic --mode nth      likewise, in turn: each rule counts what reaches it
    source-hash   -m cluster                   the kernel's hash of the client's address
    maglev        no match looks up a table or hashes ports: at random instead, and that is reported

`-m cluster` hashes the client's address to one of a few numbers and matches some of them. The tool takes back what it
printed itself for at most five numbers a match (it allows no mask above 32), so that a larger number is put together
from digits, each from a hash with a seed of its own:

    slot = (hash 1 mod 5) · 5 + (hash 2 mod 5)         slot < 7  =  digit 1 < 1, or digit 1 = 1 and digit 2 < 2
"""

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate
from typing import Final

from vipwire.backends.iptables.rules import chance
from vipwire.plan.plan import Forward, Target
from vipwire.plan.spread import Algorithm, slots

MOST_TURNS: Final = 256
"""So many rules deal in turn by weight; beyond that weights are rounded."""
_LARGEST_BASE: Final = 5
_MOST_DIGITS: Final = 5
_FINE: Final = 64
"""So many slots a target has where the shares cannot be exact."""

CLUSTER: Final = (
    "-m cluster --cluster-local-nodemask {mask:#010x} --cluster-total-nodes {base} --cluster-hash-seed {seed:#010x}"
)


def choices(forward: Forward, *, hashes: bool) -> Iterator[tuple[str, Target]]:
    """Say in which order targets are tried, and which packets each takes of those that come so far; "": all.

    `hashes`: the kernel has `-m cluster`. The last one takes all.
    """
    pool, spread = forward.pool, forward.spread
    match spread.algorithm:
        case Algorithm.ROUND_ROBIN:
            dealt = slots(spread, pool, (), MOST_TURNS)
            yield from ((_turn(len(dealt) - at), target) for at, target in enumerate(dealt))
        case Algorithm.SOURCE_HASH if hashes:
            yield from _hashed(pool, spread.weights)
        case _ if spread.weights:
            left = sum(spread.weights)
            for target, weight in zip(pool, spread.weights, strict=True):
                yield chance(left, weight), target
                left -= weight
        case _:
            yield from ((chance(len(pool) - at), target) for at, target in enumerate(pool))


def _turn(every: int) -> str:
    return f"-m statistic --mode nth --every {every} --packet 0" if every > 1 else ""


def _hashed(pool: tuple[Target, ...], weights: tuple[int, ...]) -> Iterator[tuple[str, Target]]:
    """Give each target a range of slots, as long as its weight: whoever is below its end and was not taken before."""
    shares = weights or (1,) * len(pool)
    divisor = math.gcd(*shares)
    total = sum(shares) // divisor
    digits = bases(total)
    count = math.prod(digits)
    ends = [end * count // (total * divisor) for end in accumulate(shares)]
    before = 0
    for target, end in zip(pool[:-1], ends, strict=False):
        if end > before:
            yield from ((matches, target) for matches in _below(end, digits))
        before = end
    yield "", pool[-1]


@lru_cache(maxsize=1024)
def bases(total: int) -> tuple[int, ...]:
    """Choose digits that number `total` slots exactly, or else so many that shares are nearly right."""
    left, exact = total, list[int]()
    for base in range(_LARGEST_BASE, 1, -1):
        while left % base == 0:
            exact.append(base)
            left //= base
    if left == 1 and len(exact) <= _MOST_DIGITS:
        return tuple(exact)
    count = next((n for n in range(1, _MOST_DIGITS) if _LARGEST_BASE**n >= _FINE * total), _MOST_DIGITS)
    return (_LARGEST_BASE,) * count


def _below(bound: int, digits: tuple[int, ...]) -> Iterator[str]:
    """Match every slot below a bound; the first digit counts most."""
    known: list[str] = []
    weight = math.prod(digits)
    for seed, base in enumerate(digits, 1):
        weight //= base
        value, bound = divmod(bound, weight)
        if value:
            yield " ".join([*known, CLUSTER.format(mask=(1 << value) - 1, base=base, seed=seed)])
        if not bound:
            return
        known.append(CLUSTER.format(mask=1 << value, base=base, seed=seed))
