"""Chooses a Service's address families and their order: defaults and refusals. Pure.

KEP-563; for contradictory fields pkg/registry/core/service/storage/alloc.go. The lists themselves are already valid
(`kinds/service_rules.py`).
"""

from collections.abc import Iterator, Sequence
from typing import Final

from vipwire_up.api.kinds.service_rules import NONE
from vipwire_up.api.objects.addresses import family_of
from vipwire_up.api.objects.errors import Cause, invalid
from vipwire_up.api.objects.resource import Object

SINGLE, PREFER, REQUIRE = "SingleStack", "PreferDualStack", "RequireDualStack"
_POLICY: Final = "spec.ipFamilyPolicy"
_NOT_DUAL: Final = "this cluster is not configured for dual-stack services"
_NEEDS_DUAL: Final = "must be 'RequireDualStack' or 'PreferDualStack' when multiple {} are specified"
_NEEDS_SINGLE: Final = "must be 'SingleStack' to release the secondary {}"
_OTHER: Final = {"IPv4": "IPv6", "IPv6": "IPv4"}


def fill_families(spec: Object, available: Sequence[str], old: Object) -> tuple[Cause, ...]:
    """Fill in ipFamilyPolicy and ipFamilies; `available` are the cluster's families, its default first.

    `old` is the spec before, {} at creation. Return the errors; with errors, no families are filled in.
    """
    if _keeps_preference(spec, old):
        return ()
    if not spec.get("ipFamilyPolicy"):
        spec["ipFamilyPolicy"] = old.get("ipFamilyPolicy") or (REQUIRE if _may_choose_families(spec) else SINGLE)
    causes = [*_release_second_family(spec, old), *_find_too_many(spec), *_find_unconfigured(spec, available)]
    if not causes:
        spec["ipFamilies"] = _families_of_spec(spec)
        causes += [] if _may_choose_families(spec) else _find_unavailable(spec, available)
    if not causes:
        spec["ipFamilies"] = _choose_families(spec, available)
    return tuple(causes)


def _may_choose_families(spec: Object) -> bool:
    """Report whether a Service is headless without a selector: its endpoints may be of any family."""
    return spec.get("clusterIP") == NONE and not spec.get("selector")


def _keeps_preference(spec: Object, old: Object) -> bool:
    """Report whether a change keeps the families of a PreferDualStack Service."""
    same = all((spec.get(name) or None) == (old.get(name) or None) for name in ("clusterIPs", "ipFamilies"))
    return same and spec.get("ipFamilyPolicy") == old.get("ipFamilyPolicy") == PREFER and bool(old.get("clusterIPs"))


def _release_second_family(spec: Object, old: Object) -> Iterator[Cause]:
    """Drop the second address and family for SingleStack; refuse a shorter list without that."""
    for name, what in (("clusterIPs", "cluster IP"), ("ipFamilies", "IP family")):
        before, now = old.get(name) or [], spec.get(name) or []
        if spec["ipFamilyPolicy"] != SINGLE:
            if len(before) > len(now) > 0 and old.get("type") != "ExternalName":
                yield invalid(_POLICY, spec["ipFamilyPolicy"], _NEEDS_SINGLE.format(what))
        elif len(now) > 1 and before == now:
            spec[name] = now[:1]


def _find_too_many(spec: Object) -> Iterator[Cause]:
    for name, what in (("clusterIPs", "cluster IPs"), ("ipFamilies", "IP families")):
        if spec["ipFamilyPolicy"] == SINGLE and len(spec.get(name) or ()) == 2:
            yield invalid(_POLICY, SINGLE, _NEEDS_DUAL.format(what))


def _find_unconfigured(spec: Object, available: Sequence[str]) -> Iterator[Cause]:
    """Find addresses of a family that the cluster does not have, unless ipFamilies names it."""
    addresses, named = spec.get("clusterIPs") or [], len(spec.get("ipFamilies") or ())
    for index, address in enumerate(addresses):
        family = family_of(address)
        if index >= named and family and family not in available:
            yield invalid(f"spec.clusterIPs[{index}]", addresses, f"{family} is not configured on this cluster")


def _find_unavailable(spec: Object, available: Sequence[str]) -> Iterator[Cause]:
    if spec["ipFamilyPolicy"] == REQUIRE and len(available) < 2:
        yield invalid(_POLICY, REQUIRE, _NOT_DUAL)
    for index, family in enumerate(spec["ipFamilies"]):
        if family not in available:
            yield invalid(f"spec.ipFamilies[{index}]", family, "not configured on this cluster")


def _families_of_spec(spec: Object) -> list[str]:
    """Return the families of a Service: those in ipFamilies, then those of its addresses."""
    families = list(spec.get("ipFamilies") or ())
    addresses = (spec.get("clusterIPs") or [])[len(families) :]
    return families + [family for address in addresses if (family := family_of(address))]


def _choose_families(spec: Object, available: Sequence[str]) -> list[str]:
    families = list(spec["ipFamilies"]) or list(available[:1])
    if spec["ipFamilyPolicy"] == SINGLE or len(families) != 1:
        return families
    return [*families, _OTHER[families[0]]] if _may_choose_families(spec) or len(available) == 2 else families
