"""Finds which port a client has asked for, before rules of ours have led it to a listener.

A TCP socket tells it (SO_ORIGINAL_DST). A datagram does not, for its header is translated: connection tracking is
asked for the flow by its reply tuple. No two flows share one, even where a client sends to many ports of a range from
one socket: to every flow but the first the kernel gives another source port as the relay sees it (nat INPUT).
"""

import _socket
import errno
import socket
from typing import Final

from vipwire.errors import DecodeError
from vipwire.linux.netlink.conntrack import CT_GET, decode, reply_request
from vipwire.linux.netlink.message import messages
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, NetlinkSocket
from vipwire.model.net import Protocol, parse_address

Peer = tuple[str, int]
_ORIGINAL_DST: Final = 80
"""SO_ORIGINAL_DST and IP6T_SO_ORIGINAL_DST (linux/netfilter_ipv4.h, linux/netfilter_ipv6/ip6_tables.h)."""
_MOST_BYTES: Final = 4096


def asked_for(client: _socket.socket, family: int) -> Peer:
    """Return which address and port a TCP client connected to."""
    try:
        if family == socket.AF_INET:
            found = client.getsockopt(socket.IPPROTO_IP, _ORIGINAL_DST, 16)
            return socket.inet_ntop(family, found[4:8]), int.from_bytes(found[2:4])
        found = client.getsockopt(socket.IPPROTO_IPV6, _ORIGINAL_DST, 28)
        return socket.inet_ntop(family, found[8:24]), int.from_bytes(found[2:4])
    except OSError:  # nothing was translated
        host, port = client.getsockname()[:2]
        return host, port


class Origins:
    """Asks connection tracking, over a socket that is opened when it is first needed."""

    def __init__(self) -> None:
        self._netlink: NetlinkSocket | None = None

    def port(self, client: Peer, here: Peer) -> int:
        """Return to which port a client's datagram was sent that arrived `here`; 0 if that is not known."""
        try:
            if self._netlink is None:
                self._netlink = NetlinkSocket(NETLINK_NETFILTER)
            self._netlink.drain()
            ends = parse_address(here[0]), here[1], parse_address(client[0].partition("%")[0]), client[1]
            (answer,) = self._netlink.answers(CT_GET, reply_request(Protocol.UDP, *ends), 1, _MOST_BYTES)
            return next(decode(message.payload).destination_port for message in messages(answer))
        except (OSError, DecodeError) as error:
            if isinstance(error, OSError) and error.errno != errno.ENOENT:
                self.close()  # not what the kernel says of a flow: begin anew
            return 0

    def close(self) -> None:
        """Close the socket."""
        if self._netlink is not None:
            self._netlink.close()
            self._netlink = None
