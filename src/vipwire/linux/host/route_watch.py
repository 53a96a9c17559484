"""Hears by rtnetlink(7) that links or addresses change: one socket hears it, another asks what they are now.

The kernel's notifications say only that something happened; the truth is then asked for anew. So a lost notification
costs nothing.
"""

import errno
import socket
from collections.abc import Callable
from typing import Final, Self, TypeVar

from vipwire.linux.netlink.message import Message
from vipwire.linux.netlink.route import (
    GET_LINK,
    GROUP_LINK,
    NEW_LINK,
    Interface,
    decode_link,
    is_running,
    links_request,
)
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


class CarrierWatch(RouteWatch):
    """The state of an interface, by its name. When `fileno()` is readable (`loop.add_reader`), call `refresh`.

    `number` is its ifindex, 0 while there is none.
    """

    def __init__(self, interface: str) -> None:
        super().__init__(GROUP_LINK)
        self._interface = interface
        self.number, self.up = self._look()

    def refresh(self) -> bool:
        """Read the kernel's notifications, without waiting; report whether `up` or `number` changed."""
        self._heard()
        before = self.number, self.up
        self.number, self.up = self._look()
        return before != (self.number, self.up)

    def _look(self) -> tuple[int, bool]:
        try:
            number = socket.if_nametoindex(self._interface)
        except OSError:  # there is none of this name
            return 0, False
        link = self._link(number)
        return (0, False) if link is None else (number, is_running(link))


class LinkWatch(RouteWatch):
    """The interfaces of the network namespace in which this was made, loopback left out."""

    def __init__(self) -> None:
        super().__init__(GROUP_LINK)
        self._known: frozenset[Interface] = frozenset()

    def more(self) -> bool:
        """Report, without waiting, whether there may be an interface that `names` has not told of."""
        heard = self._heard()
        if heard is None:
            return True
        links = [(message.type, decode_link(message.payload)) for message in heard]
        # One that goes and comes again has another number.
        return any(kind == NEW_LINK and not link.loopback and link not in self._known for kind, link in links)

    def names(self) -> frozenset[str]:
        """Read the names of all interfaces. Raise DumpInterruptedError if changes do not end."""
        found = undisturbed(
            lambda: [decode_link(payload) for payload in self._requests.dump(GET_LINK, links_request())]
        )
        self._known = frozenset(link for link in found if not link.loopback)
        return frozenset(link.name for link in self._known)
