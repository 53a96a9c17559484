"""Reads this machine's routes: the address that masquerading takes, and the interface that packets leave by."""

import contextlib
import errno
import socket

from vipwire.inspect.explain.masquerade import masquerade_source
from vipwire.linux.netlink.route import (
    GET_ADDRESS,
    GET_ROUTE,
    Route,
    addresses_request,
    decode_address,
    decode_route,
    route_request,
)
from vipwire.linux.netlink.socket import NETLINK_ROUTE, NetlinkSocket
from vipwire.model.net import Address

_NO_WAY = {
    errno.ENETUNREACH: "network is unreachable",
    errno.EHOSTUNREACH: "host is unreachable",
    errno.EACCES: "a route prohibits it",
    errno.EINVAL: "a route drops it",
}
"""What the kernel says where there is no route, and of routes of the types unreachable, prohibit and blackhole."""


def source_towards(address: Address) -> Address | None:
    """Find the address that masquerading gives to packets to a destination; None if there is no route."""
    with contextlib.suppress(OSError), NetlinkSocket(NETLINK_ROUTE) as netlink:
        way = _way(netlink, address)
        if way is not None:
            found = [decode_address(payload) for payload in netlink.dump(GET_ADDRESS, addresses_request())]
            held = sorted((each for each in found if each is not None), key=lambda each: each.link)
            return masquerade_source(way.link, way.gateway or address, address, held)
    return None


def interface_towards(address: Address) -> str:
    """Name the interface by which this machine reaches an address; "" if it has no way there."""
    with contextlib.suppress(OSError), NetlinkSocket(NETLINK_ROUTE) as netlink:
        way = _way(netlink, address)
        return "" if way is None else socket.if_indextoname(way.link)
    return ""


def obstacle_towards(address: Address) -> str:
    """Return why this machine cannot send to an address, as the kernel would tell a process; "" if it can."""
    try:
        with NetlinkSocket(NETLINK_ROUTE) as netlink:
            try:
                _way(netlink, address)
            except OSError as error:
                return _NO_WAY.get(error.errno or 0, "")
    except OSError:  # nobody can be asked
        pass
    return ""


def _way(netlink: NetlinkSocket, address: Address) -> Route | None:
    """Find the route by which packets to an address leave this machine."""
    found = (decode_route(answer.payload) for answer in netlink.request(GET_ROUTE, route_request(address)))
    return next((each for each in found if each is not None and each.link), None)
