"""This machine's settings that a proxy changes: /proc/sys, and the proxy's own OOM score.

In a container /proc/sys is read-only unless it is privileged: the Pod mounts the node's at HOST_SETTINGS. An
administrator may have set everything. So vipwire writes only values that differ, and reports a failure with a remedy
instead of stopping.
"""

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from vipwire.model.sysctl import Sysctl, Want


class Obstacle(NamedTuple):
    """A setting that could not be written: its name, the error, and the remedy."""

    what: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}; {self.remedy}"


ROOT = Path("/proc/sys")
HOST_SETTINGS = Path("/run/host/proc/sys")
"""Where a Pod mounts the node's settings, writable."""


class SysctlChange(NamedTuple):
    """A written setting: its name in sysctl(8), and its old and new values."""

    name: str
    old: int
    new: int


class SysctlReport(NamedTuple):
    """The result of writing settings; a setting in neither tuple was right already."""

    changed: tuple[SysctlChange, ...]
    obstacles: tuple[Obstacle, ...]


def read_sysctl(path: str, root: Path = ROOT) -> int:
    """Read a numeric setting. Raise OSError, or ValueError if the value is no number."""
    return int((root / path).read_text(encoding="ascii"))


def apply_sysctls(wanted: Iterable[Sysctl], root: Path = ROOT) -> SysctlReport:
    """Write every setting that differs, in the given order. Raises no error."""
    changed: list[SysctlChange] = []
    obstacles: list[Obstacle] = []
    for sysctl in wanted:
        outcome = _apply_sysctl(sysctl, root)
        if isinstance(outcome, SysctlChange):
            changed.append(outcome)
        elif outcome is not None:
            obstacles.append(outcome)
    return SysctlReport(tuple(changed), tuple(obstacles))


def _apply_sysctl(sysctl: Sysctl, root: Path) -> SysctlChange | Obstacle | None:
    verb = "read"
    try:
        old = read_sysctl(sysctl.path, root)
        if old == sysctl.value or (sysctl.want is Want.AT_LEAST and old > sysctl.value):
            return None
        verb = f"changed from {old} to {sysctl.value}"
        _write_sysctl(sysctl, root)
    except OSError as error:
        if verb != "read" and sysctl.want is Want.EXACTLY_OR_MORE and old > sysctl.value:
            return None
        reason = f"cannot be {verb} ({error.strerror})"
        return Obstacle(sysctl.name, reason, suggest_remedy(sysctl, error.errno or 0))
    except ValueError:
        return Obstacle(sysctl.name, "is not a number", f"look at /proc/sys/{sysctl.path}")
    return SysctlChange(sysctl.name, old, sysctl.value)


def _write_sysctl(sysctl: Sysctl, root: Path) -> None:
    # no O_CREAT or O_TRUNC: the kernel owns these files
    flags = os.O_WRONLY | os.O_CLOEXEC
    try:
        file = os.open(root / sysctl.path, flags)
    except OSError as error:
        if error.errno != errno.EROFS or not (HOST_SETTINGS / sysctl.path).exists():
            raise
        file = os.open(HOST_SETTINGS / sysctl.path, flags)
    try:
        os.write(file, b"%d\n" % sysctl.value)
    finally:
        os.close(file)


def suggest_remedy(sysctl: Sysctl, code: int) -> str:
    setting = f"`{sysctl.name} = {sysctl.value}`"
    if code == errno.ENOENT:
        if sysctl.path.startswith("net/netfilter/"):
            return f"load the module nf_conntrack on the node (modprobe nf_conntrack) and set {setting}"
        if sysctl.path.startswith("net/ipv6/"):
            return "IPv6 is off on this node: boot without ipv6.disable=1, or proxy IPv4 only"
        return "this kernel has no such setting"
    if code == errno.EROFS:
        return f"mount the node's /proc/sys/net at {HOST_SETTINGS}/net, or set {setting} in /etc/sysctl.d of the node"
    if code in (errno.EACCES, errno.EPERM):
        return (
            f"run as root with CAP_NET_ADMIN in the node's own network namespace (hostNetwork), "
            f"or set {setting} in /etc/sysctl.d of the node"
        )
    return f"the kernel does not accept the value {sysctl.value}: choose another in the configuration"


_RTF_DEFAULT = 0x00010000
_RTF_ADDRCONF = 0x00040000
_LEARNED = _RTF_DEFAULT | _RTF_ADDRCONF


def list_router_sysctls(proc: Path = Path("/proc")) -> tuple[Sysctl, ...]:
    """Return the settings that keep learned default routes; none if forwarding is on or IPv6 is off."""
    try:
        if read_sysctl("net/ipv6/conf/all/forwarding", proc / "sys"):
            return ()
        routes = (proc / "thread-self/net/ipv6_route").read_text(encoding="ascii")
    except (OSError, ValueError):
        return ()
    return tuple(
        Sysctl(f"net/ipv6/conf/{interface}/accept_ra", 2, Want.AT_LEAST)
        for interface in _list_interfaces_with_learned_routes(routes)
    )


def _list_interfaces_with_learned_routes(routes: str) -> list[str]:
    """Return the interfaces with a learned default route: the ninth field is the flags, the tenth the name."""
    fields = (line.split() for line in routes.splitlines())
    return sorted({row[9] for row in fields if len(row) == 10 and int(row[8], 16) & _LEARNED == _LEARNED})


def set_oom_score_adj(value: int, proc: Path = Path("/proc")) -> Obstacle | None:
    """Set this process's OOM score, -1000 (never killed) to 1000 (first); return the obstacle if refused (proc(5)).

    Does not write an equal score, such as systemd's OOMScoreAdjust, because writing needs rights.
    """
    file = proc / "self/oom_score_adj"
    try:
        if file.read_text(encoding="ascii").strip() != str(value):
            file.write_text(f"{value}\n", encoding="ascii")
    except OSError as error:
        return Obstacle(
            f"oom_score_adj {value}", f"cannot be set ({error.strerror})", _suggest_oom_score_remedy(error.errno or 0)
        )
    return None


def _suggest_oom_score_remedy(code: int) -> str:
    if code in (errno.EACCES, errno.EPERM):
        return (
            "a lower score needs the capability CAP_SYS_RESOURCE: run privileged, or keep the score with "
            "--oom-score-adj=0"
        )
    if code == errno.EINVAL:
        return "allowed are -1000 to 1000"
    return "vipwire keeps its present score"
