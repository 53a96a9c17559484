"""Listening sockets as Go opens them: a wildcard address of either family listens on both.

kube-proxy's `0.0.0.0:10256` answers on IPv6 too, because Go opens a dual-stack socket for any wildcard; probes by
IPv6 depend on it.
"""

import contextlib
import errno
import ipaddress
import socket
from typing import Final

_BACKLOG: Final = 128
_NO_IPV6: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT)


def split_address(text: str) -> tuple[str, int]:
    """Split a validated `IP:port` or `[IP]:port`."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def listen(host: str, port: int) -> socket.socket:
    """Open a listening TCP socket at an IP address, on both families for a wildcard. Raise OSError."""
    address = ipaddress.ip_address(host)
    if address.is_unspecified:
        try:
            return _bound(socket.AF_INET6, "::", port, dual_stack=True)
        except OSError as error:
            if error.errno not in _NO_IPV6 or address.version == 6:
                raise
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    return _bound(family, host, port, dual_stack=False)


def _bound(family: socket.AddressFamily, host: str, port: int, *, dual_stack: bool) -> socket.socket:
    with contextlib.ExitStack() as on_error:
        listener = on_error.enter_context(socket.socket(family, socket.SOCK_STREAM))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(not dual_stack))
        listener.bind((host, port))
        listener.listen(_BACKLOG)
        listener.settimeout(0)  # non-blocking, as asyncio wants it
        on_error.pop_all()
        return listener
