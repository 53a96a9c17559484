"""HTTP servers in one task group: each binds, retries every 5 seconds, and serves until cancelled.

    async with asyncio.TaskGroup() as tasks:
        for server in servers:
            tasks.create_task(server.run(), name=server.name)

As with Go, a wildcard such as `0.0.0.0:10256` opens a dual-stack socket: IPv6 probes of kube-proxy depend on it. A
taken port does not stop the proxy: as kube-proxy does, vipwire retries every 5 s unless `--bind-address-hard-fail` is
set. It reports each failure once, in the log and as an Event on the Node.
"""

import asyncio
import contextlib
import errno
import ipaddress
import socket
from collections.abc import Callable
from typing import Final

from vipwire.errors import UnsupportedError
from vipwire.http_server.pages import Site, serve_pages
from vipwire.logging import log

_BACKLOG: Final = 128
_NO_IPV6: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT)


def split_address(text: str) -> tuple[str, int]:
    """Split a validated `IP:port` or `[IP]:port`."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def open_listening_socket(host: str, port: int) -> socket.socket:
    """Open a listening TCP socket at an IP address, dual-stack for a wildcard. Raise OSError."""
    address = ipaddress.ip_address(host)
    if address.is_unspecified:
        try:
            return _open_listener(socket.AF_INET6, "::", port, dual_stack=True)
        except OSError as error:
            if error.errno not in _NO_IPV6 or address.version == 6:
                raise
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    return _open_listener(family, host, port, dual_stack=False)


def _open_listener(family: socket.AddressFamily, host: str, port: int, *, dual_stack: bool) -> socket.socket:
    with contextlib.ExitStack() as on_error:
        listener = on_error.enter_context(socket.socket(family, socket.SOCK_STREAM))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(not dual_stack))
        listener.bind((host, port))
        listener.listen(_BACKLOG)
        listener.settimeout(0)  # asyncio needs non-blocking sockets
        on_error.pop_all()
        return listener


RETRY_SECONDS: Final = 5.0
_GRACE_SECONDS: Final = 1.0  # a running request must not delay the end of the process


def _log_failure(server: str, reason: str) -> None:
    log.warning(reason, server=server)


class HttpServer:
    """One site at one address.

    `address` is a validated `IP:port`; port 0 lets the kernel choose. `run()` serves until cancelled. While the port
    cannot be bound, `run()` tries again after `retry_seconds`, and calls `on_failure` with the server's name and the
    reason, once per reason; with `hard_fail` it raises UnsupportedError instead. `bound` is the address once the
    event `listening` is set.
    """

    def __init__(
        self,
        name: str,
        site: Site,
        address: str,
        on_failure: Callable[[str, str], None] = _log_failure,
        *,
        hard_fail: bool = False,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self.name, self._site, self._address = name, site, address
        self._on_failure, self._hard_fail, self._retry_seconds = on_failure, hard_fail, retry_seconds
        self.listening, self.bound = asyncio.Event(), ("", 0)

    async def run(self) -> None:
        listener = await self._open_socket()
        serving = serve_pages(listener, self._site)
        self.bound = listener.getsockname()[:2]
        self.listening.set()
        try:
            await asyncio.get_running_loop().create_future()  # never completes: only cancellation ends a server
        finally:
            await serving.close(_GRACE_SECONDS)

    async def _open_socket(self) -> socket.socket:
        reported = ""
        while True:
            try:
                return open_listening_socket(*split_address(self._address))
            except OSError as error:
                reason = f"cannot listen on {self._address}: {error.strerror or error}"
                if reason != reported:
                    self._on_failure(self.name, reason)
                    reported = reason
                if self._hard_fail:
                    raise UnsupportedError(f"{self.name}: {reason} (--bind-address-hard-fail is set)") from error
            await asyncio.sleep(self._retry_seconds)
