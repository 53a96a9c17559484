"""Parses addresses and networks of objects; warns of forms that Kubernetes accepts but does not recommend. Pure."""

import ipaddress
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

from vipwire.model.net import Address, describe_special_use

NO_CIDR: Final = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
NO_ADDRESS: Final = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
_ZEROS: Final = "must not have leading 0s in IP or prefix length"
_LEADING_ZEROS: Final = re.compile(r"(?<![0-9a-fA-F:])0+(?=[0-9])")


def family_of(address: str) -> str:
    """Return IPv4 or IPv6; "" if the text is not an address."""
    try:
        return f"IPv{ipaddress.ip_address(address).version}"
    except ValueError:
        return ""


def find_address_problem(text: str) -> str:
    """Return why Kubernetes refuses a text as an address (StrictIPCIDRValidation), "" if it accepts."""
    if not family_of(text):
        return "must not have leading 0s" if family_of(_LEADING_ZEROS.sub("", text)) else NO_ADDRESS
    return "must not be an IPv4-mapped IPv6 address" if _is_ipv4_mapped(text) else ""


def find_network_problem(text: str) -> str:
    """Return why Kubernetes refuses a text as a network, "" if it accepts."""
    if not is_network(text):
        return _ZEROS if is_network(_LEADING_ZEROS.sub("", text)) else NO_CIDR
    address, _, length = text.partition("/")
    if length != str(int(length)):
        return _ZEROS
    if _is_ipv4_mapped(address):
        return "must not have an IPv4-mapped IPv6 address"
    host = ipaddress.ip_interface(text)
    return "" if host.ip == host.network.network_address else "must not have bits set beyond the prefix length"


def _is_ipv4_mapped(text: str) -> bool:
    address = ipaddress.ip_address(text)
    return isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None


def is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return text.partition("/")[2].isdecimal()  # and no netmask


def warn_of_address(path: str, addresses: Iterable[str]) -> Iterator[str]:
    """Warn about addresses that are not in the canonical form of RFC 5952."""
    for index, text in enumerate(addresses):
        if family_of(text) == "IPv6" and str(ipaddress.ip_address(text)) != text:
            usual = ipaddress.ip_address(text)
            yield f'{path}[{index}]: IPv6 address "{text}" should be in RFC 5952 canonical format ("{usual}")'


def warn_of_network(path: str, networks: Iterable[str]) -> Iterator[str]:
    """Warn about networks that are not in the canonical form of RFC 5952."""
    for index, text in enumerate(networks):
        if is_network(text) and ":" in text and str(usual := ipaddress.ip_network(text, strict=False)) != text:
            yield f'{path}[{index}]: IPv6 CIDR value "{text}" should be in RFC 5952 canonical format ("{usual}")'


@lru_cache(1 << 14)  # called for all endpoints of a Service whenever one changes
def find_endpoint_problem(address: str) -> str:
    """Return why an address cannot be an endpoint's, "" if it can."""
    if problem := find_address_problem(address):
        return problem
    parsed = ipaddress.ip_address(address)
    if parsed.is_loopback:
        return "may not be in the loopback range (127.0.0.0/8, ::1/128)"
    if parsed.is_link_local:
        return "may not be in the link-local range (169.254.0.0/16, fe80::/10)"
    return find_host_problem(address)


def find_host_problem(address: str) -> str:
    """Return why an address cannot belong to a node or Pod, not even inside of it; "" if it can."""
    if problem := find_address_problem(address):
        return problem
    parsed = ipaddress.ip_address(address)
    if parsed.is_unspecified:
        return f"may not be unspecified ({address})"
    if parsed.is_loopback:
        return ""
    special = describe_special_use(Address(parsed.packed), link_local=False)
    return f"may not be {special}" if special else ""
