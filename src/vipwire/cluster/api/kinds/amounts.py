"""Validates amounts of CPU, memory and the like (pkg/apis/core/validation, ValidateResourceRequirements)."""

from collections.abc import Iterator, Mapping
from typing import Final

from vipwire.cluster.api.answers.cells import at
from vipwire.cluster.api.bodies.quantity import read_quantity
from vipwire.cluster.api.errors import Cause, invalid
from vipwire.cluster.api.resource import Object

_WHOLE: Final = ("pods", "services", "secrets", "configmaps")  # what there are no parts of


def check_amounts(amounts: Mapping[str, str], path: str) -> Iterator[Cause]:
    """Find amounts that are less than nothing, or parts of what has none."""
    for name, text in amounts.items():
        amount = read_quantity(text)
        if amount is None:
            continue
        if amount < 0:
            yield invalid(f"{path}[{name}]", text, "must be greater than or equal to 0")
        elif amount.denominator != 1 and name in _WHOLE:
            yield invalid(f"{path}[{name}]", text, "must be an integer")


def check_resources(resources: Object, path: str) -> Iterator[Cause]:
    """Find what is wrong in the amounts that a container needs and may have."""
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    yield from check_amounts(limits, f"{path}.limits")
    yield from check_amounts(requests, f"{path}.requests")
    for name, text in requests.items():
        wanted, most = read_quantity(text), read_quantity(limits[name]) if name in limits else None
        if wanted is not None and most is not None and wanted > most:
            why = f"must be less than or equal to {name} limit of {limits[name]}"
            yield invalid(f"{path}.requests", text, why)


def check_node(new: Object, _old: Object | None) -> Iterator[Cause]:
    """Find what is wrong in what a Node says that it has."""
    for name in ("capacity", "allocatable"):
        yield from check_amounts(at(new, "status", name) or {}, f"status.{name}")
