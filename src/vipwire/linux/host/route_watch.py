"""Two sockets of rtnetlink(7): one hears that links or addresses change, the other asks what they are now.

The kernel's notifications say only that something happened; the truth is then asked for anew. So a lost notification
costs nothing.
"""

import errno
from collections.abc import Callable
from typing import Final, Self, TypeVar

from vipwire.linux.netlink.message import Message
from vipwire.linux.netlink.route import GET_LINK, links_request
from vipwire.linux.netlink.socket import NETLINK_ROUTE, DumpInterruptedError, NetlinkError, NetlinkSocket

_ATTEMPTS: Final = 5
T = TypeVar("T")


def undisturbed(dump: Callable[[], T]) -> T:
    """Dump anew while changes come in between. Raise DumpInterruptedError if they do not end."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return dump()
        except DumpInterruptedError:
            continue
    return dump()


class RouteWatch:
    """Hears of some multicast groups in the network namespace in which this was made; what they are is a subclass's.

    When `fileno()` is readable (`loop.add_reader`), something may have changed.
    """

    def __init__(self, *groups: int) -> None:
        self._events, self._requests = NetlinkSocket(NETLINK_ROUTE), NetlinkSocket(NETLINK_ROUTE)
        for group in groups:  # first listen, then look: what changes in between is heard of
            self._events.join(group)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close its sockets; take `fileno()` out of the event loop before."""
        self._events.close()
        self._requests.close()

    def fileno(self) -> int:
        """Return the descriptor that is readable when something may have changed."""
        return self._events.fileno()

    def _heard(self) -> list[Message] | None:
        """Read the notifications that have come, without waiting; None if more was said than there was room for."""
        try:
            return list(self._events.pending())
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            return None

    def _link(self, number: int) -> memoryview | None:
        """Read an interface as it is now; None for one that is gone."""
        try:
            return self._requests.request(GET_LINK, links_request(number))[0].payload
        except NetlinkError as error:
            if error.errno != errno.ENODEV:
                raise
            return None
