"""The Driver of ipvs mode: checks and prepares the machine, and builds the backends."""

import contextlib
import math
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from vipwire.config.configuration import Config
from vipwire.errors import CommitError, UnsupportedError
from vipwire.linux.host.kernel_release import KernelRelease
from vipwire.linux.netlink.ipvs import Command, RealServer, Scheduling, Timeouts, VirtualServer
from vipwire.model.net import Family, Prefix, Protocol, parse_address
from vipwire.model.sysctl import Sysctl
from vipwire.modes.ipvs.kernel import IpvsBackend
from vipwire.modes.ipvs.leftovers import IpvsRemains, select_node_port_servers
from vipwire.modes.ipvs.mode import MODE
from vipwire.modes.ipvs.objects.names import RangeRule
from vipwire.modes.ipvs.objects.servers import IpvsServers, ServerCommand
from vipwire.modes.ipvs.ownership import IpvsOwner
from vipwire.modes.ipvs.render import IpvsSettings, Writing
from vipwire.modes.spec import BEHIND_ALL, Driver, Mode, NatPriorities, Others, clean_by
from vipwire.modes.xtables.save import ChainName
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import ServicePlan
from vipwire.reconcile.backend import Backend, Rendered
from vipwire.reconcile.delta import Delta, SentBytes

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
            backends[family] = backend = _build_backend(family, settings, load=timeouts is not None)
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


def _build_backend(family: Family, settings: IpvsSettings, *, load: bool) -> IpvsBackend:
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


def _build_modes(config: Config, families: Iterable[Family], *, prepare: bool) -> Mapping[Family, Mode]:
    chosen = config.ipvs
    seconds = (chosen.tcp_timeout, chosen.tcp_fin_timeout, chosen.udp_timeout)
    timeouts = Timeouts(*(math.ceil(each) for each in seconds))
    return build_backends(families, _build_settings(config), timeouts if prepare else None)


class FirstCommit:
    """An ipvs backend whose first commit replaces another mode's rules without a gap in translation.

    ipvs mode normally writes its chains before its virtual servers. iptables mode uses the same chain names, so
    writing them first would remove its translation. The order here is

        ipsets, virtual servers, addresses  ▸  `disarm`: userspace mode's refusals go  ▸  chains

    Until the chains come, the other mode translates before IPVS. Userspace mode serves node ports with sockets, and
    IPVS takes packets before a socket. So if userspace mode alone was running (`listens`), the virtual servers of
    node ports come after the chains, which masquerade.
    """

    def __init__(self, backend: Backend[Any, Any], disarm: Callable[[], None], *, listens: bool) -> None:
        self._backend, self._disarm, self._listens = backend, disarm, listens
        self._arrived = False

    def render_node(self, node: NodePlan) -> Mapping[Any, Any]:
        return self._backend.render_node(node)

    def render(self, plan: ServicePlan) -> Rendered[Any, Any]:
        return self._backend.render(plan)

    def observe(self) -> dict[Any, Any]:
        return self._backend.observe()

    def changed(self) -> bool:
        return self._backend.changed()

    def commit(self, delta: Delta[Any, Any]) -> SentBytes:
        """Apply a difference; return its size. Raise CommitError if the kernel refuses."""
        if self._arrived:
            return self._backend.commit(delta)
        before, chains = split_into_steps(delta, listens=self._listens)
        if not (chains.added or chains.changed):
            return self._backend.commit(delta)
        size = self._backend.commit(before) if before else 0
        self._disarm()
        size += self._backend.commit(chains)
        self._arrived = True
        return size


def split_into_steps(delta: Delta[Any, Any], *, listens: bool) -> tuple[Delta[Any, Any], Delta[Any, Any]]:
    """Split a difference into objects that may precede the chains, and the rest. Pure."""
    last = select_node_port_servers(delta.added.keys()) if listens else frozenset[VirtualServer]()

    def waits(key: Any) -> bool:
        server = key.server if isinstance(key, RealServer) else key
        return isinstance(key, ChainName | RangeRule) or server in last

    first: Delta[Any, Any] = Delta(
        added={key: value for key, value in delta.added.items() if not waits(key)},
        changed={key: pair for key, pair in delta.changed.items() if not waits(key)},
    )
    rest: Delta[Any, Any] = Delta(
        added={key: value for key, value in delta.added.items() if waits(key)},
        changed={key: pair for key, pair in delta.changed.items() if waits(key)},
        removed=dict(delta.removed),
    )
    return first, rest


def _split_first_commit(backend: Backend[Any, Any], others: Others) -> Backend[Any, Any]:
    """Split the first commit in two steps if another mode's rules are in force."""
    listens = False  # if the kernel does not answer, assume that the other mode serves node ports by rules
    with contextlib.suppress(CommitError, OSError):
        found = others.find_translating()
        if not found:
            return backend
        listens = all(each.relays for each in found)
    return FirstCommit(backend, others.disarm, listens=listens)


def _build_settings(config: Config) -> IpvsSettings:
    return IpvsSettings(
        config.ipvs.scheduler or "rr", tuple(Prefix.parse(text) for text in config.ipvs.exclude_cidrs)
    )


DRIVER: Final = Driver(
    build=_build_modes,
    # This works on a kernel without IPVS.
    supposed=lambda config, families: {family: Writing(family, _build_settings(config)) for family in families},
    attempt=lambda _config, _families: None,
    sysctls=lambda config: ipvs_sysctls(KernelRelease.running()[:2], strict_arp=config.ipvs.strict_arp),
    # net/netfilter/ipvs/ip_vs_core.c: at input, and for packets that this node sends at NF_IP_PRI_NAT_DST + 2.
    priorities=NatPriorities(BEHIND_ALL, -98),
    kernel_counters={},
    cleaners=clean_by(_build_modes),
    owner=IpvsOwner,
    remains=lambda family, running: None if running is MODE else IpvsRemains(family, to_sockets=running.relays),
    translates=lambda _: False,
    wrap_backend=_split_first_commit,
)
