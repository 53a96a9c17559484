"""Reads this machine's routes: the address that masquerading takes, and the interface that packets leave by."""

import contextlib
import errno
import socket
import struct
from typing import NamedTuple

from vipwire.inspect.explain.masquerade import masquerade_source
from vipwire.linux.netlink.attributes import attribute, attributes
from vipwire.linux.netlink.route import GET_ADDRESS, addresses_request, decode_address
from vipwire.linux.netlink.socket import NETLINK_ROUTE, NetlinkSocket
from vipwire.model.net import Address, Family, family_of

_GET_ROUTE = 26
_ROUTE = struct.Struct(
    "=BBBBBBBBI"
)  # rtmsg: family, lengths of both prefixes, tos, table, protocol, scope, type, flags
_NO_WAY = {
    errno.ENETUNREACH: "network is unreachable",
    errno.EHOSTUNREACH: "host is unreachable",
    errno.EACCES: "a route prohibits it",
    errno.EINVAL: "a route drops it",
}
"""What the kernel says where there is no route, and of routes of the types unreachable, prohibit and blackhole."""
_DESTINATION, _OUT_INTERFACE, _GATEWAY = 1, 4, 5  # RTA_DST, RTA_OIF, RTA_GATEWAY


class _Way(NamedTuple):
    """The interface by which a packet leaves, and the next hop; `gateway` is None on the link itself."""

    link: int
    gateway: Address | None


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


def _way(netlink: NetlinkSocket, address: Address) -> _Way | None:
    family = socket.AF_INET if family_of(address) is Family.IPV4 else socket.AF_INET6
    request = _ROUTE.pack(family, len(address) * 8, 0, 0, 0, 0, 0, 0, 0) + attribute(_DESTINATION, address)
    for answer in netlink.request(_GET_ROUTE, request):
        found = attributes(answer.payload, _ROUTE.size)
        if _OUT_INTERFACE in found:
            gateway = found.get(_GATEWAY)
            (link,) = struct.unpack("=I", found[_OUT_INTERFACE])
            return _Way(link, None if gateway is None else Address(bytes(gateway)))
    return None
