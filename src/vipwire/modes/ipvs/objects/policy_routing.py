"""Routes packets to IPVS though their address is not this node's: by a mark, a rule and a routing table.

Some host may have the address, or endpoints answer clients directly, whose packets the kernel would take for forged
if the VIP were an address of the node. So it is none: a rule sends what carries the mark into a table that has a
local route to each VIP. It has no default route: a packet with the mark that other rules have translated passes.
Layouts: include/uapi/linux/{fib_rules,rtnetlink}.h.
"""

import errno
import os
import struct
from collections.abc import Sequence

from vipwire.errors import CommitError
from vipwire.linux.netlink.attributes import attribute, attributes
from vipwire.linux.netlink.batch import Request, send_batch
from vipwire.linux.netlink.message import NLM_F_CREATE, NLM_F_EXCL
from vipwire.linux.netlink.socket import NETLINK_ROUTE, NetlinkSocket
from vipwire.model.net import Address, Family, format_address
from vipwire.modes.ipvs.objects.links import NUMBERS
from vipwire.modes.ipvs.objects.names import ROUTE_TABLE as TABLE
from vipwire.modes.ipvs.objects.names import RULE_PRIORITY as PRIORITY

_NEW_ROUTE, _DELETE_ROUTE, _GET_ROUTE, _NEW_RULE, _DELETE_RULE, _GET_RULE = 24, 25, 26, 32, 33, 34
_HEAD = struct.Struct("=BBBBBBBBI")  # rtmsg, fib_rule_hdr: family, lengths, tos, table, …, …, kind, flags
_U32 = struct.Struct("=I")
_TO_TABLE, _LOCAL, _HOST_SCOPE, _STATIC, _LOOPBACK = 1, 2, 254, 4, 1
_MARK, _MASK, _TABLE, _PRIORITY = 10, 16, 15, 6
_DESTINATION, _DEVICE = 1, 4
_ANY = 0, 255
"""The protocol and the scope by which a route is removed, whatever tool has made it."""


class PolicyRouting:
    """The rules of one family, in the network namespace in which this was made."""

    def __init__(self, family: Family) -> None:
        self._number, self._size = NUMBERS[family], family.bits // 8
        self._link = NetlinkSocket(NETLINK_ROUTE)

    def close(self) -> None:
        """Close the socket; the rules stay."""
        self._link.close()

    def marks(self) -> list[int]:
        """Read the marks that have a rule."""
        self._link.drain()
        head = _HEAD.pack(self._number, 0, 0, 0, 0, 0, 0, 0, 0)
        found: list[int] = []
        for payload in self._link.dump(_GET_RULE, head):
            values = attributes(payload, _HEAD.size)
            numbers = {kind: _U32.unpack(values[kind])[0] for kind in (_MARK, _TABLE, _PRIORITY) if kind in values}
            if numbers.get(_TABLE) == TABLE and numbers.get(_PRIORITY) == PRIORITY and _MARK in numbers:
                found.append(numbers[_MARK])
        return found

    def add(self, marks: Sequence[int]) -> int:
        """Add the rules of marks; return the bytes sent."""
        return self._change(_NEW_RULE, marks, errno.EEXIST)

    def routes(self) -> list[Address]:
        """Read the addresses that have a local route in the table; a default route's is 0.0.0.0 or ::."""
        self._link.drain()
        head = _HEAD.pack(self._number, 0, 0, 0, TABLE, 0, 0, 0, 0)
        found: list[Address] = []
        for payload in self._link.dump(_GET_ROUTE, head):
            values = attributes(payload, _HEAD.size)
            if _TABLE in values and _U32.unpack(values[_TABLE])[0] == TABLE and payload[7] == _LOCAL:
                found.append(Address(bytes(values.get(_DESTINATION, bytes(self._size)))))
        return found

    def add_routes(self, addresses: Sequence[Address]) -> int:
        """Add local routes; return the bytes sent."""
        return self._change_routes(_NEW_ROUTE, addresses, errno.EEXIST)

    def remove_routes(self, addresses: Sequence[Address]) -> int:
        """Remove local routes; return the bytes sent."""
        return self._change_routes(_DELETE_ROUTE, addresses, errno.ESRCH)

    def _change_routes(self, kind: int, addresses: Sequence[Address], harmless: int) -> int:
        coming = kind == _NEW_ROUTE
        flags, origin = (NLM_F_CREATE | NLM_F_EXCL, (_STATIC, _HOST_SCOPE)) if coming else (0, _ANY)
        sent = send_batch(self._link, [Request(kind, self._route(each, *origin), flags) for each in addresses])
        for at, answer in sent.refused.items():
            if answer.errno != harmless:
                why = f"{os.strerror(answer.errno)} {answer.text}".rstrip()
                place = format_address(addresses[at])
                raise CommitError(f"ip route local {place} dev lo table {TABLE}: {why}", errno=answer.errno)
        return sent.size

    def _route(self, address: Address, protocol: int, scope: int) -> bytes:
        length = len(address) * 8 if any(address) else 0
        head = _HEAD.pack(self._number, length, 0, 0, TABLE, protocol, scope, _LOCAL, 0)
        place = attribute(_DESTINATION, address) if length else b""
        return head + place + attribute(_DEVICE, _U32.pack(_LOOPBACK)) + attribute(_TABLE, _U32.pack(TABLE))

    def remove(self, marks: Sequence[int]) -> int:
        """Remove the rules of marks; return the bytes sent."""
        return self._change(_DELETE_RULE, marks, errno.ENOENT)

    def _change(self, kind: int, marks: Sequence[int], harmless: int) -> int:
        flags = NLM_F_CREATE | NLM_F_EXCL if kind == _NEW_RULE else 0
        sent = send_batch(self._link, [Request(kind, self._rule(mark), flags) for mark in marks])
        for at, answer in sent.refused.items():
            if answer.errno != harmless:
                why = f"{os.strerror(answer.errno)} {answer.text}".rstrip()
                raise CommitError(f"ip rule fwmark {marks[at]:#x} lookup {TABLE}: {why}", errno=answer.errno)
        return sent.size

    def _rule(self, mark: int) -> bytes:
        values = {_MARK: mark, _MASK: 0xFFFFFFFF, _TABLE: TABLE, _PRIORITY: PRIORITY}
        head = _HEAD.pack(self._number, 0, 0, 0, 0, 0, 0, _TO_TABLE, 0)
        return head + b"".join(attribute(kind, _U32.pack(value)) for kind, value in values.items())
