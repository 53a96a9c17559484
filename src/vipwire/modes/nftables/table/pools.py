"""Writes the chains that choose an endpoint of a pool and remember clients; recognises them by name. Pure.

A chain's name contains the size of its pool, so vipwire also understands a chain that another process wrote.
"""

import re
from functools import lru_cache

from vipwire.model.net import Family
from vipwire.model.spread import Algorithm
from vipwire.modes.nftables.language import SetSpec
from vipwire.modes.nftables.table.names import LARGEST_POOL, VERBS, AffinitySet, Chain, Class, Space
from vipwire.modes.nftables.table.skeleton import AFFINITY_SIZE, Words


def build_affinity_set(family: Family, name: str) -> SetSpec:
    client, remembering = Words(family).client[:1], frozenset({"dynamic", "timeout"})
    return SetSpec(name, client, ("meta priority",), flags=remembering, size=AFFINITY_SIZE)


def build_affinity_update_chain(family: Family, space: Space, pool: str, seconds: int, memory: AffinitySet) -> Chain:
    """Write the chain that goes to the endpoint in `meta priority` and remembers it.

    `pool` is the prefix of the pool's class. The chain returns if this pool lacks the endpoint.
    """
    words = Words(family)
    client = f"{words.ip} saddr"
    return Chain(
        (
            f"update @{memory.map} {{ {client} timeout {seconds}s : meta priority }}",
            f"dnat {words.ip} to {words.key(space)} . meta priority map @{pool}-affinity-endpoints",
            f"delete @{memory.map} {{ {client} : meta priority }}",
        )
    )


def build_affinity_lookup_chain(family: Family, pool: str, seconds: int, memory: AffinitySet) -> Chain:
    """Write the chain that goes to a client's remembered endpoint.

    It returns if the map lacks the client, or this pool the endpoint.
    """
    maps = (memory.map, memory.other_policy_map) if memory.both else (memory.map,)
    there = memory.name_update_chain(pool, seconds)
    return Chain(tuple(f"meta priority set {Words(family).ip} saddr map @{each} jump {there}" for each in maps))


_CHOICES = {
    Algorithm.RANDOM: "numgen random",
    Algorithm.ROUND_ROBIN: "numgen inc",
    Algorithm.SOURCE_HASH: "jhash {ip} saddr",
    Algorithm.MAGLEV: "jhash {ip} saddr . th sport",
}
_SEED = " seed 0x76697077"  # a constant, so that all nodes choose alike


def build_class_chain(family: Family, kind: Class) -> Chain:
    """Write the chain for the pools of one class.

    Round robin needs a counter for each Service, so its class looks the Service's own chain up.
    """
    if kind.algorithm is Algorithm.ROUND_ROBIN:
        return Chain((f"{Words(family).key(kind.space)} vmap @{kind.prefix}-turns",))
    return build_dealing_chain(family, kind)


def build_dealing_chain(family: Family, kind: Class) -> Chain:
    """Write the chain that spreads new connections over the slots of a pool."""
    name = kind.space.value
    seed = _SEED if kind.algorithm in (Algorithm.SOURCE_HASH, Algorithm.MAGLEV) else ""
    choice = _CHOICES[kind.algorithm].format(ip=Words(family).ip)
    slot = f"meta priority set {choice} mod {kind.size}{seed} offset {kind.first_slot}"
    if not kind.sticky:
        return Chain((f"{slot} goto {name}-dnat",))
    return Chain((f"jump {kind.prefix}-remembered", f"{slot} goto {kind.prefix}-choose"))


_ALGORITHMS = {verb: algorithm for algorithm, verb in VERBS.items()}
_DEALING = re.compile(
    r"(service|nodeport|range)(-local)?(-affinity)?(?:-(pick|turn|hash|maglev))?(?:-(\d{1,5}))?(-.+)?"
)
_REMEMBERING = re.compile(r"((service|nodeport)(?:-local)?)-(remember|remembered)-(\d{1,6})(-local)?(-both)?/(.+)")


@lru_cache(maxsize=4096)
def find_written_chain(family: Family, name: str) -> Chain | None:
    """Write the chain of this name if some vipwire could have written it; None for any other name."""
    if found := _REMEMBERING.fullmatch(name):
        memory, seconds = AffinitySet(found[7], bool(found[5]), bool(found[6])), int(found[4])
        if found[3] == "remembered":
            return build_affinity_lookup_chain(family, found[1], seconds, memory)
        return build_affinity_update_chain(family, Space(found[2]), found[1], seconds, memory)
    if not (found := _DEALING.fullmatch(name)):
        return None
    space, local, sticky = Space(found[1]), bool(found[2]), bool(found[3])
    kind = Class(space, local, sticky, _ALGORITHMS[found[4] or "pick"], int(found[5] or 1))
    if not 1 <= kind.size <= LARGEST_POOL:
        return None
    if found[6]:  # a Service's own chain
        own = kind.algorithm is Algorithm.ROUND_ROBIN and name.startswith(f"{kind.chain}-{kind.size}-")
        return build_dealing_chain(family, kind) if own else None
    return build_class_chain(family, kind) if kind.chain == name else None
