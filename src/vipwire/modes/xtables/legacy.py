"""Reads the tables of iptables-legacy from the kernel, without a program.

Structs as in linux/netfilter_ipv4/ip_tables.h; IPv6 has the same numbers and, except entries, the same structs.
Reading an unused table creates it: see `tool.list_legacy_tables`.
"""

import ctypes
import os
import re
import socket
import struct
from typing import Final, NamedTuple

from vipwire.model.net import Family

_GET_INFO, _GET_ENTRIES = 64, 65
_INFO: Final = struct.Struct("=32s I 5I 5I I I")
_ASK: Final = struct.Struct("=32s I 4x")
_CHAIN: Final = re.compile(rb"\x40\0ERROR\0{25}([^\0]{1,29})\0")
"""The first bytes of a user-defined chain: a target ERROR of 64 bytes, with the name (struct xt_error_target)."""
_HEAD_AND_END: Final = 2


class Info(NamedTuple):
    """The kernel's description of a table; `raw` is all of it."""

    raw: bytes
    hooks: int
    entries: int
    size: int


class Census(NamedTuple):
    """The user-defined chains, and the number of rules."""

    chains: frozenset[str]
    rules: int


class LegacySocket:
    """A socket for a family's tables, in the network namespace of its creation."""

    def __init__(self, family: Family) -> None:
        ipv4 = family is Family.IPV4
        self._level = socket.IPPROTO_IP if ipv4 else socket.IPPROTO_IPV6
        # Any socket of the family does with CAP_NET_ADMIN; a raw one, as iptables opens, would need CAP_NET_RAW, too.
        self._socket = socket.socket(socket.AF_INET if ipv4 else socket.AF_INET6, socket.SOCK_DGRAM)
        self._getsockopt = ctypes.CDLL(None, use_errno=True).getsockopt

    def close(self) -> None:
        self._socket.close()

    def read_info(self, table: str) -> Info:
        """Read a table's hooks and size."""
        buffer = ctypes.create_string_buffer(table.encode(), _INFO.size)
        self._request(table, _GET_INFO, buffer)
        found = _INFO.unpack(buffer.raw)
        return Info(buffer.raw, found[1], found[-2], found[-1])

    def read_entries(self, table: str) -> memoryview:
        """Read a table in the kernel's form; retry if it grows meanwhile."""
        while True:
            size = self.read_info(table).size
            buffer = ctypes.create_string_buffer(_ASK.size + size)
            _ASK.pack_into(buffer, 0, table.encode(), size)
            try:
                self._request(table, _GET_ENTRIES, buffer)
            except BlockingIOError:
                continue
            return memoryview(buffer).cast("B")[_ASK.size :]

    def count_rules(self, table: str) -> Census:
        """Count a table's rules: all entries but the end of each chain and the beginning of user-defined ones."""
        info, block = self.read_info(table), self.read_entries(table)
        names = [found[1] for found in _CHAIN.finditer(block)]
        chains = frozenset(name.decode("utf-8", "replace") for name in names if name != b"ERROR")
        overhead = info.hooks.bit_count() + _HEAD_AND_END * len(chains) + 1
        return Census(chains, max(0, info.entries - overhead))

    def _request(self, table: str, what: int, buffer: "ctypes.Array[ctypes.c_char]") -> None:
        """Call getsockopt(2) with the question in its buffer; socket.getsockopt cannot pass one."""
        length = ctypes.c_uint32(len(buffer))
        if self._getsockopt(self._socket.fileno(), self._level, what, buffer, ctypes.byref(length)):
            code = ctypes.get_errno()
            raise OSError(code, f"the legacy table {table}: {os.strerror(code)}")
