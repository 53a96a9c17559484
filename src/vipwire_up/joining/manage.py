"""What people do with tokens, and a machine does to leave: requests to the API, as an admin or as the machine."""

import asyncio
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from vipwire.errors import VipwireError
from vipwire.kube.access.access import Access
from vipwire.kube.errors import ApiError, UnreachableError
from vipwire_up.api.kinds.endpoints import ENDPOINTS
from vipwire_up.api.kinds.node import NODES
from vipwire_up.api.kinds.small_kinds import LEASES, SECRETS
from vipwire_up.joining.join import MANAGER
from vipwire_up.joining.membership import Folder, Member
from vipwire_up.joining.pinned import hash_of, read_certificate
from vipwire_up.joining.run import servers_in
from vipwire_up.joining.tokens import (
    KIND,
    NAMESPACE,
    PREFIX,
    SERVERS,
    Token,
    generate,
    read_secret,
    secret_of,
    table,
)
from vipwire_up.machines.leases import NODE_LEASES
from vipwire_up.machines.objects import Objects, RemoteObjects

_DEPARTURES: Final = "/vipwire.io/v1/departures"
_LOOKS: Final = 50
_LOOK_SECONDS: Final = 0.2


def now() -> datetime:
    """Return the time."""
    return datetime.now(UTC)  # noqa: TID251  # a command's


async def create_token(access: Access, seconds: float, *, servers: bool, description: str) -> str:
    """Make a token that lasts for some seconds, 0 for ever; give the command that joins with it."""
    expires = now() + timedelta(seconds=seconds) if seconds else None
    groups = (SERVERS,) if servers else ()
    token = Token(*generate(secrets.randbelow), expires, groups, description=description)
    async with RemoteObjects(access, MANAGER) as objects:
        try:
            await objects.create(SECRETS, NAMESPACE, secret_of(token))
            authority = read_certificate((await objects.ask("GET", "/vipwire.io/v1/authority")).get("certificate"))
            server = await _reachable_server(objects) or access.server
        except ApiError as error:
            raise VipwireError(error.message) from error
        except (TypeError, ValueError) as error:
            raise VipwireError(f"{access.server}: does not tell its authority: {error}") from error
    role = " --server" if servers else ""
    return f"vipwire join {server} --token {token} --ca-hash {hash_of(authority)}{role}"


async def _reachable_server(objects: Objects) -> str:
    """Find an API server by Service `kubernetes`, which a cluster that has just begun writes a little later."""
    for _ in range(_LOOKS):
        found = await objects.read(ENDPOINTS, "default", "kubernetes")
        if (server := next(servers_in(found or {}), None)) is not None:
            return server
        await asyncio.sleep(_LOOK_SECONDS)
    return ""


async def list_tokens(access: Access) -> Iterator[str]:
    """Give a table of the tokens."""
    async with RemoteObjects(access, MANAGER) as objects:
        try:
            found = await objects.list(SECRETS, NAMESPACE)
        except ApiError as error:
            raise VipwireError(error.message) from error
    tokens = (read_secret(each) for each in found if each.get("type") == KIND)
    return table((each for each in tokens if each is not None), now())


async def delete_token(access: Access, name: str) -> None:
    """Delete a token by its id, or by the whole of it. Raise VipwireError if there is none."""
    name = name.partition(".")[0]
    async with RemoteObjects(access, MANAGER) as objects:
        try:
            if await objects.read(SECRETS, NAMESPACE, f"{PREFIX}{name}") is None:
                raise VipwireError(f"there is no token {name}")
            await objects.delete(SECRETS, NAMESPACE, f"{PREFIX}{name}")
        except ApiError as error:
            raise VipwireError(error.message) from error


async def dismiss(access: Access, node: str) -> None:
    """Delete a machine's Node and Lease as an admin, and have its certificates refused. Raise VipwireError."""
    async with RemoteObjects(access, MANAGER) as objects:
        try:
            await objects.ask("POST", _DEPARTURES, {"node": node})
            await _delete_all(objects, node)
        except ApiError as error:
            raise VipwireError(error.message) from error


async def say_goodbye(folder: Folder, member: Member) -> None:
    """Delete this machine's Node and Lease, and have its certificates refused, at the first API server that answers.

    Raise VipwireError if none does.
    """
    reason = "no API server is known"
    for server in member.servers:
        async with RemoteObjects(folder.access(server), MANAGER) as objects:
            try:
                await _delete_all(objects, member.node)
                await objects.ask("POST", _DEPARTURES, {"certificates": folder.certificates()})
            except UnreachableError as error:
                reason = str(error)
            except ApiError as error:
                raise VipwireError(f"{server}: {error.message}") from error
            else:
                return
    raise VipwireError(
        f"{reason} (--force leaves all the same: then `vipwire leave --node {member.node}` on an API server)"
    )


async def _delete_all(objects: Objects, node: str) -> None:
    await objects.delete(LEASES, NODE_LEASES, node)
    await objects.delete(NODES, "", node)
