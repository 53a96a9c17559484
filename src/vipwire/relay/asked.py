"""Which address of ours a client has sent a datagram to, where a socket is at all of them: answers come from there.

Without it the kernel would answer from the address that it prefers on the way back, and a client that has asked at
another one takes no notice. Only sockets at a port that clients name are asked: where rules lead clients to a socket,
connection tracking translates the answers.
"""

import _socket
import socket
import struct
from collections.abc import Iterable
from typing import Final

_IP_PKTINFO: Final = 8
"""linux/in.h; Python has a name for it since 3.14 only."""
_OPTIONS: Final = {
    socket.AF_INET: (socket.IPPROTO_IP, _IP_PKTINFO, _IP_PKTINFO),
    socket.AF_INET6: (socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, socket.IPV6_PKTINFO),
}
"""By family: the level, the option that asks for it, and the message that tells."""
_V4: Final = struct.Struct("=I4s4s")
_V6: Final = struct.Struct("=16sI")
ASKED_BYTES: Final = socket.CMSG_SPACE(_V6.size)
"""Of the message."""
Told = tuple[int, int, bytes]


def tell_asked(sock: _socket.socket) -> None:
    """Have the kernel tell the address with each datagram."""
    level, option, _ = _OPTIONS[socket.AddressFamily(sock.family)]
    sock.setsockopt(level, option, 1)


def tells_asked(sock: _socket.socket) -> bool:
    """Report whether it does."""
    level, option, _ = _OPTIONS[socket.AddressFamily(sock.family)]
    return bool(sock.getsockopt(level, option))


def asked_address(told: Iterable[Told]) -> bytes:
    """Return what an answer is to be sent with; nothing if the kernel has not told."""
    for level, kind, data in told:
        if (level, kind) == (socket.IPPROTO_IP, _IP_PKTINFO) and len(data) == _V4.size:
            _, own, _ = _V4.unpack(data)
            return _V4.pack(0, own, bytes(4))
        if (level, kind) == (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO) and len(data) == _V6.size:
            own, interface = _V6.unpack(data)
            return _V6.pack(own, interface if own[:2] == b"\xfe\x80" else 0)
    return b""


def told_from(family: int, asked: bytes) -> tuple[Told]:
    """Write the message with which an answer is sent from there."""
    level, _, kind = _OPTIONS[socket.AddressFamily(family)]
    return ((level, kind, asked),)
