"""Names the chains of a family's tables, and nothing else of them: of iptables mode there may be a hundred thousand.

The kernel says a chain's table first, then its handle and its name, then its hook if it has one
(nf_tables_fill_chain_info). A message in another order is decoded as a whole.
"""

import errno
import struct
from typing import Final

from vipwire.errors import DecodeError
from vipwire.linux.netlink.attributes import TYPE_MASK, string
from vipwire.linux.netlink.message import HEADER, NLM_F_DUMP_INTR
from vipwire.linux.netlink.nftables import decode, wire
from vipwire.linux.netlink.nftables.wire import MessageType
from vipwire.linux.netlink.socket import DumpInterruptedError, NetlinkSocket
from vipwire.model.net import Family

_ATTRIBUTE: Final = struct.Struct("=HH")
_BODY: Final = HEADER.size + 4
_HANDLE: Final = _ATTRIBUTE.pack(12, wire.CHAIN_HANDLE)
_DATAGRAM: Final = 1 << 15


def chain_names(sock: NetlinkSocket, family: Family) -> dict[str, dict[str, bool]]:
    """List the chains by table, each with whether it is a base chain. Raise DumpInterruptedError if they change."""
    found: dict[str, dict[str, bool]] = {}
    tables: dict[bytes, dict[str, bool]] = {}
    for datagram in sock.datagrams(MessageType.GETCHAIN, wire.header(wire.NFPROTO[family]), _DATAGRAM):
        at, end = 0, len(datagram)
        while at < end:
            length, _, flags, _, _ = HEADER.unpack_from(datagram, at)
            if flags & NLM_F_DUMP_INTR:
                raise DumpInterruptedError(errno.EINTR, "the dump was interrupted by a change")
            if length <= _BODY or at + length > end:
                raise DecodeError(f"a message of {length} bytes in a list of chains")
            table, name, is_base = _read(datagram, at + _BODY, at + length)
            chains = tables.get(table)
            if chains is None:
                chains = tables[table] = found.setdefault(table[_ATTRIBUTE.size :].rstrip(b"\0").decode(), {})
            chains[name] = is_base
            at += length + 3 & ~3
    return found


def _read(datagram: bytes, at: int, end: int) -> tuple[bytes, str, bool]:
    """Read a chain's table, as the attribute that names it, its name, and whether it has a hook."""
    begin = at
    size, kind = _ATTRIBUTE.unpack_from(datagram, at)
    at += size + 3 & ~3
    table = datagram[begin:at]
    if datagram.startswith(_HANDLE, at):
        at += 12
    if kind == wire.CHAIN_TABLE and at + _ATTRIBUTE.size <= end:
        size, kind = _ATTRIBUTE.unpack_from(datagram, at)
        following = at + (size + 3 & ~3)
        if kind == wire.CHAIN_NAME and following + _ATTRIBUTE.size <= end:
            name = datagram[at + _ATTRIBUTE.size : at + size - 1].decode()
            return table, name, _ATTRIBUTE.unpack_from(datagram, following)[1] & TYPE_MASK == wire.CHAIN_HOOK
    whole = decode.chain(memoryview(datagram)[begin - 4 : end])
    return string(wire.CHAIN_TABLE, whole.table), whole.name, whole.hook is not None
