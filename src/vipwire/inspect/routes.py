"""What this machine's routes say: from which of its addresses it would send, and by which interface.

The address that masquerading puts in the client's place is the kernel's choice for the way to the endpoint, which is
what a socket gets that is connected there: connecting one of UDP sends nothing.
"""

import contextlib
import socket
import struct

from vipwire.model.net import Address, Family, family_of, format_address, parse_address
from vipwire.netlink.attributes import attribute, attributes
from vipwire.netlink.socket import NETLINK_ROUTE, NetlinkSocket

_GET_ROUTE = 26
_ROUTE = struct.Struct(
    "=BBBBBBBBI"
)  # rtmsg: family, lengths of both prefixes, tos, table, protocol, scope, type, flags
_DESTINATION, _OUT_INTERFACE = 1, 4  # RTA_DST, RTA_OIF


def source_towards(address: Address) -> Address | None:
    """Tell the address that this machine sends from to another; None if it has no way there."""
    family = socket.AF_INET if family_of(address) is Family.IPV4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((format_address(address), 9))
        except OSError:
            return None
        return parse_address(probe.getsockname()[0].partition("%")[0])


def interface_towards(address: Address) -> str:
    """Name the interface by which this machine reaches an address; "" if it has no way there."""
    family = socket.AF_INET if len(address) == 4 else socket.AF_INET6
    request = _ROUTE.pack(family, len(address) * 8, 0, 0, 0, 0, 0, 0, 0) + attribute(_DESTINATION, address)
    with contextlib.suppress(OSError), NetlinkSocket(NETLINK_ROUTE) as netlink:
        for answer in netlink.request(_GET_ROUTE, request):
            index = attributes(answer.payload, _ROUTE.size).get(_OUT_INTERFACE)
            if index is not None:
                return socket.if_indextoname(struct.unpack("=I", index)[0])
    return ""
