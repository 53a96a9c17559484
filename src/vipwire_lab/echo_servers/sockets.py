"""Datagram sockets: the echo servers over UDP, and SCTP over raw sockets for servers and probes.

The answer must leave from the address that the question was sent to, otherwise client and conntrack take it for
another flow. A socket bound to all addresses reads and sets that address with IP_PKTINFO (ip(7), ipv6(7)).
"""

import asyncio
import contextlib
import os
import secrets
import selectors
import socket
import struct
from collections.abc import Callable, Generator

from vipwire.errors import DecodeError
from vipwire_lab.echo_servers.answer import Answer, SocketAddress
from vipwire_lab.echo_servers.sctp_messages import Asker, Responder

_IP_PKTINFO = 8
_IPV6_RECVPKTINFO, _IPV6_PKTINFO = 49, 50
_PKTINFO4 = struct.Struct("=i4s4s")  # interface, local address, address in the header
_PKTINFO6 = struct.Struct("=16si")


def request_packet_info(opened: socket.socket) -> None:
    if opened.family == socket.AF_INET:
        opened.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
    else:
        opened.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVPKTINFO, 1)


def destination_address(family: int, info: bytes) -> bytes:
    return bytes(_PKTINFO4.unpack(info)[2] if family == socket.AF_INET else _PKTINFO6.unpack(info)[0])


def source_address_control(local: bytes) -> tuple[int, int, bytes]:
    """Build the control message that sets a datagram's source address."""
    if len(local) == 4:
        return socket.IPPROTO_IP, _IP_PKTINFO, _PKTINFO4.pack(0, local, bytes(4))
    return socket.IPPROTO_IPV6, _IPV6_PKTINFO, _PKTINFO6.pack(local, 0)


class DatagramEcho:
    """A bound socket that the event loop answers until it is closed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, opened: socket.socket, host: str, node: str) -> None:
        self._loop, self._socket, self._who = loop, opened, (host, node, "UDP")
        self._port = opened.getsockname()[1]
        request_packet_info(opened)
        loop.add_reader(opened, self._answer_datagram)

    def close(self) -> None:
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _answer_datagram(self) -> None:
        # OSError: no more datagrams, or an ICMP error for an earlier answer whose client has gone.
        with contextlib.suppress(OSError):
            while True:
                _, control, _, peer = self._socket.recvmsg(65536, 128)
                for _, _, info in control:
                    self._send_reply(info, peer)

    def _send_reply(self, info: bytes, peer: tuple[str, int]) -> None:
        local = destination_address(self._socket.family, info)
        here = SocketAddress(socket.inet_ntop(self._socket.family, local), self._port)
        answer = Answer(*self._who, SocketAddress(peer[0], peer[1]), here)
        self._socket.sendmsg([answer.encode()], [source_address_control(local)], 0, peer)


def random_tag() -> int:
    """Choose a verification tag: any number but 0."""
    return secrets.randbelow(0xFFFFFFFF) + 1


def has_kernel_sctp() -> bool:
    """Report whether this kernel has SCTP sockets. Asking loads the module, if there is one."""
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_SCTP).close()
    except OSError:
        return False
    return True


def open_raw(family: int) -> socket.socket:
    """Open a raw socket for every SCTP packet of the calling thread's namespace. Needs root."""
    opened = socket.socket(family, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.IPPROTO_SCTP)
    opened.settimeout(0)
    return opened


def payload_of(family: int, data: bytes) -> bytes:
    """Remove the IPv4 header; raw IPv6 sockets deliver none (raw(7))."""
    return data[(data[0] & 15) * 4 :] if family == socket.AF_INET and data else data


def converse_over_sctp(opened: socket.socket, address: str, source: int, port: int) -> Generator[int, None, Answer]:
    """Return a server's answer; yield the selector event to wait for. Raise OSError, DecodeError."""
    code = opened.connect_ex((address, 0))
    if code:
        raise OSError(code, os.strerror(code))
    asker = Asker(source, port, random_tag())
    opened.send(asker.first_packet())
    while True:
        yield selectors.EVENT_READ
        reply, line = asker.receive(payload_of(opened.family, opened.recv(65536)))
        if reply:
            opened.send(reply)
        if line:
            return Answer.decode(line)


class RawEcho:
    """The SCTP servers of one host and family. Refuses other ports, as a kernel with SCTP does."""

    def __init__(self, loop: asyncio.AbstractEventLoop, opened: socket.socket, host: str, node: str) -> None:
        self._socket = opened
        self._responder = Responder(lambda saw, local: Answer(host, node, "SCTP", saw, local).encode(), random_tag)
        request_packet_info(opened)
        loop.add_reader(opened, self._answer_packets)

    def serve(self, port: int) -> Callable[[], None]:
        """Answer on another port; return a function that stops it. Raise OSError if the port is taken."""
        if port in self._responder.ports:
            raise FileExistsError(f"SCTP port {port} is in use")
        self._responder.ports.add(port)
        return lambda: self._responder.ports.discard(port)

    def _answer_packets(self) -> None:
        with contextlib.suppress(OSError):  # no more packets, or an ICMP error
            while True:
                data, control, _, peer = self._socket.recvmsg(65536, 128)
                family = self._socket.family
                for _, _, info in control:
                    self._send_reply(payload_of(family, data), peer[0], destination_address(family, info))

    def _send_reply(self, data: bytes, peer: str, local: bytes) -> None:
        with contextlib.suppress(DecodeError):
            here = socket.inet_ntop(self._socket.family, local)
            if reply := self._responder.receive(data, peer, here):
                self._socket.sendmsg([reply], [source_address_control(local)], 0, (peer, 0))
