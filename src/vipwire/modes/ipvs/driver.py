"""The Driver of ipvs mode: checks and prepares the machine, and builds the backends."""

import contextlib
import math
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from typing import Any, Final

from vipwire.config.configuration import Config
from vipwire.errors import CommitError, UnsupportedError
from vipwire.linux.host.kernel_release import KernelRelease
from vipwire.linux.netlink.ipvs import Command, Scheduling, Timeouts, VirtualServer
from vipwire.model.net import Family, Prefix, Protocol, parse_address
from vipwire.model.sysctl import Sysctl
from vipwire.modes.ipvs.first_commit import FirstCommit
from vipwire.modes.ipvs.kernel import IpvsBackend
from vipwire.modes.ipvs.leftovers import IpvsRemains
from vipwire.modes.ipvs.mode import MODE
from vipwire.modes.ipvs.objects.servers import IpvsServers, ServerCommand
from vipwire.modes.ipvs.ownership import IpvsOwner
from vipwire.modes.ipvs.render import IpvsSettings, Writing
from vipwire.modes.spec import BEHIND_ALL, Driver, Mode, ModeSpec, NatPriorities, Others, clean_by
from vipwire.reconcile.backend import Backend

_TRIAL = {Family.IPV4: "198.51.100.0", Family.IPV6: "2001:db8::"}  # documentation addresses: no host has them
_REUSE_REPAIRED = (5, 9)
_PATIENCE = 30.0


def ipvs_sysctls(release: tuple[int, int], *, strict_arp: bool) -> tuple[Sysctl, ...]:
    """Return the sysctls of ipvs mode for a kernel release (major, minor).

    Masquerading needs connection tracking. `conn_reuse_mode` 1 delayed new connections by a second, or sent them to
    removed endpoints, until Linux 5.9 (kubernetes/kubernetes#93297).
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


def build_backends(
    families: Iterable[Family], settings: IpvsSettings, timeouts: Timeouts | None
) -> dict[Family, IpvsBackend]:
    """Build a backend for each family; raise UnsupportedError if the kernel or a tool lacks something.

    With `timeouts`, load the IPVS module, try the scheduler and set the timeouts.
    """
    backends: dict[Family, IpvsBackend] = {}
    with contextlib.ExitStack() as stack:
        for family in families:
            backends[family] = backend = _backend(family, settings, load=timeouts is not None)
            stack.callback(backend.close)
            if timeouts is None:
                continue
            backend.require()
            with contextlib.closing(IpvsServers(family)) as servers:
                try_scheduler(servers, family, settings.scheduler)
                servers.set_timeouts(timeouts)
        stack.pop_all()
    return backends


def try_scheduler(servers: IpvsServers, family: Family, scheduler: str) -> None:
    """Add a virtual server and remove it; raise UnsupportedError if the kernel lacks the scheduler."""
    trial = VirtualServer(Protocol.TCP, parse_address(_TRIAL[family]), 20000)
    try:
        servers.apply([ServerCommand(Command.NEW_SERVICE, trial, Scheduling(scheduler))])
    except CommitError as error:
        raise UnsupportedError(f"ipvs mode: {error}") from error
    finally:
        with contextlib.suppress(CommitError):
            servers.apply([ServerCommand(Command.DEL_SERVICE, trial, Scheduling(scheduler))])


def _backend(family: Family, settings: IpvsSettings, *, load: bool) -> IpvsBackend:
    try:
        return IpvsBackend(family, settings)
    except UnsupportedError:
        if not (load and _load_module()):
            raise
    return IpvsBackend(family, settings)


def _load_module() -> bool:
    modprobe = shutil.which("modprobe", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if modprobe is None:
        return False
    command = [modprobe, "ip_vs"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(command, capture_output=True, check=False, timeout=_PATIENCE).returncode == 0  # noqa: S603
    return False


def _build(config: Config, families: Iterable[Family], *, prepare: bool) -> Mapping[Family, Mode]:
    chosen = config.ipvs
    seconds = (chosen.tcp_timeout, chosen.tcp_fin_timeout, chosen.udp_timeout)
    timeouts = Timeouts(*(math.ceil(each) for each in seconds))
    return build_backends(families, _settings(config), timeouts if prepare else None)


def _remains(family: Family, running: ModeSpec) -> IpvsRemains | None:
    return None if running is MODE else IpvsRemains(family, to_sockets=running.relays)


def _before_first_commit(backend: Backend[Any, Any], others: Others) -> Backend[Any, Any]:
    """Split the first commit in two steps if another mode's rules are in force."""
    listens = False  # without this answer, assume a mode whose node ports are rules, not sockets
    with contextlib.suppress(CommitError, OSError):
        found = others.translating()
        if not found:
            return backend
        listens = all(each.relays for each in found)
    return FirstCommit(backend, others.disarm, listens=listens)


def _settings(config: Config) -> IpvsSettings:
    return IpvsSettings(
        config.ipvs.scheduler or "rr", tuple(Prefix.parse(text) for text in config.ipvs.exclude_cidrs)
    )


DRIVER: Final = Driver(
    build=_build,
    # This works on a kernel without IPVS.
    supposed=lambda config, families: {family: Writing(family, _settings(config)) for family in families},
    attempt=lambda _config, _families: None,
    sysctls=lambda config: ipvs_sysctls(KernelRelease.running()[:2], strict_arp=config.ipvs.strict_arp),
    # net/netfilter/ipvs/ip_vs_core.c: at input, and for packets that this node sends at NF_IP_PRI_NAT_DST + 2.
    priorities=NatPriorities(BEHIND_ALL, -98),
    kernel_counters={},
    cleaners=clean_by(_build),
    owner=IpvsOwner,
    remains=_remains,
    translates=lambda _: False,
    before_first_commit=_before_first_commit,
)
