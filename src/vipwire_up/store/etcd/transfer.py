"""Writes a whole cluster below a prefix of etcd, and reads one, for a migration while no API server runs."""

from collections.abc import Iterable, Sequence
from typing import Final

from vipwire_up.store.etcd.client import Client
from vipwire_up.store.etcd.layout import Layout, encode_at_revision
from vipwire_up.store.etcd.messages import MESSAGES
from vipwire_up.store.etcd.transactions import Transactions
from vipwire_up.store.record import Key, Record, StoreError

MIGRATING: Final = b"migrating"
MOVED: Final = b"moved to sqlite"
"""The owner of a prefix while its objects are being moved to SQLite, and afterwards."""
_MOST: Final = 100
_MOST_BYTES: Final = 1 << 20  # of a request: etcd's own limit is 1.5 MiB
_Op = MESSAGES["RequestOp"]


class Transfer:
    """A migration into or out of a prefix."""

    def __init__(self, client: Client, prefix: str) -> None:
        self._client, self._layout = client, Layout(prefix)
        self.transactions = Transactions(client, self._layout)

    async def claim_prefix(self) -> None:
        """Claim an empty prefix, or one with an interrupted migration, and empty that. Raise StoreError."""
        owner = await self.transactions.claim_prefix(MIGRATING)
        if owner == MOVED:  # it was moved from here, and returns
            await self.write_owner(MIGRATING)
        elif owner != MIGRATING:
            raise StoreError(f"etcd has a cluster at prefix {self._layout.prefix}: choose another --etcd-prefix")
        first = self._layout.objects
        await self._client.call(
            "KV/DeleteRange", MESSAGES["DeleteRangeRequest"](key=first, range_end=_end_of_prefix(first))
        )

    async def write_objects(self, objects: Iterable[tuple[Key, bytes]]) -> None:
        batch, size = list[tuple[bytes, bytes]](), 0
        for key, value in objects:
            if batch and (len(batch) == _MOST or size + len(value) > _MOST_BYTES):
                await self._write_batch(batch)
                batch, size = [], 0
            batch.append((self._layout.key_bytes(key), value))
            size += len(value)
        if batch:
            await self._write_batch(batch)
        await self.transactions.put_value(self._layout.changed, b"")

    async def write_owner(self, owner: bytes) -> None:
        await self.transactions.put_value(self._layout.cluster, owner)

    async def read_records(self) -> tuple[int, list[Record]]:
        _, revision = await self.transactions.read_newest_revision()
        state = await self.transactions.read_state(revision)
        return revision, [Record(key, number, encode_at_revision(value, number)) for key, number, value in state]

    async def _write_batch(self, batch: Sequence[tuple[bytes, bytes]]) -> None:
        """Write a batch; repeating it, as after a broken connection, changes nothing."""
        success = [_Op(request_put=MESSAGES["PutRequest"](key=place, value=value)) for place, value in batch]
        request = MESSAGES["TxnRequest"](success=success)
        await self._client.call("KV/Txn", request)


def _end_of_prefix(prefix: bytes) -> bytes:
    return prefix[:-1] + bytes((prefix[-1] + 1,))
