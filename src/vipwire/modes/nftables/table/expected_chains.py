"""Gives the rules that a chain must have, by its name, which says the size of the pool. Pure.

A chain that this process has not rendered (another plan's, an earlier moment's) is understood all the same.
"""

import re
from functools import lru_cache

from vipwire.model.net import Family
from vipwire.model.spread import Algorithm
from vipwire.modes.nftables.table.names import LARGEST_POOL, Chain, Class, Memory, Space
from vipwire.modes.nftables.table.skeleton import class_chain, remember_chain, remembered_chain, turn_chain

_VERBS = {
    "pick": Algorithm.RANDOM,
    "turn": Algorithm.ROUND_ROBIN,
    "hash": Algorithm.SOURCE_HASH,
    "maglev": Algorithm.MAGLEV,
}
_DEALING = re.compile(
    r"(service|nodeport|range)(-local)?(-affinity)?(?:-(pick|turn|hash|maglev))?(?:-(\d{1,5}))?(-.+)?"
)
_REMEMBERING = re.compile(r"((service|nodeport)(?:-local)?)-(remember|remembered)-(\d{1,6})(-local)?(-both)?/(.+)")


@lru_cache(maxsize=4096)
def written(family: Family, name: str) -> Chain | None:
    """Write the chain that has this name if a vipwire has made it; None for a name that tells nothing."""
    if found := _REMEMBERING.fullmatch(name):
        memory, seconds = Memory(found[7], bool(found[5]), bool(found[6])), int(found[4])
        if found[3] == "remembered":
            return remembered_chain(family, found[1], seconds, memory)
        return remember_chain(family, Space(found[2]), found[1], seconds, memory)
    if not (found := _DEALING.fullmatch(name)):
        return None
    space, local, sticky = Space(found[1]), bool(found[2]), bool(found[3])
    kind = Class(space, local, sticky, _VERBS[found[4] or "pick"], int(found[5] or 1))
    if not 1 <= kind.size <= LARGEST_POOL:
        return None
    if found[6]:  # a Service's own chain
        own = kind.algorithm is Algorithm.ROUND_ROBIN and name.startswith(f"{kind.chain}-{kind.size}-")
        return turn_chain(family, kind) if own else None
    return class_chain(family, kind) if kind.chain == name else None
