"""Whether a network interface is up and has a carrier, and being told when that changes.

The kernel's notifications say only that something happened; the truth is then asked for anew.
"""

import errno
import socket
from typing import Self

from vipwire.netlink.route import GET_LINK, GROUP_LINK, is_running, links_request
from vipwire.netlink.socket import NETLINK_ROUTE, NetlinkError, NetlinkSocket


class CarrierWatch:
    """The state of an interface, by its name. When `fileno()` is readable (`loop.add_reader`), call `refresh`.

    `number` is its ifindex, 0 while there is none.
    """

    def __init__(self, interface: str) -> None:
        self._interface = interface
        self._events, self._requests = NetlinkSocket(NETLINK_ROUTE), NetlinkSocket(NETLINK_ROUTE)
        self._events.join(GROUP_LINK)  # first listen, then look: what changes in between is heard of
        self.number, self.up = self._look()

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

    def refresh(self) -> bool:
        """Read the kernel's notifications, without waiting; report whether `up` or `number` changed."""
        try:
            self._events.drain()
        except OSError as error:
            if error.errno != errno.ENOBUFS:  # more was said than there was room for: all the more reason to look
                raise
        before = self.number, self.up
        self.number, self.up = self._look()
        return before != (self.number, self.up)

    def _look(self) -> tuple[int, bool]:
        try:
            number = socket.if_nametoindex(self._interface)
            answers = self._requests.request(GET_LINK, links_request(number))
        except NetlinkError as error:
            if error.errno != errno.ENODEV:
                raise
            return 0, False
        except OSError:  # there is none of this name
            return 0, False
        return number, is_running(answers[0].payload)
