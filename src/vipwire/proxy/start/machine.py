"""Prepares the machine for the proxy: IP families, kernel settings, the OOM score.

What cannot be set is said.
"""

from collections.abc import Iterable

from vipwire.config.configuration import Config
from vipwire.linux.conntrack.sysctls import conntrack_sysctls, forwarding_sysctls
from vipwire.linux.host.kernel import cpus
from vipwire.linux.host.settings import apply_sysctls, router_sysctls, set_oom_score_adj
from vipwire.model.sysctl import Sysctl
from vipwire.modes.registry import driver_of, selected
from vipwire.process import log
from vipwire.proxy.start.modes import families, needs_net_admin


def prepare_machine(config: Config) -> None:
    """Set what needs privileges, and go on where it cannot be set."""
    wanted = driver_of(selected(config)).sysctls(config)
    if needs_net_admin(config):  # without rules nothing is tracked, and nothing forwarded
        conntrack = conntrack_sysctls(config.conntrack, cpus())
        wanted = (*conntrack, *router_sysctls(), *forwarding_sysctls(families()), *wanted)
    _set(wanted)
    _score(config)


def adjust_machine(before: Config, after: Config) -> None:
    """Set what a changed configuration changes."""
    if before.conntrack != after.conntrack and needs_net_admin(after):
        _set(conntrack_sysctls(after.conntrack, cpus()))
    if before.oom_score_adj != after.oom_score_adj:
        _score(after)


def _set(wanted: Iterable[Sysctl]) -> None:
    report = apply_sysctls(wanted)
    for change in report.changed:
        log.info("kernel setting changed", name=change.name, old=change.old, new=change.new)
    for item in report.obstacles:
        log.warning("cannot set", what=item.what, reason=item.reason, remedy=item.remedy)


def _score(config: Config) -> None:
    obstacle = set_oom_score_adj(config.oom_score_adj)
    if obstacle:
        log.warning("cannot set", what=obstacle.what, reason=obstacle.reason, remedy=obstacle.remedy)
