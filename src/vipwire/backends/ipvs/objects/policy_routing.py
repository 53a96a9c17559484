"""Routes packets to IPVS though their address is not this node's: by a mark, a rule and a routing table.

Where endpoints answer clients directly, their packets come from the VIP. If the VIP were an address of the node the
kernel would take those for forged. So it is none: a rule sends what carries the frontend's mark into a table that
says "local". Layouts: include/uapi/linux/{fib_rules,rtnetlink}.h.
"""

import errno
import os
import struct
from collections.abc import Sequence

from vipwire.backends.ipvs.names import ROUTE_TABLE as TABLE
from vipwire.backends.ipvs.names import RULE_PRIORITY as PRIORITY
from vipwire.backends.ipvs.objects.links import NUMBERS
from vipwire.errors import CommitError
from vipwire.model.net import Family
from vipwire.netlink.attributes import attribute, attributes
from vipwire.netlink.batch import Request, send_batch
from vipwire.netlink.message import NLM_F_CREATE, NLM_F_EXCL
from vipwire.netlink.socket import NETLINK_ROUTE, NetlinkError, NetlinkSocket

_NEW_ROUTE, _NEW_RULE, _DELETE_RULE, _GET_RULE = 24, 32, 33, 34
_HEAD = struct.Struct("=BBBBBBBBI")  # rtmsg, fib_rule_hdr: family, lengths, tos, table, …, …, kind, flags
_U32 = struct.Struct("=I")
_TO_TABLE, _LOCAL, _HOST_SCOPE, _STATIC, _LOOPBACK = 1, 2, 254, 4, 1
_MARK, _MASK, _TABLE, _PRIORITY = 10, 16, 15, 6


class PolicyRouting:
    """The rules of one family, in the network namespace in which this was made."""

    def __init__(self, family: Family) -> None:
        self._number = NUMBERS[family]
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
        if not marks:
            return 0
        route = _HEAD.pack(self._number, 0, 0, 0, TABLE, _STATIC, _HOST_SCOPE, _LOCAL, 0)
        route += attribute(4, _U32.pack(_LOOPBACK)) + attribute(15, _U32.pack(TABLE))
        try:
            self._link.request(_NEW_ROUTE, route, NLM_F_CREATE | NLM_F_EXCL)
        except NetlinkError as error:
            if error.errno != errno.EEXIST:
                raise CommitError(f"cannot add a route to table {TABLE}: {error}", errno=error.errno or 0) from error
        return self._change(_NEW_RULE, marks, errno.EEXIST)

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
