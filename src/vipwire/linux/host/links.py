"""The network interfaces of this machine, and whether others have come since one looked."""

from vipwire.linux.host.route_watch import RouteWatch, undisturbed
from vipwire.linux.netlink.route import GET_LINK, GROUP_LINK, NEW_LINK, Link, decode_link, links_request


class LinkWatch(RouteWatch):
    """The interfaces of the network namespace in which this was made, loopback left out."""

    def __init__(self) -> None:
        super().__init__(GROUP_LINK)
        self._known: frozenset[Link] = frozenset()

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
