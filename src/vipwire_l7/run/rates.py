"""Lets a namespace that causes too many reloads of HAProxy, statuses or Events wait. Other namespaces do not."""

import time
from collections.abc import Callable, Collection, Iterator
from typing import Final

from vipwire.watched_objects.event import Deleted, Listed, Upserted
from vipwire_l7.haproxy.state import Change
from vipwire_l7.watch.objects import IngressEvent, IngressKind
from vipwire_l7.watch.snapshot import ChangeExtent, ObjectRef, get_kind

_UNLIMITED: Final = 10**9
_MINUTE: Final = 60.0


class Rate:
    """Allows each namespace `most` a minute, and as many at once."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = max(1, most), clock
        self._left: dict[str, tuple[float, float]] = {}
        """By namespace, the number left at the last use and the time of that use, in the order of uses."""

    def get_wait(self, namespace: str) -> float:
        """Return the seconds until the namespace has one left; 0 for now."""
        return max(0.0, (1.0 - self._count_left(namespace)) * _MINUTE / self._most)

    def spend(self, namespace: str) -> None:
        left, now = self._count_left(namespace) - 1.0, self._clock()
        self._left.pop(namespace, None)
        self._left[namespace] = left, now
        while (oldest := next(iter(self._left))) != namespace and self._count_left(oldest) >= self._most:
            del self._left[oldest]

    def _count_left(self, namespace: str) -> float:
        left, at = self._left.get(namespace, (float(self._most), 0.0))
        return min(float(self._most), left + (self._clock() - at) * self._most / _MINUTE)


class ReloadTurns:
    """Holds back the changes of a namespace that has caused too many reloads of HAProxy.

    Of each object, only the last state waits. Endpoints do not wait, but a reload for more servers does.
    """

    def __init__(self, rate: Rate | None = None) -> None:
        """Without a rate, no namespace waits."""
        self._rate = rate or Rate(_UNLIMITED)
        self._held: dict[str, dict[ObjectRef, IngressEvent]] = {}
        self._blamed = set[str]()
        self._reasons = frozenset[str]()

    def hold_back(self, event: IngressEvent) -> ObjectRef | None:
        """Hold an event back if its namespace has to wait; return the object then."""
        match event:
            case Listed(kind):
                for held in self._held.values():
                    for ref in [ref for ref in held if ref[0] is kind]:  # the list is newer than the events held back
                        del held[ref]
                return None
            case Deleted(kind, name):
                pass
            case Upserted(changed):
                kind, name = get_kind(changed), changed.name
        space = name.namespace
        if kind is IngressKind.SLICE or not space or not (space in self._held or self._rate.get_wait(space)):
            return None
        self._held.setdefault(space, {})[kind, name] = event
        return kind, name

    @property
    def waiting(self) -> frozenset[str]:
        return frozenset(self._held)

    def get_wait(self) -> float:
        """Return the seconds until the next namespace may change."""
        return min(map(self._rate.get_wait, self._held), default=float("inf"))

    def release_events(self) -> Iterator[IngressEvent]:
        """Yield the changes of the namespaces that may change again."""
        for space in [each for each in self._held if not self._rate.get_wait(each)]:
            yield from self._held.pop(space).values()

    def record_causes(self, touched: ChangeExtent, change: Change) -> None:
        """Record the namespaces that brought new reasons for a reload."""
        reasons = frozenset(change.reasons)
        if reasons - self._reasons:
            self._blamed |= {name.namespace for _, name in touched.named} | _list_namespaces(change.outgrown)
        self._reasons = reasons

    def get_wait_for_servers(self, change: Change) -> float:
        """Return the seconds until a reload that only gives pools more servers; 0 if there is another reason."""
        if len(change.reasons) > len(change.outgrown):
            return 0.0
        return min(map(self._rate.get_wait, _list_namespaces(change.outgrown)), default=0.0)

    def count_reload(self) -> None:
        """Count a reload for the namespaces whose changes needed it."""
        for each in self._blamed:
            self._rate.spend(each)
        self._blamed, self._reasons = set(), frozenset()


def _list_namespaces(pools: Collection[str]) -> set[str]:
    """Return the namespaces of pools. A pool's name starts with its namespace (`name_pool`)."""
    return {name.partition(":")[0] for name in pools}
