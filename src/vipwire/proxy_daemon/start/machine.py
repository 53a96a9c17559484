"""Prepares the machine for the proxy: kernel settings and OOM score. Failures are logged.

Connection tracking follows kube-proxy (pkg/proxy/conntrack/sysctls.go): 0 leaves the kernel's value, any other value
is set whether higher or lower. vipwire switches forwarding on in all modes; kube-proxy does in ipvs mode only.
Settings: Documentation/networking/nf_conntrack-sysctl.rst and ip-sysctl.rst of the kernel.
"""

from collections.abc import Iterable

from vipwire.config.configuration import Config
from vipwire.config.sections import Conntrack
from vipwire.linux.host.kernel import count_cpus
from vipwire.linux.host.settings import apply_sysctls, list_router_sysctls, set_oom_score_adj
from vipwire.logging import log
from vipwire.model.net import Family
from vipwire.model.sysctl import Sysctl, Want
from vipwire.modes.registry import find_selected_mode, load_driver
from vipwire.proxy_daemon.start.modes import find_usable_families, needs_net_admin

MAX_LIMIT = 1 << 20
"""Upper limit of the conntrack table size (kube-proxy 1.36); a flow takes about 300 bytes."""

_FORWARDING = {Family.IPV4: Sysctl("net/ipv4/ip_forward", 1), Family.IPV6: Sysctl("net/ipv6/conf/all/forwarding", 1)}


def compute_conntrack_max(max_per_core: int, minimum: int, cpus: int) -> int:
    """Compute the size of the conntrack table in flows; 0 leaves the kernel's value.

    The limit applies to the number derived from the CPUs. A configured `minimum` above the limit still holds, unlike
    in kube-proxy.
    """
    if max_per_core <= 0:
        return 0
    return max(min(max_per_core * cpus, MAX_LIMIT), minimum)


def list_conntrack_sysctls(settings: Conntrack, cpus: int) -> tuple[Sysctl, ...]:
    """Return the conntrack settings for a machine with so many CPUs."""
    wanted: list[Sysctl] = []
    if size := compute_conntrack_max(settings.max_per_core, settings.min, cpus):
        wanted.append(_choose_conntrack_sysctl("max", size)._replace(want=Want.EXACTLY_OR_MORE))
        # One hash chain for four flows. kube-proxy writes the module parameter `hashsize`; this file is writable
        # where /sys is not. More chains are fine.
        wanted.append(_choose_conntrack_sysctl("buckets", size // 4)._replace(want=Want.AT_LEAST))
    timeouts = (
        ("tcp_timeout_established", settings.tcp_established_timeout),
        ("tcp_timeout_close_wait", settings.tcp_close_wait_timeout),
        ("udp_timeout", settings.udp_timeout),
        ("udp_timeout_stream", settings.udp_stream_timeout),
    )
    # The kernel takes whole seconds; 0.5 rounded down to 0 would end every flow at once.
    wanted += (_choose_conntrack_sysctl(name, max(1, int(seconds))) for name, seconds in timeouts if seconds > 0)
    if settings.tcp_be_liberal:
        wanted.append(_choose_conntrack_sysctl("tcp_be_liberal", 1))
    return tuple(wanted)


def list_forwarding_sysctls(families: Iterable[Family]) -> tuple[Sysctl, ...]:
    """Return the forwarding settings that packets of these families need."""
    return tuple(_FORWARDING[family] for family in families)


def _choose_conntrack_sysctl(name: str, value: int) -> Sysctl:
    return Sysctl(f"net/netfilter/nf_conntrack_{name}", value)


def prepare_machine(config: Config) -> None:
    """Apply settings that need privileges; log those that cannot be set."""
    wanted = load_driver(find_selected_mode(config)).sysctls(config)
    if needs_net_admin(config):  # without rules, no tracking or forwarding is needed
        conntrack = list_conntrack_sysctls(config.conntrack, count_cpus())
        wanted = (*conntrack, *list_router_sysctls(), *list_forwarding_sysctls(find_usable_families()), *wanted)
    _set_sysctls(wanted)
    _set_oom_score(config)


def adjust_machine(before: Config, after: Config) -> None:
    """Apply the settings that differ between two configurations."""
    if before.conntrack != after.conntrack and needs_net_admin(after):
        _set_sysctls(list_conntrack_sysctls(after.conntrack, count_cpus()))
    if before.oom_score_adj != after.oom_score_adj:
        _set_oom_score(after)


def _set_sysctls(wanted: Iterable[Sysctl]) -> None:
    report = apply_sysctls(wanted)
    for change in report.changed:
        log.info("kernel setting changed", name=change.name, old=change.old, new=change.new)
    for item in report.obstacles:
        log.warning("cannot set", what=item.what, reason=item.reason, remedy=item.remedy)


def _set_oom_score(config: Config) -> None:
    obstacle = set_oom_score_adj(config.oom_score_adj)
    if obstacle:
        log.warning("cannot set", what=obstacle.what, reason=obstacle.reason, remedy=obstacle.remedy)
