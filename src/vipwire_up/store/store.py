"""The contract of a store, for the API server and its controllers.

    EmbeddedStore    SQLite in the data directory, for one process (embedded.py)
    EtcdStore        etcd, for several API servers at once (etcd/store.py)

Reads are answered from memory, which shows the state of a revision. A write is a transaction on the revisions of the
keys that it was made from. If several processes write (`shared`), another process may have changed a key: then wait
until that change is visible, and repeat the write.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Protocol

from vipwire_up.store.record import Key, Record, RecordChange, Step
from vipwire_up.store.visible import Changed


class Store(Protocol):
    """Objects with revisions. `run` must be running for writes to be answered."""

    revision: int
    """The newest visible revision."""

    @property
    def shared(self) -> bool:
        """Whether other processes write to it, too."""

    @property
    def expires(self) -> bool:
        """Whether the store itself deletes objects whose lifetime is over."""

    @property
    def floor(self) -> int:
        """The revision that history starts after."""

    @property
    def trouble(self) -> str:
        """Why the store does not work now; "" for nothing."""

    @property
    def note(self) -> str:
        """Problems of a part of the store while the rest works; "" for nothing."""

    def read(self, key: Key) -> Record | None:
        """Read an object's newest visible revision."""

    def head(self, key: Key) -> Record | None:
        """Read an object's newest revision, including this process's writes that are not visible yet."""

    def scan(self, resource: str, *, at: int | None = None) -> Sequence[Record]:
        """Return a resource's objects, ordered by namespace and name: now, or as of a revision.

        Raise CompactedError if the revision is too old, FutureRevisionError if it is not reached.
        """

    def count(self, resource: str) -> int: ...

    def damaged(self, resource: str = "") -> Sequence[Record]:
        """Return the damaged records of a resource, or of all."""

    def is_damaged(self, record: Record) -> bool: ...

    async def wait_for_revision(self, revision: int) -> None:
        """Wait until a revision is visible."""

    async def wait_for_newest(self) -> None:
        """Wait until all writes are visible that any process acknowledged before this call. Raise StoreError."""

    async def wait_until_decided(self, key: Key) -> None:
        """Wait until a write of this process to a key is decided, if the next one cannot start from it."""

    def changes(self, resource: str, since: int) -> Sequence[RecordChange]:
        """Return the changes of a resource after a revision, oldest first. Raise as `scan`."""

    def watch(self, resource: str, since: int) -> AsyncIterator[Sequence[RecordChange]]:
        """Follow a resource from a revision, in batches, without end. Raise CompactedError when it falls behind."""

    def follow(self, resources: Iterable[str]) -> Changed:
        """Return a record of the resources, of these, that change from now on."""

    async def wait_for_change(self, resource: str) -> None:
        """Wait for the next change of a resource."""

    def submit(self, steps: Iterable[Step]) -> "asyncio.Future[tuple[Record, ...]]":
        """Begin a transaction; the future has the record of each write once it is durable and visible.

        Raise ConflictError if a key is in another state than expected; so may the future. The future raises
        StoreError if the change is not made, UnknownOutcomeError if that is unknown.
        """

    async def write(self, *steps: Step) -> tuple[Record, ...]:
        """Submit a transaction and wait for it. Cancelling the caller does not undo it."""

    async def compact(self, floor: int) -> None:
        """Delete history up to a revision: a watch that still needs it gets CompactedError."""

    async def run(self) -> None:
        """Work until cancelled; then finish pending writes and close the store."""
