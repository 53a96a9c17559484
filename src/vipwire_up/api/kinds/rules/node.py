"""Validates Nodes (pkg/apis/core/validation, ValidateNode and ValidateNodeUpdate). Pure."""

from collections.abc import Iterator
from typing import Any, Final

from vipwire_up.api.kinds.rules.amounts import check_node as check_resources
from vipwire_up.api.objects import names
from vipwire_up.api.objects.addresses import family_of, network_problem, warn_of_network
from vipwire_up.api.objects.cells import at
from vipwire_up.api.objects.errors import Cause, duplicate, forbidden, invalid
from vipwire_up.api.objects.resource import Object

_ONCE: Final = ("podCIDRs", "podCIDR"), ("providerID", "providerID")


def check_node(new: Object, old: Object | None) -> Iterator[Cause]:
    """Find what is wrong in a Node."""
    yield from _check_taints(at(new, "spec", "taints") or [])
    yield from check_resources(new)
    yield from _check_cidrs(at(new, "spec", "podCIDRs") or [])
    if old is None:
        return
    addresses = at(new, "status", "addresses") or []
    for index, address in enumerate(addresses):
        if address in addresses[:index]:
            yield duplicate(f"status.addresses[{index}]", address)
    for field, word in _ONCE:
        before = at(old, "spec", field)
        if before and before != at(new, "spec", field):
            yield forbidden(f"spec.{field}", f'node updates may not change {word} except from "" to valid')
    if (at(new, "spec", "externalID") or "") != (at(old, "spec", "externalID") or ""):
        yield forbidden("spec.externalID", "may not be updated")


def _check_cidrs(cidrs: list[str]) -> Iterator[Cause]:
    for index, text in enumerate(cidrs):
        if problem := network_problem(text):
            yield invalid(f"spec.podCIDRs[{index}]", text, problem)
        if text in cidrs[:index]:
            yield duplicate(f"spec.podCIDRs[{index}]", text)
    families = {family_of(text.partition("/")[0]) for text in cidrs}
    if len(cidrs) > 2 or len(families) < len(cidrs):
        yield invalid("spec.podCIDRs", cidrs, "may specify no more than one CIDR for each IP family")


def _check_taints(taints: list[Object]) -> Iterator[Cause]:
    seen = set[tuple[Any, Any]]()
    for index, taint in enumerate(taints):
        path, key, value = f"metadata.taints[{index}]", taint.get("key") or "", taint.get("value") or ""
        if problem := names.qualified(key):
            yield invalid(f"{path}.key", key, problem)
        if problem := names.label_value(value):
            yield invalid(f"{path}.value", value, problem)
        same = (taint.get("effect"), key)
        if same in seen:
            letters = {"Key": key, "Value": value, "Effect": taint.get("effect"), "TimeAdded": taint.get("timeAdded")}
            found = duplicate(path, letters)
            why = "taints must be unique by key and effect pair"
            yield Cause(found.field, found.reason, f"{found.message}: {why}")
        seen.add(same)


def warn_node(new: Object, _old: Object | None) -> Iterator[str]:
    """Tell what is not used any more."""
    if at(new, "spec", "configSource"):
        yield "spec.configSource: the feature is removed"
    if at(new, "spec", "externalID"):
        yield "spec.externalID: this field is deprecated, and is unused by Kubernetes"
    yield from warn_of_network("spec.podCIDRs", at(new, "spec", "podCIDRs") or ())
