"""Spreads endpoints over slices so that as few slices as possible change. Pure.

The API server sends a changed slice to every node, and 100 endpoints are much for one that changed. So

    1  endpoints that stay keep their slice, and are changed in place
    2  new ones go into slices that change anyway, then into the fullest slice that takes all the rest
    3  the remainder makes new slices; empty slices are deleted

A Service without endpoints keeps one empty slice of each family, as a sign that the controller has seen it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from vipwire_up.api.objects.resource import Object
from vipwire_up.controllers.endpoints.endpoints import Group, Grouped, format_ports_key

MOST: Final = 100
"""Endpoints of a slice: Kubernetes' --max-endpoints-per-slice."""


@dataclass(frozen=True, slots=True)
class Slice:
    """An existing slice."""

    name: str
    group: Group
    endpoints: Sequence[Object]


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The slices to create, to update and to delete."""

    create: tuple[tuple[Group, list[Object]], ...] = ()
    update: tuple[tuple[str, list[Object]], ...] = ()
    delete: tuple[str, ...] = ()


def arrange_slices(existing: Sequence[Slice], wanted: Grouped, families: Iterable[str]) -> Arrangement:
    """Arrange wanted endpoints; each of `families` gets an empty slice if it has no endpoints."""
    wanted = dict(wanted)
    for family in families:
        if not any(group.family == family for group in wanted):
            wanted[Group(family, format_ports_key(()))] = []
    create: list[tuple[Group, list[Object]]] = []
    update: list[tuple[str, list[Object]]] = []
    delete = [each.name for each in existing if each.group not in wanted]
    for group, endpoints in wanted.items():
        ours = [each for each in existing if each.group == group]
        kept, changed, rest = _keep_endpoints_in_place(ours, endpoints)
        empty = [name for name, listed in kept.items() if not listed]
        gone = empty if endpoints else empty[1:]  # without endpoints, one empty slice stays
        pieces = [rest[start : start + MOST] for start in range(0, len(rest), MOST)]
        create += [(group, piece) for piece in pieces or ([] if endpoints or ours else [[]])]
        update += [(name, kept[name]) for name in changed if name not in gone]
        delete += gone
    return Arrangement(tuple(create), tuple(update), tuple(delete))


def read_slice(value: Object) -> Slice:
    group = Group(value.get("addressType", ""), format_ports_key(value.get("ports") or ()))
    return Slice(value["metadata"]["name"], group, value.get("endpoints") or [])


def check_slice(value: Object) -> None:
    for endpoint in read_slice(value).endpoints:
        _endpoint_identity(endpoint)


def _keep_endpoints_in_place(
    existing: Sequence[Slice], wanted: Sequence[Object]
) -> tuple[dict[str, list[Object]], list[str], list[Object]]:
    """Return the endpoints of each slice by its name, the names of changed slices, and the endpoints without one."""
    missing = {_endpoint_identity(endpoint): endpoint for endpoint in wanted}
    kept: dict[str, list[Object]] = {}
    changed: list[str] = []
    for each in existing:
        listed = [_endpoint_identity(endpoint) for endpoint in each.endpoints]
        kept[each.name] = [missing.pop(name) for name in listed if name in missing]
        if kept[each.name] != list(each.endpoints):
            changed.append(each.name)
    rest = list(missing.values())
    for name in changed:
        take = MOST - len(kept[name])
        kept[name], rest = kept[name] + rest[:take], rest[take:]
    return kept, changed, _fit_rest_into_slice(kept, changed, rest)


def _fit_rest_into_slice(kept: dict[str, list[Object]], changed: list[str], rest: list[Object]) -> list[Object]:
    """Add a rest smaller than a slice to the fullest unchanged one that has room for all of it."""
    over = len(rest) % MOST
    fitting = [name for name, listed in kept.items() if name not in changed and 0 < over <= MOST - len(listed)]
    if not fitting:
        return rest
    best = max(fitting, key=lambda name: len(kept[name]))
    kept[best] += rest[len(rest) - over :]
    changed.append(best)
    return rest[: len(rest) - over]


def _endpoint_identity(endpoint: Object) -> tuple[str, ...]:
    target = endpoint.get("targetRef") or {}
    return (*endpoint["addresses"], target.get("uid") or target.get("name") or "")
