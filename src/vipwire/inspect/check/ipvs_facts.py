"""Reads what `leave_ipvs` judges: kube-proxy's configuration, its kernel objects, Services. Changes nothing.

If a source is missing, reports the obstacle and judges the rest.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeVar

from vipwire import __version__
from vipwire.config.configuration import Config
from vipwire.errors import ConfigError, UnsupportedError, VipwireError
from vipwire.inspect.check.facts import find_missing_requirement, list_legacy_chains, list_nft_tables, read_sysctls
from vipwire.inspect.check.leave_ipvs import IpvsServer, IpvsState, Leaving
from vipwire.inspect.node.source import api_access, node_name, read_objects
from vipwire.kube.errors import ApiError, UnreachableError
from vipwire.kube.objects import ObjectClient
from vipwire.linux.host.addresses import read_addresses, select_global_addresses
from vipwire.linux.netlink.socket import NetlinkError
from vipwire.model.net import Address, Family, Prefix, Protocol, format_address
from vipwire.modes.ipvs.objects.names import (
    DEVICE,
    PORT_PROTOCOLS,
    Ipset,
    Object,
    ObjectKey,
    Set,
    SetEntry,
    owning_entries,
    set_name,
)
from vipwire.modes.ipvs.objects.servers import IpvsServers
from vipwire.modes.ipvs.objects.sets import Sets
from vipwire.proxy_daemon.handover.configured import Configured, find_configuration, parse_config_map
from vipwire.proxy_daemon.handover.kube_proxy import find_kube_proxy
from vipwire.proxy_daemon.start.modes import find_usable_families
from vipwire.proxy_daemon.start.record import read_recorded_node
from vipwire.proxy_daemon.sync.node_plan import Known, plan_node
from vipwire.watched_objects.store import Store

SYSCTLS: Final = (
    "net/ipv4/vs/conntrack",
    "net/ipv4/vs/conn_reuse_mode",
    "net/ipv4/vs/expire_nodest_conn",
    "net/ipv4/vs/expire_quiescent_template",
    "net/ipv4/conf/all/arp_ignore",
    "net/ipv4/conf/all/arp_announce",
    "net/netfilter/nf_conntrack_tcp_timeout_established",
)
_CONFIG_MAP: Final = "/api/v1/namespaces/kube-system/configmaps/kube-proxy"
_CONFIG_MAP_NAME: Final = "the ConfigMap kube-system/kube-proxy"
_PATIENCE: Final = 10.0
_NODE_PORTS: Final = PORT_PROTOCOLS | dict.fromkeys((Set.NODE_PORT_SCTP, Set.NODE_PORT_LOCAL_SCTP), Protocol.SCTP)

T = TypeVar("T")


def read_kernel(proc: Path = Path("/proc")) -> IpvsState:
    local = read_addresses()
    servers: list[IpvsServer] = []
    entries: dict[ObjectKey, Object] = {}
    timeouts, obstacle = None, ""
    for family in find_usable_families():
        found, problem = _read_sets(family)
        entries.update(found)
        try:
            if not (proc / "thread-self/net/ip_vs").exists():
                continue  # no IPVS in this kernel, so no objects of it
            with contextlib.closing(IpvsServers(family)) as ipvs:
                servers += _list_servers(ipvs, family, found)
                timeouts = ipvs.read_timeouts()
        except (UnsupportedError, OSError) as error:
            problem = problem or str(error)
        obstacle = obstacle or problem
    cluster_ips = {set_name(family, Set.CLUSTER_IP) for family in Family}
    return IpvsState(
        servers=tuple(servers),
        vips=frozenset(item.address for item in local if item.interface == DEVICE and item.scope == 0),
        cluster_ips=frozenset(
            key.element.address for key in entries if isinstance(key, SetEntry) and key.set in cluster_ips
        ),
        networks=tuple(
            Prefix.parse(f"{format_address(item.address)}/{item.prefix_length}")
            for item in local
            if item.interface != DEVICE and not item.is_loopback
        ),
        sets=tuple(sorted(key.set for key in entries if isinstance(key, Ipset))),
        chains=_count_chains(),
        sysctls=read_sysctls(SYSCTLS, proc),
        timeouts=timeouts,
        obstacle=obstacle,
    )


def _read_sets(family: Family) -> tuple[dict[ObjectKey, Object], str]:
    try:
        with contextlib.closing(Sets(family)) as sets:
            return sets.read(), ""
    except NetlinkError as error:
        return {}, f"ipsets cannot be read: {error.strerror}"


def _list_servers(ipvs: IpvsServers, family: Family, found: Mapping[ObjectKey, Object]) -> Iterator[IpvsServer]:
    listed = {key: how for key, (how, _) in ipvs.read_services().items()}
    places, ports = owned_frontends(family, found)
    marks = {mark for key, mark in found.items() if isinstance(key, SetEntry) and mark}
    connections, draining = dict.fromkeys(listed, 0), dict.fromkeys(listed, 0)
    for row in ipvs.read_rows(listed):
        connections[row.real.server] += row.active
        draining[row.real.server] += row.forwarding.weight == 0
    for key, how in listed.items():
        at_port = (key.protocol, key.port) in ports and not key.mark
        ours = at_port or (key.address, key.protocol, key.port) in places or key.mark in marks
        yield IpvsServer(key, how, ours, at_port, connections[key], draining[key])


def owned_frontends(
    family: Family, found: Iterable[ObjectKey]
) -> tuple[frozenset[tuple[Address, int, int]], frozenset[tuple[int, int]]]:
    """Return Services' frontends from ipsets: (address, protocol, port), and node ports (protocol, port)."""
    elements = list(owning_entries(family, found))
    node_ports = frozenset((_NODE_PORTS[which], at.port) for which, at in elements if which in _NODE_PORTS)
    return frozenset(
        (at.address, at.protocol, at.port) for which, at in elements if which not in _NODE_PORTS
    ), node_ports


def _count_chains() -> int:
    chains = [chain for table in list_nft_tables() or () for chain in table.chains]
    return sum(chain.startswith("KUBE-") for chain in (*chains, *list_legacy_chains()))


def read_leaving(config: Config) -> tuple[Leaving, list[str]]:
    """Read all sources; return the facts and the errors of sources that could not be read."""
    obstacles: list[str] = []

    def tried(what: str, ask: Callable[[], T], otherwise: T) -> T:
        try:
            return ask()
        except (VipwireError, OSError) as error:
            obstacles.append(f"{what}: {error}")
            return otherwise

    kernel = tried("the kernel", read_kernel, IpvsState(obstacle="vipwire cannot read IPVS"))
    if kernel.obstacle and not obstacles:
        obstacles.append(f"the kernel: {kernel.obstacle}")
    found = find_configuration(find_kube_proxy())
    if found is None:
        found = tried("kube-proxy's configuration", lambda: read_config_map(config), None)
    store = tried("Services", lambda: read_objects(config), Store())
    machine = select_global_addresses(item for item in read_addresses() if item.interface != DEVICE)
    name = node_name(config)
    known = Known(read_recorded_node(config.state_dir, name))
    plans = {
        family: plan_node(config, family, name, store, machine, known=known) for family in find_usable_families()
    }
    leaving = Leaving(
        config,
        kernel,
        found,
        tuple(store.services.values()),
        {family: plan.node_port_addresses for family, plan in plans.items()},
        find_missing_requirement(config, config.proxy_mode),
    )
    return leaving, obstacles


def read_config_map(config: Config) -> Configured | None:
    """Read kubeadm's ConfigMap from the API server; None if objects come from manifests. Raise ConfigError."""
    if config.manifests:
        return None
    return Configured(_CONFIG_MAP_NAME, parse_config_map(asyncio.run(_ask_config_map(config)), _CONFIG_MAP_NAME))


async def _ask_config_map(config: Config) -> object:
    access = api_access(config)
    try:
        async with ObjectClient(access, f"vipwire/{__version__} (linux)", timeout=_PATIENCE) as client:
            return await client.ask("GET", _CONFIG_MAP)
    except ApiError as error:
        raise ConfigError(f"{_CONFIG_MAP_NAME}: {access.server} answers {error.code}") from error
    except UnreachableError as error:
        raise ConfigError(f"{_CONFIG_MAP_NAME}: {error}") from error
