"""Finds the keys of the large maps by the small maps that lead to them. Pure.

    service-ips, local-ips   frontend ▸ class ┐           ┌─▶ service-endpoints           frontend . slot
    service-turns            frontend ▸ chain ┴▶ slots ───┴─▶ service-affinity-slots      frontend . slot ▸ identity
                                                               └▶ service-affinity-endpoints  frontend . identity

The same for node ports. It holds for whatever a vipwire has written: what is in these maps was rendered from a pool,
and so was the class of the frontend. What somebody else has added or removed makes the counts differ.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache

from vipwire.model.spread import Algorithm
from vipwire.modes.nftables.table.names import (
    Class,
    CommentedElement,
    Object,
    ObjectKey,
    Space,
    Verdict,
    handle_bytes,
)

_LEADING = {
    Space.SERVICE: (("service-ips", "service-turns", False), ("local-ips", "service-local-turns", True)),
    Space.NODE_PORT: (
        ("service-nodeports", "nodeport-turns", False),
        ("local-nodeports", "nodeport-local-turns", True),
    ),
}
"""The maps of frontends to classes and to chains that take turns, and whether they are those of local pools."""
_ENDPOINTS = {f"{space.value}-endpoints": space for space in _LEADING}
_POOLS = {f"{space.value}{'-local' * local}": (space, local) for space in _LEADING for local in (False, True)}
_SLOTS = {f"{pool}-affinity-slots": which for pool, which in _POOLS.items()}
_REMEMBERED = {f"{pool}-affinity-endpoints": f"{pool}-affinity-slots" for pool in _POOLS}

INDEXED = (*_ENDPOINTS, *_SLOTS, *_REMEMBERED)
"""The maps whose keys can be told, in the order in which they can be: all other sets are read before."""

Elements = Mapping[str, Mapping[ObjectKey, Object]]
"""The elements of sets that have been read, by the set's name."""


def keys(name: str, known: Elements) -> list[bytes] | None:
    """Return the keys of one of the indexed maps from sets that were read before; None if they cannot be told."""
    if name in _REMEMBERED:
        slots = known.get(_REMEMBERED[name], {}).items()
        return list(dict.fromkeys(key[:-4] + value for (_, key), value in slots if isinstance(value, bytes)))
    space, local = (_ENDPOINTS[name], None) if name in _ENDPOINTS else _SLOTS[name]
    found: list[bytes] = []
    for frontend, kind in _pools(space, known):
        if kind is None:
            return None
        if kind.sticky is (local is not None) and local in (None, kind.local):
            found += [frontend + slot for slot in _slots(kind.first_slot, kind.size)]
    return found


def _pools(space: Space, known: Elements) -> Iterator[tuple[bytes, Class | None]]:
    """Yield the pools of all frontends; None stands for one that we did not write."""
    for ips, turns, local in _LEADING[space]:
        for (_, frontend), value in known.get(ips, {}).items():
            kind = _class(value.data) if isinstance(value, CommentedElement) else None
            if kind is not None and kind.algorithm is Algorithm.ROUND_ROBIN:
                kind = _taking_turns(kind, known.get(turns, {}).get((turns, frontend)))
            yield frontend, kind if kind is not None and (kind.space, kind.local) == (space, local) else None


def _taking_turns(kind: Class, chain: Object | None) -> Class | None:
    """Return the class with its size, which is part of the name of the Service's own chain only."""
    if not isinstance(chain, Verdict) or not chain.chain.startswith(f"{kind.chain}-"):
        return None
    size = chain.chain.removeprefix(f"{kind.chain}-").partition("-")[0]
    return kind._replace(size=int(size)) if size.isdecimal() else None


_class = lru_cache(maxsize=4096)(Class.of)


@lru_cache(maxsize=4096)
def _slots(first: int, size: int) -> tuple[bytes, ...]:
    return tuple(map(handle_bytes, range(first, first + size)))
