"""Read and write the kernel's settings below /proc/sys; what cannot be written is reported with a remedy.

A service proxy often runs in a container where /proc/sys is read-only, or on a node whose administrator has set
everything already. So a setting is written only where its value differs, and one that cannot be is no reason to stop.
"""

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from vipwire.linux.host.obstacle import Obstacle
from vipwire.model.sysctl import Sysctl, Want

ROOT = Path("/proc/sys")


class SysctlChange(NamedTuple):
    """A setting that was written: its name as sysctl(8) has it, and its values."""

    name: str
    old: int
    new: int


class SysctlReport(NamedTuple):
    """The result of writing settings; a setting in neither tuple was right already."""

    changed: tuple[SysctlChange, ...]
    obstacles: tuple[Obstacle, ...]


def read_sysctl(path: str, root: Path = ROOT) -> int:
    """Read a setting that is one number; raise OSError, or ValueError if it is something else."""
    return int((root / path).read_text(encoding="ascii"))


def apply_sysctls(wanted: Iterable[Sysctl], root: Path = ROOT) -> SysctlReport:
    """Write every setting that is not as wanted, in the order given; never raise."""
    changed: list[SysctlChange] = []
    obstacles: list[Obstacle] = []
    for sysctl in wanted:
        outcome = _apply(sysctl, root)
        if isinstance(outcome, SysctlChange):
            changed.append(outcome)
        elif outcome is not None:
            obstacles.append(outcome)
    return SysctlReport(tuple(changed), tuple(obstacles))


def _apply(sysctl: Sysctl, root: Path) -> SysctlChange | Obstacle | None:
    verb = "read"
    try:
        old = read_sysctl(sysctl.path, root)
        if old == sysctl.value or (sysctl.want is Want.AT_LEAST and old > sysctl.value):
            return None
        verb = f"changed from {old} to {sysctl.value}"
        # No truncation and no new file: what is there is the kernel's.
        file = os.open(root / sysctl.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(file, b"%d\n" % sysctl.value)
        finally:
            os.close(file)
    except OSError as error:
        if verb != "read" and sysctl.want is Want.EXACTLY_OR_MORE and old > sysctl.value:
            return None
        reason = f"cannot be {verb} ({error.strerror})"
        return Obstacle(sysctl.name, reason, remedy_of(sysctl, error.errno or 0))
    except ValueError:
        return Obstacle(sysctl.name, "is not a number", f"look at /proc/sys/{sysctl.path}")
    return SysctlChange(sysctl.name, old, sysctl.value)


def remedy_of(sysctl: Sysctl, code: int) -> str:
    """Name the remedy for an errno of writing a setting."""
    setting = f"`{sysctl.name} = {sysctl.value}`"
    if code == errno.ENOENT:
        if sysctl.path.startswith("net/netfilter/"):
            return f"load the module nf_conntrack on the node (modprobe nf_conntrack) and set {setting}"
        if sysctl.path.startswith("net/ipv6/"):
            return "IPv6 is off on this node: start it without ipv6.disable=1, or proxy IPv4 only"
        return "this kernel has no such setting"
    if code == errno.EROFS:
        return f"run the container privileged, or set {setting} in /etc/sysctl.d of the node"
    if code in (errno.EACCES, errno.EPERM):
        return (
            f"run as root with CAP_NET_ADMIN in the node's own network namespace (hostNetwork), "
            f"or set {setting} in /etc/sysctl.d of the node"
        )
    return f"the kernel does not accept the value {sysctl.value}: choose another in the configuration"
