"""Joins a cluster: verifies its authority by --ca-hash, and gets certificates for this machine's keys.

docs/design/0018-a-join-is-pinned.md lists the messages and what each proves.
"""

import contextlib
import datetime as dt
import time
from collections.abc import Iterator
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from vipwire.errors import ConfigError, VipwireError
from vipwire.file_io.private_files import write_private
from vipwire.kube.access.access import Access
from vipwire.kube.errors import ApiError, UnreachableError
from vipwire.logging import log
from vipwire_up.credentials.ca import encode_key, is_renewal_due
from vipwire_up.joining.membership import Folder, Member, Part, access_by_token, unverified_access
from vipwire_up.joining.pinned import (
    encode_certificate,
    parse_authority,
    parse_authority_key,
    parse_signed_certificate,
)
from vipwire_up.nodes.name_claim import server_identity
from vipwire_up.nodes.objects import RemoteObjects

MANAGER: Final = "vipwire-join"
_PATH: Final = "/vipwire.io/v1/"
_REJECTED: Final = "rejects the token: wrong or expired (create one with vipwire token create)"
_REMEDY: Final = (
    "expired, or the clock here is wrong: set the clock, or run here the command that vipwire token create prints "
    "on an API server"
)
_CERTIFICATE_ENDED: Final = (
    "rejects the certificate of this machine: its token was deleted, its Node was removed, or another "
    "machine joined under its name "
    "(vipwire leave --force, then join with another token)"
)


async def join_cluster(folder: Folder, server: str, token: str, pinned: str, node: str) -> Member:
    folder.prepare(pinned)
    authority = await find_authority(server, pinned)
    await request_certificate(folder, folder.node, access_by_token(server, token, authority), node, pinned)
    await request_certificate(folder, folder.ingress, folder.access_to(server), node, pinned)
    member = Member(node, (server,))
    with _explain_errors():
        folder.save_member(member)
    return member


async def find_authority(server: str, pinned: str) -> x509.Certificate:
    """Fetch the authority's certificate from a server. Raise VipwireError unless it has the pinned hash."""
    return parse_authority(
        (await _send_request(unverified_access(server), "GET", "authority")).get("certificate"), pinned, server
    )


async def request_certificate(folder: Folder, part: Part, access: Access, node: str, pinned: str = "") -> None:
    """Get a certificate for one of this machine's keys from the authority with the pinned hash.

    Without a hash the authority must have the same key as before.
    """
    with _explain_errors():
        pinned, request = pinned or folder.authority_hash(), folder.build_signing_request(part, node)
        sent = request.public_bytes(serialization.Encoding.PEM).decode()
        answer = await _send_request(access, "POST", "certificates", {"request": sent})
        authority = parse_authority(answer.get("authority"), pinned, access.server)
        folder.save_certificates(
            part, parse_signed_certificate(answer.get("certificate"), request, authority, access.server), authority
        )


async def fetch_authority_key(folder: Folder, server: str, token: str, pinned: str) -> None:
    """Fetch the authority with its key, so that `vipwire up` in this folder is one more API server of the cluster."""
    folder.prepare(pinned)
    if folder.authority.exists() and (other := folder.authority_hash()) != pinned:
        raise ConfigError(f"{folder.authority}: belongs to another cluster, {other}: choose another --data-dir")
    found = await find_authority(server, pinned)
    answer = await _send_request(access_by_token(server, token, found), "GET", "servers")
    authority = parse_authority(answer.get("certificate"), pinned, server)
    key = encode_key(parse_authority_key(answer.get("key"), authority, server))
    with _explain_errors():
        write_private(folder.authority_key, key)
        write_private(folder.authority, encode_certificate(authority).encode())
        server_identity(folder.path, "")  # so that the first start does not accept an empty etcd


def read_own_certificate(part: Part) -> x509.Certificate | None:
    try:
        return x509.load_pem_x509_certificate(part.certificate.read_bytes())
    except (OSError, ValueError):
        return None


def has_expired(part: Part, now: dt.datetime) -> bool:
    """Report whether one of this machine's certificates has expired by this machine's clock."""
    found = read_own_certificate(part)
    return found is None or found.not_valid_after_utc <= now


class Renewal:
    """Renews one of this machine's certificates in time."""

    def __init__(self, folder: Folder, part: Part) -> None:
        self._folder, self._part = folder, part
        self._wait_until = 0.0
        self._told = ""

    async def step(self, access: Access, node: str, now: dt.datetime) -> bool:
        """Renew the certificate if due; report whether there is a new one. Log a failure."""
        found = read_own_certificate(self._part)
        if time.monotonic() < self._wait_until or (found is not None and not is_renewal_due(found, now)):
            return False
        try:
            await request_certificate(self._folder, self._part, access, node)
        except VipwireError as error:
            self._log_failure(str(error), now)
            return False
        made, self._told = read_own_certificate(self._part), ""
        if made is not None:
            # A wrong clock here must not use up the machine's MOST_CERTIFICATES.
            life = made.not_valid_after_utc - made.not_valid_before_utc
            self._wait_until = time.monotonic() + life.total_seconds() / 10
            log.info(
                "renewed a certificate of this machine", file=self._part.certificate, end=made.not_valid_after_utc
            )
            if is_renewal_due(made, now):
                log.warning(
                    "a new certificate has expired or is not valid yet: set the clock of this machine", clock=now
                )
        return made is not None

    def _log_failure(self, reason: str, now: dt.datetime) -> None:
        """Log a reason once, with the remedy if no time is left."""
        if reason != self._told:
            remedy = {"remedy": _REMEDY} if has_expired(self._part, now) else {}
            path = self._part.certificate
            log.error("cannot renew a certificate of this machine", file=path, reason=reason, **remedy)
        self._told = reason


@contextlib.contextmanager
def _explain_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be written: {error.strerror}") from error


def explain_rejection(error: Exception) -> str:
    """Write an error of a request with this machine's certificate, with the remedy."""
    is_rejected = isinstance(error, ApiError) and error.code == 401
    return f"the API server {_CERTIFICATE_ENDED}" if is_rejected else str(error)


async def _send_request(access: Access, method: str, name: str, body: Any = None) -> dict[str, Any]:
    async with RemoteObjects(access, MANAGER) as objects:
        try:
            return await objects.send_request(method, f"{_PATH}{name}", body)
        except UnreachableError as error:
            raise VipwireError(f"{access.server}: {method} {name}: {error}") from error
        except ApiError as error:
            if error.code == 401:
                why = _CERTIFICATE_ENDED if access.certificate else _REJECTED
                raise VipwireError(f"{access.server}: {why}") from error
            raise VipwireError(f"{access.server}: {method} {name}: {error.message}") from error
