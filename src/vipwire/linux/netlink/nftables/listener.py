"""Hears of other programs' commits to the rules of nf_tables: the kernel sends each change to NFNLGRP_NFTABLES.

A listener has a price: for each element that any program adds or removes, the kernel takes microseconds, and holds
8 kB until the commit ends. So vipwire does not listen to its own large commits, and stops after another program's.
"""

import errno
from collections.abc import Iterable
from itertools import islice
from typing import Final, NamedTuple

from vipwire.linux.netlink.message import HEADER, encode_string
from vipwire.linux.netlink.nftables import decode, wire
from vipwire.linux.netlink.nftables.wire import MessageType
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, NetlinkSocket
from vipwire.linux.netlink.socket_filter import ignore_senders

_GROUP: Final = 7
"""NFNLGRP_NFTABLES."""
_DATAGRAM: Final = 1 << 14
"""Buffer for one notification in bytes; the kernel fills at most a page."""
_BATCH: Final = 256
LARGE: Final = 1 << 20
"""Bytes of one commit's notifications, about 20,000 elements, after which the listener stops."""


class Commit(NamedTuple):
    """Another program's commit; the process counts from the machine's first, 0 if the kernel does not tell."""

    program: str = ""
    process: int = 0


class CommitListener:
    """Hears of commits that touch tables of the given names, in both families.

    When `fileno()` is readable (`loop.add_reader`), call `heard`. `listening` ends after a commit with more than
    `large` bytes of notifications.
    """

    def __init__(self, tables: Iterable[str], large: int = LARGE) -> None:
        self._names = [encode_string(wire.TABLE_NAME, table).rstrip(b"\0") + b"\0" for table in tables]
        self._large, self._size = large, 0
        self._touched = self._missed = False
        self._ignored: set[int] = set()
        self.listening = True
        self._socket = NetlinkSocket(NETLINK_NETFILTER)
        self._socket.join(_GROUP)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def ignore(self, port: int) -> None:
        """Skip the commits of the netlink socket with this port ID."""
        self._ignored.add(port)
        self._socket.filter(ignore_senders(self._ignored))

    def pause(self) -> None:
        if self.listening:
            self._socket.leave(_GROUP)

    def resume(self) -> None:
        if self.listening:
            self._socket.join(_GROUP)

    def miss(self) -> None:
        """Make the next `heard` return a commit: the listener may have missed one."""
        self._missed = True

    def heard(self) -> Commit | None:
        """Read notifications, without waiting. Return the last commit to a table, if any; unknown if one was lost."""
        found: Commit | None = None
        try:
            for datagram in islice(self._socket.read_arrived_datagrams(_DATAGRAM), _BATCH):
                found = self._read_commit(datagram) or found
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            self._missed = True
        missed, self._missed = self._missed, False
        return found or (Commit() if missed else None)

    def _read_commit(self, datagram: bytes) -> Commit | None:
        """Read one notification. The kernel sends the one that ends a commit, with its author, last."""
        _, kind, _, _, _ = HEADER.unpack_from(datagram)
        if kind != MessageType.NEWGEN:
            self._touched = self._touched or any(name in datagram for name in self._names)
            self._size += len(datagram)
            if self._size > self._large and self.listening:
                self.pause()
                self.listening, self._missed = False, True
            return None
        touched, self._touched, self._size = self._touched, False, 0
        if not touched:
            return None
        author = decode.decode_generation(memoryview(datagram)[HEADER.size :])
        return Commit(author.process_name, author.process)
