"""Reads which addresses the connected sockets of this node have as their own."""

import sys
from pathlib import Path
from typing import Final

from vipwire.model.net import Address

_NET: Final = Path("/proc/thread-self/net")
_SOCKETS_OVER: Final = frozenset({"06", "07", "0A"})
"""TIME_WAIT, CLOSE and LISTEN, as /proc/net/tcp writes states."""
_MAPPED: Final = bytes(10) + b"\xff\xff"
"""How the address of an IPv4 connection of an IPv6 socket begins."""


def socket_sources() -> frozenset[Address]:
    """Read the addresses of this node's connected sockets."""
    tables = (_NET / name for name in ("tcp", "udp", "tcp6", "udp6"))
    return frozenset(
        each for table in tables if table.exists() for each in parse_sources(table.read_text(encoding="ascii"))
    )


def parse_sources(text: str) -> frozenset[Address]:
    """Read the local addresses of connected sockets from a table of /proc/net. Pure.

    Format: Documentation/networking/proc_net_tcp.rst; an address is in words of 32 bits in this machine's order.
    """
    found: set[Address] = set()
    for line in text.splitlines()[1:]:
        fields = line.split()
        if fields[3] not in _SOCKETS_OVER:
            found.add(_native(fields[1].partition(":")[0]))
    return frozenset(found)


def _native(digits: str) -> Address:
    words = [bytes.fromhex(digits[at : at + 8]) for at in range(0, len(digits), 8)]
    address = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
    return Address(address.removeprefix(_MAPPED))
