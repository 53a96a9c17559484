"""Finds tables that nftables mode left: `vipwire` of any layout, and `kube-proxy` if it has kube-proxy's chains."""

import errno
from typing import TYPE_CHECKING, Final

from vipwire.errors import CommitError
from vipwire.linux.netlink.nftables import decode, encode
from vipwire.linux.netlink.nftables.wire import ABSENT, NFPROTO, MessageType
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, NetlinkError, NetlinkSocket
from vipwire.model.net import Family
from vipwire.modes.remains import RemovalResult

if TYPE_CHECKING:
    from vipwire.modes.xtables.ownership import Place

_OURS: Final = "vipwire"
_KUBE_PROXYS: Final = "kube-proxy"
_KUBE_PROXYS_CHAIN: Final = "nat-prerouting"
"""Tells kube-proxy's table from one of that name by somebody else (pkg/proxy/nftables/proxier.go)."""


class TableRemains:
    """The tables of one family; with `ours` our own is among them."""

    def __init__(self, family: Family, *, ours: bool) -> None:
        self._family, self._ours = family, ours

    def before_rules(self) -> RemovalResult:
        """Delete the tables: nothing in them is asked about connections that there are."""
        return RemovalResult(removed=tuple(remove_tables(self._family, ours=self._ours)))

    def held(self) -> "frozenset[Place]":
        """Return nothing: this mode holds no chain."""
        return frozenset()

    def after_rules(self) -> RemovalResult:
        """Return nothing: all is removed before the rules."""
        return RemovalResult()


def tables(family: Family) -> list[str]:
    """Name the tables of this mode, ours and kube-proxy's. Raise OSError if nobody can tell."""
    sock = NetlinkSocket(NETLINK_NETFILTER)
    try:
        return _tables(sock, family, ours=True)
    finally:
        sock.close()


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
        found = [decode.table(payload) for payload in sock.dump(MessageType.GETTABLE, encode.list_tables())]
    except NetlinkError as error:
        if error.errno in ABSENT | {errno.ENOENT}:  # this kernel has none
            return []
        raise
    names = {table.name for table in found if table.family == NFPROTO[family]}
    kube_proxys = _KUBE_PROXYS in names and _has_chain(sock, family, _KUBE_PROXYS, _KUBE_PROXYS_CHAIN)
    return [_OURS] * (ours and _OURS in names) + [_KUBE_PROXYS] * kube_proxys


def _has_chain(sock: NetlinkSocket, family: Family, table: str, name: str) -> bool:
    payloads = sock.dump(MessageType.GETCHAIN, encode.list_objects(family, table))
    chains = [decode.chain(payload) for payload in payloads]
    return any(chain.table == table and chain.name == name for chain in chains)
