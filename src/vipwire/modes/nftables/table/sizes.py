"""Chooses how many elements a hash has room for. Pure.

The kernel allocates the buckets of a set with a size once. It enlarges the buckets of a set without a size again
and again while elements arrive, so a first commit of 100,000 elements takes twice as long. Each message of a listing
walks the buckets from the first one, so a size far above the number of elements makes listings slow.
"""

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from operator import itemgetter
from typing import Final

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
_SET_NAME = itemgetter(0)


def size_for(count: int) -> int:
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

    def note_observed(self, sizes: Mapping[str, int], keys: Iterable[ObjectKey]) -> None:
        """Take the kernel's sizes (0: the set has none, in a table of an earlier version) and elements."""
        self._sizes = dict(sizes)
        self._held = Counter(map(_SET_NAME, keys))

    def find_too_small(self, delta: Delta[ObjectKey, Object]) -> dict[str, int]:
        """Return the sets that lack the room for a transaction, with a size that suffices.

        A changed element goes and comes: until the commit ends, the kernel counts both.
        """
        if not self._sizes:
            return {}
        coming = Counter(map(_SET_NAME, delta.added))
        coming.update(map(_SET_NAME, delta.changed))
        needed = {name: self._held[name] + coming[name] for name, size in self._sizes.items() if size}
        return {name: size_for(count) for name, count in needed.items() if count > self._sizes[name]}

    def choose_sizes(self, delta: Delta[ObjectKey, Object]) -> dict[str, int]:
        """Choose the sizes of the sets that a transaction makes."""
        names = [name for name in SIZED if (SET, name.encode()) in delta.added]
        coming = Counter(map(_SET_NAME, delta.added)) if names else Counter[str]()
        return {name: size_for(coming[name]) for name in names}

    def note_sizes(self, sizes: Mapping[str, int]) -> None:
        """Take the sizes of sets that a transaction has made."""
        self._sizes.update(sizes)

    def note_elements(self, delta: Delta[ObjectKey, Object]) -> None:
        """Count the elements that a transaction has added and removed."""
        self._held.update(map(_SET_NAME, delta.added))
        self._held.subtract(Counter(map(_SET_NAME, delta.removed)))
