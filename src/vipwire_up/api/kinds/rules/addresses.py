"""Validates ServiceCIDRs and IPAddresses (pkg/apis/networking/validation). Pure."""

import ipaddress
from collections.abc import Iterator

from vipwire_up.api.objects import names
from vipwire_up.api.objects.addresses import address_problem, family_of, network_problem
from vipwire_up.api.objects.cells import at
from vipwire_up.api.objects.errors import Cause, invalid, required
from vipwire_up.api.objects.resource import Object

_STAYS = "field is immutable"


def check_cidrs(new: Object, old: Object | None) -> Iterator[Cause]:
    """Find what is wrong in the ranges of a ServiceCIDR; a second family may come to the first, and nothing else."""
    cidrs, before = at(new, "spec", "cidrs") or [], at(old, "spec", "cidrs") or []
    if before and len(cidrs) == len(before):
        for index, (was, now) in enumerate(zip(before, cidrs, strict=True)):
            if was != now:
                yield invalid(f"spec.cidrs[{index}]", now, _STAYS)
        return
    if before and (len(before), len(cidrs)) != (1, 2):
        yield invalid("spec.cidrs", cidrs, _STAYS)
        return
    if before and before[0] != cidrs[0]:
        yield invalid("spec.cidrs[0]", cidrs[0], _STAYS)
    yield from _check_ranges(cidrs)


def _check_ranges(cidrs: list[str]) -> Iterator[Cause]:
    if not cidrs:
        yield required("spec.cidrs", "at least one CIDR required")
    elif len(cidrs) > 2:
        yield invalid("spec.cidrs", {"cidrs": cidrs}, "may only hold up to 2 values")
    else:
        wrong = [(index, problem) for index, text in enumerate(cidrs) if (problem := network_problem(text))]
        yield from (invalid(f"spec.cidrs[{index}]", cidrs[index], problem) for index, problem in wrong)
        families = {family_of(text.partition("/")[0]) for text in cidrs}
        if not wrong and len(families) < len(cidrs):
            why = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64"
            yield invalid("spec.cidrs", cidrs, why)


def check_address(new: Object, old: Object | None) -> Iterator[Cause]:
    """Find what is wrong in an IPAddress: what has it is named, and stays."""
    parent, path = at(new, "spec", "parentRef"), "spec.parentRef"
    if old is not None:
        if parent != at(old, "spec", "parentRef"):
            yield invalid(path, parent, _STAYS)
        return
    if not parent:
        if at(new, "spec") is None:
            yield required(path)
        return
    if parent.get("group") and (problem := names.subdomain(parent["group"])):
        yield invalid(f"{path}.group", parent["group"], problem)
    for name in ("resource", "name", "namespace"):
        value = parent.get(name)
        if not value and name != "namespace":
            yield required(f"{path}.{name}")
        elif value and (problem := names.anything(value)):
            yield invalid(f"{path}.{name}", value, problem)


def address_name(value: str) -> str:
    """Names of IPAddresses: the address, in its usual form."""
    if problem := address_problem(value):
        return problem
    usual = str(ipaddress.ip_address(value))
    return "" if usual == value else f'must be in canonical form ("{usual}")'
