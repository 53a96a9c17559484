"""A frontend for TCP: accepts clients and has each relayed."""

import _socket
import select
import socket
from collections.abc import Sequence
from typing import Final

from vipwire.relay.balance import Pool
from vipwire.relay.direction import make_reset
from vipwire.relay.header import header
from vipwire.relay.listener import AT_LIMIT, FULL, NOT_LED, BaseListener, Shared, accept
from vipwire.relay.messages import Listener
from vipwire.relay.origins import asked_for
from vipwire.relay.tcp import Link

_BATCH: Final = 32
_BATCH_OF_WORKER: Final = 4
"""Others are to have something to do as well."""


class StreamListener(BaseListener):
    """A TCP listener. With a `pool` of the board it is one worker's: a client wakes one of those who wait."""

    def __init__(
        self,
        shared: Shared,
        key: str,
        listener: Listener,
        sockets: Sequence[_socket.socket],
        pool: Pool | None = None,
    ) -> None:
        super().__init__(shared, key, listener, sockets, pool)
        self._links = 0
        self.greets = False
        self._batch = _BATCH if pool is None else _BATCH_OF_WORKER
        for fd in self.sockets:
            self.loop.add(fd, self, select.EPOLLIN if pool is None else select.EPOLLIN | select.EPOLLEXCLUSIVE)

    def settle(self, listener: Listener) -> None:
        """Apply a listener's description; `greets` is whether endpoints are told who the client is."""
        super().settle(listener)
        self.greets = bool(listener.proxy_protocol)

    def ready(self, fd: int, mask: int) -> None:
        """Accept who waits, some at a time."""
        del mask
        listening = self.sockets[fd]
        budget, family, kind = self.shared.budget, self.family, socket.SOCK_STREAM
        for _ in range(self._batch):
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
            elif (asked := self._asked(client) if self.listener.span[1] else 0) is None:
                self._send_away(client, NOT_LED)
            else:
                budget.links += 1
                self._links += 1
                Link(self, client, peer, asked).dial()

    def _asked(self, client: _socket.socket) -> int | None:
        """Return which port of the range a client has asked for; None if rules have not led it here."""
        asked = asked_for(client, self.family)
        return asked[1] if self.in_span(asked[1]) and asked != client.getsockname()[:2] else None

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
        return header(self.listener.proxy_protocol, link.peer[:2], asked_for(link.client, self.family))

    def link_ended(self, link: Link) -> None:
        """Free the place of a connection."""
        del link
        self._links -= 1
        self.shared.budget.links -= 1
        self.shared.ended()
