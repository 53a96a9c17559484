"""Links and VIPs on them, over rtnetlink: what the device of this node and the devices in Pods have in common."""

import errno
from collections.abc import Iterator

from vipwire.linux.netlink.message import NLM_F_CREATE, NLM_F_EXCL
from vipwire.linux.netlink.route import (
    DELETE_LINK,
    GET_ADDRESS,
    GET_LINK,
    NEW_LINK,
    NO_DETECTION,
    SCOPE_LINK,
    InterfaceAddress,
    address,
    addresses_request,
    decode_address,
    decode_link,
    link,
)
from vipwire.linux.netlink.socket import NetlinkError, NetlinkSocket
from vipwire.model.net import Address, Family, family_of


def link_index(netlink: NetlinkSocket, name: str) -> int | None:
    """Find a link; None if there is none of that name."""
    try:
        answers = netlink.request(GET_LINK, link(name=name))
    except NetlinkError as error:
        if error.errno != errno.ENODEV:
            raise
        return None
    return decode_link(answers[0].payload).number


def create_link(netlink: NetlinkSocket, name: str, kind: str, data: bytes = b"", *, up: bool = False) -> None:
    """Create a link of a kind, with attributes of that kind. Raise NetlinkError; EEXIST where there is one."""
    netlink.request(NEW_LINK, link(name=name, kind=kind, data=data, up=up or None), NLM_F_CREATE | NLM_F_EXCL)


def delete_link(netlink: NetlinkSocket, index: int) -> None:
    """Delete a link."""
    netlink.request(DELETE_LINK, link(index))


def link_names(netlink: NetlinkSocket) -> dict[int, str]:
    """Read all links: the name of each index."""
    links = (decode_link(payload) for payload in netlink.dump(GET_LINK, link()))
    return {each.number: each.name for each in links}


def link_addresses(netlink: NetlinkSocket, family: Family) -> Iterator[InterfaceAddress]:
    """Read the addresses of one family on all links."""
    decoded = [decode_address(payload) for payload in netlink.dump(GET_ADDRESS, addresses_request(family))]
    return (item for item in decoded if item is not None)


def vip_on(index: int, vip: Address) -> bytes:
    """Encode the addition of a VIP to a link or its deletion, so that no packet takes it for its source by itself.

    For that in IPv4 it has the scope of the link, and in IPv6 it is deprecated from the start.
    """
    if family_of(vip) is Family.IPV4:
        return address(index, vip, scope=SCOPE_LINK)
    return address(index, vip, flags=NO_DETECTION, deprecated=True)  # a VIP is on every node on purpose
