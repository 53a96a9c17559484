"""Asks an API server which versions of the Gateway API's kinds it serves."""

import msgspec

from vipwire.kube.access.access import Access
from vipwire.kube.errors import ApiError, UnreachableError
from vipwire.kube.objects import ObjectClient
from vipwire_l7.gateway.watch.kinds import VERSIONS


class _Entry(msgspec.Struct):
    name: str = ""


class _List(msgspec.Struct):
    resources: tuple[_Entry, ...] = ()


async def served_versions(access: Access) -> dict[str, frozenset[str]]:
    """Return the plurals that the server serves, by API version; none if the server does not answer."""
    found: dict[str, frozenset[str]] = {}
    async with ObjectClient(access, "vipwire-gateway") as client:
        for version in (f"{group}/{each}" for group, versions in VERSIONS.items() for each in versions):
            try:
                listed = await client.read(f"/apis/{version}", _List) or _List()
            except UnreachableError:
                continue
            except ApiError:
                listed = _List()
            found[version] = frozenset(each.name for each in listed.resources)
    return found
