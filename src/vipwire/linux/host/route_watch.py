"""Watches links and addresses by rtnetlink(7): one socket receives notifications, another reads the state.

A notification only triggers a new read, so that a lost notification costs nothing.
"""

import errno
from collections.abc import Callable
from typing import Final, Self, TypeVar

from vipwire.linux.netlink.links import (
    GET_LINK,
    GROUP_LINK,
    NEW_LINK,
    Interface,
    decode_link,
    encode_list_links,
)
from vipwire.linux.netlink.message import Message
from vipwire.linux.netlink.socket import NETLINK_ROUTE, DumpInterruptedError, NetlinkError, NetlinkSocket

_ATTEMPTS: Final = 5
T = TypeVar("T")


def repeat_dump(dump: Callable[[], T]) -> T:
    """Repeat a dump until no change interrupts it. Raise DumpInterruptedError after several attempts."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return dump()
        except DumpInterruptedError:
            continue
    return dump()


class RouteWatch:
    """Watches multicast groups in the network namespace in which this was made; subclasses read the state.

    When `fileno()` is readable (`loop.add_reader`), the state may have changed.
    """

    def __init__(self, *groups: int) -> None:
        self._events, self._requests = NetlinkSocket(NETLINK_ROUTE), NetlinkSocket(NETLINK_ROUTE)
        for group in groups:  # join before reading, so that no change is missed
            self._events.join(group)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the sockets; remove `fileno()` from the event loop before."""
        self._events.close()
        self._requests.close()

    def fileno(self) -> int:
        """Return the descriptor that is readable when the state may have changed."""
        return self._events.fileno()

    def _read_notifications(self) -> list[Message] | None:
        """Read the notifications, without waiting; None if the kernel dropped some."""
        try:
            return list(self._events.read_pending_messages())
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            return None

    def _link(self, number: int) -> memoryview | None:
        """Read an interface's current state; None if it is gone."""
        try:
            return self._requests.request(GET_LINK, encode_list_links(number))[0].payload
        except NetlinkError as error:
            if error.errno != errno.ENODEV:
                raise
            return None


class LinkWatch(RouteWatch):
    """The interfaces of the network namespace in which this was made, without loopback."""

    def __init__(self) -> None:
        super().__init__(GROUP_LINK)
        self._known: frozenset[Interface] = frozenset()

    def more(self) -> bool:
        """Report, without waiting, whether an interface may exist that `names` has not returned."""
        heard = self._read_notifications()
        if heard is None:
            return True
        links = [(message.type, decode_link(message.payload)) for message in heard]
        # A recreated interface has another number.
        return any(kind == NEW_LINK and not link.loopback and link not in self._known for kind, link in links)

    def names(self) -> frozenset[str]:
        """Read the names of all interfaces. Raise DumpInterruptedError if changes do not end."""
        found = repeat_dump(
            lambda: [decode_link(payload) for payload in self._requests.dump(GET_LINK, encode_list_links())]
        )
        self._known = frozenset(link for link in found if not link.loopback)
        return frozenset(link.name for link in self._known)
