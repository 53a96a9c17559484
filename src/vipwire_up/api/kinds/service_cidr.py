"""ServiceCIDRs and IPAddresses, from which Services get their addresses (pkg/apis/networking/validation)."""

import ipaddress
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from vipwire_up.api.kinds.meta import META
from vipwire_up.api.objects import names
from vipwire_up.api.objects.addresses import family_of, find_address_problem, find_network_problem
from vipwire_up.api.objects.columns import AGE, NAME, field_readers, join_values
from vipwire_up.api.objects.errors import Cause, invalid, required
from vipwire_up.api.objects.object import value_at
from vipwire_up.api.objects.resource import Column, Object, Resource
from vipwire_up.api.objects.schema import read_types

_TABLE: Final = """
kind ServiceCIDR | Ranges from which the server assigns ClusterIPs.
  spec ServiceCIDRSpec #2 | Desired state of the ServiceCIDR.
  status ServiceCIDRStatus #3 default={} | Observed state of the ServiceCIDR.
ServiceCIDRSpec | Desired state of a ServiceCIDR.
  cidrs []string #1 atomic | One CIDR, or one of each family. Immutable.
ServiceCIDRStatus | Observed state of a ServiceCIDR.
  conditions []Condition #1 key=type merge=type | Ready: the server assigns from the ranges.
kind IPAddress | An assigned ClusterIP.
  spec IPAddressSpec #2 | Desired state of the IPAddress.
IPAddressSpec | Desired state of an IPAddress.
  parentRef ParentReference #1 required | Owner of the address, a Service.
ParentReference | Reference to a parent object.
  group string #1 | API group of the object.
  name string #4 required | Name of the object.
  namespace string #3 | Namespace of the object; empty means the namespace of the referrer.
  resource string #2 required | Resource name (plural) of the object.
"""
_TYPES: Final = read_types(_TABLE, "io.k8s.api.networking.v1", META)
_GROUP: Final = "networking.k8s.io"
_STAYS = "field is immutable"


def check_cidrs(new: Object, old: Object | None) -> Iterator[Cause]:
    """Validate a ServiceCIDR: immutable, except that a second family may be added."""
    cidrs, before = value_at(new, "spec", "cidrs") or [], value_at(old, "spec", "cidrs") or []
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
        wrong = [(index, problem) for index, text in enumerate(cidrs) if (problem := find_network_problem(text))]
        yield from (invalid(f"spec.cidrs[{index}]", cidrs[index], problem) for index, problem in wrong)
        families = {family_of(text.partition("/")[0]) for text in cidrs}
        if not wrong and len(families) < len(cidrs):
            why = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64"
            yield invalid("spec.cidrs", cidrs, why)


def check_address(new: Object, old: Object | None) -> Iterator[Cause]:
    parent, path = value_at(new, "spec", "parentRef"), "spec.parentRef"
    if old is not None:
        if parent != value_at(old, "spec", "parentRef"):
            yield invalid(path, parent, _STAYS)
        return
    if not parent:
        if value_at(new, "spec") is None:
            yield required(path)
        return
    yield from names.apply_name_rule(parent.get("group"), names.check_subdomain, f"{path}.group")
    for name in ("resource", "name", "namespace"):
        value = parent.get(name)
        if not value and name != "namespace":
            yield required(f"{path}.{name}")
        elif value and (problem := names.check_path_segment(value)):
            yield invalid(f"{path}.{name}", value, problem)


def check_address_name(value: str) -> str:
    """Check an IPAddress's name: the address in canonical form."""
    if problem := find_address_problem(value):
        return problem
    usual = str(ipaddress.ip_address(value))
    return "" if usual == value else f'must be in canonical form ("{usual}")'


def _format_parent(value: Object, _now: datetime) -> str:
    parent = value_at(value, "spec", "parentRef") or {}
    resource = f"{parent.get('resource')}.{parent['group']}" if parent.get("group") else parent.get("resource")
    return "/".join(filter(None, (resource, parent.get("namespace"), parent.get("name"))))


SERVICE_CIDRS: Final = Resource(
    kind="ServiceCIDR",
    plural="servicecidrs",
    group=_GROUP,
    type=_TYPES["ServiceCIDR"],
    namespaced=False,
    has_status=True,
    check=check_cidrs,
    columns=(NAME, Column("CIDRs", lambda value, _: join_values(value_at(value, "spec", "cidrs") or ())), AGE),
)

IP_ADDRESSES: Final = Resource(
    kind="IPAddress",
    plural="ipaddresses",
    group=_GROUP,
    type=_TYPES["IPAddress"],
    namespaced=False,
    short_names=("ip",),
    name_rule=check_address_name,
    check=check_address,
    fields=field_readers(*(f"spec.parentRef.{name}" for name in ("group", "resource", "namespace", "name"))),
    columns=(NAME, Column("ParentRef", _format_parent), AGE),
)
