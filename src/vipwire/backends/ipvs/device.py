"""kube-ipvs0, the dummy device that holds the VIPs: with an address of its own a node takes packets to it in.

The device stays down, as kube-proxy has it: Linux takes addresses of a down device for local all the same, and a
device that is down neither answers ARP nor gets link-local addresses. Sources: rtnetlink(7), net/ipv4/fib_frontend.c.
"""

import errno
import os
import struct
from collections.abc import Iterable, Sequence

from vipwire.backends.ipvs.names import DEVICE
from vipwire.errors import CommitError
from vipwire.model.net import Address, Family, family_of, format_address
from vipwire.netlink.attributes import attribute, nested, string
from vipwire.netlink.batch import Request, send_batch
from vipwire.netlink.message import NLM_F_CREATE, NLM_F_EXCL
from vipwire.netlink.route import (
    DELETE_ADDRESS,
    GET_ADDRESS,
    GET_LINK,
    NEW_ADDRESS,
    NEW_LINK,
    addresses_request,
    decode_address,
    decode_link,
)
from vipwire.netlink.socket import NETLINK_ROUTE, NetlinkError, NetlinkSocket

_DELETE_LINK = 17
_LINK = struct.Struct("=BxHiII")  # ifinfomsg: family, device type, index, flags, which flags change
_ADDRESS = struct.Struct("=BBBBI")  # ifaddrmsg: family, prefix length, flags, scope, interface index
_NUMBERS = {Family.IPV4: 2, Family.IPV6: 10}
_NO_DETECTION = 0x02  # IFA_F_NODAD: a VIP is on every node on purpose


class Device:
    """The VIPs of one family on kube-ipvs0, in the network namespace in which this was made."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._link = NetlinkSocket(NETLINK_ROUTE)

    def close(self) -> None:
        """Close the socket; the device stays."""
        self._link.close()

    def addresses(self) -> list[Address]:
        """Read the family's addresses on the device; none if there is no device."""
        index = self._index()
        return [] if index is None else self._addresses(index, self._family)

    def add(self, addresses: Sequence[Address]) -> int:
        """Add addresses, and the device if there is none; return the bytes sent."""
        if not addresses:
            return 0
        index = self._index()
        if index is None:
            index = self._create()
        return self._change(NEW_ADDRESS, index, addresses, errno.EEXIST)

    def remove(self, addresses: Sequence[Address]) -> int:
        """Remove addresses; return the bytes sent."""
        index = self._index() if addresses else None
        return 0 if index is None else self._change(DELETE_ADDRESS, index, addresses, errno.EADDRNOTAVAIL)

    def delete(self) -> bool:
        """Remove the family's addresses, and the device once it holds none of the other's; tell if there was any."""
        index = self._index()
        if index is None:
            return False
        found = self._addresses(index, self._family)
        self.remove(found)
        if not any(self._addresses(index, family) for family in Family):
            self._link.request(_DELETE_LINK, _LINK.pack(0, 0, index, 0, 0))
        return bool(found)

    def _change(self, kind: int, index: int, addresses: Sequence[Address], harmless: int) -> int:
        flags = NLM_F_CREATE | NLM_F_EXCL if kind == NEW_ADDRESS else 0
        sent = send_batch(self._link, [Request(kind, _payload(index, each), flags) for each in addresses])
        for at, answer in sent.refused.items():
            if answer.errno != harmless:
                verb = "add" if kind == NEW_ADDRESS else "remove"
                why = f"{os.strerror(answer.errno)} {answer.text}".rstrip()
                raise CommitError(
                    f"cannot {verb} {format_address(addresses[at])} on {DEVICE}: {why}", errno=answer.errno
                )
        return sent.size

    def _create(self) -> int:
        payload = _LINK.pack(0, 0, 0, 0, 0) + string(3, DEVICE) + nested(18, string(1, "dummy"))
        try:
            self._link.request(NEW_LINK, payload, NLM_F_CREATE | NLM_F_EXCL)
        except NetlinkError as error:
            if error.errno != errno.EEXIST:
                remedy = "load the module (modprobe dummy)" if error.errno == errno.EOPNOTSUPP else str(error)
                raise CommitError(f"cannot create the device {DEVICE}: {remedy}", errno=error.errno or 0) from error
        index = self._index()
        if index is None:
            raise CommitError(f"the device {DEVICE} vanished as soon as it was created")
        return index

    def _index(self) -> int | None:
        self._link.drain()
        try:
            answers = self._link.request(GET_LINK, _LINK.pack(0, 0, 0, 0, 0) + string(3, DEVICE))
        except NetlinkError as error:
            if error.errno != errno.ENODEV:
                raise
            return None
        return decode_link(answers[0].payload).number

    def _addresses(self, index: int, family: Family) -> list[Address]:
        found: Iterable[memoryview] = self._link.dump(GET_ADDRESS, addresses_request(family))
        decoded = [decode_address(payload) for payload in found]
        return [item.address for item in decoded if item is not None and item.link == index and item.scope == 0]


def _payload(index: int, address: Address) -> bytes:
    family = family_of(address)
    flags = _NO_DETECTION if family is Family.IPV6 else 0
    head = _ADDRESS.pack(_NUMBERS[family], family.bits, flags, 0, index)
    return head + attribute(2, address) + attribute(1, address)
