"""Lists what must be set before IPv6 forwarding is switched on, so that the node keeps its default route.

A machine that forwards IPv6 is a router, and the kernel does not let a router learn its default route from router
advertisements: it deletes those it has learned, unless `accept_ra` of the interface is 2. Only interfaces that have
such a route now are touched: on others the 2 would let a pod make itself the node's router (CVE-2020-10749).
Source: addrconf_forward_change and rt6_purge_dflt_routers in net/ipv6; proc(5) has no word on /proc/net/ipv6_route.
"""

from pathlib import Path

from vipwire.linux.host.sysctl import read_sysctl
from vipwire.model.sysctl import Sysctl, Want

_RTF_DEFAULT = 0x00010000
_RTF_ADDRCONF = 0x00040000
_LEARNED = _RTF_DEFAULT | _RTF_ADDRCONF


def router_sysctls(proc: Path = Path("/proc")) -> tuple[Sysctl, ...]:
    """Name the settings that keep learned default routes; none where forwarding is on or IPv6 is off."""
    try:
        if read_sysctl("net/ipv6/conf/all/forwarding", proc / "sys"):
            return ()
        routes = (proc / "thread-self/net/ipv6_route").read_text(encoding="ascii")
    except (OSError, ValueError):
        return ()
    return tuple(
        Sysctl(f"net/ipv6/conf/{interface}/accept_ra", 2, Want.AT_LEAST) for interface in _learned_on(routes)
    )


def _learned_on(routes: str) -> list[str]:
    """Name the interfaces with a learned default route: of ten fields the ninth is the flags, the tenth the name."""
    fields = (line.split() for line in routes.splitlines())
    return sorted({row[9] for row in fields if len(row) == 10 and int(row[8], 16) & _LEARNED == _LEARNED})
