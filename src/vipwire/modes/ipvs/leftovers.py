"""Finds and removes the virtual servers, addresses and ipsets that ipvs mode, of vipwire or kube-proxy, left behind.

IPVS forgets its connections with their virtual server, so vipwire deletes a virtual server only when none of its
connections is in use. Until then its address stays on kube-ipvs0, and so do its mark's rule and routes. The next
mode's rules translate new connections before IPVS. Connections of direct return end.

An address also stays while a socket has it: local processes use it as their source.
"""

import contextlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from vipwire.linux.netlink.ipvs import Forwarding, Method, RealServer, Scheduling, VirtualServer
from vipwire.linux.netlink.socket import NetlinkError
from vipwire.model.net import Address, Family, Protocol
from vipwire.modes.ipvs.kernel import IpvsBackend
from vipwire.modes.ipvs.objects.device import Device, read_socket_sources
from vipwire.modes.ipvs.objects.names import (
    Ipset,
    MarkRule,
    Object,
    ObjectKey,
    RangeRule,
    Set,
    SetEntry,
    Vip,
    VipRoute,
    set_name,
)
from vipwire.modes.ipvs.objects.sets import Sets
from vipwire.modes.ipvs.ownership import GUARDS
from vipwire.modes.spec import Remains, RemovalResult
from vipwire.modes.xtables.save import ChainName
from vipwire.reconcile.delta import Delta

_NET: Final = Path("/proc/thread-self/net")
_OVER: Final = frozenset({"NONE", "TIME_WAIT", "LAST_ACK", "CLOSE", "CLOSED", "LISTEN"})
"""States of connections that carry no more data."""
_IN_TURN: Final = Scheduling("rr")


class IpvsConnection(NamedTuple):
    """A connection of IPVS, with its frontend and its endpoint."""

    frontend: tuple[Address, int]
    endpoint: tuple[Address, int]


@dataclass(frozen=True, slots=True)
class IpvsLeftovers:
    """The leftovers of ipvs mode except iptables chains, and those of them with connections in use."""

    family: Family
    objects: dict[ObjectKey, Object]
    busy: frozenset[VirtualServer] = frozenset()
    addresses: frozenset[Address] = frozenset()

    @property
    def in_use(self) -> bool:
        return bool(self.busy or self.addresses)


class IpvsRemains(Remains):
    """The leftovers of one family. `to_sockets`: the running mode serves node ports with sockets."""

    def __init__(self, family: Family, *, to_sockets: bool) -> None:
        self._family, self._to_sockets = family, to_sockets
        self._found: IpvsLeftovers | None = None

    def remove_before_rules(self) -> RemovalResult:
        """Remove unused leftovers while the rules still masquerade; give new connections to node ports to sockets."""
        self._found = find_ipvs(self._family)
        if self._found is not None and self._to_sockets and redirect_to_sockets(self._found):
            self._found = find_ipvs(self._family)  # again: connections may have come since the first look
        return RemovalResult()

    def list_held_chains(self) -> frozenset[ChainName]:
        """Return the chains that keep the host's own ports off the VIPs, while leftovers are in use."""
        return GUARDS if self._found is not None and self._found.in_use else frozenset()

    def remove_after_rules(self) -> RemovalResult:
        if (left := self._found) is None:
            return RemovalResult()
        gone, stays = remove_ipvs(left)
        what = f"{len(left.busy)} virtual servers have connections, {len(left.addresses)} addresses are in use"
        return RemovalResult(removed=(gone,) if gone else (), waiting=(what,) if stays else ())


def find_ipvs(family: Family) -> IpvsLeftovers | None:
    """Find the leftovers; None if none exist. Raise OSError or UnsupportedError."""
    if not (_NET / "ip_vs").exists() or not _has_traces(family):
        return None
    with contextlib.closing(IpvsBackend(family)) as backend:
        objects = backend.observe()
    objects = {key: value for key, value in objects.items() if not isinstance(key, ChainName | RangeRule)}
    flows = parse_flows((_NET / "ip_vs_conn").read_text(encoding="ascii"), family)
    return find_leftovers(family, objects, flows, read_socket_sources())


def remove_ipvs(left: IpvsLeftovers) -> tuple[str, bool]:
    """Remove the leftovers that are not in use; return their description ("" for none) and whether some stay.

    Raise CommitError if the kernel refuses.
    """
    gone = removable_objects(left)
    if not gone:
        return "", left.in_use
    with contextlib.closing(IpvsBackend(left.family)) as backend:
        backend.commit(Delta(removed=gone))
    late = read_socket_sources() & {key.address for key in gone if isinstance(key, Vip)}
    with contextlib.closing(Device(left.family)) as device:
        if late:  # a socket took the address after the read; TCP retransmits its packets
            device.add_addresses(sorted(late))
        elif not left.in_use:
            device.delete_device()
    counts = {
        "virtual servers": sum(isinstance(key, VirtualServer) for key in gone),
        "addresses": sum(isinstance(key, Vip) for key in gone),
        "ipsets": sum(isinstance(key, Ipset) for key in gone),
    }
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count), left.in_use or bool(late)


def find_leftovers(
    family: Family,
    objects: dict[ObjectKey, Object],
    flows: frozenset[IpvsConnection],
    sources: frozenset[Address] = frozenset(),
) -> IpvsLeftovers:
    """Find the virtual servers with connections in use, and the addresses that these or sockets need. Pure."""
    frontends, endpoints = {flow.frontend for flow in flows}, {flow.endpoint for flow in flows}
    endpoints |= {(address, 0) for address, _ in endpoints}  # real servers that keep the destination port
    marked = {
        key.server
        for key in objects
        if isinstance(key, RealServer) and key.server.mark and (key.address, key.port) in endpoints
    }
    busy = frozenset(
        key
        for key in objects
        if isinstance(key, VirtualServer) and ((key.address, key.port) in frontends or key in marked)
    )
    needed = {address for address, _ in frontends} if busy else set[Address]()
    vips = {key.address for key in objects if isinstance(key, Vip)}
    return IpvsLeftovers(family, objects, busy, frozenset((needed | sources) & vips))


def redirect_to_sockets(left: IpvsLeftovers) -> bool:
    """Make IPVS pass new connections to node ports to local sockets; report whether the kernel changed.

    Userspace mode needs this, because it serves node ports with sockets. Raise CommitError if the kernel refuses.
    """
    delta = build_redirection(left)
    if delta:
        with contextlib.closing(IpvsBackend(left.family)) as backend:
            backend.commit(delta)
    return bool(delta)


def build_redirection(left: IpvsLeftovers) -> Delta[ObjectKey, Object]:
    """Make each node port's virtual server, at addresses not on kube-ipvs0, its own real server. Pure.

    IPVS takes packets before sockets. It routes packets for the node's own address unchanged, to the local socket.
    Endpoints of weight 0 keep their connections, and persistence binds no client to them.
    """
    own = {each: RealServer(each, each.address, each.port) for each in select_node_port_servers(left.objects.keys())}
    changed: dict[ObjectKey, tuple[Object, Object]] = {}
    for key, old in left.objects.items():
        if isinstance(key, VirtualServer) and key in own and old != _IN_TURN:
            changed[key] = (old, _IN_TURN)
        elif isinstance(key, RealServer) and own.get(key.server, key) != key and isinstance(old, Forwarding):
            changed[key] = (old, old._replace(weight=0))
    return Delta(
        added={real: Forwarding(1, Method.ROUTE) for real in own.values() if real not in left.objects},
        changed=changed,
    )


def select_node_port_servers(objects: Collection[ObjectKey]) -> frozenset[VirtualServer]:
    """Return the TCP and UDP virtual servers at addresses that are neither on kube-ipvs0 nor routed. Pure."""
    vips = {key.address for key in objects if isinstance(key, Vip)}
    routed = {set_name(family, Set.ROUTED) for family in Family}
    vips |= {key.element.address for key in objects if isinstance(key, SetEntry) and key.set in routed}
    servers = (key for key in objects if isinstance(key, VirtualServer) and not key.mark)
    return frozenset(
        each for each in servers if each.protocol in (Protocol.TCP, Protocol.UDP) and each.address not in vips
    )


def removable_objects(left: IpvsLeftovers) -> dict[ObjectKey, Object]:
    """Return the objects to remove. The sets, which mark virtual servers as vipwire's, go together and last. Pure."""
    if not left.in_use:
        return left.objects

    def stays(key: ObjectKey) -> bool:
        match key:
            case VirtualServer():
                return key in left.busy
            case RealServer():
                return key.server in left.busy
            case Vip(address):
                return address in left.addresses
            case MarkRule() | VipRoute():
                return bool(left.busy)
        return isinstance(key, Ipset | SetEntry)

    return {key: value for key, value in left.objects.items() if not stays(key)}


def parse_flows(text: str, family: Family) -> frozenset[IpvsConnection]:
    """Read /proc/net/ip_vs_conn, without ended connections and those to local sockets. Pure.

    Format: ip_vs_conn_seq_show in net/netfilter/ipvs/ip_vs_conn.c; addresses and ports in hex.

        Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
    """
    flows: set[IpvsConnection] = set()
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 8 or (":" in fields[3]) is not (family is Family.IPV6):
            continue
        template = int(fields[2], 16) == 0  # a persistence template: binds a client to an endpoint
        flow = IpvsConnection(_parse_place(fields[3], fields[4]), _parse_place(fields[5], fields[6]))
        if not template and fields[7] not in _OVER and flow.frontend != flow.endpoint:
            flows.add(flow)
    return frozenset(flows)


def _parse_place(address: str, port: str) -> tuple[Address, int]:
    digits = address.strip("[]").replace(":", "")
    return Address(bytes.fromhex(digits)), int(port, 16)


def _has_traces(family: Family) -> bool:
    """Report whether kube-ipvs0 has an address or an ipset of vipwire exists, without running a program."""
    with contextlib.closing(Device(family)) as device:
        if device.addresses():
            return True
    with contextlib.closing(Sets(family)) as sets:
        try:
            return bool(sets.read())
        except NetlinkError:
            return False
