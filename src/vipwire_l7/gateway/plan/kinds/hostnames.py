"""Compares hostnames of listeners and routes. A wildcard covers one label or more; `*` is every host. Pure."""

from collections.abc import Iterable, Iterator

from vipwire_l7.plan.sites import EVERY_HOST


def covers_host(wide: str, host: str) -> bool:
    """Report whether `wide` equals `host` or matches every name that `host` matches."""
    if wide in (EVERY_HOST, host):
        return True
    return wide.startswith("*.") and host != EVERY_HOST and host.endswith(wide[1:])


def list_covering_hosts(host: str) -> Iterator[str]:
    """Yield a hostname and all that cover it, the most specific first."""
    yield host
    rest = host.removeprefix("*.")
    while "." in rest:
        rest = rest.partition(".")[2]
        yield f"*.{rest}"
    if host != EVERY_HOST:
        yield EVERY_HOST


def intersect_hosts(listener: str, hosts: Iterable[str]) -> dict[str, str]:
    """Return the hostnames that a listener serves for a route, each with the route's hostname that matches best.

    A route without hostnames matches all of the listener's.
    """
    found: dict[str, str] = {}
    for host in tuple(hosts) or (EVERY_HOST,):
        if served := host if covers_host(listener, host) else listener if covers_host(host, listener) else "":
            found[served] = min(found.get(served, host), host, key=rank_breadth)
    return found


def rank_breadth(host: str) -> tuple[bool, int]:
    """Return a sort key that puts the more specific hostname first: exact names, then the longest wildcard."""
    return host.startswith("*"), -len(host)
