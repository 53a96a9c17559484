"""HTTP servers that are held by one task group: bind, retry every five seconds, serve until cancelled.

    async with asyncio.TaskGroup() as tasks:
        for server in servers:
            tasks.create_task(server.run(), name=server.name)

Sockets listen as Go opens them: kube-proxy's `0.0.0.0:10256` answers on IPv6 too, because Go opens a dual-stack
socket for any wildcard; probes by IPv6 depend on it.

A port that is taken is no reason to stop proxying: kube-proxy tries again every 5 s unless told to fail by
`--bind-address-hard-fail`, and so do we. What failed is said once per reason, for the log and an Event on the Node.
"""

import asyncio
import contextlib
import errno
import ipaddress
import socket
from collections.abc import Callable
from typing import Final

from vipwire.errors import UnsupportedError
from vipwire.http_server.pages import Site, serve
from vipwire.model.value import Value

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
        listener.settimeout(0)  # non-blocking, as asyncio wants it
        on_error.pop_all()
        return listener


RETRY_SECONDS: Final = 5.0
_GRACE_SECONDS: Final = 1.0  # a request that is being answered must not hold up the end of the process


def _ignore(_server: str, _reason: str) -> None:
    """Report a failure to nobody."""


class BindPolicy(Value, frozen=True):
    """The reaction to a port that cannot be bound: fail, or try again after `retry_seconds`.

    `on_failure` is called with the server's name and the reason, once as long as the reason stays the same.
    """

    hard_fail: bool = False
    retry_seconds: float = RETRY_SECONDS
    on_failure: Callable[[str, str], None] = _ignore


class HttpServer:
    """One site at one address.

    `address` is a validated `IP:port`; port 0 takes any. `run()` serves until it is cancelled; `bound()` waits until
    the port is open and tells the address. A policy of hard failure makes `run()` raise UnsupportedError.
    """

    def __init__(self, name: str, site: Site, address: str, policy: BindPolicy) -> None:
        self.name = name
        self._site = site
        self._address = address
        self._policy = policy
        self._bound: asyncio.Future[tuple[str, int]] | None = None

    async def bound(self) -> tuple[str, int]:
        """Wait until the server listens; tell its IP address and port."""
        return await asyncio.shield(self._promise())

    async def run(self) -> None:
        """Bind and serve until cancelled."""
        listener = await self._listen()
        serving = serve(listener, self._site)
        try:
            host, port = listener.getsockname()[:2]
            self._promise().set_result((host, port))
            await asyncio.get_running_loop().create_future()  # never done: only cancelling ends a server
        finally:
            await serving.close(_GRACE_SECONDS)

    def _promise(self) -> "asyncio.Future[tuple[str, int]]":
        if self._bound is None:
            self._bound = asyncio.get_running_loop().create_future()
        return self._bound

    async def _listen(self) -> socket.socket:
        reported = ""
        while True:
            try:
                return listen(*split_address(self._address))
            except OSError as error:
                reason = f"cannot listen on {self._address}: {error.strerror or error}"
                if reason != reported:
                    self._policy.on_failure(self.name, reason)
                    reported = reason
                if self._policy.hard_fail:
                    raise UnsupportedError(f"{self.name}: {reason} (--bind-address-hard-fail is set)") from error
            await asyncio.sleep(self._policy.retry_seconds)
