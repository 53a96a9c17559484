"""The sockets of DNS: TCP and UDP of one port, at each address.

For port 0 the kernel chooses a port that TCP has free; if UDP or a further address does not have it, vipwire tries
again. Unsuitable sockets stay open until the end, so that the kernel does not offer a port twice.

A machine's packets to itself arrive at its loopback device, whatever their addresses. SO_BINDTODEVICE cannot select
them: the kernel compares a socket's device with the device of the address (ip_route_output_key_hash_rcu). A classic
BPF filter sees the device by which a packet arrived; a new connection's first packet passes it, too (tcp_v4_rcv).
"""

import contextlib
import ctypes
import errno
import socket
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from vipwire.errors import UnsupportedError

_SO_ATTACH_FILTER: Final = 26  # asm-generic/socket.h; the socket module does not have it
_LOOPBACK: Final = 1  # include/net/flow.h: LOOPBACK_IFINDEX, in every network namespace
_IFINDEX: Final = 0xFFFFF000 + 8  # linux/filter.h: SKF_AD_OFF + SKF_AD_IFINDEX
_LOAD, _JUMP_EQUAL, _RETURN = 0x20, 0x15, 0x06  # BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JEQ|BPF_K, BPF_RET|BPF_K
_INSTRUCTION = struct.Struct("=HBBI")
_PROGRAM: Final = b"".join(
    _INSTRUCTION.pack(*each)
    for each in (
        (_LOAD, 0, 0, _IFINDEX),
        (_JUMP_EQUAL, 0, 1, _LOOPBACK),
        (_RETURN, 0, 0, 0xFFFFFFFF),  # accept the whole packet
        (_RETURN, 0, 0, 0),  # drop
    )
)


def drop_queries_of_other_machines(opened: socket.socket) -> None:
    """Restrict a socket to this machine's packets. Call before bind() to exclude earlier ones. Raise OSError."""
    program = ctypes.create_string_buffer(_PROGRAM, len(_PROGRAM))
    head = struct.pack("@HP", len(_PROGRAM) // _INSTRUCTION.size, ctypes.addressof(program))
    opened.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, head)


TRIES: Final = 100
"""Tries to find a port for 0."""
_BUFFER: Final = 1 << 20
IP_PKTINFO: Final = 8  # linux/in.h; the socket module has it from Python 3.14 on


class Pair(NamedTuple):
    """The UDP and TCP sockets of one address. `exact` is False for a wildcard address."""

    stream: socket.socket
    datagrams: socket.socket
    exact: bool

    @property
    def port(self) -> int:
        port: int = self.stream.getsockname()[1]
        return port


def open_pairs(hosts: Sequence[str], port: int) -> tuple[Pair, ...]:
    """Open a pair at each address, all of one port, 0 for any. Raise UnsupportedError that names the address."""
    left = TRIES if port == 0 else 1
    pairs: list[Pair] | None = None
    with contextlib.ExitStack() as tried:
        while pairs is None:
            left -= 1
            opened = tried.enter_context(contextlib.ExitStack())
            try:
                pairs = _open_all(hosts, port, opened)
            except _CannotListenError as error:
                if not left or error.number != errno.EADDRINUSE:
                    raise
        opened.pop_all()
    return tuple(pairs)


def open_pair(host: str, port: int, opened: contextlib.ExitStack, *, from_here: bool = False) -> Pair:
    """Open a pair that `opened` closes; `from_here` accepts this machine's packets only. Raise OSError."""
    stream = opened.enter_context(_open_socket(host, port, socket.SOCK_STREAM, from_here=from_here))
    port = stream.getsockname()[1]
    datagrams = opened.enter_context(_open_socket(host, port, socket.SOCK_DGRAM, from_here=from_here))
    return Pair(stream, datagrams, exact=host not in ("0.0.0.0", "::"))  # noqa: S104  # a comparison


class _CannotListenError(UnsupportedError):
    def __init__(self, host: str, port: int, error: OSError) -> None:
        super().__init__(f"cannot listen on {host} port {port}: {error.strerror}")
        self.number = error.errno


def _open_all(hosts: Sequence[str], port: int, opened: contextlib.ExitStack) -> list[Pair]:
    pairs: list[Pair] = []
    for host in hosts:
        try:
            pairs.append(open_pair(host, port, opened))
        except OSError as error:
            raise _CannotListenError(host, port, error) from error
        port = pairs[0].port
    return pairs


def _open_socket(host: str, port: int, kind: socket.SocketKind, *, from_here: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.ExitStack() as on_error:
        made = on_error.enter_context(socket.socket(family, kind))
        if from_here:
            drop_queries_of_other_machines(made)
        if kind == socket.SOCK_STREAM:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        else:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if kind == socket.SOCK_DGRAM and family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        elif kind == socket.SOCK_DGRAM:
            made.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
        made.bind((host, port))
        made.setblocking(False)  # noqa: FBT003  # the socket module's signature
        on_error.pop_all()
    return made
