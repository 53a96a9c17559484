"""Watches whether an interface exists and has a carrier."""

import socket

from vipwire.linux.host.route_watch import RouteWatch
from vipwire.linux.netlink.links import GROUP_LINK, is_running


class CarrierWatch(RouteWatch):
    """The state of an interface, by its name. When `fileno()` is readable (`loop.add_reader`), call `refresh`.

    `number` is its ifindex, 0 if it does not exist.
    """

    def __init__(self, interface: str) -> None:
        super().__init__(GROUP_LINK)
        self._interface = interface
        self.number, self.up = self._read_link_state()

    def refresh(self) -> bool:
        """Read the kernel's notifications, without waiting; report whether `up` or `number` changed."""
        self._read_notifications()
        before = self.number, self.up
        self.number, self.up = self._read_link_state()
        return before != (self.number, self.up)

    def _read_link_state(self) -> tuple[int, bool]:
        try:
            number = socket.if_nametoindex(self._interface)
        except OSError:  # no interface has this name
            return 0, False
        link = self._link(number)
        return (0, False) if link is None else (number, is_running(link))
