"""Joins a cluster: finds its authority by the hash of --ca-hash, and has this machine's keys signed.

Each message, and what it proves: docs/design/0018-a-join-is-pinned.md.
"""

import contextlib
import datetime as dt
from collections.abc import Iterator
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from vipwire.errors import ConfigError, VipwireError
from vipwire.file_io.files import write_private
from vipwire.kube.access.access import Access
from vipwire.kube.errors import ApiError, UnreachableError
from vipwire_up.joining.membership import Folder, Member, Part, access_by_token, unverified
from vipwire_up.joining.pinned import authority_of, certificate_of, encoded, key_of
from vipwire_up.nodes.objects import RemoteObjects
from vipwire_up.supervision.server_identity import server_identity

MANAGER: Final = "vipwire-join"
_PATH: Final = "/vipwire.io/v1/"
_NO_TOKEN: Final = "does not accept the token: it is wrong or its time is over (vipwire token create makes another)"  # noqa: S105  # a message
_CERTIFICATE_ENDED: Final = (
    "does not accept the certificate of this machine: its token was deleted, its Node was removed, or another "
    "machine joined under its name "
    "(vipwire leave --force, then join with another token)"
)


async def join(folder: Folder, server: str, token: str, pinned: str, node: str) -> Member:
    """Get credentials for this machine and keep them. Raise VipwireError with what to do."""
    folder.prepare(pinned)
    authority = await find_authority(server, pinned)
    await sign(folder, folder.node, access_by_token(server, token, authority), node, pinned)
    await sign(folder, folder.ingress, folder.access(server), node, pinned)
    member = Member(node, (server,))
    with _explained():
        folder.save(member)
    return member


async def find_authority(server: str, pinned: str) -> x509.Certificate:
    """Ask a server for the certificate of its authority. Raise VipwireError unless it is the pinned one."""
    return authority_of((await _ask(unverified(server), "GET", "authority")).get("certificate"), pinned, server)


async def sign(folder: Folder, part: Part, access: Access, node: str, pinned: str = "") -> None:
    """Have one of this machine's keys signed, for the first time or again, by the authority with the pinned hash.

    Without a hash the authority must have the key that it had before.
    """
    with _explained():
        pinned, request = pinned or folder.pin(), folder.request(part, node)
        sent = request.public_bytes(serialization.Encoding.PEM).decode()
        answer = await _ask(access, "POST", "certificates", {"request": sent})
        authority = authority_of(answer.get("authority"), pinned, access.server)
        folder.keep(part, certificate_of(answer.get("certificate"), request, authority, access.server), authority)


async def become_server(folder: Folder, server: str, token: str, pinned: str) -> None:
    """Fetch the authority with its key, so that `vipwire up` in this folder is one more API server of the cluster."""
    folder.prepare(pinned)
    if folder.authority.exists() and (other := folder.pin()) != pinned:
        raise ConfigError(f"{folder.authority}: is of another cluster, {other}: choose another --data-dir")
    found = await find_authority(server, pinned)
    answer = await _ask(access_by_token(server, token, found), "GET", "servers")
    authority = authority_of(answer.get("certificate"), pinned, server)
    key = key_of(answer.get("key"), authority, server).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with _explained():
        write_private(folder.authority_key, key)
        write_private(folder.authority, encoded(authority).encode())
        server_identity(
            folder.path, ""
        )  # by it, the first start takes an empty etcd for one that has lost its objects


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be written: {error.strerror}") from error


def is_due(part: Part, now: dt.datetime) -> bool:
    """Report whether two thirds of a certificate's time are over, or it cannot be read."""
    try:
        found = x509.load_pem_x509_certificate(part.certificate.read_bytes())
    except (OSError, ValueError):
        return True
    life = found.not_valid_after_utc - found.not_valid_before_utc
    return now >= found.not_valid_before_utc + life * 2 / 3


async def _ask(access: Access, method: str, name: str, body: Any = None) -> dict[str, Any]:
    async with RemoteObjects(access, MANAGER) as objects:
        try:
            return await objects.ask(method, f"{_PATH}{name}", body)
        except UnreachableError as error:
            raise VipwireError(f"{access.server}: {method} {name}: {error}") from error
        except ApiError as error:
            if error.code == 401:
                why = _CERTIFICATE_ENDED if access.certificate else _NO_TOKEN
                raise VipwireError(f"{access.server}: {why}") from error
            raise VipwireError(f"{access.server}: {method} {name}: {error.message}") from error
