"""Which Services get LoadBalancer addresses from vipwire, and which addresses they have. Pure."""

from typing import Final

from vipwire.kube.gateway_addresses import is_haproxy_service
from vipwire_up.api.objects.addresses import family_of
from vipwire_up.api.objects.object import value_at
from vipwire_up.api.objects.resource import Object

CLASS: Final = "vipwire.io/pool"


def status_addresses(service: Object) -> list[str]:
    entries = value_at(service, "status", "loadBalancer", "ingress") or ()
    return [entry["ip"] for entry in entries if family_of(entry.get("ip") or "")]


def is_announced_class(service: Object) -> bool:
    """Report whether vipwire assigns this Service's load balancer address."""
    spec = service.get("spec") or {}
    return spec.get("type") == "LoadBalancer" and not is_foreign(service)


def is_foreign(service: Object) -> bool:
    """Report whether another implementation (`loadBalancerClass`) assigns this Service's load balancer address."""
    return value_at(service, "spec", "loadBalancerClass") not in (None, "", CLASS)


def ip_mode_of(service: Object) -> str:
    """Return the ipMode of a Service's addresses: Proxy for a Gateway's, at which HAProxy listens."""
    return "Proxy" if is_haproxy_service(value_at(service, "metadata", "annotations") or {}) else "VIP"


def has_right_ip_mode(service: Object) -> bool:
    entries = value_at(service, "status", "loadBalancer", "ingress") or ()
    return ip_mode_of(service) != "Proxy" or all(entry.get("ipMode") == "Proxy" for entry in entries)
