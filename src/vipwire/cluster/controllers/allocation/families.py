"""Chooses a Service's address families and their order: the defaults, and what is refused. Pure.

KEP-563, and pkg/registry/core/service/storage/alloc.go for what Kubernetes does where the fields contradict.
"""

import ipaddress
from collections.abc import Iterator, Sequence
from typing import Final

from vipwire.cluster.api.errors import Cause, invalid
from vipwire.cluster.api.resource import Object

SINGLE, PREFER, REQUIRE = "SingleStack", "PreferDualStack", "RequireDualStack"
NONE: Final = "None"
_NOT_DUAL: Final = "this cluster is not configured for dual-stack services"
_NEEDS_POLICY: Final = "must be RequireDualStack or PreferDualStack when multiple {} are specified"


def family_of(address: str) -> str:
    """Name an address's family, "" for what is no address."""
    try:
        return f"IPv{ipaddress.ip_address(address).version}"
    except ValueError:
        return ""


def settle_families(spec: Object, available: Sequence[str], old: Object) -> tuple[Cause, ...]:
    """Fill in ipFamilyPolicy and ipFamilies; `available` are the cluster's families, its default first.

    `old` is the spec before, empty at creation. What cannot be is returned, and nothing filled in then.
    """
    _follow_policy(spec, old)
    _default_policy(spec)
    causes = tuple(_contradictions(spec, available))
    if not causes:
        spec["ipFamilies"] = _families(spec, available)
    return causes


def _is_open(spec: Object) -> bool:
    """Report whether a Service is headless without a selector: its endpoints may be of any family."""
    return spec.get("clusterIP") == NONE and not spec.get("selector")


def _follow_policy(spec: Object, old: Object) -> None:
    """Drop the second family where an update asks for a single one and does not change the lists."""
    if spec.get("ipFamilyPolicy") == SINGLE and old.get("ipFamilyPolicy") in (PREFER, REQUIRE):
        for name in ("clusterIPs", "ipFamilies"):
            if spec.get(name) == old.get(name) and spec.get(name):
                spec[name] = spec[name][:1]


def _default_policy(spec: Object) -> None:
    if not spec.get("ipFamilyPolicy") and len(_named(spec)) < 2:
        spec["ipFamilyPolicy"] = REQUIRE if _is_open(spec) else SINGLE


def _named(spec: Object) -> list[str]:
    """List the families that a Service names, by itself or by its addresses."""
    by_address = [family for text in spec.get("clusterIPs") or () if (family := family_of(text))]
    return max((spec.get("ipFamilies") or [], by_address), key=len)


def _contradictions(spec: Object, available: Sequence[str]) -> Iterator[Cause]:
    policy, addresses, families = spec.get("ipFamilyPolicy"), spec.get("clusterIPs") or [], spec.get("ipFamilies")
    if policy in (None, SINGLE):
        for name, values in (("ipFamilies", families or []), ("clusterIPs", addresses)):
            if len(values) > 1:
                yield invalid("spec.ipFamilyPolicy", policy, _NEEDS_POLICY.format(f"'{name}'"))
    if policy == REQUIRE and len(available) < 2 and not _is_open(spec):
        yield invalid("spec.ipFamilyPolicy", policy, _NOT_DUAL)
    for index, family in enumerate(families or ()):
        if family not in available and not _is_open(spec):
            yield invalid(f"spec.ipFamilies[{index}]", family, "not configured on this cluster")
        if family in (families or [])[:index]:
            yield invalid(f"spec.ipFamilies[{index}]", family, "may only be specified once")
    for index, (address, family) in enumerate(zip(addresses, families or (), strict=False)):
        if (found := family_of(address)) and found != family:
            why = f"expected an {family} value as indicated by `ipFamilies[{index}]`"
            yield invalid(f"spec.clusterIPs[{index}]", addresses, why)


def _families(spec: Object, available: Sequence[str]) -> list[str]:
    families = list(_named(spec)) or list(available[:1])
    if _is_open(spec):
        available = ("IPv4", "IPv6") if available[:1] != ("IPv6",) else ("IPv6", "IPv4")
    if spec.get("ipFamilyPolicy") in (PREFER, REQUIRE):
        families += [family for family in available if family not in families]
    return families
