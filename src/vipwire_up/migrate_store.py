"""Moves all objects from the file of a data directory to etcd, or back, while no API server runs.

    to etcd     the prefix must be empty, or hold an interrupted migration, which starts again. vipwire raises etcd's
                revision beyond the file's, so that no client takes an old state for a newer one
    to sqlite   revisions continue from etcd's, so that all clients list again

The source keeps its objects under another name (`store.db.migrated`) or marked as moved, so that no API server
continues on them by mistake.
"""

import asyncio
import shutil
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

from vipwire.file_io.files import sync_to_disk
from vipwire_up.api.kinds.catalogue import BY_ID
from vipwire_up.api.kinds.small_kinds import LEASES
from vipwire_up.api.objects.object import decode_damaged_record
from vipwire_up.controllers.election import NAMESPACE
from vipwire_up.controllers.servers import EVERY, lease_name
from vipwire_up.open_store import check_prefix_owner, hash_authority_key
from vipwire_up.store.database import FILE_NAME, Database, lock_data_dir
from vipwire_up.store.etcd.client import Client
from vipwire_up.store.etcd.layout import encode_at_revision
from vipwire_up.store.etcd.settings import EtcdSettings
from vipwire_up.store.etcd.transfer import MOVED, Transfer
from vipwire_up.store.record import Record, RecordChange, StoreError
from vipwire_up.up import current_time

_MIGRATED: Final = ".migrated"
_BATCH: Final = 500


async def migrate_store(target: str, folder: Path, settings: EtcdSettings) -> int:
    """Move all objects to `target`, etcd or sqlite; return their number. Raise StoreError."""
    return await (copy_to_etcd if target == "etcd" else copy_to_sqlite)(folder, settings, current_time)


async def copy_to_etcd(folder: Path, settings: EtcdSettings, clock: Callable[[], datetime]) -> int:
    path = folder / FILE_NAME
    if not path.exists():
        raise StoreError(f"{path}: no such store")
    client = Client(settings, clock)
    database = Database(folder)
    try:
        contents = database.load()
        records = [record for record in contents.records if record.key.resource in BY_ID]
        transfer = Transfer(client, settings.prefix)
        await transfer.claim_prefix()
        await transfer.transactions.continue_after(contents.revision)
        await transfer.write_objects((record.key, encode_at_revision(record.value, 0)) for record in records)
        await transfer.write_owner(hash_authority_key(folder / "pki", clock()))
        path.rename(path.with_name(f"{FILE_NAME}{_MIGRATED}"))
        sync_to_disk(folder)
    finally:
        database.close()
        await client.close()
    return len(records)


async def copy_to_sqlite(folder: Path, settings: EtcdSettings, clock: Callable[[], datetime]) -> int:
    path = folder / FILE_NAME
    client = Client(settings, clock)
    try:
        transfer = Transfer(client, settings.prefix)
        check_prefix_owner(await transfer.transactions.read_owner(), settings.prefix, folder / "pki", clock())
        revision, records = await transfer.read_records()
        await _check_no_server_runs(transfer, records)
        records = [record for record in records if record.key.resource in BY_ID]
        with lock_data_dir(folder):
            if path.exists():
                raise StoreError(f"{path}: exists; move it away first")
            _write_store_file(folder, path, _number_records(records, revision))
            await transfer.write_owner(MOVED)
            path.with_name(f"{FILE_NAME}{_MIGRATED}").unlink(missing_ok=True)
    finally:
        await client.close()
    return len(records)


async def _check_no_server_runs(transfer: Transfer, records: Iterable[Record]) -> None:
    before = {record.key.name: record.revision for record in _list_held_leases(records)}
    if not before:
        return
    await asyncio.sleep(EVERY + 1)
    _, later = await transfer.read_records()
    for record in _list_held_leases(later):
        if record.revision != before.get(record.key.name):
            raise StoreError(
                f"{record.key.name.removeprefix(lease_name(''))}: its API server runs: stop that server first"
            )


def _list_held_leases(records: Iterable[Record]) -> Iterator[Record]:
    for record in records:
        key = record.key
        if (key.resource, key.namespace) == (LEASES.id, NAMESPACE) and key.name.startswith(lease_name("")):
            spec = decode_damaged_record(record).get("spec") or {}
            if spec.get("holderIdentity"):
                yield record


def _number_records(records: Iterable[Record], revision: int) -> list[RecordChange]:
    """Give each record a revision of its own: in etcd a transaction's records share one."""
    ordered = sorted(records, key=lambda record: (record.revision, record.key))
    return [
        RecordChange(Record(record.key, number, encode_at_revision(record.value, number)), None)
        for number, record in enumerate(ordered, revision + 1)
    ]


def _write_store_file(folder: Path, path: Path, changes: list[RecordChange]) -> None:
    """Write a store file under another name, and rename it when it is complete."""
    building = folder / "store.migrating"
    shutil.rmtree(building, ignore_errors=True)
    database = Database(building)
    for start in range(0, len(changes), _BATCH):
        database.append(changes[start : start + _BATCH])
    if changes:
        database.compact(changes[-1].revision)
    database.close()
    (building / FILE_NAME).rename(path)
    sync_to_disk(folder)
    shutil.rmtree(building, ignore_errors=True)
