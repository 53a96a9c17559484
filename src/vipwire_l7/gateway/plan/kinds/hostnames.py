"""Compares hosts of listeners and routes: a wildcard stands for one label or more. Pure. `*` is every host."""

from collections.abc import Iterable, Iterator

from vipwire_l7.plan.sites import EVERY_HOST
from vipwire_l7.watch.convert import is_host


def is_hostname(text: str) -> bool:
    """Report whether a text is a host that may stand in a configuration, perhaps with a wildcard before it."""
    return is_host(text)


def covers(wide: str, host: str) -> bool:
    """Report whether all that a host names is in another, wider one or the same."""
    if wide in (EVERY_HOST, host):
        return True
    return wide.startswith("*.") and host != EVERY_HOST and host.endswith(wide[1:])


def wider(host: str) -> Iterator[str]:
    """Yield a host and all that cover it, the most specific first."""
    yield host
    rest = host.removeprefix("*.")
    while "." in rest:
        rest = rest.partition(".")[2]
        yield f"*.{rest}"
    if host != EVERY_HOST:
        yield EVERY_HOST


def intersection(listener: str, hosts: Iterable[str]) -> dict[str, str]:
    """Return the hosts that a listener serves for a route, each with the most specific of the route's that brings it.

    A route without hosts is for all of the listener's.
    """
    found: dict[str, str] = {}
    for host in tuple(hosts) or (EVERY_HOST,):
        if served := host if covers(listener, host) else listener if covers(host, listener) else "":
            found[served] = min(found.get(served, host), host, key=breadth)
    return found


def breadth(host: str) -> tuple[bool, int]:
    """Sorts the more specific host before the wider one: exact ones first, then the longest."""
    return host.startswith("*"), -len(host)
