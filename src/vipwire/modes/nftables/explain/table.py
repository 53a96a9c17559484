"""The input of a walk through the table, observed and planned, and what the walk has met so far. Pure."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

from vipwire.model.net import Address, Family
from vipwire.modes.nftables.language import SetSpec
from vipwire.modes.nftables.table.names import SET, Chain, Hook, IntervalElement, Object, ObjectKey
from vipwire.reconcile.explainer import ObjectState, Step


@dataclass(slots=True)
class Run:
    """One walk. `target` is where DNAT sent the packet.

    `modulus` is from how many slots one was drawn, `offset` the number of the first; `slot` is where the drawn one
    was looked up: the map's name, and its key without the slot. Nothing else on the way depends on the slot.
    `met` is what was remembered of the client, and `asked` the maps that were asked for it. `choice` is how a slot is
    chosen.
    """

    verdict: str = ""
    target: tuple[Address, int] | None = None
    masqueraded: bool = False
    modulus: int = 1
    offset: int = 0
    slot: tuple[str, bytes] | None = None
    met: tuple[str, bytes] | None = None
    asked: list[str] = field(default_factory=list)
    uncertain: bool = False
    choice: str = ""
    steps: list[Step] = field(default_factory=list)


Memory = Mapping[tuple[str, bytes], bytes]
"""What session affinity remembers: (map, key) to the identity of an endpoint."""


@dataclass(frozen=True)
class Table:
    """The observed objects, the wanted ones, what is remembered of clients, and this node's own addresses."""

    family: Family
    observed: Mapping[ObjectKey, Object]
    wanted: Mapping[ObjectKey, Object]
    memory: Memory = field(default_factory=dict)
    own: frozenset[Address] = frozenset()

    @cached_property
    def ranges(self) -> frozenset[str]:
        """Name the sets of ranges."""
        both = itertools.chain(self.observed.items(), self.wanted.items())
        return frozenset(name for (name, _), value in both if isinstance(value, IntervalElement))

    def spec(self, name: str) -> SetSpec | None:
        """Find how a set is declared."""
        found = self.wanted.get((SET, name.encode()))
        return found if isinstance(found, SetSpec) else None

    def remembering(self, memory: Memory) -> Self:
        """Return the same table with what is remembered of clients."""
        made = replace(self, memory=memory)
        made.__dict__.update(ranges=self.ranges, hooked=self.hooked)  # what does not depend on it
        return made

    def state(self, key: ObjectKey) -> ObjectState:
        """Compare an observed object with the plan."""
        if key not in self.wanted:
            return ObjectState.FOREIGN
        return ObjectState.PLANNED if self.wanted[key] == self.observed.get(key) else ObjectState.DIFFERENT

    @cached_property
    def hooked(self) -> dict[str, list[tuple[str, Chain]]]:
        """Name the base chains of each hook, observed or wanted, in the order in which the kernel calls them."""
        both: dict[str, tuple[Hook, Chain]] = {}
        for objects in (self.wanted, self.observed):
            for key, value in objects.items():
                if isinstance(value, Chain) and value.hook is not None:
                    both[key[1].decode()] = value.hook, value
        found: dict[str, list[tuple[str, Chain]]] = {}
        for name, (hook, chain) in sorted(both.items(), key=lambda item: item[1][0].priority):
            found.setdefault(hook.hook, []).append((name, chain))
        return found
