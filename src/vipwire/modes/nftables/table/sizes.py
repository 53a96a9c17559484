"""Chooses how many elements a hash has room for. Pure.

The kernel allocates the buckets of a set with a size once. It enlarges the buckets of a set without a size again
and again while elements arrive, so a first commit of 100,000 elements takes twice as long. Each message of a listing
walks the buckets from the first one, so a size far above the number of elements makes listings slow.
"""

from collections import Counter
from collections.abc import Container, Mapping
from typing import Final

from vipwire.modes.nftables.table.blocks import count_elements
from vipwire.modes.nftables.table.names import SET, Chain, Object, ObjectKey
from vipwire.reconcile.delta import Delta

SIZED: Final = (
    "cluster-ips",
    "service-ips",
    "service-nodeports",
    "service-endpoints",
    "nodeport-endpoints",
    "hairpin-connections",
)
"""The sets whose elements grow in number with Services and endpoints."""
SMALLEST: Final = 3 << 10
"""The size in a small cluster: 4,096 buckets of 8 bytes."""


def choose_size(count: int) -> int:
    """Return a size for `count` elements and a quarter more.

    The kernel rounds 4/3 of a size up to a power of two buckets (nft_hash_buckets in net/netfilter/nft_set_hash.c):
    three quarters of a power of two waste none.
    """
    size = SMALLEST
    while size < count + count // 4:
        size *= 2
    return size


def refers_to(chain: Chain, sets: Container[str]) -> bool:
    """Report whether a rule of the chain looks one of these sets up."""
    return any(word.removeprefix("@") in sets for rule in chain.rules for word in rule.split() if word[0] == "@")


class SetSizes:
    """The sizes of the kernel's sets, and how many elements each holds."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}
        self._held: Counter[str] = Counter()

    def record_observed(self, sizes: Mapping[str, int], objects: Mapping[ObjectKey, Object]) -> None:
        """Take the kernel's sizes (0: the set has none, in a table of an earlier version) and elements."""
        self._sizes = dict(sizes)
        self._held = count_elements(objects)

    def find_too_small(self, delta: Delta[ObjectKey, Object]) -> dict[str, int]:
        """Return the sets that lack the room for a transaction, with a size that suffices.

        A changed element goes and comes: until the commit ends, the kernel counts both.
        """
        if not self._sizes:
            return {}
        coming = count_elements(delta.added)
        coming.update(count_elements({key: new for key, (_, new) in delta.changed.items()}))
        needed = {name: self._held[name] + coming[name] for name, size in self._sizes.items() if size}
        return {name: choose_size(count) for name, count in needed.items() if count > self._sizes[name]}

    def choose_sizes(self, added: Mapping[ObjectKey, Object], counts: Mapping[str, int]) -> dict[str, int]:
        """Choose the sizes of the sets that a transaction makes; `counts` are those of the elements in `added`."""
        return {name: choose_size(counts.get(name, 0)) for name in SIZED if (SET, name.encode()) in added}

    def record_sizes(self, sizes: Mapping[str, int]) -> None:
        """Take the sizes of sets that a transaction has made."""
        self._sizes.update(sizes)

    def record_elements(self, delta: Delta[ObjectKey, Object], added: Counter[str]) -> None:
        """Count the elements that a transaction has `added`, changed and removed."""
        old, new = ({key: pair[side] for key, pair in delta.changed.items()} for side in (0, 1))
        self._held.update(added)
        self._held.update(count_elements(new))
        self._held.subtract(count_elements(delta.removed))
        self._held.subtract(count_elements(old))
