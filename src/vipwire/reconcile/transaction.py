"""Builds one transaction: the delta from what is believed of some Services to what they should be."""

from collections.abc import Mapping
from typing import Generic, TypeVar

from msgspec import Struct, field

from vipwire.model.names import ObjectName
from vipwire.reconcile.backend import Rendered
from vipwire.reconcile.delta import Delta

K = TypeVar("K")
V = TypeVar("V")

_MISSING = object()


class Belief(Struct, Generic[K, V]):
    """The kernel's content, as far as we know.

    `services` is what each Service has, `sharers` counts who shares an object, and `unowned` holds what the kernel
    was seen to hold for nobody yet.
    """

    services: dict[ObjectName, Rendered[K, V]] = field(default_factory=dict)
    sharers: dict[K, int] = field(default_factory=dict)
    unowned: dict[K, V] = field(default_factory=dict)


class Transaction(Generic[K, V]):
    """Collects Services, computes their common difference, and after its commit makes it the belief."""

    def __init__(self, belief: Belief[K, V]) -> None:
        self._belief = belief
        self._wanted: dict[ObjectName, Rendered[K, V] | None] = {}
        self._gained: dict[K, V] = {}
        self._lost: dict[K, V] = {}
        self._shares: dict[K, int] = {}
        self._shared_values: dict[K, V] = {}

    def add(self, name: ObjectName, wanted: Rendered[K, V] | None) -> None:
        """Add one Service to the transaction; None: it should have no objects."""
        self._wanted[name] = wanted
        old = self._belief.services.get(name)
        if wanted is not None and old is not None:
            for gaining, one, other in ((self._gained, wanted.own, old.own), (self._lost, old.own, wanted.own)):
                for key, value in one.items():
                    if other.get(key, _MISSING) != value:
                        gaining[key] = value
            if wanted.shared == old.shared:
                return
        elif wanted is not None:
            self._gained.update(wanted.own)
        elif old is not None:
            self._lost.update(old.own)
        if wanted is not None:
            self._share(wanted.shared, +1)
        if old is not None:
            self._share(old.shared, -1)

    def _share(self, shared: Mapping[K, V], by: int) -> None:
        for key, value in shared.items():
            self._shares[key] = self._shares.get(key, 0) + by
            self._shared_values[key] = value

    def delta(self, *, last: bool) -> Delta[K, V]:
        """Compute the transaction; with `last`, remove what nobody has claimed as well.

        An object that moves from one Service to another is neither added nor removed.
        """
        gained, lost = self._changes()
        unowned = self._belief.unowned
        if not lost and not unowned:
            return Delta(added=gained)
        if last and not lost and gained == unowned:
            return Delta()  # a programmed kernel: compared as a whole, no key is hashed once more
        delta: Delta[K, V] = Delta(removed=lost)
        taken = 0
        for key, new in gained.items():
            if key in lost:
                old = lost.pop(key)
            elif key in unowned:
                old = unowned[key]
                taken += 1
            else:
                delta.added[key] = new
                continue
            if old != new:
                delta.changed[key] = (old, new)
        if last and taken < len(unowned):
            delta.removed.update((key, old) for key, old in unowned.items() if key not in gained)
        return delta

    def _changes(self) -> tuple[dict[K, V], dict[K, V]]:
        """Return what is gained and what is lost, shared objects by the first that has a share and the last."""
        gained, lost = dict(self._gained), dict(self._lost)
        for key, by in self._shares.items():
            before = self._belief.sharers.get(key, 0)
            if before == 0 and by > 0:
                gained[key] = self._shared_values[key]
            elif before > 0 and before + by <= 0:
                lost[key] = self._shared_values[key]
        return gained, lost

    def adopt(self, *, last: bool) -> None:
        """Believe what was committed."""
        belief = self._belief
        for name, wanted in self._wanted.items():
            if wanted is None:
                belief.services.pop(name, None)
            else:
                belief.services[name] = wanted
        for key, by in self._shares.items():
            count = belief.sharers.get(key, 0) + by
            if count > 0:
                belief.sharers[key] = count
            else:
                belief.sharers.pop(key, None)
        if last:
            belief.unowned = {}
        elif belief.unowned:
            for key in (*self._gained, *self._shares):
                belief.unowned.pop(key, None)
