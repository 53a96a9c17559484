"""Tells, without running a program, whether somebody else may have changed the rules.

nf_tables counts every commit of anybody in the network namespace. The legacy engine counts nothing, but says how
many rules each table has, how large it is and where its chains begin: what a flush or a foreign rule changes. What
others do while we write shows in the number of rules, if that is not what ours have become.
"""

import ctypes
import os
import socket
import sys
from collections.abc import Iterable, Mapping
from typing import Final, Protocol, TypeAlias

from vipwire.backends.iptables.names import TABLES
from vipwire.model.net import Family
from vipwire.netlink.generations import Generations
from vipwire.xtables.variant import Variant

Observation: TypeAlias = int | tuple[bytes, ...]
"""What was seen of the rules: two that differ mean that the rules were changed in between."""

_GET_INFO: Final = 64
"""IPT_SO_GET_INFO and IP6T_SO_GET_INFO (linux/netfilter_ipv4/ip_tables.h)."""
_NAME_SIZE: Final = 32
_INFO_SIZE: Final = _NAME_SIZE + 13 * 4
"""struct ipt_getinfo: name, valid_hooks, hook_entry[5], underflow[5], num_entries, size."""
_ENTRIES_AT: Final = _INFO_SIZE - 2 * 4


class ChangeDetector(Protocol):
    """Looks at the rules of one family."""

    def look(self) -> Observation:
        """Read the current state of the rules, to compare later ones with."""

    def after(self, before: Observation, commits: int) -> Observation | None:
        """Read the state after commits of ours; return None if others have committed meanwhile."""

    def close(self) -> None:
        """Close the socket."""


class TableSizes:
    """The legacy variant's."""

    def __init__(self, family: Family) -> None:
        ipv4 = family is Family.IPV4
        self._level = socket.IPPROTO_IP if ipv4 else socket.IPPROTO_IPV6
        self._socket = socket.socket(socket.AF_INET if ipv4 else socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_RAW)
        self._getsockopt = ctypes.CDLL(None, use_errno=True).getsockopt

    def look(self) -> tuple[bytes, ...]:
        """Read the sizes of every table."""
        return tuple(self._info(table) for table in TABLES)

    def after(self, before: Observation, commits: int) -> Observation | None:
        """Read the sizes after a commit of ours."""
        del before, commits
        return self.look()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _info(self, table: str) -> bytes:
        buffer = ctypes.create_string_buffer(table.encode(), _INFO_SIZE)
        length = ctypes.c_uint32(_INFO_SIZE)
        if self._getsockopt(self._socket.fileno(), self._level, _GET_INFO, buffer, ctypes.byref(length)):
            code = ctypes.get_errno()
            raise OSError(code, f"the legacy table {table}: {os.strerror(code)}")
        return buffer.raw


def grown_by(before: Observation, after: Observation, more: Mapping[str, int]) -> bool:
    """Report whether each table has grown by so many entries between two states; True where they do not tell."""
    if isinstance(before, int) or isinstance(after, int):
        return True
    return all(_entries(after[at]) - _entries(before[at]) == more.get(table, 0) for at, table in enumerate(TABLES))


def _entries(info: bytes) -> int:
    return int.from_bytes(info[_ENTRIES_AT : _ENTRIES_AT + 4], sys.byteorder)


def change_detectors(families: Iterable[Family], variant: Variant) -> dict[Family, ChangeDetector]:
    """Build the change detector of each family."""
    if variant is Variant.LEGACY:
        return {family: TableSizes(family) for family in families}
    return dict.fromkeys(families, Generations())
