"""Records which results looked up which objects, found or not, so that a changed object plans them again. Pure."""

from collections.abc import Collection, Iterable, Mapping
from typing import Generic, TypeVar

from vipwire.model.names import ObjectName
from vipwire_l7.watch.compact import SetsByKey, share_equal
from vipwire_l7.watch.objects import IngressKind
from vipwire_l7.watch.snapshot import ObjectRef, Snapshot

R = TypeVar("R")
V = TypeVar("V")


class RecordedObjects(Generic[V]):
    """Objects of one kind. Records each lookup, found or not."""

    def __init__(self, kind: IngressKind, objects: Mapping[ObjectName, V], noted: set[ObjectRef]) -> None:
        self._kind, self._objects, self._noted = kind, objects, noted

    def get(self, name: ObjectName, /) -> V | None:
        self._noted.add((self._kind, name))
        return self._objects.get(name)


class World:
    """Looks up objects for one result, and records them in `looked_at`. `now` is in seconds since the epoch."""

    def __init__(self, snapshot: Snapshot, now: float) -> None:
        self.snapshot, self.now = snapshot, now
        self.looked_at = noted = set[ObjectRef]()
        self.services = RecordedObjects(IngressKind.SERVICE, snapshot.services, noted)
        self.secrets = RecordedObjects(IngressKind.SECRET, snapshot.secrets, noted)
        self.refusals = RecordedObjects(IngressKind.SERVICE, snapshot.refusals, noted)
        """The refused destinations of each Service."""

    def take_lookups(self) -> frozenset[ObjectRef]:
        """Return the objects that the result looked up, and start recording for the next one."""
        taken = frozenset(self.looked_at)
        self.looked_at.clear()
        return taken


class Dependencies(Generic[R]):
    """The objects that each result looked up. `R` names a result."""

    def __init__(self) -> None:
        self._looked_at: dict[R, tuple[ObjectRef, ...]] = {}
        self._users = SetsByKey[ObjectRef, R]()

    def record(self, result: R, looked_at: Collection[ObjectRef]) -> None:
        """Record the objects that a result looked up, in place of those before."""
        before = self._looked_at.get(result, ())
        for each in before:
            if each not in looked_at:
                self._users.discard(each, result)
        for each in looked_at:
            self._users.add(each, result)
        if len(before) != len(looked_at) or not all(each in looked_at for each in before):
            self._looked_at[result] = tuple(map(share_equal, looked_at))

    def forget(self, result: R) -> None:
        for each in self._looked_at.pop(result, ()):
            self._users.discard(each, result)

    def find_users(self, changed: Iterable[ObjectRef]) -> set[R]:
        return {result for each in changed for result in self._users.get(each)}

    @property
    def looked_at(self) -> Collection[ObjectRef]:
        return self._users.keys()
