"""The tables of iptables-legacy, asked of the kernel without a program.

Structs as in linux/netfilter_ipv4/ip_tables.h; IPv6 has the same numbers and, but for entries, the same structs. A
table that nobody has used yet is made by asking for it: see `tool.legacy_tables`.
"""

import ctypes
import os
import re
import socket
import struct
from typing import Final, NamedTuple

from vipwire.model.net import Family

_GET_INFO, _GET_ENTRIES = 64, 65
_NAME_SIZE: Final = 32
_INFO: Final = struct.Struct("=32s I 5I 5I I I")
_ASK: Final = struct.Struct("=32s I 4x")
_CHAIN: Final = re.compile(rb"\x40\0ERROR\0{25}([^\0]{1,29})\0")
"""What begins a chain that somebody made: a target ERROR of 64 bytes, with the name (struct xt_error_target)."""
_HEAD_AND_END: Final = 2


class Info(NamedTuple):
    """What the kernel says of a table: `raw` is all of it."""

    raw: bytes
    hooks: int
    entries: int
    size: int


class Census(NamedTuple):
    """The chains that somebody made, and the number of rules."""

    chains: frozenset[str]
    rules: int


class LegacySocket:
    """A socket of the network namespace in which it was opened, by which the tables of a family are asked for."""

    def __init__(self, family: Family) -> None:
        ipv4 = family is Family.IPV4
        self._level = socket.IPPROTO_IP if ipv4 else socket.IPPROTO_IPV6
        self._socket = socket.socket(socket.AF_INET if ipv4 else socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_RAW)
        self._getsockopt = ctypes.CDLL(None, use_errno=True).getsockopt

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def info(self, table: str) -> Info:
        """Ask for a table's hooks and size."""
        buffer = ctypes.create_string_buffer(table.encode(), _INFO.size)
        self._ask(table, _GET_INFO, buffer)
        found = _INFO.unpack(buffer.raw)
        return Info(buffer.raw, found[1], found[-2], found[-1])

    def entries(self, table: str) -> memoryview:
        """Read a table as the kernel keeps it. It may grow in between: then it is asked for again."""
        while True:
            size = self.info(table).size
            buffer = ctypes.create_string_buffer(_ASK.size + size)
            _ASK.pack_into(buffer, 0, table.encode(), size)
            try:
                self._ask(table, _GET_ENTRIES, buffer)
            except BlockingIOError:
                continue
            return memoryview(buffer).cast("B")[_ASK.size :]

    def census(self, table: str) -> Census:
        """Count a table's rules: of its entries each chain has one that ends it, and those of others one before."""
        info, block = self.info(table), self.entries(table)
        names = [found[1] for found in _CHAIN.finditer(block)]
        chains = frozenset(name.decode("utf-8", "replace") for name in names if name != b"ERROR")
        overhead = info.hooks.bit_count() + _HEAD_AND_END * len(chains) + 1
        return Census(chains, max(0, info.entries - overhead))

    def _ask(self, table: str, what: int, buffer: "ctypes.Array[ctypes.c_char]") -> None:
        """Call getsockopt(2) with a buffer that holds the question, which socket.getsockopt cannot."""
        length = ctypes.c_uint32(len(buffer))
        if self._getsockopt(self._socket.fileno(), self._level, what, buffer, ctypes.byref(length)):
            code = ctypes.get_errno()
            raise OSError(code, f"the legacy table {table}: {os.strerror(code)}")
