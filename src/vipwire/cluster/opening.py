"""Opens the store of `vipwire up`: the file in the data directory, or etcd, if the prefix there is this cluster's.

A cluster is its certificate authority: who trusts it trusts every API server over one store. The key of the authority
is noted in etcd; a data directory with another one belongs to another cluster, and must not write there.
"""

import hashlib
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from vipwire.cluster.api.stored import is_readable
from vipwire.cluster.credentials.ca import Authority
from vipwire.cluster.store.database import Database
from vipwire.cluster.store.embedded import EmbeddedStore
from vipwire.cluster.store.etcd.settings import EtcdSettings
from vipwire.cluster.store.record import StoreError
from vipwire.cluster.store.store import Store
from vipwire.errors import ConfigError

if TYPE_CHECKING:
    from vipwire.cluster.store.etcd.store import EtcdStore  # not at run time: its packages are optional


async def open_store(folder: Path, limit: int, etcd: EtcdSettings | None, clock: Callable[[], datetime]) -> Store:
    """Open it. Raise StoreError, ConfigError."""
    if etcd is None:
        return EmbeddedStore(Database(folder, limit=limit), is_readable)
    try:
        from vipwire.cluster.store.etcd.client import Client  # noqa: PLC0415  # an optional dependency
        from vipwire.cluster.store.etcd.store import EtcdStore  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(f"--store etcd needs the package {error.name}: pip install 'vipwire[etcd]'") from error
    client = Client(etcd, clock)
    try:
        store = EtcdStore(client, etcd.prefix, is_readable)
        await store.open()
        await _claim(store, etcd.prefix, folder / "pki", clock())
    except BaseException:
        await client.close()
        raise
    return store


async def _claim(store: "EtcdStore", prefix: str, folder: Path, now: datetime) -> None:
    owner, certificate = await store.owner(), folder / "ca.crt"
    if owner and not certificate.exists():
        why = f"copy ca.crt and ca.key from a server of it into {folder}, or choose another --etcd-prefix"
        raise StoreError(f"etcd holds a cluster at prefix {prefix}, and this machine has no part in it: {why}")
    Authority(folder, now)
    ours = _fingerprint(certificate)
    if (owner := await store.claim(ours)) != ours:
        why = "choose another --etcd-prefix, or use the ca.crt and ca.key of that cluster"
        raise StoreError(f"etcd holds another cluster at prefix {prefix}: its authority is not {certificate}: {why}")


def _fingerprint(path: Path) -> bytes:
    """Name an authority by its key, which it keeps when its certificate is renewed."""
    key = x509.load_pem_x509_certificate(path.read_bytes()).public_key()
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest().encode()
