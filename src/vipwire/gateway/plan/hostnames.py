"""Compares hosts of listeners and routes: a wildcard stands for one label or more. Pure. `*` is every host."""

from collections.abc import Iterable

from vipwire.ingress.plan.sites import EVERY_HOST
from vipwire.ingress.watch.convert import is_host


def is_hostname(text: str) -> bool:
    """Report whether a text is a host that may stand in a configuration, perhaps with a wildcard before it."""
    return is_host(text)


def covers(wide: str, host: str) -> bool:
    """Report whether all that a host names is in another, wider one or the same."""
    if wide in (EVERY_HOST, host):
        return True
    return wide.startswith("*.") and host != EVERY_HOST and host.endswith(wide[1:])


def intersection(listener: str, hosts: Iterable[str]) -> tuple[str, ...]:
    """Return the hosts that a listener serves for a route; a route without hosts is for all of the listener's."""
    all_hosts = tuple(hosts)
    if not all_hosts:
        return (listener,)
    found = (host if covers(listener, host) else listener if covers(host, listener) else "" for host in all_hosts)
    return tuple(dict.fromkeys(host for host in found if host))


def breadth(host: str) -> tuple[bool, int]:
    """Sorts the more specific host before the wider one: exact ones first, then the longest."""
    return host.startswith("*"), -len(host)
