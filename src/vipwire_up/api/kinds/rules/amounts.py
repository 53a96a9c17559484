"""Validates amounts of CPU, memory and the like (pkg/apis/core/validation, ValidateResourceRequirements)."""

from collections.abc import Iterator, Mapping
from typing import Final

from vipwire_up.api.bodies.quantity import read_quantity
from vipwire_up.api.objects import names
from vipwire_up.api.objects.cells import at
from vipwire_up.api.objects.errors import Cause, invalid
from vipwire_up.api.objects.resource import Object

_WHOLE: Final = (
    "pods", "services", "replicationcontrollers", "resourcequotas", "secrets", "configmaps",
    "persistentvolumeclaims", "services.nodeports", "services.loadbalancers",
)  # fmt: skip  # what there are no parts of
_OF_CONTAINERS: Final = ("cpu", "memory", "ephemeral-storage")
_OF_KUBERNETES: Final = "kubernetes.io/"


def check_amounts(amounts: Mapping[str, str], path: str) -> Iterator[Cause]:
    """Find amounts that are less than nothing, or parts of what has none."""
    for name, text in amounts.items():
        yield from _check_amount(name, text, f"{path}[{name}]")


def _check_amount(name: str, text: str, path: str) -> Iterator[Cause]:
    amount = read_quantity(text)
    if amount is None:
        return
    if amount < 0:
        yield invalid(path, text, "must be greater than or equal to 0")
    elif amount.denominator != 1 and (name in _WHOLE or _is_extended(name)):
        yield invalid(path, text, "must be an integer")


def _is_extended(name: str) -> bool:
    """Report whether a resource is somebody's own: a device, which is there as a whole."""
    return "/" in name and _OF_KUBERNETES not in name and not name.startswith("requests.")


def _check_name(name: str, path: str) -> Iterator[Cause]:
    if problem := names.qualified(name):
        yield invalid(path, name, problem)
    elif "/" not in name and name not in _OF_CONTAINERS and not name.startswith("hugepages-"):
        if name not in _WHOLE and name != "storage":
            yield invalid(path, name, "must be a standard resource type or fully qualified")
        yield invalid(path, name, "must be a standard resource for containers")


def check_resources(resources: Object, path: str) -> Iterator[Cause]:
    """Find what is wrong in the amounts that a container needs and may have."""
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for part, amounts in (("limits", limits), ("requests", requests)):
        for name in amounts:
            yield from _check_name(name, f"{path}.{part}[{name}]")
        yield from check_amounts(amounts, f"{path}.{part}")
    for name, text in requests.items():
        wanted, most = read_quantity(text), read_quantity(limits[name]) if name in limits else None
        if wanted is not None and most is not None and wanted > most:
            why = f"must be less than or equal to {name} limit of {limits[name]}"
            yield invalid(f"{path}.requests", text, why)


def check_node(new: Object) -> Iterator[Cause]:
    """Find what is wrong in what a Node says that it has."""
    for part in ("capacity", "allocatable"):
        for name, text in (at(new, "status", part) or {}).items():
            yield from _check_amount(name, text, f"status.{part}.{name}")
