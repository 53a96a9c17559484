"""Manages tokens and machines: requests to the API, as an admin or as the machine."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from vipwire.errors import VipwireError
from vipwire.kube.access.access import Access
from vipwire.kube.errors import ApiError, UnreachableError
from vipwire_up.api.kinds.endpoints import ENDPOINTS
from vipwire_up.api.kinds.node import NODES
from vipwire_up.api.kinds.small_kinds import SECRETS
from vipwire_up.api.objects.object import value_at
from vipwire_up.credentials.machine_records import (
    NAMESPACE,
    TOKEN_PREFIX,
    Present,
    change_machine_record,
    format_certificate_table,
    read_machine_record,
    refuse_certificates,
    token_uids_by_id,
)
from vipwire_up.joining.join import MANAGER
from vipwire_up.joining.membership import Folder, Member
from vipwire_up.joining.pinned import hash_of, read_certificate
from vipwire_up.joining.run import list_servers
from vipwire_up.joining.tokens import (
    KIND,
    SERVERS,
    Token,
    build_token_secret,
    format_token_table,
    generate_token,
    read_token_secret,
)
from vipwire_up.nodes.objects import Objects, RemoteObjects

_DEPARTURES: Final = "/vipwire.io/v1/departures"
_LOOKS: Final = 50
_LOOK_SECONDS: Final = 0.2


def current_time() -> datetime:
    return datetime.now(UTC)  # noqa: TID251  # a command's


@contextlib.asynccontextmanager
async def _objects_of(access: Access) -> AsyncIterator[RemoteObjects]:
    """Open the objects of an API server. Raise VipwireError with its message for a refusal."""
    async with RemoteObjects(access, MANAGER) as objects:
        try:
            yield objects
        except ApiError as error:
            raise VipwireError(error.message) from error


async def create_token(access: Access, seconds: float, *, servers: bool, description: str) -> str:
    """Create a token that lasts `seconds`, 0 for ever; return the command that joins with it."""
    expires = current_time() + timedelta(seconds=seconds) if seconds else None
    groups = (SERVERS,) if servers else ()
    token = Token(*generate_token(secrets.randbelow), expires, groups, description=description)
    async with _objects_of(access) as objects:
        await objects.create(SECRETS, NAMESPACE, build_token_secret(token))
        found = await objects.send_request("GET", "/vipwire.io/v1/authority")
        try:
            pinned = hash_of(read_certificate(found.get("certificate")))
        except (TypeError, ValueError) as error:
            raise VipwireError(f"{access.server}: does not send its authority: {error}") from error
        server = await _reachable_server(objects) or access.server
    return f"vipwire join {server} --token {token} --ca-hash {pinned}{' --server' if servers else ''}"


async def _reachable_server(objects: Objects) -> str:
    """Return an API server of Service `kubernetes`. A new cluster writes its endpoints a little later."""
    for _ in range(_LOOKS):
        found = await objects.read(ENDPOINTS, "default", "kubernetes")
        if (server := next(list_servers(found or {}), None)) is not None:
            return server
        await asyncio.sleep(_LOOK_SECONDS)
    return ""


async def list_tokens(access: Access) -> Iterator[str]:
    async with _objects_of(access) as objects:
        found = await objects.list(SECRETS, NAMESPACE)
    tokens = (read_token_secret(each) for each in found if each.get("type") == KIND)
    return format_token_table((each for each in tokens if each is not None), current_time())


async def list_certificates(access: Access) -> Iterator[str]:
    async with _objects_of(access) as objects:
        found, nodes = await objects.list(SECRETS, NAMESPACE), await objects.list(NODES)
    uids = {str(value_at(each, "metadata", "name")): str(value_at(each, "metadata", "uid") or "") for each in nodes}
    return format_certificate_table(
        filter(None, map(read_machine_record, found)), Present(token_uids_by_id(found), uids), current_time()
    )


async def delete_token(access: Access, name: str, *, keep_machines: bool = False) -> list[str]:
    """Delete a token by its id or whole, and refuse its certificates; return a line about each that ended.

    An expired token may be gone: its certificates end all the same. Raise VipwireError if it has neither.
    """
    name = name.partition(".")[0]
    async with _objects_of(access) as objects:
        found = await objects.read(SECRETS, NAMESPACE, f"{TOKEN_PREFIX}{name}")
        machines = await _machines_of_token(objects, name)
        if keep_machines:
            for node in machines:
                await change_machine_record(objects, node, lambda each: each.without_token(name), current_time())
        await objects.delete(SECRETS, NAMESPACE, f"{TOKEN_PREFIX}{name}")  # first: no machine joins with it now
        while not keep_machines and (left := await _machines_of_token(objects, name)):
            machines |= left  # again, for certificates that were renewed meanwhile
            for node in left:
                await refuse_certificates(objects, node, lambda each: each.origin.token == name, current_time())
    if found is None and not machines:
        raise VipwireError(f"there is no token {name}, and no machine has a certificate from it")
    ended = () if keep_machines else sorted(machines)
    told = [f"Node {node}: the API servers refuse the certificates of this token" for node in ended]
    token = read_token_secret(found) if found else None
    if token is not None and SERVERS in token.groups:
        told.append("an API server that joined with the token still has the key of the authority")
    return told


async def _machines_of_token(objects: Objects, token: str) -> set[str]:
    records = filter(None, map(read_machine_record, await objects.list(SECRETS, NAMESPACE)))
    return {each.node for each in records if any(given.origin.token == token for given in each.given)}


async def remove_machine(access: Access, node: str) -> None:
    """As an admin, refuse a machine's certificates, and delete its Node and Lease. Raise VipwireError."""
    async with _objects_of(access) as objects:
        await objects.send_request("POST", _DEPARTURES, {"node": node})


async def report_departure(folder: Folder, member: Member) -> None:
    """Have the first reachable API server refuse this machine's certificates and delete its Node and Lease.

    Raise VipwireError if none answers.
    """
    reason = "no API server is known"
    for server in member.servers:
        async with RemoteObjects(folder.access_to(server), MANAGER) as objects:
            try:
                await objects.send_request("POST", _DEPARTURES, {"certificates": folder.read_certificates()})
            except UnreachableError as error:
                reason = str(error)
            except ApiError as error:
                raise VipwireError(f"{server}: {error.message}") from error
            else:
                return
    raise VipwireError(f"{reason} (or use --force, then `vipwire leave --node {member.node}` on an API server)")
