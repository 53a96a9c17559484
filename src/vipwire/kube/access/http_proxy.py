"""Chooses the HTTP proxy to the API server by the rules of Go's `http.ProxyFromEnvironment`. Pure.

A cluster's nodes often have HTTPS_PROXY set for image pulls, with NO_PROXY naming the cluster's networks as CIDRs, so
the CIDRs must be understood or every in-cluster connection would leave through the proxy.
"""

import ipaddress
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from vipwire.errors import ConfigError


def check_proxy(url: str, where: str) -> str:
    """Check a proxy's URL; `where` names the field in the ConfigError. Go's `host:port` means `http://host:port`."""
    full = url if "://" in url else f"http://{url}"
    parts = urlsplit(full)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"{where}: {url!r} is not a proxy that can be used (allowed: http://host:port, https://...)"
        )
    return full


def environment_proxy(server: str, environ: Mapping[str, str]) -> str | None:
    """Find the proxy for a server's URL in HTTPS_PROXY, HTTP_PROXY and NO_PROXY (or in small letters)."""
    parts = urlsplit(server)
    name = f"{parts.scheme}_proxy"
    proxy = environ.get(name.upper()) or environ.get(name)
    if not proxy or not parts.hostname:
        return None
    excluded = environ.get("NO_PROXY") or environ.get("no_proxy") or ""
    if _is_excluded(parts.hostname, parts.port, excluded):
        return None
    return check_proxy(proxy, f"environment variable {name.upper()}")


def _is_excluded(host: str, port: int | None, excluded: str) -> bool:
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    return any(_matches(entry.strip().lower(), host.lower(), address, port) for entry in excluded.split(","))


def _matches(
    entry: str, host: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None, port: int | None
) -> bool:
    if not entry or entry == "*":
        return entry == "*"
    if address is not None and "/" in entry:
        try:
            return address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    name, colon, number = entry.rpartition(":")
    if colon and re.fullmatch("[0-9]{1,5}", number) and _address(entry) is None:
        if int(number) != port:
            return False
        entry = name.strip("[]")
    if address is not None:
        return _address(entry) == address
    suffix = entry.removeprefix("*")
    return host.endswith(suffix) if suffix.startswith(".") else host == suffix or host.endswith(f".{suffix}")


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
