"""The store's history, in memory: the changes of each resource since the floor, and old states.

A watch has no queue of its own: it holds a revision, and asks for what came after. So a reader that is slow costs
nothing but falls behind, and when the history it needs is dropped it is told so. That is Kubernetes' 410 (Gone).
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from operator import attrgetter

from vipwire_up.store.record import CompactedError, Key, Record, RecordChange

_REVISION = attrgetter("revision")


class History:
    """Changes after `floor`, by resource. `keep` and `keep_bytes` say how many of them are worth keeping."""

    def __init__(self, floor: int, changes: Iterable[RecordChange], *, keep: int, keep_bytes: int) -> None:
        self.floor = floor
        self._keep, self._keep_bytes = keep, keep_bytes
        self._count = self._bytes = 0
        self._log: defaultdict[str, list[RecordChange]] = defaultdict(list)
        for change in changes:
            self.add(change)

    def add(self, change: RecordChange) -> None:
        """Note a change; they come in the order of their revisions."""
        self._log[change.record.key.resource].append(change)
        self._count += 1
        self._bytes += len(change.record.value)

    def since(self, resource: str, revision: int) -> list[RecordChange]:
        """List a resource's changes after a revision. Raise CompactedError if they are not all known."""
        if revision < self.floor:
            raise CompactedError(revision, self.floor)
        log = self._log[resource]
        return log[bisect_right(log, revision, key=_REVISION) :]

    def undo(self, records: dict[Key, Record], resource: str, revision: int) -> None:
        """Turn a resource's current records into those of an older revision."""
        for change in reversed(self.since(resource, revision)):
            if change.previous is None:
                records.pop(change.record.key, None)
            else:
                records[change.record.key] = change.previous

    def excess(self) -> int:
        """Return the floor up to which history should be dropped, 0 for none. Twice as much gathers as is kept."""
        over = max(self._count - self._keep, 0)
        if self._count <= 2 * self._keep and self._bytes <= 2 * self._keep_bytes:
            return 0
        ordered = sorted((change for log in self._log.values() for change in log), key=_REVISION)
        size = self._bytes - sum(len(change.record.value) for change in ordered[:over])
        while size > self._keep_bytes and over < len(ordered):
            size -= len(ordered[over].record.value)
            over += 1
        return ordered[over - 1].revision if over else 0

    def drop(self, floor: int) -> None:
        """Forget changes up to a revision."""
        self.floor = max(self.floor, floor)
        for log in self._log.values():
            end = bisect_right(log, floor, key=_REVISION)
            self._count -= end
            self._bytes -= sum(len(change.record.value) for change in log[:end])
            del log[:end]
