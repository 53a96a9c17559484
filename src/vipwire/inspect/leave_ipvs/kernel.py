"""Reads what kube-proxy's ipvs mode has made of this node: the kernel by netlink, settings in /proc. Changes nothing.

`obstacle` says what could not be read; the rest is judged without it.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from vipwire.errors import UnsupportedError
from vipwire.inspect.check.facts import legacy_chains, nft_tables, read_sysctls
from vipwire.inspect.leave_ipvs.judge import IpvsState, Server
from vipwire.linux.host.addresses import read_addresses
from vipwire.linux.netlink.socket import NetlinkError
from vipwire.model.net import Address, Family, Prefix, Protocol, format_address
from vipwire.modes.ipvs.objects.names import (
    DEVICE,
    PORT_PROTOCOLS,
    Object,
    ObjectKey,
    Set,
    SetEntry,
    SetName,
    owning_entries,
    set_name,
)
from vipwire.modes.ipvs.objects.servers import IpvsServers
from vipwire.modes.ipvs.objects.sets import Sets
from vipwire.proxy.start.modes import families

SYSCTLS: Final = (
    "net/ipv4/vs/conntrack",
    "net/ipv4/vs/conn_reuse_mode",
    "net/ipv4/vs/expire_nodest_conn",
    "net/ipv4/vs/expire_quiescent_template",
    "net/ipv4/conf/all/arp_ignore",
    "net/ipv4/conf/all/arp_announce",
    "net/netfilter/nf_conntrack_tcp_timeout_established",
)


def read_kernel(proc: Path = Path("/proc")) -> IpvsState:
    """Read it, of all families."""
    local = read_addresses()
    servers: list[Server] = []
    entries: dict[ObjectKey, Object] = {}
    timeouts, obstacle = None, ""
    for family in families():
        found, problem = _sets(family)
        entries.update(found)
        try:
            if not (proc / "thread-self/net/ip_vs").exists():
                continue  # no IPVS in this kernel, and so nothing of it
            with contextlib.closing(IpvsServers(family)) as ipvs:
                servers += _servers(ipvs, family, found)
                timeouts = ipvs.timeouts()
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
        sets=tuple(sorted(key.set for key in entries if isinstance(key, SetName))),
        chains=_count_chains(),
        sysctls=read_sysctls(SYSCTLS, proc),
        timeouts=timeouts,
        obstacle=obstacle,
    )


def _sets(family: Family) -> tuple[dict[ObjectKey, Object], str]:
    try:
        with contextlib.closing(Sets(family)) as sets:
            return sets.read(), ""
    except NetlinkError as error:
        return {}, f"ipsets cannot be read: {error.strerror}"


def _servers(ipvs: IpvsServers, family: Family, found: Mapping[ObjectKey, Object]) -> Iterator[Server]:
    listed = {key: how for key, (how, _) in ipvs.services().items()}
    places, ports = owned(family, found)
    marks = {mark for key, mark in found.items() if isinstance(key, SetEntry) and mark}
    connections, draining = dict.fromkeys(listed, 0), dict.fromkeys(listed, 0)
    for row in ipvs.rows(listed):
        connections[row.real.server] += row.active
        draining[row.real.server] += row.forwarding.weight == 0
    for key, how in listed.items():
        at_port = (key.protocol, key.port) in ports and not key.mark
        ours = at_port or (key.address, key.protocol, key.port) in places or key.mark in marks
        yield Server(key, how, ours, at_port, connections[key], draining[key])


def owned(
    family: Family, found: Iterable[ObjectKey]
) -> tuple[frozenset[tuple[Address, int, int]], frozenset[tuple[int, int]]]:
    """Read from ipsets which frontends are Services': (address, protocol, port), and node ports (protocol, port)."""
    elements = list(owning_entries(family, found))
    node_ports = frozenset((_NODE_PORTS[which], at.port) for which, at in elements if which in _NODE_PORTS)
    return frozenset(
        (at.address, at.protocol, at.port) for which, at in elements if which not in _NODE_PORTS
    ), node_ports


_NODE_PORTS: Final = PORT_PROTOCOLS | dict.fromkeys((Set.NODE_PORT_SCTP, Set.NODE_PORT_LOCAL_SCTP), Protocol.SCTP)


def _count_chains() -> int:
    """Count kube-proxy's chains, in both variants of iptables."""
    chains = [chain for table in nft_tables() or () for chain in table.chains]
    return sum(chain.startswith("KUBE-") for chain in (*chains, *legacy_chains()))
