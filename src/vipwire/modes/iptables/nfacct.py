"""Creates and reads the kernel's named packet counters (nfacct) over netlink, for the metrics.

Messages as in linux/netfilter/nfnetlink_acct.h, in network byte order. A counter must exist before a rule names it.
"""

import errno
import os
import struct
from collections.abc import Iterable
from typing import Final

from vipwire.linux.netlink.message import NLM_F_CREATE, collect_attributes, encode_string
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, NetlinkError, NetlinkSocket

_SUBSYSTEM: Final = 7 << 8
_NEW: Final = _SUBSYSTEM | 0
_GET: Final = _SUBSYSTEM | 1
_NAME: Final = 1
_PACKETS: Final = 2
_HEADER: Final = struct.pack("=BBH", 0, 0, 0)


def ensure_counters(names: Iterable[str]) -> str:
    """Create the missing counters; return the reason of a failure, or ""."""
    try:
        with NetlinkSocket(NETLINK_NETFILTER) as netlink:
            for name in names:
                try:
                    netlink.request(_NEW, _HEADER + encode_string(_NAME, name), NLM_F_CREATE)
                except NetlinkError as error:
                    if error.errno not in (errno.EEXIST, errno.EBUSY):
                        raise
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        return f"the kernel has no such counters ({reason}): it needs CONFIG_NETFILTER_NETLINK_ACCT"
    return ""


def read_counter(name: str) -> float | None:
    """Return the packets of a counter; None if it does not exist."""
    try:
        with NetlinkSocket(NETLINK_NETFILTER) as netlink:
            answers = netlink.request(_GET, _HEADER + encode_string(_NAME, name))
    except OSError:
        return None
    for answer in answers:
        found = collect_attributes(answer.payload, 4)
        if _PACKETS in found:
            return float(int.from_bytes(found[_PACKETS]))
    return None
