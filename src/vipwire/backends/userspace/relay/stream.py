"""A frontend for TCP: accepts clients and has each relayed."""

import _socket
import select
import socket
from collections.abc import Sequence
from typing import Final

from vipwire.backends.userspace.messages import Listener
from vipwire.backends.userspace.relay.direction import make_reset
from vipwire.backends.userspace.relay.header import header
from vipwire.backends.userspace.relay.listener import AT_LIMIT, FULL, BaseListener, Shared, accept
from vipwire.backends.userspace.relay.tcp import Link

_BATCH: Final = 32
_ORIGINAL_DST: Final = 80
"""SO_ORIGINAL_DST and IP6T_SO_ORIGINAL_DST (linux/netfilter_ipv4.h, linux/netfilter_ipv6/ip6_tables.h)."""


class StreamListener(BaseListener):
    """A TCP listener."""

    def __init__(self, shared: Shared, key: str, listener: Listener, sockets: Sequence[_socket.socket]) -> None:
        super().__init__(shared, key, listener, sockets)
        self._links = 0
        for fd in self.sockets:
            self.loop.add(fd, self, select.EPOLLIN)

    def ready(self, fd: int, mask: int) -> None:
        """Accept who waits, some at a time."""
        del mask
        listening = self.sockets[fd]
        budget, family, kind = self.shared.budget, self.family, socket.SOCK_STREAM
        for _ in range(_BATCH):
            try:
                number, peer = accept(listening)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in FULL:
                    self.refused(AT_LIMIT)
                    self.shared.turn_away(listening)
                    return
                continue  # the client has given up already
            client = _socket.socket(family, kind, socket.IPPROTO_TCP, number)
            if budget.links >= budget.most or self._links >= budget.most_each:
                self._send_away(client, AT_LIMIT)
            elif self._sources is not None and not self.admits(peer[0]):
                self._send_away(client, "the source is not allowed")
            else:
                budget.links += 1
                self._links += 1
                Link(self, client, peer).dial()

    def _send_away(self, client: _socket.socket, reason: str) -> None:
        self.refused(reason)
        make_reset(client)
        client.close()

    def dialled(self, link: Link, step: int) -> None:
        """Wait for an endpoint to answer."""
        self.loop.schedule(self.shared.dial_timers[step], link)

    def greeting(self, link: Link) -> bytes:
        """Write the header of the PROXY protocol, if the Service wants it."""
        if not self.listener.proxy_protocol:
            return b""
        return header(self.listener.proxy_protocol, link.peer[:2], _asked_for(link.client, self.family))

    def link_ended(self, link: Link) -> None:
        """Make room."""
        del link
        self._links -= 1
        self.shared.budget.links -= 1
        self.shared.ended()


def _asked_for(client: _socket.socket, family: int) -> tuple[str, int]:
    """Return which address the client connected to, before rules of ours have translated it."""
    try:
        if family == socket.AF_INET:
            found = client.getsockopt(socket.IPPROTO_IP, _ORIGINAL_DST, 16)
            return socket.inet_ntop(family, found[4:8]), int.from_bytes(found[2:4])
        found = client.getsockopt(socket.IPPROTO_IPV6, _ORIGINAL_DST, 28)
        return socket.inet_ntop(family, found[8:24]), int.from_bytes(found[2:4])
    except OSError:  # nothing was translated
        host, port = client.getsockname()[:2]
        return host, port
