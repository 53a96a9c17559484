"""Reads addresses and networks of objects; warns of forms that Kubernetes takes and does not recommend. Pure."""

import ipaddress
from collections.abc import Iterable, Iterator
from typing import Final

NO_CIDR: Final = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
NO_ADDRESS: Final = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"


def family_of(address: str) -> str:
    """Name an address's family, "" for what is no address."""
    try:
        return f"IPv{ipaddress.ip_address(address).version}"
    except ValueError:
        return ""


def is_network(text: str) -> bool:
    """Report whether a text is an address with the length of a prefix."""
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return "/" in text


def warn_of_address(path: str, addresses: Iterable[str]) -> Iterator[str]:
    """Tell which of a list of addresses are not written as RFC 5952 says."""
    for index, text in enumerate(addresses):
        if family_of(text) == "IPv6" and str(ipaddress.ip_address(text)) != text:
            usual = ipaddress.ip_address(text)
            yield f'{path}[{index}]: IPv6 address "{text}" should be in RFC 5952 canonical format ("{usual}")'


def warn_of_network(path: str, networks: Iterable[str]) -> Iterator[str]:
    """Tell which of a list of networks name a host, or are not written as RFC 5952 says."""
    for index, text in enumerate(networks):
        if not is_network(text):
            continue
        host = ipaddress.ip_interface(text)
        whole, where = host.network, f"{path}[{index}]"
        if host.ip != whole.network_address:
            alone = f"{host.ip}/{host.max_prefixlen}"
            yield f'{where}: CIDR value "{text}" is ambiguous in this context (should be "{whole}" or "{alone}"?)'
        elif host.version == 6 and str(whole) != text:
            yield f'{where}: IPv6 CIDR value "{text}" should be in RFC 5952 canonical format ("{whole}")'
