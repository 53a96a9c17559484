"""Links and VIPs on them, over rtnetlink: what the device of this node and the devices in Pods have in common.

Layouts: include/uapi/linux/{rtnetlink,if_link,if_addr}.h.
"""

import errno
import struct
from collections.abc import Iterator
from typing import Final

from vipwire.linux.netlink.attributes import attribute, nested, string
from vipwire.linux.netlink.message import NLM_F_CREATE, NLM_F_EXCL
from vipwire.linux.netlink.route import (
    GET_ADDRESS,
    GET_LINK,
    NEW_LINK,
    SCOPE_LINK,
    InterfaceAddress,
    addresses_request,
    decode_address,
    decode_link,
)
from vipwire.linux.netlink.socket import NetlinkError, NetlinkSocket
from vipwire.model.net import Address, Family, family_of

NUMBERS: Final = {Family.IPV4: 2, Family.IPV6: 10}
"""AF_INET and AF_INET6."""

_DELETE_LINK = 17
_UP = 1  # IFF_UP
_LINK = struct.Struct("=BxHiII")  # ifinfomsg: family, device type, index, flags, which flags change
_ADDRESS = struct.Struct("=BBBBI")  # ifaddrmsg: family, prefix length, flags, scope, interface index
_LIFETIME = struct.pack("=IIII", 0, 0xFFFFFFFF, 0, 0)  # ifa_cacheinfo: preferred for no time, valid for ever
_NO_DETECTION = 0x02  # IFA_F_NODAD: a VIP is on every node on purpose


def link_index(netlink: NetlinkSocket, name: str) -> int | None:
    """Find a link; None if there is none of that name."""
    try:
        answers = netlink.request(GET_LINK, _LINK.pack(0, 0, 0, 0, 0) + string(3, name))
    except NetlinkError as error:
        if error.errno != errno.ENODEV:
            raise
        return None
    return decode_link(answers[0].payload).number


def create_link(netlink: NetlinkSocket, name: str, kind: str, *data: bytes, up: bool = False) -> None:
    """Create a link of a kind, with attributes of that kind. Raise NetlinkError; EEXIST where there is one."""
    info = nested(18, string(1, kind), *([nested(2, *data)] if data else []))  # IFLA_LINKINFO
    flags = _UP if up else 0
    netlink.request(NEW_LINK, _LINK.pack(0, 0, 0, flags, flags) + string(3, name) + info, NLM_F_CREATE | NLM_F_EXCL)


def delete_link(netlink: NetlinkSocket, index: int) -> None:
    """Delete a link."""
    netlink.request(_DELETE_LINK, _LINK.pack(0, 0, index, 0, 0))


def link_names(netlink: NetlinkSocket) -> dict[int, str]:
    """Read all links: the name of each index."""
    links = (decode_link(payload) for payload in netlink.dump(GET_LINK, _LINK.pack(0, 0, 0, 0, 0)))
    return {link.number: link.name for link in links}


def link_addresses(netlink: NetlinkSocket, family: Family) -> Iterator[InterfaceAddress]:
    """Read the addresses of one family on all links."""
    decoded = [decode_address(payload) for payload in netlink.dump(GET_ADDRESS, addresses_request(family))]
    return (item for item in decoded if item is not None)


def vip_on(index: int, vip: Address) -> bytes:
    """Encode the addition of a VIP to a link or its deletion, so that no packet takes it for its source by itself.

    For that in IPv4 it has the scope of the link, and in IPv6 it is deprecated from the start.
    """
    family = family_of(vip)
    values = attribute(2, vip) + attribute(1, vip)
    if family is Family.IPV4:
        return _ADDRESS.pack(NUMBERS[family], family.bits, 0, SCOPE_LINK, index) + values
    head = _ADDRESS.pack(NUMBERS[family], family.bits, _NO_DETECTION, 0, index)
    return head + values + attribute(6, _LIFETIME)
