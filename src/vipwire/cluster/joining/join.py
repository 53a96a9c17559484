"""Joins a cluster: finds its authority by its hash, and has this machine's key signed with a token.

    GET authority, without verification ▸ its hash must be the one on the command line ▸ from here on TLS is verified
    POST certificates with the token ▸ the machine's own certificate
    POST certificates with that one ▸ another one, for an Ingress or Gateway controller on this machine

The token is sent only to a server that the authority has certified.
"""

import datetime as dt
from typing import Any, Final

from cryptography import x509

from vipwire.cluster.api.errors import ApiError
from vipwire.cluster.credentials.private_files import write_private
from vipwire.cluster.joining.membership import Folder, Member, Part, access_by_token, hash_of, unverified
from vipwire.cluster.machines.objects import RemoteObjects
from vipwire.errors import ConfigError, VipwireError
from vipwire.kube.access.access import Access
from vipwire.process import log

MANAGER: Final = "vipwire-join"
_PATH: Final = "/vipwire.io/v1/"


async def join(folder: Folder, server: str, token: str, pinned: str, node: str) -> Member:
    """Get credentials for this machine and keep them. Raise VipwireError with what to do."""
    folder.prepare()
    authority = await find_authority(server, pinned)
    await sign(folder, folder.node, access_by_token(server, token, authority), node)
    try:
        await sign(folder, folder.ingress, folder.access(server), node)
    except VipwireError as error:  # such as an API server of an earlier version; it is tried again while this runs
        log.warning("no certificate for an Ingress controller on this machine", reason=error)
    member = Member(node, (server,))
    folder.save(member)
    return member


async def find_authority(server: str, pinned: str) -> str:
    """Ask a server for its authority, and compare the hash. Raise ConfigError if it is another one."""
    found = str((await _ask(unverified(server), "GET", "authority")).get("certificate", ""))
    try:
        actual = hash_of(found)
    except ValueError as error:
        raise VipwireError(f"{server}: does not tell its authority: {error}") from error
    if actual != pinned:
        raise ConfigError(f"{server}: its authority has the hash {actual}, not that of --ca-hash: it is another one")
    return found


async def sign(folder: Folder, part: Part, access: Access, node: str) -> None:
    """Have one of this machine's keys signed, for the first time or again."""
    try:
        answer = await _ask(access, "POST", "certificates", {"request": folder.request(part, node)})
        folder.keep(part, str(answer["certificate"]), str(answer["authority"]))
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be written: {error.strerror}") from error


async def become_server(folder: Folder, server: str, token: str, pinned: str) -> None:
    """Fetch the authority with its key, so that `vipwire up` in this folder is one more API server of the cluster."""
    folder.prepare()
    authority = await find_authority(server, pinned)
    answer = await _ask(access_by_token(server, token, authority), "GET", "servers")
    try:
        write_private(folder.authority.with_name("ca.key"), str(answer["key"]).encode())
        write_private(folder.authority, str(answer["certificate"]).encode())
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


async def _ask(access: Access, method: str, what: str, body: Any = None) -> dict[str, Any]:
    async with RemoteObjects(access, MANAGER) as objects:
        try:
            return await objects.ask(method, f"{_PATH}{what}", body)
        except ApiError as error:
            if error.code == 401:
                raise VipwireError(
                    f"{access.server}: does not accept the token: it is wrong or its time is over "
                    "(vipwire token create makes another)"
                ) from error
            raise VipwireError(f"{access.server}: {error.message}") from error
