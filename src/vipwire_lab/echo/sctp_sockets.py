"""SCTP over raw sockets: the I/O around `sctp`, for the servers of a lab and for its probes."""

import asyncio
import contextlib
import os
import secrets
import selectors
import socket
from collections.abc import Callable, Generator

from vipwire.errors import DecodeError
from vipwire_lab.echo.answer import Answer
from vipwire_lab.echo.datagram import destination_address, request_packet_info, sent_from
from vipwire_lab.echo.sctp_messages import Asker, Responder

_PROTOCOL = socket.IPPROTO_SCTP


def new_tag() -> int:
    """Choose a verification tag: any number but 0."""
    return secrets.randbelow(0xFFFFFFFF) + 1


def in_kernel() -> bool:
    """Report whether this kernel has SCTP sockets. Asking loads the module, where there is one."""
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, _PROTOCOL).close()
    except OSError:
        return False
    return True


def open_raw(family: int) -> socket.socket:
    """Open a raw socket that gets every SCTP packet of the calling thread's namespace. Needs root."""
    opened = socket.socket(family, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _PROTOCOL)
    opened.settimeout(0)
    return opened


def payload_of(family: int, data: bytes) -> bytes:
    """Cut off the IPv4 header, which a raw socket delivers too; of IPv6 it delivers none (raw(7))."""
    return data[(data[0] & 15) * 4 :] if family == socket.AF_INET and data else data


def converse(opened: socket.socket, address: str, source: int, port: int) -> Generator[int, None, Answer]:
    """Return a server's answer; yield the selector event to wait for. Raise OSError, DecodeError."""
    code = opened.connect_ex((address, 0))
    if code:
        raise OSError(code, os.strerror(code))
    asker = Asker(source, port, new_tag())
    opened.send(asker.first())
    while True:
        yield selectors.EVENT_READ
        reply, line = asker.receive(payload_of(opened.family, opened.recv(65536)))
        if reply:
            opened.send(reply)
        if line:
            return Answer.decode(line)


class RawEcho:
    """The SCTP servers of one host and family. It refuses what comes to other ports, as a kernel with SCTP would."""

    def __init__(self, loop: asyncio.AbstractEventLoop, opened: socket.socket, host: str, node: str) -> None:
        self._socket = opened
        self._responder = Responder(lambda saw, local: Answer(host, node, "SCTP", saw, local).encode(), new_tag)
        request_packet_info(opened)
        loop.add_reader(opened, self._readable)

    def serve(self, port: int) -> Callable[[], None]:
        """Answer on a port too; return how to stop that. Raise OSError if it is answered already."""
        if port in self._responder.ports:
            raise FileExistsError(f"SCTP port {port} is in use")
        self._responder.ports.add(port)
        return lambda: self._responder.ports.discard(port)

    def _readable(self) -> None:
        with contextlib.suppress(OSError):  # nothing more to read, or an ICMP error
            while True:
                data, control, _, peer = self._socket.recvmsg(65536, 128)
                family = self._socket.family
                for _, _, info in control:
                    self._reply(payload_of(family, data), peer[0], destination_address(family, info))

    def _reply(self, data: bytes, peer: str, local: bytes) -> None:
        with contextlib.suppress(DecodeError):
            here = socket.inet_ntop(self._socket.family, local)
            if reply := self._responder.receive(data, peer, here):
                self._socket.sendmsg([reply], [sent_from(local)], 0, (peer, 0))
