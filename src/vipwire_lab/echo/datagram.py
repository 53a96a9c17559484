"""An echo server over UDP: each datagram is answered with who is here, and whom it saw.

The answer must leave from the address to which the question came, or the client (and the connection tracking in
between) takes it for a stranger's. A socket bound to all addresses learns that one, and sets it, by IP_PKTINFO
(ip(7), ipv6(7)).
"""

import asyncio
import contextlib
import socket
import struct

from vipwire_lab.echo.answer import Answer, Peer

_IP_PKTINFO = 8
_IPV6_RECVPKTINFO, _IPV6_PKTINFO = 49, 50
_PKTINFO4 = struct.Struct("=i4s4s")  # interface, local address, address in the header
_PKTINFO6 = struct.Struct("=16si")


def request_packet_info(opened: socket.socket) -> None:
    """Make the kernel tell, with each datagram, to which address it was sent."""
    if opened.family == socket.AF_INET:
        opened.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
    else:
        opened.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVPKTINFO, 1)


def destination_address(family: int, info: bytes) -> bytes:
    """Read from what it tells the packed address."""
    return bytes(_PKTINFO4.unpack(info)[2] if family == socket.AF_INET else _PKTINFO6.unpack(info)[0])


def sent_from(local: bytes) -> tuple[int, int, bytes]:
    """Build the control message that has a datagram leave from this address."""
    if len(local) == 4:
        return socket.IPPROTO_IP, _IP_PKTINFO, _PKTINFO4.pack(0, local, bytes(4))
    return socket.IPPROTO_IPV6, _IPV6_PKTINFO, _PKTINFO6.pack(local, 0)


class DatagramEcho:
    """A bound socket that is answered for by the loop until it is closed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, opened: socket.socket, host: str, node: str) -> None:
        self._loop, self._socket, self._who = loop, opened, (host, node, "UDP")
        self._port = opened.getsockname()[1]
        request_packet_info(opened)
        loop.add_reader(opened, self._readable)

    def close(self) -> None:
        """Answer no more."""
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _readable(self) -> None:
        # OSError: nothing more to read, or an ICMP error for an earlier answer, whose asker has gone.
        with contextlib.suppress(OSError):
            while True:
                _, control, _, peer = self._socket.recvmsg(65536, 128)
                for _, _, info in control:
                    self._reply(info, peer)

    def _reply(self, info: bytes, peer: tuple[str, int]) -> None:
        local = destination_address(self._socket.family, info)
        here = Peer(socket.inet_ntop(self._socket.family, local), self._port)
        answer = Answer(*self._who, Peer(peer[0], peer[1]), here)
        self._socket.sendmsg([answer.encode()], [sent_from(local)], 0, peer)
