"""Decides which kernel settings a service proxy wants: the size and the timeouts of connection tracking, forwarding.

Connection tracking follows kube-proxy (pkg/proxy/conntrack/sysctls.go): a setting of zero leaves the kernel's value,
any other is put in force whether it raises or lowers the present one. Forwarding goes further: kube-proxy switches it
on in ipvs mode only and otherwise leaves it to the network plugin; a node without it drops what it should balance.
Meaning of the settings: Documentation/networking/nf_conntrack-sysctl.rst and ip-sysctl.rst of the kernel.
"""

from collections.abc import Iterable
from typing import Protocol

from vipwire.model.net import Family
from vipwire.model.sysctl import Sysctl, Want

MAX_LIMIT = 1 << 20
"""No number of CPUs makes the table larger than this (kube-proxy 1.36); a flow takes some 300 bytes."""

_FORWARDING = {
    Family.IPV4: Sysctl("net/ipv4/ip_forward", 1),
    Family.IPV6: Sysctl("net/ipv6/conf/all/forwarding", 1),
}


class ConntrackSettings(Protocol):
    """The configuration's section `conntrack`: numbers of flows, times in seconds; 0 leaves the kernel's value."""

    @property
    def max_per_core(self) -> int: ...  # noqa: D102 - the class's docstring says it
    @property
    def min(self) -> int: ...  # noqa: D102
    @property
    def tcp_established_timeout(self) -> float: ...  # noqa: D102
    @property
    def tcp_close_wait_timeout(self) -> float: ...  # noqa: D102
    @property
    def tcp_be_liberal(self) -> bool: ...  # noqa: D102
    @property
    def udp_timeout(self) -> float: ...  # noqa: D102
    @property
    def udp_stream_timeout(self) -> float: ...  # noqa: D102


def table_size(max_per_core: int, minimum: int, cpus: int) -> int:
    """Compute how many flows the kernel shall track; 0 to leave that to the kernel.

    The limit binds what is derived from the number of CPUs. A minimum above it is what somebody asked for and holds,
    where kube-proxy would go below that minimum on a machine with very many CPUs.
    """
    if max_per_core <= 0:
        return 0
    return max(min(max_per_core * cpus, MAX_LIMIT), minimum)


def conntrack_sysctls(settings: ConntrackSettings, cpus: int) -> tuple[Sysctl, ...]:
    """Name the settings of connection tracking to put in force on a machine with so many CPUs."""
    wanted: list[Sysctl] = []
    if size := table_size(settings.max_per_core, settings.min, cpus):
        wanted.append(_netfilter("max", size)._replace(want=Want.EXACTLY_OR_MORE))
        # One hash chain for four flows. This file is the module parameter `hashsize` that kube-proxy writes, but
        # writable where /sys is not. More chains than that are as good.
        wanted.append(_netfilter("buckets", size // 4)._replace(want=Want.AT_LEAST))
    timeouts = (
        ("tcp_timeout_established", settings.tcp_established_timeout),
        ("tcp_timeout_close_wait", settings.tcp_close_wait_timeout),
        ("udp_timeout", settings.udp_timeout),
        ("udp_timeout_stream", settings.udp_stream_timeout),
    )
    # The kernel counts whole seconds; half a second rounded down would be 0, which ends every flow at once.
    wanted += (_netfilter(name, max(1, int(seconds))) for name, seconds in timeouts if seconds > 0)
    if settings.tcp_be_liberal:
        wanted.append(_netfilter("tcp_be_liberal", 1))
    return tuple(wanted)


def forwarding_sysctls(families: Iterable[Family]) -> tuple[Sysctl, ...]:
    """Name the settings without which the kernel does not pass on packets of these families."""
    return tuple(_FORWARDING[family] for family in families)


def _netfilter(name: str, value: int) -> Sysctl:
    return Sysctl(f"net/netfilter/nf_conntrack_{name}", value)
