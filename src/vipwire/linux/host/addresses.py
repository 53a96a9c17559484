"""The addresses of this machine, and a watch of their changes.

vipwire serves node ports at them, and recognises conntrack entries of node ports by them. Notifications that change
no address (router advertisements extend IPv6 lifetimes) are not reported.
"""

from collections.abc import Container, Iterable
from typing import NamedTuple

from vipwire.linux.host.route_watch import RouteWatch, repeat_dump
from vipwire.linux.netlink.links import (
    FLAG_DUPLICATE,
    GET_ADDRESS,
    GET_LINK,
    GROUP_IPV4_ADDRESS,
    GROUP_IPV6_ADDRESS,
    decode_address,
    decode_link,
    encode_list_addresses,
    encode_list_links,
)
from vipwire.linux.netlink.socket import NETLINK_ROUTE, NetlinkSocket
from vipwire.model.net import Address, Family, family_of, is_loopback


class LocalAddress(NamedTuple):
    """One address of this machine; `scope` is as in rtnetlink(7): 0 global, 253 link, 254 host."""

    address: Address
    prefix_length: int
    scope: int
    interface: str

    @property
    def family(self) -> Family:
        return family_of(self.address)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine itself can use the address: 127.0.0.0/8 and ::1, on any interface."""
        return is_loopback(self.address)


def select_reachable_addresses(addresses: Iterable[LocalAddress]) -> frozenset[Address]:
    """Select the addresses at which other machines can reach this one: all but loopback."""
    return frozenset(item.address for item in addresses if not item.is_loopback)


def select_global_addresses(addresses: Iterable[LocalAddress]) -> list[Address]:
    """Select the addresses by which a node may be known, in order: neither loopback nor link-local."""
    return [item.address for item in addresses if item.scope == 0 and not item.is_loopback]


def read_addresses(rtnetlink: NetlinkSocket | None = None) -> tuple[LocalAddress, ...]:
    """Read the addresses of the current network namespace (or of that socket's), sorted.

    Skips an address that another machine on the link has: the kernel does not use it.
    """
    if rtnetlink is None:
        with NetlinkSocket(NETLINK_ROUTE) as own:
            return read_addresses(own)
    rtnetlink.drain()
    return repeat_dump(lambda: _dump_addresses(rtnetlink))


def _dump_addresses(rtnetlink: NetlinkSocket) -> tuple[LocalAddress, ...]:
    links = (decode_link(payload) for payload in rtnetlink.dump(GET_LINK, encode_list_links()))
    names = {link.number: link.name for link in links}
    found = [decode_address(payload) for payload in rtnetlink.dump(GET_ADDRESS, encode_list_addresses())]
    return tuple(
        sorted(
            LocalAddress(item.address, item.prefix_length, item.scope, names.get(item.link, ""))
            for item in found
            if item is not None and not item.flags & FLAG_DUPLICATE
        )
    )


class AddressWatch(RouteWatch):
    """The addresses of the network namespace in which this was made, kept up to date.

    `addresses` is always usable. When `fileno()` is readable (`loop.add_reader`), call `refresh`. `ignored` names
    interfaces to skip, also in notifications: their addresses may change with each Service.
    """

    def __init__(self, ignored: Container[str] = ()) -> None:
        super().__init__(GROUP_IPV4_ADDRESS, GROUP_IPV6_ADDRESS)
        self._ignored = ignored
        self.addresses = self._read_addresses()

    def refresh(self) -> bool:
        """Read the kernel's notifications, without waiting; report whether `addresses` has changed."""
        if not self._may_have_changed():
            return False
        before, self.addresses = self.addresses, self._read_addresses()
        return self.addresses != before

    def _read_addresses(self) -> tuple[LocalAddress, ...]:
        return tuple(item for item in read_addresses(self._requests) if item.interface not in self._ignored)

    def _may_have_changed(self) -> bool:
        """Report whether an interface that is not ignored may have changed."""
        heard = self._read_notifications()
        if heard is None:
            return True
        links = {found.link for message in heard if (found := decode_address(message.payload)) is not None}
        return any(self._find_interface_name(link) not in self._ignored for link in links)

    def _find_interface_name(self, number: int) -> str:
        """Return an interface's current name; "" if it is gone."""
        link = self._link(number)
        return decode_link(link).name if link is not None else ""
