"""Makes this machine ready for ipvs mode, or says what it lacks: IPVS, the scheduler, ipsets, iptables, settings."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterable

from vipwire.errors import CommitError, UnsupportedError
from vipwire.linux.netlink.ipvs import Command, Scheduling, Timeouts, VirtualServer
from vipwire.model.net import Family, Protocol, parse_address
from vipwire.model.sysctl import Sysctl
from vipwire.modes.ipvs.kernel import IpvsBackend
from vipwire.modes.ipvs.objects.servers import ServerCommand, Servers
from vipwire.modes.ipvs.writing import Settings

_TRIAL = {Family.IPV4: "198.51.100.0", Family.IPV6: "2001:db8::"}  # of documentation: nobody uses them
_REUSE_REPAIRED = (5, 9)
_PATIENCE = 30.0


def ipvs_sysctls(release: tuple[int, int], *, strict_arp: bool) -> tuple[Sysctl, ...]:
    """Name the settings of ipvs mode for a kernel of that release (major, minor).

    Connection tracking is what makes masquerading possible. A connection to an endpoint that has gone ends when its
    next packet comes, and a client that was bound to one is free. `conn_reuse_mode` 1 delayed new connections by a
    second, or sent them to endpoints that were gone, until 5.9 repaired it (kubernetes/kubernetes#93297).
    """
    reuse = (Sysctl("net/ipv4/vs/conn_reuse_mode", 0),) if release < _REUSE_REPAIRED else ()
    arp = (Sysctl("net/ipv4/conf/all/arp_ignore", 1), Sysctl("net/ipv4/conf/all/arp_announce", 2))
    return (
        Sysctl("net/ipv4/vs/conntrack", 1),
        *reuse,
        Sysctl("net/ipv4/vs/expire_nodest_conn", 1),
        Sysctl("net/ipv4/vs/expire_quiescent_template", 1),
        *(arp if strict_arp else ()),
    )


def build(families: Iterable[Family], settings: Settings, timeouts: Timeouts | None) -> dict[Family, IpvsBackend]:
    """Build a backend for each family; raise UnsupportedError saying what is missing.

    With timeouts it is going to be run: the module is loaded, the scheduler is tried, the timeouts are set.
    """
    backends: dict[Family, IpvsBackend] = {}
    with contextlib.ExitStack() as stack:
        for family in families:
            backends[family] = backend = _backend(family, settings, load=timeouts is not None)
            stack.callback(backend.close)
            if timeouts is None:
                continue
            backend.require()
            with contextlib.closing(Servers(family)) as servers:
                try_scheduler(servers, family, settings.scheduler)
                servers.set_timeouts(timeouts)
        stack.pop_all()
    return backends


def try_scheduler(servers: Servers, family: Family, scheduler: str) -> None:
    """Add a virtual server and remove it again; raise UnsupportedError if the kernel lacks its scheduler."""
    trial = VirtualServer(Protocol.TCP, parse_address(_TRIAL[family]), 20000)
    try:
        servers.apply([ServerCommand(Command.NEW_SERVICE, trial, Scheduling(scheduler))])
    except CommitError as error:
        raise UnsupportedError(f"ipvs mode: {error}") from error
    finally:
        with contextlib.suppress(CommitError):
            servers.apply([ServerCommand(Command.DEL_SERVICE, trial, Scheduling(scheduler))])


def _backend(family: Family, settings: Settings, *, load: bool) -> IpvsBackend:
    try:
        return IpvsBackend(family, settings)
    except UnsupportedError:
        if not (load and _load_module()):
            raise
    return IpvsBackend(family, settings)


def _load_module() -> bool:
    """Load IPVS with modprobe; tell whether that worked."""
    modprobe = shutil.which("modprobe", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if modprobe is None:
        return False
    command = [modprobe, "ip_vs"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(command, capture_output=True, check=False, timeout=_PATIENCE).returncode == 0  # noqa: S603
    return False
