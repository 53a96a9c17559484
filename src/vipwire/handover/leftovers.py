"""What other modes than the one that runs have left on this node, and kube-proxy in any mode: found and removed.

Only what has a name of ours or of kube-proxy's is looked at:

    nftables    the tables `vipwire`, whatever its layout is, and `kube-proxy` if kube-proxy's chains are in it
    iptables    chains by their names, in both engines (nft and legacy); see `handover.rules`
    userspace   its chains; the relay is told to retire: it ends with the last connection that it relays
    ipvs        kube-ipvs0, the ipsets KUBE-…, the virtual servers that these name; see `backends.ipvs.leftovers`

A second look may be needed: a relay still takes connections that came before its rules went, and IPVS forgets the
connections of a virtual server that goes, so that those which are in use stay until they are not.
"""

import errno
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, runtime_checkable

from vipwire.backends.ipvs.leftovers import IpvsLeftovers, find_ipvs, lead_to_sockets, remove_ipvs
from vipwire.backends.userspace.leftovers import forget_relayed
from vipwire.backends.userspace.messages import Settings
from vipwire.backends.userspace.remote_relay import Remote
from vipwire.config.configuration import ProxyMode
from vipwire.errors import CommitError
from vipwire.handover.rules import others, remove_rules
from vipwire.model.net import Family
from vipwire.netlink.nftables import decode, encode
from vipwire.netlink.nftables.wire import ABSENT, NFPROTO, MessageType
from vipwire.netlink.socket import NETLINK_NETFILTER, NetlinkError, NetlinkSocket
from vipwire.xtables.tool import Tool, with_tables

_OURS: Final = "vipwire"
_KUBE_PROXYS: Final = "kube-proxy"
_KUBE_PROXYS_CHAIN: Final = "nat-prerouting"
"""Tells kube-proxy's table from one of that name by somebody else (pkg/proxy/nftables/proxier.go)."""
RELAY_SECONDS: Final = 2.0
"""How long a relay listens after its rules have gone: a handshake that had begun ends well."""


@runtime_checkable
class RuleUser(Protocol):
    """A mode whose rules are in one of the engines of iptables."""

    @property
    def variant(self) -> str:
        """`nft` or `legacy`; "" if it writes no rules."""


class Removed(NamedTuple):
    """Something that was found and is no more."""

    mode: ProxyMode
    family: Family
    what: str


@dataclass(frozen=True, slots=True)
class Swept:
    """What one look has found: what is removed, and what waits for its connections to end."""

    removed: tuple[Removed, ...] = ()
    waiting: tuple[Removed, ...] = ()


class Leftovers:
    """Looks for what others have left. `backends` are those of the mode that runs."""

    def __init__(self, running: ProxyMode, backends: Mapping[Family, object]) -> None:
        self._running = running
        self._variants = {
            family: backend.variant if isinstance(backend, RuleUser) else "" for family, backend in backends.items()
        }
        self._relays: dict[Family, float] = {}
        self.writes_rules = running is not ProxyMode.USERSPACE or any(self._variants.values())
        """Whether the running mode has rules at all: userspace mode may do without."""

    def sweep(self) -> Swept:
        """Remove what can go. Raise CommitError, OSError or UnsupportedError if the kernel does not let us."""
        removed: list[Removed] = []
        waiting: list[Removed] = []
        for family in self._variants:
            tables = remove_tables(family, ours=self._running is not ProxyMode.NFTABLES)
            removed += (Removed(ProxyMode.NFTABLES, family, name) for name in tables)
            ipvs = self._ipvs(family)
            removed += self._rules(family, guard=ipvs is not None and ipvs.in_use)
            if self._running is not ProxyMode.USERSPACE:
                self._relay(family, removed, waiting)
            if ipvs is not None:
                _remove_ipvs(ipvs, removed, waiting)
        return Swept(tuple(removed), tuple(waiting))

    def _ipvs(self, family: Family) -> IpvsLeftovers | None:
        """Look for what ipvs mode has left. Before its rules go, which masquerade, node ports are the relay's."""
        if self._running is ProxyMode.IPVS:
            return None
        found = find_ipvs(family)
        if found is not None and self._running is ProxyMode.USERSPACE and lead_to_sockets(found):
            return find_ipvs(family)  # with the connections that came meanwhile
        return found

    def _rules(self, family: Family, *, guard: bool) -> Iterator[Removed]:
        for tool in engines(family):
            running = self._running if self._variants[family] == tool.variant.value else None
            for mode, chains in remove_rules(tool, running, guard=guard).items():
                yield Removed(mode, family, f"{tool.name}: {chains} chains")

    def _relay(self, family: Family, removed: list[Removed], waiting: list[Removed]) -> None:
        """Tell a relay to retire, once nothing can be on its way to it."""
        remote = Remote(family, Settings((0, 0), 0.0), starts=False)
        try:
            if family in self._relays and time.monotonic() >= self._relays[family]:
                forget_relayed(family, remote)
                if remote.retire():
                    removed.append(Removed(ProxyMode.USERSPACE, family, "the relay takes no more connections"))
            elif remote.listeners():
                self._relays.setdefault(family, time.monotonic() + RELAY_SECONDS)
                waiting.append(Removed(ProxyMode.USERSPACE, family, "the relay finishes handshakes"))
        finally:
            remote.close()


def _remove_ipvs(left: IpvsLeftovers, removed: list[Removed], waiting: list[Removed]) -> None:
    gone, stays = remove_ipvs(left)
    if gone:
        removed.append(Removed(ProxyMode.IPVS, left.family, gone))
    if stays:
        what = f"{len(left.busy)} virtual servers have connections, {len(left.addresses)} addresses are in use"
        waiting.append(Removed(ProxyMode.IPVS, left.family, what))


def translating(family: Family) -> frozenset[ProxyMode]:
    """Name the modes other than ipvs whose rules are in force. Raise CommitError or OSError if nobody can tell."""
    sock = NetlinkSocket(NETLINK_NETFILTER)
    try:
        tables = _tables(sock, family, ours=True)
    finally:
        sock.close()
    return frozenset({ProxyMode.NFTABLES} if tables else ()).union(*map(others, engines(family)))


def engines(family: Family) -> Iterator[Tool]:
    """Yield the tools of a family that can have rules here."""
    return with_tables(family, "removing rules of other modes")


def remove_tables(family: Family, *, ours: bool) -> list[str]:
    """Delete kube-proxy's table of nftables, and with `ours` our own; name those that there were.

    Raise CommitError if the kernel refuses.
    """
    sock = NetlinkSocket(NETLINK_NETFILTER)
    try:
        found = _tables(sock, family, ours=ours)
        for name in found:
            first = sock.sequence(3)
            sock.send(encode.transaction([encode.delete_table(family, name)], first))
            for answer in sock.acknowledgements():
                if answer.errno not in (0, errno.ENOENT):
                    raise CommitError(f"cannot delete the nftables table {name}", errno=answer.errno)
    finally:
        sock.close()
    return [f"table {'ip' if family is Family.IPV4 else 'ip6'} {name}" for name in found]


def _tables(sock: NetlinkSocket, family: Family, *, ours: bool) -> list[str]:
    try:
        tables = [decode.table(payload) for payload in sock.dump(MessageType.GETTABLE, encode.list_tables())]
    except NetlinkError as error:
        if error.errno in ABSENT | {errno.ENOENT}:  # this kernel has none
            return []
        raise
    names = {table.name for table in tables if table.family == NFPROTO[family]}
    kube_proxys = _KUBE_PROXYS in names and _has_chain(sock, family, _KUBE_PROXYS, _KUBE_PROXYS_CHAIN)
    return [_OURS] * (ours and _OURS in names) + [_KUBE_PROXYS] * kube_proxys


def _has_chain(sock: NetlinkSocket, family: Family, table: str, name: str) -> bool:
    payloads = sock.dump(MessageType.GETCHAIN, encode.list_objects(family, table))
    chains = [decode.chain(payload) for payload in payloads]
    return any(chain.table == table and chain.name == name for chain in chains)
