"""Asks an API server at which versions it serves the kinds of the Gateway API."""

import msgspec

from vipwire.kube.access.access import Access
from vipwire.kube.access.connection import TRANSPORT_ERRORS, Connection
from vipwire.kube.resource import BROKEN
from vipwire_l7.gateway.watch.kinds import VERSIONS

_TIMEOUT = 10.0


class _Entry(msgspec.Struct):
    name: str = ""


class _List(msgspec.Struct):
    resources: tuple[_Entry, ...] = ()


async def served_versions(access: Access) -> dict[str, frozenset[str]]:
    """Return the plurals that are served, by API version; nothing where the server does not answer."""
    found: dict[str, frozenset[str]] = {}
    async with Connection(access, "vipwire-gateway") as connection:
        for version in (f"{group}/{each}" for group, versions in VERSIONS.items() for each in versions):
            try:
                async with connection.request("GET", f"/apis/{version}", timeout=_TIMEOUT) as response:
                    body = await response.read()
                    listed = msgspec.json.decode(body, type=_List) if response.status < 300 else _List()
            except (*TRANSPORT_ERRORS, *BROKEN):
                continue
            found[version] = frozenset(each.name for each in listed.resources)
    return found
