"""The input of a walk, the observed and planned table, and one path through it. Pure."""

import itertools
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from vipwire.model.net import Address, Family
from vipwire.modes.nftables.language import SetSpec
from vipwire.modes.nftables.table.names import SET, Chain, Hook, IntervalElement, Object, ObjectKey
from vipwire.reconcile.explainer import Path


@dataclass(slots=True)
class Run(Path):
    """One path through the table.

    `modulus` is the number of slots, `offset` the first slot. `slot` is the look-up of the chosen slot: the map's
    name, and the key without the slot. `met` is the remembered affinity of the client, `asked` the maps that rules
    looked up for it.
    """

    modulus: int = 1
    offset: int = 0
    slot: tuple[str, bytes] | None = None
    met: tuple[str, bytes] | None = None
    asked: list[str] = field(default_factory=list)


Memory = Mapping[tuple[str, bytes], bytes]
"""Session affinity: (map, key) to the identity of an endpoint."""


@dataclass(frozen=True)
class Table:
    """The observed objects, the wanted ones, and this node's own addresses."""

    family: Family
    observed: Mapping[ObjectKey, Object]
    wanted: Mapping[ObjectKey, Object]
    own: frozenset[Address] = frozenset()

    @cached_property
    def ranges(self) -> frozenset[str]:
        both = itertools.chain(self.observed.items(), self.wanted.items())
        return frozenset(name for (name, _), value in both if isinstance(value, IntervalElement))

    @cached_property
    def hooked(self) -> dict[str, list[tuple[str, Chain]]]:
        """The base chains of each hook, observed or wanted, in the order of their priorities."""
        both: dict[str, tuple[Hook, Chain]] = {}
        for objects in (self.wanted, self.observed):
            for key, value in objects.items():
                if isinstance(value, Chain) and value.hook is not None:
                    both[key[1].decode()] = value.hook, value
        found: dict[str, list[tuple[str, Chain]]] = {}
        for name, (hook, chain) in sorted(both.items(), key=lambda item: item[1][0].priority):
            found.setdefault(hook.hook, []).append((name, chain))
        return found

    def spec(self, name: str) -> SetSpec | None:
        found = self.wanted.get((SET, name.encode()))
        return found if isinstance(found, SetSpec) else None

    def find(self, objects: Mapping[ObjectKey, Object], name: str, key: bytes) -> ObjectKey | None:
        """Return the element or interval that matches a key; None if no element does."""
        if (name, key) in objects and not isinstance(objects[name, key], IntervalElement):
            return name, key
        if name not in self.ranges:
            return None
        spec = self.spec(name)
        if spec is not None and spec.key[-1] == "meta priority":  # an interval set has slots in network order
            key = key[:-4] + int.from_bytes(key[-4:], sys.byteorder).to_bytes(4)
        for (owner, first), value in objects.items():
            if owner == name and isinstance(value, IntervalElement) and self._is_within(first, key, value.last):
                return owner, first
        return None

    def _is_within(self, first: bytes, key: bytes, last: bytes) -> bool:
        """Compare part by part: addresses as a whole, all other parts word by word."""
        width, at = self.family.bits // 8, 0
        if not len(first) == len(key) == len(last):
            return False
        while at < len(key):
            end = at + (width if at == 0 or len(key) - at == width else 4)
            if not first[at:end] <= key[at:end] <= last[at:end]:
                return False
            at = end
        return True
