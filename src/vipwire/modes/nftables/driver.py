"""The Driver of nftables mode; also removes the nftables tables of earlier vipwires and of kube-proxy."""

import errno
from collections.abc import Iterable, Mapping
from typing import Final

from vipwire.config.configuration import Config
from vipwire.linux.host.kernel import require_nftables
from vipwire.linux.netlink.nftables import decode, encode
from vipwire.linux.netlink.nftables.generations import Generations
from vipwire.linux.netlink.nftables.wire import ABSENT, NFPROTO, MessageType
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, NetlinkError, NetlinkSocket
from vipwire.logging import log
from vipwire.model.net import Family
from vipwire.modes.nftables.kernel import NftablesBackend, delete_table
from vipwire.modes.nftables.mode import MODE
from vipwire.modes.nftables.pooled import PooledBackend
from vipwire.modes.nftables.probe import find_offloading_obstacle, probe_kernel
from vipwire.modes.nftables.table.names import DSTNAT, SRCNAT, TABLE
from vipwire.modes.nftables.table.text import format_table_name
from vipwire.modes.spec import Driver, Mode, ModeSpec, NatPriorities, Remains, RemovalResult, clean_by

_KUBE_PROXYS: Final = "kube-proxy"
_KUBE_PROXYS_CHAIN: Final = "nat-prerouting"
"""Distinguishes kube-proxy's table from another program's table of that name (pkg/proxy/nftables/proxier.go)."""


def _build_modes(config: Config, families: Iterable[Family], *, prepare: bool) -> Mapping[Family, Mode]:
    require_nftables()
    families = tuple(families)
    if prepare:
        probe_kernel(families)
    packets = _check_offloading(config.nftables.offload_packet_threshold, families, warn=prepare)
    generations, counters = Generations(), config.counters.level
    return {family: NftablesBackend(family, generations, counters, offload_after=packets) for family in families}


def _check_offloading(packets: int, families: Iterable[Family], *, warn: bool) -> int:
    """Return `packets`, or 0 if the kernel lacks flowtables.

    A viewer must do the same as the proxy, or it would report a permanent difference.
    """
    if packets and (obstacle := find_offloading_obstacle(families)):
        if warn:
            log.warning("not offloading connections; all packets meet the rules", reason=obstacle)
        return 0
    return packets


class TableRemains(Remains):
    """The tables of one family; `ours`: vipwire's own, too."""

    def __init__(self, family: Family, *, ours: bool) -> None:
        self._family, self._ours = family, ours

    def remove_before_rules(self) -> RemovalResult:
        """Delete the tables: no open connection needs their rules."""
        found = _list_tables_left(self._family, ours=self._ours)
        with NetlinkSocket(NETLINK_NETFILTER) as sock:
            for name in found:
                delete_table(sock, self._family, name)
        return RemovalResult(removed=tuple(f"table {format_table_name(self._family, name)}" for name in found))


def _list_tables_left(family: Family, *, ours: bool) -> list[str]:
    """Name kube-proxy's table, and with `ours` vipwire's. Raise OSError if the kernel does not list them."""
    with NetlinkSocket(NETLINK_NETFILTER) as sock:
        try:
            found = [decode.decode_table(each) for each in sock.dump(MessageType.GETTABLE, encode.list_tables())]
        except NetlinkError as error:
            if error.errno in ABSENT | {errno.ENOENT}:  # this kernel has no such table
                return []
            raise
        names = {table.name for table in found if table.family == NFPROTO[family]}
        kube_proxys = _KUBE_PROXYS in names and _has_chain(sock, family, _KUBE_PROXYS, _KUBE_PROXYS_CHAIN)
    return [TABLE] * (ours and TABLE in names) + [_KUBE_PROXYS] * kube_proxys


def _has_chain(sock: NetlinkSocket, family: Family, table: str, name: str) -> bool:
    payloads = sock.dump(MessageType.GETCHAIN, encode.list_objects(family, table))
    chains = [decode.decode_chain(payload) for payload in payloads]
    return any(chain.table == table and chain.name == name for chain in chains)


def _find_remains(family: Family, running: ModeSpec) -> TableRemains:
    return TableRemains(family, ours=running is not MODE and MODE.name not in running.includes)


DRIVER: Final = Driver(
    build=_build_modes,
    supposed=lambda config, families: _build_modes(config, families, prepare=False),
    attempt=lambda _, families: probe_kernel(families),
    sysctls=lambda _: (),
    priorities=NatPriorities(DSTNAT, DSTNAT, TABLE, SRCNAT),
    kernel_counters={},
    cleaners=clean_by(_build_modes),
    owner=lambda _: None,
    remains=_find_remains,
    translates=lambda family: bool(_list_tables_left(family, ours=True)),
    wrap_backend=lambda backend, _others: PooledBackend(backend) if isinstance(backend, NftablesBackend) else backend,
)
