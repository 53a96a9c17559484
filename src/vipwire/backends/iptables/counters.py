"""The counters of rules, read from the kernel without the tools: which rule of which chain has seen how many packets.

Of each rule only its place, its comment and its counter are decoded. iptables-nft's rules come in a dump of nf_tables
(net/netfilter/nf_tables_api.c; a comment is the match `comment`), those of iptables-legacy as one block of memory
(struct ipt_replace and ipt_entry in linux/netfilter_ipv4/ip_tables.h, where a chain begins with a target ERROR that
holds its name).
"""

import ctypes
import os
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Final, NamedTuple

from vipwire.backends.iptables.tool import Variant
from vipwire.errors import DecodeError
from vipwire.model.net import Family
from vipwire.netlink.attributes import string, walk
from vipwire.netlink.nftables.wire import NFPROTO, RULE_CHAIN, RULE_EXPRESSIONS, RULE_TABLE, Kind
from vipwire.netlink.socket import NETLINK_NETFILTER, NetlinkSocket


class Counted(NamedTuple):
    """A rule: the `place`th of a chain, from 0."""

    chain: str
    place: int
    comment: str
    packets: int


def read_counters(family: Family, variant: Variant, table: str, chains: Iterable[str] | None = None) -> list[Counted]:
    """Read the rules of a table's chains; of all without `chains`. Raise OSError if the kernel does not show them."""
    if variant is Variant.LEGACY:
        wanted = None if chains is None else frozenset(chains)
        return [rule for rule in _entries(family, _block(family, table)) if wanted is None or rule.chain in wanted]
    found: list[Counted] = []
    with closing(NetlinkSocket(NETLINK_NETFILTER)) as netlink:
        for chain in ("",) if chains is None else chains:
            found += _rules(_dump(netlink, family, table, chain))
    return found


# nf_tables: an expression is a name and data; EXPR_NAME, EXPR_DATA = 1, 2.
_NAME, _DATA = 1, 2
_COUNTER_PACKETS: Final = 2
_MATCH_NAME, _MATCH_INFO = 1, 3


def _dump(netlink: NetlinkSocket, family: Family, table: str, chain: str) -> Iterator[memoryview]:
    request = struct.pack("=BBH", NFPROTO[family], 0, 0) + string(RULE_TABLE, table)
    return netlink.dump(Kind.GETRULE, request + (string(RULE_CHAIN, chain) if chain else b""))


def _rules(payloads: Iterable[memoryview]) -> Iterator[Counted]:
    current, place = b"", 0
    name = ""
    for payload in payloads:
        chain, expressions = b"", memoryview(b"")
        for kind, value in walk(payload, 4):
            if kind == RULE_CHAIN:
                chain = bytes(value)
            elif kind == RULE_EXPRESSIONS:
                expressions = value
        if chain != current:
            current, place, name = chain, 0, _text(chain)
        yield Counted(name, place, *_seen(expressions))
        place += 1


def _seen(expressions: memoryview) -> tuple[str, int]:
    comment, packets = "", 0
    for _, expression in walk(expressions):
        (_, name), *rest = walk(expression)
        what = bytes(name)
        if what == b"counter\0" and rest:
            packets = next((int.from_bytes(value) for kind, value in walk(rest[0][1]) if kind == _COUNTER_PACKETS), 0)
        elif what == b"match\0" and rest:
            parts = dict(walk(rest[0][1]))
            if bytes(parts.get(_MATCH_NAME, b"")) == b"comment\0":
                comment = _text(bytes(parts.get(_MATCH_INFO, b"")))
    return comment, packets


# The legacy engine.
_GET_INFO, _GET_ENTRIES = 64, 65
_TABLE_NAME: Final = 32
_INFO: Final = struct.Struct("=32s I 5I 5I I I")
_ASK: Final = struct.Struct("=32s I 4x")
_EXTENSION: Final = struct.Struct("=H 29s B")
_XT_HEADER: Final = 32


class _Shape(NamedTuple):
    """Where in an entry its offsets are, its packet counter, and its first match."""

    offsets: int
    packets: int
    matches: int


_SHAPES: Final = {Family.IPV4: _Shape(88, 96, 112), Family.IPV6: _Shape(140, 152, 168)}
_OFFSETS: Final = struct.Struct("=HH")
_PACKETS: Final = struct.Struct("=Q")


def _block(family: Family, table: str) -> bytes:
    """Read a table as the kernel keeps it. It may grow in between: then it is asked for again."""
    ipv4 = family is Family.IPV4
    level = socket.IPPROTO_IP if ipv4 else socket.IPPROTO_IPV6
    name = table.encode()
    with socket.socket(socket.AF_INET if ipv4 else socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_RAW) as opened:
        while True:
            info = _INFO.unpack(_ask(opened, level, _GET_INFO, name.ljust(_INFO.size, b"\0")))
            try:
                answer = _ask(opened, level, _GET_ENTRIES, _ASK.pack(name, info[-1]) + bytes(info[-1]))
            except BlockingIOError:
                continue
            return answer[_ASK.size :]


def _ask(opened: socket.socket, level: int, what: int, question: bytes) -> bytes:
    """Ask for a socket option that is told by what is in the buffer, which socket.getsockopt cannot."""
    buffer = ctypes.create_string_buffer(question, len(question))
    length = ctypes.c_uint32(len(question))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.getsockopt(opened.fileno(), level, what, buffer, ctypes.byref(length)):
        code = ctypes.get_errno()
        raise OSError(code, f"the legacy tables: {os.strerror(code)}")
    return buffer.raw


def _entries(family: Family, block: bytes) -> Iterator[Counted]:
    """Go through a table. Every chain of a user ends with a rule that returns, which is the kernel's own."""
    shape = _SHAPES[family]
    at, chain, place = 0, "", 0
    while at < len(block):
        target, following = _OFFSETS.unpack_from(block, at + shape.offsets)
        if following < shape.matches or at + following > len(block):
            raise DecodeError(f"a rule of the legacy tables says it is {following} bytes long")
        _, name, _ = _EXTENSION.unpack_from(block, at + target)
        if name.startswith(b"ERROR\0"):
            chain, place = _text(block[at + target + _XT_HEADER : at + following]), 0
        else:
            comment = _comment(block, at + shape.matches, at + target)
            yield Counted(chain, place, comment, *_PACKETS.unpack_from(block, at + shape.packets))
            place += 1
        at += following


def _comment(block: bytes, at: int, end: int) -> str:
    while at < end:
        size, name, _ = _EXTENSION.unpack_from(block, at)
        if name.startswith(b"comment\0"):
            return _text(block[at + _XT_HEADER : at + size])
        if size < _XT_HEADER:
            raise DecodeError(f"a match of the legacy tables says it is {size} bytes long")
        at += size
    return ""


def _text(value: bytes) -> str:
    return value.partition(b"\0")[0].decode(errors="replace")
