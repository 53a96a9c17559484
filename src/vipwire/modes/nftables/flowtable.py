"""Keeps one family's flowtable at every interface except loopback.

A flowtable handles packets that enter by its devices, which come and go with Pods. The kernel refuses a whole
transaction that names a removed device, so vipwire adds devices in a separate transaction; until then packets pass
the rules. The kernel drops removed devices itself.
"""

import errno
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from vipwire.errors import CommitError
from vipwire.linux.host.route_watch import LinkWatch
from vipwire.linux.netlink.nftables import encode
from vipwire.linux.netlink.nftables.flowtables import Flowtable, add_devices, decode_flowtable
from vipwire.linux.netlink.nftables.generations import Generations
from vipwire.linux.netlink.nftables.wire import NFPROTO, MessageType
from vipwire.linux.netlink.socket import DumpInterruptedError, NetlinkSocket
from vipwire.model.net import Family
from vipwire.modes.nftables.table import names
from vipwire.modes.nftables.table.fastpath import FASTPATH
from vipwire.modes.nftables.table.names import TABLE

_LOOK: Final = 1.0
"""Seconds between two reads of the kernel's interface notifications, and before a retry."""
_ATTEMPTS: Final = 3


def find_flowtable(sock: NetlinkSocket, family: Family) -> Flowtable | None:
    """Read vipwire's flowtable; None if none exists.

    Raise DumpInterruptedError if another program commits meanwhile.
    """
    ours = NFPROTO[family], TABLE, FASTPATH
    payloads = list(sock.dump(MessageType.GETFLOWTABLE, encode.list_objects(family, TABLE)))
    found = map(decode_flowtable, payloads)
    return next((each for each in found if (each.family, each.table, each.name) == ours), None)


class FlowtableDevices:
    """The devices of one family's flowtable.

    `sock` and `generations` belong to the table's backend.
    """

    def __init__(
        self,
        family: Family,
        sock: NetlinkSocket,
        generations: Generations,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._family, self._socket, self._generations, self._clock = family, sock, generations, clock
        self._links = LinkWatch()
        self._there = self._stale = False
        self._next = 0.0

    def close(self) -> None:
        self._links.close()

    def record_flowtable(self, *, there: bool) -> None:
        """Note whether the flowtable exists, after a read or a write."""
        self._there = self._stale = there
        self._next = 0.0

    def due(self) -> float | None:
        """Return the seconds until the next `add_missing_devices`; None without a flowtable."""
        if not self._there:
            return None
        wait = self._next - self._clock()
        if wait > 0:
            return wait
        self._stale = self._stale or self._links.more()
        if not self._stale:
            self._next = self._clock() + _LOOK
            return _LOOK
        return 0.0

    def add_missing_devices(self) -> None:
        """Add the missing devices. Raise OSError or CommitError if the kernel refuses."""
        self._next = self._clock() + _LOOK
        for _ in range(_ATTEMPTS):
            with suppress(DumpInterruptedError):
                found = find_flowtable(self._socket, self._family)
                missing = self._links.names() - found.devices if found else frozenset[str]()
                if not missing or self._add_devices(missing):
                    self._stale = False
                    return

    def _add_devices(self, missing: frozenset[str]) -> bool:
        """Add devices; report whether they and the flowtable still existed."""
        wanted = names.FlowtableSpec()
        operations = add_devices(self._family, TABLE, FASTPATH, wanted.priority, wanted.flags, sorted(missing))
        first = self._socket.reserve_sequence_numbers(len(operations) + 2)
        self._socket.drain()
        self._socket.send(*encode.encode_transaction(operations, first))
        refused = [answer for answer in self._socket.read_acknowledgements() if answer.errno]
        if not refused:
            self._generations.count_own(1)
            return True
        if any(answer.errno != errno.ENOENT for answer in refused):
            reason = errno.errorcode.get(refused[0].errno, str(refused[0].errno))
            raise CommitError(f"the flowtable {FASTPATH} does not take devices: {reason}", errno=refused[0].errno)
        return False
