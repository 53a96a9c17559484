"""Writes the matches by which iptables chooses one of a pool's targets. Pure.

random        -m statistic --mode random   each rule takes its share of what the rules before it have left
round-robin   -m statistic --mode nth      likewise, in turn: each rule counts what reaches it
source-hash   -m bpf                       a hash of the client's address
maglev        no match looks up a table: at random instead, and that is reported
"""

import math
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from vipwire.model.net import Family
from vipwire.model.spread import Algorithm, slots
from vipwire.modes.iptables.rules.bpf import hash_match
from vipwire.modes.iptables.rules.words import chance
from vipwire.plan.plan import Forward, Target

MOST_TURNS: Final = 256
"""So many rules deal in turn by weight; beyond that weights are rounded."""


def choices(family: Family, forward: Forward, *, hashes: bool) -> Iterator[tuple[str, Target]]:
    """Return the targets in the order of their rules, each with its match for the packets that come so far; "": all.

    `hashes`: the kernel has `-m bpf`. The last one takes all.
    """
    pool, spread, weights = forward.pool, forward.spread, forward.weights
    match spread.algorithm:
        case Algorithm.ROUND_ROBIN:
            dealt = slots(spread, pool, (), MOST_TURNS)
            yield from ((_turn(len(dealt) - at), target) for at, target in enumerate(dealt))
        case Algorithm.SOURCE_HASH if hashes:
            divisor = math.gcd(*weights)
            total = sum(weights) // divisor
            for target, end in zip(pool, accumulate(weights), strict=True):
                yield hash_match(family, total, end // divisor) if end < total * divisor else "", target
        case _:
            left = sum(weights)
            for target, weight in zip(pool, weights, strict=True):
                yield chance(left, weight), target
                left -= weight


def _turn(every: int) -> str:
    return f"-m statistic --mode nth --every {every} --packet 0" if every > 1 else ""
