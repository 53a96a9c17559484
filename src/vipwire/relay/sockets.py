"""Listening sockets, and the ports that they are given: any that is free, or one of a range."""

import _socket
import errno
import os
import socket
from collections.abc import Callable, Iterator
from typing import Final

from vipwire.model.net import Address, Protocol, format_address, format_endpoint
from vipwire.relay.asked import tell_asked
from vipwire.relay.messages import Place

_BACKLOG: Final = 4096
_KEEPALIVE: Final = (60, 15, 4)
"""Seconds of silence until a client is asked whether it lives, between questions, and how many: a client that is gone
without a word is noticed after two minutes. Accepted sockets inherit it."""
_IPV6_FREEBIND: Final = 78
_IP_FREEBIND: Final = 15
_BUFFERS: Final = 1 << 20
_EVERYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104  # compared, not bound


class ListenError(OSError):
    """A socket cannot be opened: says where and why."""


def open_listener(protocol: int, place: Place, ports: range, chance: Callable[[], float]) -> _socket.socket:
    """Open a listening socket, at a free port (of `ports`, if there are any) where the place names none.

    Raise DoorError.
    """
    family = socket.AF_INET if len(place.address) == 4 else socket.AF_INET6
    host = format_address(Address(place.address))
    kind = socket.SOCK_STREAM if protocol == Protocol.TCP else socket.SOCK_DGRAM
    for port in _candidates(place.port, ports, chance):
        try:
            return _open(family, kind, (host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE and ports and not place.port:
                continue
            raise ListenError(error.errno, _why(error.errno or 0, protocol, place)) from error
    raise ListenError(
        errno.EADDRINUSE,
        f"every port of {ports[0]}-{ports[-1]} is taken: widen --proxy-port-range, it needs one for each frontend",
    )


def _candidates(port: int, ports: range, chance: Callable[[], float]) -> Iterator[int]:
    """Yield the ports to try: those of a range once round, from anywhere."""
    if port or not ports:
        yield port
        return
    begin = int(chance() * len(ports))
    yield from ports[begin:]
    yield from ports[:begin]


def _open(family: int, kind: int, where: tuple[str, int]) -> _socket.socket:
    listening = _socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, 0)
    try:
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        # A VIP, or an address that this machine will have in a moment, need not be there yet.
        level, option = (socket.IPPROTO_IP, _IP_FREEBIND)
        if family == socket.AF_INET6:
            level, option = (socket.IPPROTO_IPV6, _IPV6_FREEBIND)
        listening.setsockopt(level, option, 1)
        if kind == socket.SOCK_STREAM:
            _prepare_stream(listening)
            listening.bind(where)
            listening.listen(_BACKLOG)
        else:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFERS)
            if where[1] and where[0] in _EVERYWHERE:
                tell_asked(listening)
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


def _why(code: int, protocol: int, place: Place) -> str:
    where = f"{format_endpoint(Address(place.address), place.port)}/{Protocol(protocol).label}"
    match code:
        case errno.EADDRINUSE:
            return f"{where} is taken by another process (ss -lnp shows which)"
        case errno.EACCES:
            return (
                f"{where}: this user may not listen on ports below 1024: give CAP_NET_BIND_SERVICE, "
                "or lower net.ipv4.ip_unprivileged_port_start"
            )
        case errno.EMFILE | errno.ENFILE:
            return f"{where}: the limit of open files is reached (RLIMIT_NOFILE; systemd: LimitNOFILE=)"
    return f"{where}: {os.strerror(code)}"
