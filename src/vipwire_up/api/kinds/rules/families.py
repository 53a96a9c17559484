"""Validates a Service's ClusterIPs and families, alone and against those before. Pure.

(pkg/apis/core/validation, ValidateServiceClusterIPsRelatedFields, validateUpgradeDowngradeClusterIPs and its like.)
"""

from collections.abc import Iterator
from typing import Any, Final

from vipwire_up.api.objects.addresses import address_problem, family_of
from vipwire_up.api.objects.errors import Cause, duplicate, invalid, required, unsupported
from vipwire_up.api.objects.resource import Object

NONE: Final = "None"
_FAMILIES: Final = ("IPv4", "IPv6")
_STAYS: Final = "may not change once set"


def check_addresses(spec: Object) -> Iterator[Cause]:
    """Find what is wrong in clusterIP, clusterIPs and ipFamilies of a Service that has them."""
    if spec.get("type") == "ExternalName":
        return
    first, addresses = spec.get("clusterIP"), spec.get("clusterIPs") or []
    if first and not addresses:
        yield required("spec.clusterIPs")
    elif first and addresses[0] != first:
        yield invalid("spec.clusterIPs", addresses, "first value must match `clusterIP`")
    elif addresses and not first:
        yield invalid("spec.clusterIPs", addresses, "must be empty when `clusterIP` is not specified")
    families = spec.get("ipFamilies") or []
    for index, family in enumerate(families):
        if family not in _FAMILIES:
            yield unsupported(f"spec.ipFamilies[{index}]", family, _FAMILIES)
        if family in families[:index]:
            yield duplicate(f"spec.ipFamilies[{index}]", family)
    yield from _check_list(addresses, families)


def _check_list(addresses: list[str], families: list[str]) -> Iterator[Cause]:
    wrong = list(_wrong(addresses))
    yield from wrong
    if len(addresses) > len(_FAMILIES):
        yield invalid("spec.clusterIPs", addresses, "may only hold up to 2 values")
    if wrong or addresses[:1] == [NONE]:
        return
    if len({family_of(address) for address in addresses}) < len(addresses):
        why = "may specify no more than one IP for each IP family"
        yield invalid("spec.clusterIPs", addresses, why)
        return
    for index, (address, family) in enumerate(zip(addresses, families, strict=False)):
        if family in _FAMILIES and family_of(address) != family:
            why = f"expected an {family} value as indicated by `ipFamilies[{index}]`"
            yield invalid(f"spec.clusterIPs[{index}]", address, why)


def _wrong(addresses: list[str]) -> Iterator[Cause]:
    for index, address in enumerate(addresses):
        if index == 0 and address == NONE:
            if len(addresses) > 1:
                yield invalid("spec.clusterIPs", addresses, "'None' must be the first and only value")
        elif problem := address_problem(address):
            yield invalid(f"spec.clusterIPs[{index}]", address, problem)


def moves(spec: Object, old: Object) -> bool:
    """Report whether a Service's first address would become another one, which is refused."""
    before, now = old.get("clusterIPs") or [], spec.get("clusterIPs") or []
    differs = bool(before and now) and before[0] != now[0]
    return differs and "ExternalName" not in (spec.get("type"), old.get("type"))


def check_kept(spec: Object, old: Object) -> Iterator[Cause]:
    """Find what a change takes away or replaces that a Service keeps: all but a second address or family."""
    if "ExternalName" in (spec.get("type"), old.get("type")):
        return
    if spec.get("clusterIP") == NONE == old.get("clusterIP"):
        return
    policy = spec.get("ipFamilyPolicy")
    yield from _check_kept(spec, old, "clusterIPs", ("clusterIP", "clusterIP"), policy)
    yield from _check_kept(spec, old, "ipFamilies", ("ipFamily", "ipFamily"), policy)


def _check_kept(spec: Object, old: Object, name: str, words: tuple[str, str], policy: Any) -> Iterator[Cause]:
    before, now = old.get(name) or [], spec.get(name) or []
    path = f"spec.{name}"
    if len(before) == len(now):
        for index, (was, value) in enumerate(zip(before, now, strict=True)):
            if was != value:
                yield invalid(f"{path}[{index if name == 'clusterIPs' else 0}]", now, _STAYS)
        return
    if before and not now:
        yield invalid(f"{path}[0]", now, f"primary {words[0]} can not be unset")
    elif before and before[0] != now[0]:
        yield invalid(f"{path}[0]", now, _STAYS)
    if len(before) > len(now) == 1 and policy != "SingleStack":
        why = f"must be set to 'SingleStack' when releasing the secondary {words[1]}"
        yield invalid("spec.ipFamilyPolicy", policy, why)
