"""The difference between two mappings, for every mode.

The law: patch(have, diff(have, want)) == want.
"""

from collections.abc import Mapping
from typing import Generic, TypeAlias, TypeVar

from msgspec import field

from vipwire.model.value import Value

K = TypeVar("K")
V = TypeVar("V")
SentBytes: TypeAlias = int
"""The number of bytes that vipwire sent to the kernel, or to a tool, for a change."""


class Delta(Value, Generic[K, V], frozen=True):
    """The objects to add, to change (old value, new value) and to remove (old value). A key is in at most one."""

    added: dict[K, V] = field(default_factory=dict)
    changed: dict[K, tuple[V, V]] = field(default_factory=dict)
    removed: dict[K, V] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.added) + len(self.changed) + len(self.removed)

    def __str__(self) -> str:
        return f"+{len(self.added)} ~{len(self.changed)} -{len(self.removed)}"

    @property
    def written(self) -> dict[K, V]:
        """The objects to add and the new values of those to change."""
        return self.added | {key: new for key, (_, new) in self.changed.items()}

    def apply_to(self, objects: dict[K, V]) -> None:
        for key in self.removed:
            objects.pop(key, None)
        objects.update(self.added)
        objects.update((key, new) for key, (_, new) in self.changed.items())


def compute_delta(have: Mapping[K, V], want: Mapping[K, V]) -> Delta[K, V]:
    delta: Delta[K, V] = Delta()
    for key, new in want.items():
        if key not in have:
            delta.added[key] = new
        elif (old := have[key]) != new:
            delta.changed[key] = (old, new)
    delta.removed.update((key, old) for key, old in have.items() if key not in want)
    return delta


def apply_delta(have: Mapping[K, V], delta: Delta[K, V]) -> dict[K, V]:
    result = dict(have)
    delta.apply_to(result)
    return result
