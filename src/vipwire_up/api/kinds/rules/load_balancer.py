"""The load balancer of a Service: its class and port, which stay, and its addresses, which are of this type only.

(pkg/apis/core/validation, ValidateLoadBalancerStatus; pkg/registry/core/service, dropTypeDependentFields.) Pure.
"""

from collections.abc import Iterator
from typing import Final

from vipwire_up.api.objects import names
from vipwire_up.api.objects.addresses import family_of
from vipwire_up.api.objects.cells import at
from vipwire_up.api.objects.endpoint_address import no_host_problem
from vipwire_up.api.objects.errors import Cause, forbidden, invalid
from vipwire_up.api.objects.resource import Object

BALANCED: Final = "LoadBalancer"


def settle_status(new: Object, old: Object | None) -> None:
    """Take the addresses from a Service that is no load balancer's any more; say how nodes treat those of another."""
    if _is_balanced(old) and not _is_balanced(new):
        new["status"] = (new.get("status") or {}) | {"loadBalancer": {}}
    for entry in at(new, "status", "loadBalancer", "ingress") or ():
        if entry.get("ip") and _is_balanced(new):
            entry.setdefault("ipMode", "VIP")


def check_load_balancer(new: Object, old: Object | None) -> Iterator[Cause]:
    """Find what is wrong in what a load balancer is told, and has told."""
    spec, entries = new["spec"], at(new, "status", "loadBalancer", "ingress") or []
    wanted = spec.get("loadBalancerClass")
    if _is_balanced(new) and wanted is not None and (problem := names.qualified(wanted)):
        yield invalid("spec.loadBalancerClass", wanted, problem)
    if old is not None and _is_balanced(new) and _is_balanced(old):
        before = old["spec"].get("loadBalancerClass")
        if spec.get("loadBalancerClass") != before:
            yield invalid("spec.loadBalancerClass", spec.get("loadBalancerClass"), "may not change once set")
        if _is_local(spec) and _is_local(old["spec"]):
            yield from _check_port(spec, old["spec"])
    if not entries or entries == (at(old, "status", "loadBalancer", "ingress") or []):
        return
    if not _is_balanced(new):
        yield forbidden("status.loadBalancer.ingress", 'may only be used when `spec.type` is "LoadBalancer"')
    yield from check_addresses(entries, "status.loadBalancer.ingress")


def _check_port(spec: Object, before: Object) -> Iterator[Cause]:
    port, was = spec.get("healthCheckNodePort"), before.get("healthCheckNodePort")
    if was and port != was:
        yield forbidden("spec.healthCheckNodePort", "field is immutable")


def check_addresses(entries: list[Object], path: str) -> Iterator[Cause]:
    """Find what is wrong in the addresses that a load balancer, or an Ingress, is reached at."""
    for index, entry in enumerate(entries):
        yield from _check_entry(entry, f"{path}[{index}]")


def _check_entry(entry: Object, path: str) -> Iterator[Cause]:
    if entry.get("ip") and (problem := no_host_problem(entry["ip"])):
        yield invalid(f"{path}.ip", entry["ip"], problem)
    if entry.get("ipMode") and not entry.get("ip"):
        yield forbidden(f"{path}.ipMode", "may not be specified when `ip` is not set")
    if host := entry.get("hostname"):
        if family_of(host):
            yield invalid(f"{path}.hostname", host, "must be a DNS name, not an IP address")
        elif problem := names.subdomain(host):
            yield invalid(f"{path}.hostname", host, problem)


def _is_balanced(value: Object | None) -> bool:
    return bool(at(value, "spec", "type") == BALANCED)


def _is_local(spec: Object) -> bool:
    return spec.get("externalTrafficPolicy") == "Local"
