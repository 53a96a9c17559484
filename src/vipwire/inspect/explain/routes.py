"""Reads this machine's routes: the source address of masquerading, and the output interface."""

import contextlib
import errno
import socket
from collections.abc import Iterable, Sequence

from vipwire.linux.netlink.links import (
    FLAG_DUPLICATE,
    GET_ADDRESS,
    SCOPE_GLOBAL,
    SCOPE_LINK,
    InterfaceAddress,
    decode_address,
    encode_list_addresses,
)
from vipwire.linux.netlink.route import GET_ROUTE, Route, decode_route, encode_get_route
from vipwire.linux.netlink.socket import NETLINK_ROUTE, NetlinkSocket
from vipwire.model.net import Address, Prefix

_NO_WAY = {
    errno.ENETUNREACH: "network is unreachable",
    errno.EHOSTUNREACH: "host is unreachable",
    errno.EACCES: "a route prohibits it",
    errno.EINVAL: "a route drops it",
}
"""The kernel's errors without a route, and of routes of the types unreachable, prohibit and blackhole."""


def find_source_towards(address: Address) -> Address | None:
    """Return the source that masquerading gives to packets to a destination; None without a route."""
    with contextlib.suppress(OSError), NetlinkSocket(NETLINK_ROUTE) as netlink:
        way = _ask_route(netlink, address)
        if way is not None:
            found = [decode_address(payload) for payload in netlink.dump(GET_ADDRESS, encode_list_addresses())]
            held = sorted((each for each in found if each is not None), key=lambda each: each.link)
            return choose_masquerade_source(way.link, way.gateway or address, address, held)
    return None


def find_interface_towards(address: Address) -> str:
    """Return the interface by which this machine reaches an address; "" without a route."""
    with contextlib.suppress(OSError), NetlinkSocket(NETLINK_ROUTE) as netlink:
        way = _ask_route(netlink, address)
        return "" if way is None else socket.if_indextoname(way.link)
    return ""


def find_obstacle_towards(address: Address) -> str:
    """Return why this machine cannot send to an address, in the kernel's words; "" if it can."""
    try:
        with NetlinkSocket(NETLINK_ROUTE) as netlink:
            try:
                _ask_route(netlink, address)
            except OSError as error:
                return _NO_WAY.get(error.errno or 0, "")
    except OSError:  # the kernel gives no netlink socket
        pass
    return ""


def _ask_route(netlink: NetlinkSocket, address: Address) -> Route | None:
    found = (decode_route(answer.payload) for answer in netlink.request(GET_ROUTE, encode_get_route(address)))
    return next((each for each in found if each is not None and each.link), None)


_SECONDARY, _DEPRECATED, _TENTATIVE = 0x01, 0x20, 0x40  # IFA_F_*
_LABELS = tuple(
    (Prefix.parse(text), label)
    for text, label in (
        ("::1/128", 0),
        ("::/96", 3),
        ("2001::/32", 6),
        ("2001:10::/28", 7),
        ("2002::/16", 2),
        ("fc00::/7", 5),
        ("::/0", 1),
    )
)
"""The kernel's table of labels (net/ipv6/addrlabel.c), the longer prefixes first."""
_LINK_LOCAL = Prefix.parse("fe80::/10")


def choose_masquerade_source(
    link: int, next_hop: Address, destination: Address, addresses: Iterable[InterfaceAddress]
) -> Address | None:
    """Choose the source of packets that leave by an interface; None if no address of this machine fits.

    `next_hop` is the router on the way, or the destination itself.
    """
    ours = [each for each in addresses if len(each.address) == len(destination)]
    if len(destination) == 4:
        return _choose_ipv4_source(link, next_hop, ours)
    return _choose_ipv6_source(link, destination, ours)


def _choose_ipv4_source(link: int, next_hop: Address, addresses: Sequence[InterfaceAddress]) -> Address | None:
    """Choose the interface's address in the next hop's network, else its first, else any interface's first."""
    usable = [each for each in addresses if each.scope == SCOPE_GLOBAL and not each.flags & _SECONDARY]
    here = [each for each in usable if each.link == link]
    near = [each for each in here if _count_common_bits(each.address, next_hop) >= each.prefix_length]
    return next((each.address for each in (*near, *here, *usable)), None)


def _choose_ipv6_source(link: int, destination: Address, addresses: Sequence[InterfaceAddress]) -> Address | None:
    usable = [each for each in addresses if not each.flags & (FLAG_DUPLICATE | _TENTATIVE)]
    if destination in _LINK_LOCAL:
        usable = [each for each in usable if each.link == link]
    best = max(usable, key=lambda each: _rank_source_address(each, link, destination), default=None)
    return None if best is None else best.address


def _rank_source_address(candidate: InterfaceAddress, link: int, destination: Address) -> tuple[int, ...]:
    """Rank a candidate by rules 1, 2, 3, 5, 6 and 8 of RFC 6724; of equals the kernel takes the first."""
    address = candidate.address
    wanted = SCOPE_LINK if destination in _LINK_LOCAL else SCOPE_GLOBAL
    return (
        address == destination,
        candidate.scope == wanted,
        -candidate.scope,
        not candidate.flags & _DEPRECATED,
        candidate.link == link,
        _label_address(address) == _label_address(destination),
        min(_count_common_bits(address, destination), candidate.prefix_length),
    )


def _label_address(address: Address) -> int:
    return next(label for prefix, label in _LABELS if address in prefix)


def _count_common_bits(one: Address, other: Address) -> int:
    """Count the leading bits that both share."""
    return len(one) * 8 - (int.from_bytes(one) ^ int.from_bytes(other)).bit_length()
