"""The sockets of listeners: opens them, and finds the address and port that a client connected to.

A socket at all addresses answers from the address that the kernel reports with a datagram; otherwise the kernel would
choose another address, and the client would ignore the answer.

If rules translate a range of ports to a listener, a TCP socket reports the original port (SO_ORIGINAL_DST). For a
datagram the relay asks connection tracking for the flow by its reply tuple, which is unique: the kernel gives a
second flow of a client's socket another source port (nat INPUT).
"""

import _socket
import errno
import os
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from vipwire.errors import DecodeError
from vipwire.linux.netlink.conntrack import CT_GET, decode, encode_reply_dump
from vipwire.linux.netlink.message import split_messages
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, NetlinkSocket
from vipwire.model.net import Address, Protocol, format_address, format_endpoint, parse_address
from vipwire.relay.messages import SocketAddress

_IP_PKTINFO: Final = 8
"""linux/in.h; Python has this constant since 3.14."""
_OPTIONS: Final = {
    socket.AF_INET: (socket.IPPROTO_IP, _IP_PKTINFO, _IP_PKTINFO),
    socket.AF_INET6: (socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, socket.IPV6_PKTINFO),
}
"""By family: the level, the option that enables the message, and the message."""
_V4: Final = struct.Struct("=I4s4s")
_V6: Final = struct.Struct("=16sI")
ASKED_BYTES: Final = socket.CMSG_SPACE(_V6.size)
Told = tuple[int, int, bytes]


def request_original_destination(sock: _socket.socket) -> None:
    """Make the kernel report each datagram's destination address."""
    level, option, _ = _OPTIONS[socket.AddressFamily(sock.family)]
    sock.setsockopt(level, option, 1)


def reports_original_destination(sock: _socket.socket) -> bool:
    level, option, _ = _OPTIONS[socket.AddressFamily(sock.family)]
    return bool(sock.getsockopt(level, option))


def decode_original_destination(told: Iterable[Told]) -> bytes:
    """Return a datagram's destination address from its messages; empty if the kernel reported none."""
    for level, kind, data in told:
        if (level, kind) == (socket.IPPROTO_IP, _IP_PKTINFO) and len(data) == _V4.size:
            _, own, _ = _V4.unpack(data)
            return _V4.pack(0, own, bytes(4))
        if (level, kind) == (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO) and len(data) == _V6.size:
            own, interface = _V6.unpack(data)
            return _V6.pack(own, interface if own[:2] == b"\xfe\x80" else 0)
    return b""


def encode_source_address(family: int, asked: bytes) -> tuple[Told]:
    """Return the message that makes the kernel send an answer from this address."""
    level, _, kind = _OPTIONS[socket.AddressFamily(family)]
    return ((level, kind, asked),)


Peer = tuple[str, int]
_ORIGINAL_DST: Final = 80
"""SO_ORIGINAL_DST and IP6T_SO_ORIGINAL_DST (linux/netfilter_ipv4.h, linux/netfilter_ipv6/ip6_tables.h)."""
_MOST_BYTES: Final = 4096


def read_original_destination(client: _socket.socket, family: int) -> Peer:
    """Return the original destination of a TCP client."""
    try:
        if family == socket.AF_INET:
            found = client.getsockopt(socket.IPPROTO_IP, _ORIGINAL_DST, 16)
            return socket.inet_ntop(family, found[4:8]), int.from_bytes(found[2:4])
        found = client.getsockopt(socket.IPPROTO_IPV6, _ORIGINAL_DST, 28)
        return socket.inet_ntop(family, found[8:24]), int.from_bytes(found[2:4])
    except OSError:  # no rule translated the connection
        host, port = client.getsockname()[:2]
        return host, port


class Origins:
    """Asks connection tracking for original ports, over a socket opened at the first use."""

    def __init__(self) -> None:
        self._netlink: NetlinkSocket | None = None

    def port(self, client: Peer, here: Peer) -> int:
        """Return the original destination port of a client's datagram that arrived `here`; 0 if unknown."""
        try:
            if self._netlink is None:
                self._netlink = NetlinkSocket(NETLINK_NETFILTER)
            self._netlink.drain()
            ends = parse_address(here[0]), here[1], parse_address(client[0].partition("%")[0]), client[1]
            (answer,) = self._netlink.request_answers(CT_GET, encode_reply_dump(Protocol.UDP, *ends), 1, _MOST_BYTES)
            return next(decode(message.payload).destination_port for message in split_messages(answer))
        except (OSError, DecodeError) as error:
            if isinstance(error, OSError) and error.errno != errno.ENOENT:
                self.close()  # not an answer about a flow: reopen the socket
            return 0

    def close(self) -> None:
        if self._netlink is not None:
            self._netlink.close()
            self._netlink = None


_BACKLOG: Final = 4096
_KEEPALIVE: Final = (60, 15, 4)
"""Seconds of silence before keepalive, seconds between probes, and their number: the relay notices a vanished client
after two minutes. Accepted sockets inherit this.
"""
_FREEBIND: Final[dict[int, tuple[int, int]]] = {
    socket.AF_INET: (socket.IPPROTO_IP, 15),
    socket.AF_INET6: (socket.IPPROTO_IPV6, 78),
}
"""IP_FREEBIND and IPV6_FREEBIND: the level and the option."""
_BUFFERS: Final = 1 << 20
_EVERYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104  # compared, not bound


class ListenError(OSError):
    """A listening socket cannot be opened; the text has the address and the error."""


def open_listener(protocol: int, place: SocketAddress, ports: range, chance: Callable[[], float]) -> _socket.socket:
    """Open a listening socket; if the place has no port, at a free one (of `ports`, unless empty).

    Raise ListenError.
    """
    family = socket.AF_INET if len(place.address) == 4 else socket.AF_INET6
    host = format_address(Address(place.address))
    kind = socket.SOCK_STREAM if protocol == Protocol.TCP else socket.SOCK_DGRAM
    for port in _list_candidate_ports(place.port, ports, chance):
        try:
            return _open_socket(family, kind, (host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE and ports and not place.port:
                continue
            raise ListenError(error.errno, _explain_bind_error(error.errno or 0, protocol, place)) from error
    raise ListenError(
        errno.EADDRINUSE,
        f"every port of {ports[0]}-{ports[-1]} is in use: widen --proxy-port-range to one port for each frontend",
    )


def _list_candidate_ports(port: int, ports: range, chance: Callable[[], float]) -> Iterator[int]:
    """Yield the ports to try, from a random one on."""
    if port or not ports:
        yield port
        return
    begin = int(chance() * len(ports))
    yield from ports[begin:]
    yield from ports[:begin]


def _open_socket(family: int, kind: int, where: tuple[str, int]) -> _socket.socket:
    listening = _socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, 0)
    try:
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        # bind must succeed before this machine has the address, which it never has for a VIP.
        listening.setsockopt(*_FREEBIND[family], 1)
        if kind == socket.SOCK_STREAM:
            _prepare_stream(listening)
            listening.bind(where)
            listening.listen(_BACKLOG)
        else:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFERS)
            if where[1] and where[0] in _EVERYWHERE:
                request_original_destination(listening)
            listening.bind(where)
    except OSError:
        listening.close()
        raise
    return listening


def _prepare_stream(listening: _socket.socket) -> None:
    idle, between, times = _KEEPALIVE
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, between)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, times)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _explain_bind_error(code: int, protocol: int, place: SocketAddress) -> str:
    where = f"{format_endpoint(Address(place.address), place.port)}/{Protocol(protocol).label}"
    match code:
        case errno.EADDRINUSE:
            return f"another process uses {where} (ss -lnp shows the process)"
        case errno.EACCES:
            return (
                f"{where}: this user may not listen on ports below 1024: add CAP_NET_BIND_SERVICE, "
                "or lower net.ipv4.ip_unprivileged_port_start"
            )
        case errno.EMFILE | errno.ENFILE:
            return f"{where}: too many open files (RLIMIT_NOFILE; systemd: LimitNOFILE=)"
    return f"{where}: {os.strerror(code)}"
