"""A store of either engine for a test: SQLite in a folder, or etcd with its own prefix."""

import contextlib
import itertools
import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.up.unit.cluster_here import running
from tests.up.unit.etcd_here import Etcd

from vipwire_up.store.database import Database
from vipwire_up.store.embedded import EmbeddedStore
from vipwire_up.store.etcd.client import Client
from vipwire_up.store.etcd.settings import EtcdSettings, read_settings
from vipwire_up.store.etcd.store import EtcdStore
from vipwire_up.store.record import Key, Record, Write
from vipwire_up.store.store import Store

_NUMBERS = itertools.count()


def prefix() -> str:
    return f"/test-{os.getpid()}-{next(_NUMBERS)}"


def settings(etcd: Etcd, place: str, **flags: str) -> EtcdSettings:
    return read_settings({"etcd-servers": etcd.servers, "etcd-prefix": place} | flags)


def now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251  # certificates are judged by it


@contextlib.asynccontextmanager
async def etcd_store(given: EtcdSettings, *, keep: int = 10_000) -> AsyncIterator[EtcdStore]:
    """Run one process's store on etcd for the block."""
    client = Client(given, now)
    store = EtcdStore(client, given.prefix, keep=keep)
    try:
        await store.open()
    except BaseException:
        await client.close()
        raise
    async with running(store):
        yield store


@dataclass(frozen=True)
class Engine:
    """The parts of a store; each `open` acts as a new process."""

    folder: Path
    etcd: Etcd | None
    prefix: str

    @contextlib.asynccontextmanager
    async def open(self, *, keep: int = 10_000) -> AsyncIterator[Store]:
        if self.etcd is not None:
            async with etcd_store(settings(self.etcd, self.prefix), keep=keep) as shared:
                yield shared
            return
        async with running(EmbeddedStore(Database(self.folder), keep=keep)) as store:
            yield store


def key(name: str, resource: str = "things") -> Key:
    return Key(resource, "default", name)


def encode(name: str, text: str, revision: int) -> bytes:
    """Encode an object, because the store sets other values aside."""
    meta = {"name": name, "namespace": "default", "resourceVersion": str(revision)}
    return json.dumps({"metadata": meta, "text": text}, separators=(",", ":")).encode()


def put(name: str, text: str = "", expected: int = 0, *, resource: str = "things", lifetime: int = 0) -> Write:
    return Write(key(name, resource), lambda revision: encode(name, text, revision), expected, lifetime=lifetime)


def remove(name: str, expected: int) -> Write:
    return Write(key(name), lambda revision: encode(name, "last", revision), expected, deletes=True)


def text_of(record: Record | None) -> str:
    """Return an object's text with its revision."""
    assert record is not None
    value = json.loads(record.value)
    assert value["metadata"]["resourceVersion"] == str(record.revision)
    return str(value["text"])
