"""kube-ipvs0, the dummy device that holds the VIPs, so that the kernel delivers their packets locally.

The device stays down, as in kube-proxy: Linux treats addresses of a down device as local, and a down device neither
answers ARP nor gets link-local addresses. Sources: rtnetlink(7), net/ipv4/fib_frontend.c.
"""

import errno
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from vipwire.errors import CommitError
from vipwire.linux.netlink.batch import NetlinkRequest, send_batch
from vipwire.linux.netlink.links import (
    DELETE_ADDRESS,
    DELETE_LINK,
    GET_ADDRESS,
    GET_LINK,
    NEW_ADDRESS,
    NEW_LINK,
    NO_DETECTION,
    SCOPE_LINK,
    InterfaceAddress,
    decode_address,
    decode_link,
    encode_address,
    encode_link,
    encode_list_addresses,
)
from vipwire.linux.netlink.message import NLM_F_CREATE, NLM_F_EXCL
from vipwire.linux.netlink.route import GET_ROUTE, LOCAL, decode_route, encode_get_route
from vipwire.linux.netlink.socket import NETLINK_ROUTE, NetlinkError, NetlinkSocket
from vipwire.model.net import Address, Family, family_of, format_address
from vipwire.modes.ipvs.objects.names import DEVICE
from vipwire.reconcile.delta import SentBytes


def link_index(netlink: NetlinkSocket, name: str) -> int | None:
    """Return a link's index; None if no link has the name."""
    try:
        answers = netlink.request(GET_LINK, encode_link(name=name))
    except NetlinkError as error:
        if error.errno != errno.ENODEV:
            raise
        return None
    return decode_link(answers[0].payload).number


def create_link(netlink: NetlinkSocket, name: str, kind: str, data: bytes = b"", *, up: bool = False) -> None:
    """Create a link of a kind, with attributes of that kind. Raise NetlinkError; EEXIST if it exists."""
    netlink.request(NEW_LINK, encode_link(name=name, kind=kind, data=data, up=up or None), NLM_F_CREATE | NLM_F_EXCL)


def delete_link(netlink: NetlinkSocket, index: int) -> None:
    netlink.request(DELETE_LINK, encode_link(index))


def link_names(netlink: NetlinkSocket) -> dict[int, str]:
    links = (decode_link(payload) for payload in netlink.dump(GET_LINK, encode_link()))
    return {each.number: each.name for each in links}


def link_addresses(netlink: NetlinkSocket, family: Family) -> Iterator[InterfaceAddress]:
    decoded = [decode_address(payload) for payload in netlink.dump(GET_ADDRESS, encode_list_addresses(family))]
    return (item for item in decoded if item is not None)


def encode_vip(index: int, vip: Address) -> bytes:
    """Encode adding or deleting a VIP on a link, so that the kernel never chooses it as a source address.

    In IPv4 the address gets scope link; in IPv6 it is deprecated.
    """
    if family_of(vip) is Family.IPV4:
        return encode_address(index, vip, scope=SCOPE_LINK)
    return encode_address(index, vip, flags=NO_DETECTION, deprecated=True)  # no detection: every node has the VIP


_NET: Final = Path("/proc/thread-self/net")
_SOCKETS_OVER: Final = frozenset({"06", "07", "0A"})
"""TIME_WAIT, CLOSE and LISTEN in /proc/net/tcp."""
_MAPPED: Final = bytes(10) + b"\xff\xff"
"""The prefix of an IPv4 address in an IPv6 socket."""


def read_socket_sources() -> frozenset[Address]:
    tables = (_NET / name for name in ("tcp", "udp", "tcp6", "udp6"))
    return frozenset(
        each for table in tables if table.exists() for each in parse_sources(table.read_text(encoding="ascii"))
    )


def parse_sources(text: str) -> frozenset[Address]:
    """Read the local addresses of connected sockets from a table of /proc/net. Pure.

    Format: Documentation/networking/proc_net_tcp.rst; an address consists of 32-bit words in host byte order.
    """
    found: set[Address] = set()
    for line in text.splitlines()[1:]:
        fields = line.split()
        if fields[3] not in _SOCKETS_OVER:
            found.add(_parse_native_address(fields[1].partition(":")[0]))
    return frozenset(found)


def _parse_native_address(digits: str) -> Address:
    words = [bytes.fromhex(digits[at : at + 8]) for at in range(0, len(digits), 8)]
    address = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
    return Address(address.removeprefix(_MAPPED))


_LOOKS, _PAUSE, _LAST = 100, 0.001, 64


class Device:
    """The VIPs of one family on kube-ipvs0, in the network namespace of its creation."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._link = NetlinkSocket(NETLINK_ROUTE)

    def close(self) -> None:
        self._link.close()

    def addresses(self) -> list[Address]:
        """Read the family's addresses on the device; empty without a device."""
        index = self._find_index()
        return [] if index is None else self._list_addresses(index, self._family)

    def add_addresses(self, addresses: Sequence[Address]) -> SentBytes:
        """Add addresses, and the device if it is missing."""
        if not addresses:
            return 0
        index = self._find_index()
        if index is None:
            index = self._create_device()
        size = self._change_addresses(NEW_ADDRESS, index, addresses, errno.EEXIST)
        if self._family is Family.IPV6:
            self._wait_until_local(addresses[-_LAST:])
        return size

    def _wait_until_local(self, addresses: Iterable[Address]) -> None:
        """Wait until the kernel delivers new addresses locally.

        For IPv6 a worker of the kernel does this a moment later. The wait is bounded: if the worker hangs, the
        addresses work as soon as it finishes.
        """
        waiting = list(addresses)
        for _ in range(_LOOKS):
            waiting = [address for address in waiting if not self._is_local(address)]
            if not waiting:
                return
            time.sleep(_PAUSE)

    def _is_local(self, address: Address) -> bool:
        try:
            (answer,) = self._link.request(GET_ROUTE, encode_get_route(address))
        except NetlinkError:
            return False
        found = decode_route(answer.payload)
        return found is not None and found.type == LOCAL

    def remove_addresses(self, addresses: Sequence[Address]) -> SentBytes:
        index = self._find_index() if addresses else None
        return 0 if index is None else self._change_addresses(DELETE_ADDRESS, index, addresses, errno.EADDRNOTAVAIL)

    def delete_device(self) -> bool:
        """Remove the family's addresses, and the device if the other family has none; report whether any existed."""
        index = self._find_index()
        if index is None:
            return False
        found = self._list_addresses(index, self._family)
        self.remove_addresses(found)
        if not any(self._list_addresses(index, family) for family in Family):
            delete_link(self._link, index)
        return bool(found)

    def _change_addresses(self, kind: int, index: int, addresses: Sequence[Address], harmless: int) -> SentBytes:
        flags = NLM_F_CREATE | NLM_F_EXCL if kind == NEW_ADDRESS else 0
        sent = send_batch(self._link, [NetlinkRequest(kind, encode_vip(index, each), flags) for each in addresses])
        for at, answer in sent.refused.items():
            if answer.errno != harmless:
                verb = "add" if kind == NEW_ADDRESS else "remove"
                why = f"{os.strerror(answer.errno)} {answer.text}".rstrip()
                raise CommitError(
                    f"cannot {verb} {format_address(addresses[at])} on {DEVICE}: {why}", errno=answer.errno
                )
        return sent.size

    def _create_device(self) -> int:
        try:
            create_link(self._link, DEVICE, "dummy")
        except NetlinkError as error:
            if error.errno != errno.EEXIST:
                remedy = "load the module (modprobe dummy)" if error.errno == errno.EOPNOTSUPP else str(error)
                raise CommitError(f"cannot create the device {DEVICE}: {remedy}", errno=error.errno or 0) from error
        index = self._find_index()
        if index is None:
            raise CommitError(f"the device {DEVICE} vanished as soon as it was created")
        return index

    def _find_index(self) -> int | None:
        self._link.drain()
        return link_index(self._link, DEVICE)

    def _list_addresses(self, index: int, family: Family) -> list[Address]:
        found = link_addresses(self._link, family)
        return [item.address for item in found if item.link == index and item.prefix_length == family.bits]
