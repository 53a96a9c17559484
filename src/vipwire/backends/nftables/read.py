"""Reads the sets in which packets count, over a socket of its own, so that a scrape and a sync do not meet."""

import errno
from collections.abc import Iterable
from contextlib import suppress

from vipwire.backends.nftables.names import TABLE
from vipwire.model.net import Family
from vipwire.netlink.nftables import encode
from vipwire.netlink.nftables.counted import Counted, decode_counted
from vipwire.netlink.nftables.wire import Kind
from vipwire.netlink.socket import NETLINK_NETFILTER, DumpInterruptedError, NetlinkError, NetlinkSocket


def read_counted(family: Family, names: Iterable[str]) -> dict[str, list[Counted]]:
    """Read these sets of our table of one family: elements by set, none where there is no such set.

    Elements that come or go meanwhile may be missing or stand there twice; of each the last is taken. Raise OSError
    where the kernel does not let itself be read.
    """
    with NetlinkSocket(NETLINK_NETFILTER) as netlink:
        return {name: _read(netlink, family, name) for name in names}


def _read(netlink: NetlinkSocket, family: Family, name: str) -> list[Counted]:
    found: dict[bytes, Counted] = {}
    try:
        with suppress(DumpInterruptedError):
            for payload in netlink.dump(Kind.GETSETELEM, encode.list_elements(family, TABLE, name)):
                found.update((each.key, each) for each in decode_counted(payload))
    except NetlinkError as error:
        if error.errno != errno.ENOENT:
            raise
    return list(found.values())
