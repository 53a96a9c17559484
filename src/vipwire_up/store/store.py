"""The contract of a store: what the API server and its controllers ask of it, whichever engine is below.

    EmbeddedStore    SQLite in the data directory: one process has it (embedded.py)
    EtcdStore        etcd: several API servers have it at once (etcd/store.py)

Reads are answered from memory, which shows the state of a revision. A write is a transaction on the revisions of the
keys that it was made from. Where several processes write (`shared`), one may find its key changed meanwhile although
nobody here has changed it: then wait until that is visible, and do it anew.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Protocol

from vipwire_up.store.record import Key, Record, RecordChange, Step


class Store(Protocol):
    """Objects with revisions. `run` must be running for writes to be answered."""

    revision: int
    """The newest revision that is visible."""

    @property
    def shared(self) -> bool:
        """Whether other processes write to it, too."""

    @property
    def expires(self) -> bool:
        """Whether it deletes by itself what has a lifetime."""

    @property
    def floor(self) -> int:
        """The revision that history starts after."""

    @property
    def trouble(self) -> str:
        """What keeps it from working now; "" for nothing."""

    @property
    def note(self) -> str:
        """What is wrong with a part of it while the rest works; "" for nothing."""

    def read(self, key: Key) -> Record | None:
        """Read an object of the visible state."""

    def head(self, key: Key) -> Record | None:
        """Read an object as it will be when all that this process has submitted is made."""

    def scan(self, resource: str, *, at: int | None = None) -> Sequence[Record]:
        """List a resource, ordered by namespace and name: now, or as it was at a revision.

        Raise CompactedError for one that is too old, FutureRevisionError for one that is not reached.
        """

    def count(self, resource: str) -> int:
        """Count the objects of a resource."""

    def damaged(self, resource: str = "") -> Sequence[Record]:
        """List the records that are no objects: of a resource, or all."""

    def is_damaged(self, record: Record) -> bool:
        """Tell whether a record is no object."""

    async def until(self, revision: int) -> None:
        """Wait until a revision is visible."""

    async def newest(self) -> None:
        """Wait until everything is visible that was acknowledged anywhere before this call. Raise StoreError."""

    async def settled(self, key: Key) -> None:
        """Wait until a write of this process to a key is decided, where the next one could not build on it."""

    def changes(self, resource: str, since: int) -> Sequence[RecordChange]:
        """List the changes of a resource after a revision, oldest first. Raise as `scan`."""

    def watch(self, resource: str, since: int) -> AsyncIterator[Sequence[RecordChange]]:
        """Follow a resource from a revision, in batches, without end. Raise CompactedError when it falls behind."""

    async def moved(self, resource: str) -> None:
        """Wait for the next change of a resource."""

    def submit(self, steps: Iterable[Step]) -> "asyncio.Future[tuple[Record, ...]]":
        """Begin a transaction; the future has the record of each write once it is durable and visible.

        Raise ConflictError if a key is in another state than it expects; so may the future. The future raises
        StoreError if the change is not made, UnknownOutcomeError if nobody knows.
        """

    async def write(self, *steps: Step) -> tuple[Record, ...]:
        """Submit a transaction and wait for it. A caller that is cancelled does not take it back."""

    async def compact(self, floor: int) -> None:
        """Forget history up to a revision: who still needs it is told so by CompactedError."""

    async def run(self) -> None:
        """Work until cancelled; then finish what has begun and close what is open."""
