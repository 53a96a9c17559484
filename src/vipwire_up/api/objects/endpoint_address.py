"""Addresses that no endpoint and no external IP can be, since each machine and Pod means another one by them. Pure.

As in Kubernetes (pkg/apis/core/validation, ValidateEndpointIP), and multicast of any scope and broadcast, which
proxies only drop.
"""

import ipaddress
from functools import lru_cache

from vipwire.model.net import Address, special_use
from vipwire_up.api.objects.addresses import address_problem


@lru_cache(1 << 14)  # asked for each endpoint of a Service whenever one of them changes
def problem_of(address: str) -> str:
    """Return why an address cannot be one of these, "" if it can."""
    if problem := address_problem(address):
        return problem
    parsed = ipaddress.ip_address(address)
    if parsed.is_loopback:
        return "may not be in the loopback range (127.0.0.0/8, ::1/128)"
    if parsed.is_link_local:
        return "may not be in the link-local range (169.254.0.0/16, fe80::/10)"
    return no_host_problem(address)


def no_host_problem(address: str) -> str:
    """Return why an address can be no machine's and no Pod's, not even inside of it; "" if it can."""
    if problem := address_problem(address):
        return problem
    parsed = ipaddress.ip_address(address)
    if parsed.is_unspecified:
        return f"may not be unspecified ({address})"
    if parsed.is_loopback:
        return ""
    special = special_use(Address(parsed.packed), link_local=False)
    return f"may not be {special}" if special else ""
