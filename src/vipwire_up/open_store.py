"""Opens the store of `vipwire up`: the file in the data directory, or etcd, if the prefix there is this cluster's.

A cluster is its certificate authority: its clients trust every API server over one store. etcd holds the hash of the
authority's key; a data directory with another authority belongs to another cluster, and must not write there.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cryptography import x509

from vipwire.errors import ConfigError
from vipwire.file_io.private_files import write_private
from vipwire.linux.host.addresses import read_addresses
from vipwire.logging import log
from vipwire.model.net import format_address
from vipwire_up.api.damaged_records import is_readable
from vipwire_up.credentials.ca import Authority, encode_public_key
from vipwire_up.nodes.name_claim import SERVER_FILE
from vipwire_up.store.database import Database
from vipwire_up.store.embedded import EmbeddedStore
from vipwire_up.store.etcd.settings import EtcdSettings
from vipwire_up.store.record import StoreError
from vipwire_up.store.store import Store

_NOTE: Final = "etcd-cluster"
"""In the data directory: the prefix of the objects and the ID of the etcd cluster, as of the last start."""

if TYPE_CHECKING:
    from vipwire_up.store.etcd.store import EtcdStore  # not at run time: its packages are optional


@contextlib.contextmanager
def needs_etcd() -> Iterator[None]:
    """Guard the import of an optional dependency; raise ConfigError, with the remedy, if it is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        why = f"etcd needs the packages grpcio and protobuf ({error})"
        raise ConfigError(f"{why}: pip install 'vipwire[etcd]'") from error


async def open_store(folder: Path, limit: int, etcd: EtcdSettings | None, clock: Callable[[], datetime]) -> Store:
    if etcd is None:
        return EmbeddedStore(Database(folder, limit=limit), is_readable)
    with needs_etcd():
        from vipwire_up.store.etcd.client import Client  # noqa: PLC0415  # an optional dependency
        from vipwire_up.store.etcd.store import EtcdStore  # noqa: PLC0415
    own = {format_address(each.address) for each in read_addresses()}
    note = folder / _NOTE
    noted, number = _read_note(note)
    client = Client(etcd.with_nearest_first(own), clock, number)
    try:
        store = EtcdStore(client, etcd.prefix, is_readable)
        await store.open()
        await _claim_prefix(store, etcd.prefix, folder, clock(), noted)
    except BaseException:
        await client.close()
        raise
    _write_note(note, f"{etcd.prefix} {client.cluster:x}\n")
    return store


async def _claim_prefix(store: "EtcdStore", prefix: str, folder: Path, now: datetime, noted: str) -> None:
    owner = await store.transactions.read_owner()
    if owner and not (folder / "pki/ca.crt").exists():
        why = f"join it (vipwire join --server), or copy its ca.crt and ca.key into {folder}/pki"
        raise StoreError(f"etcd has a cluster at prefix {prefix}, which this machine has not joined: {why}")
    traces = [name for name in (_NOTE, SERVER_FILE) if (folder / name).exists()]
    if traces and not owner:
        was = f"the objects of this cluster were at {noted}" if noted else "this is a server of a cluster"
        why = "restore etcd's backup, or name the right --etcd-servers and --etcd-prefix"
        fresh = f"to begin with an empty cluster, remove {' and '.join(traces)} in {folder}"
        raise StoreError(f"etcd is empty at prefix {prefix}, and {was}: {why}; {fresh}")
    ours = hash_authority_key(folder / "pki", now)
    check_prefix_owner(await store.transactions.claim_prefix(ours), prefix, folder / "pki", now)


def _read_note(note: Path) -> tuple[str, int]:
    """Read a directory's prefix and etcd cluster ID; "" and 0 at first."""
    try:
        prefix, _, number = note.read_text(encoding="utf-8").strip().rpartition(" ")
        return prefix, int(number, 16)
    except (OSError, ValueError):
        return "", 0


def _write_note(note: Path, text: str) -> None:
    try:
        if not note.exists() or note.read_text(encoding="utf-8") != text:
            write_private(note, text.encode())
    except (OSError, ValueError) as error:
        log.warning(
            "cannot record the place of the objects; a later start cannot detect an empty etcd",
            file=note,
            error=error,
        )


def check_prefix_owner(owner: bytes, prefix: str, folder: Path, now: datetime) -> None:
    """Raise StoreError unless a prefix belongs to the authority in a folder."""
    if owner == b"migrating":
        raise StoreError(f"a migration to etcd's prefix {prefix} was interrupted: run vipwire store migrate again")
    if owner.startswith(b"moved"):
        raise StoreError(f"the cluster at etcd's prefix {prefix} was {owner.decode()}: use that, or migrate it back")
    if owner != hash_authority_key(folder, now):
        why = "choose another --etcd-prefix, or use the ca.crt and ca.key of that cluster"
        raise StoreError(f"etcd has another cluster at prefix {prefix}: {folder} does not have its authority: {why}")


def hash_authority_key(folder: Path, now: datetime) -> bytes:
    """Return the hash of the key of a folder's authority, created if missing. Renewal keeps the key."""
    path = Authority(folder, now).pair.certificate
    key = x509.load_pem_x509_certificate(path.read_bytes()).public_key()
    return hashlib.sha256(encode_public_key(key)).hexdigest().encode()
