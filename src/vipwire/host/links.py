"""The network interfaces of this machine, and whether others have come since one looked.

As with addresses, the kernel's notifications only say that something happened; the truth is then dumped anew.
"""

import errno
from typing import Final

from vipwire.netlink.route import (
    GET_LINK,
    GROUP_LINK,
    NEW_LINK,
    Link,
    decode_link,
    links_request,
)
from vipwire.netlink.socket import NETLINK_ROUTE, DumpInterruptedError, NetlinkSocket

_ATTEMPTS: Final = 5


class LinkWatch:
    """The interfaces of the network namespace in which this was made, loopback left out."""

    def __init__(self) -> None:
        self._events = NetlinkSocket(NETLINK_ROUTE)
        self._requests = NetlinkSocket(NETLINK_ROUTE)
        # First listen, then read: what changes in between is heard of.
        self._events.join(GROUP_LINK)
        self._known: frozenset[Link] = frozenset()

    def close(self) -> None:
        """Close its sockets."""
        self._events.close()
        self._requests.close()

    def more(self) -> bool:
        """Report, without waiting, whether there may be an interface that `names` has not told of."""
        try:
            heard = [(message.type, decode_link(message.payload)) for message in self._events.pending()]
        except OSError as error:
            if error.errno != errno.ENOBUFS:  # more was said than there was room for: all the more reason to look
                raise
            return True
        # One that goes and comes again has another number.
        return any(kind == NEW_LINK and not link.loopback and link not in self._known for kind, link in heard)

    def names(self) -> frozenset[str]:
        """Read the names of all interfaces."""
        for attempt in range(_ATTEMPTS):
            try:
                found = [decode_link(payload) for payload in self._requests.dump(GET_LINK, links_request())]
            except DumpInterruptedError:
                if attempt == _ATTEMPTS - 1:
                    raise
                continue
            self._known = frozenset(link for link in found if not link.loopback)
            break
        return frozenset(link.name for link in self._known)
