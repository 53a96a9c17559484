"""A frontend for TCP: accepts clients, connects to an endpoint for each, and copies both ways until both end.

    client ──▶ Direction "up"   ──▶ endpoint
    client ◀── Direction "down" ◀── endpoint

The relay dials once for each of `DIAL_TIMEOUTS`, each time another endpoint (kube-proxy's userspace mode: 250 ms,
500 ms, 1 s, 2 s). After a refusal it dials the next at once; after the last try it resets the client. Bytes that a
client sends before an endpoint has answered are kept.
"""

import _socket
import errno
import os
import select
import socket
from collections.abc import Sequence
from typing import Final

from vipwire.relay.balance import BalancedEndpoint
from vipwire.relay.direction import (
    BUFFER,
    EVENTS,
    NOW,
    READING,
    VIEW,
    WRITE_NOW,
    Direction,
    reset_on_close,
)
from vipwire.relay.header import encode_proxy_header
from vipwire.relay.listener import AT_LIMIT, CIRCLE, DIAL_TIMEOUTS, FULL, NOT_LED, BaseListener, RelayState, accept
from vipwire.relay.loop import EventLoop
from vipwire.relay.messages import Listener
from vipwire.relay.sockets import read_original_destination

_READ: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_WRITE: Final = select.EPOLLOUT
_ERROR: Final = select.EPOLLERR
_BAD: Final = _ERROR | select.EPOLLHUP
_STREAM: Final = socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
_TCP: Final = socket.IPPROTO_TCP
_BEGUN: Final = frozenset({0, errno.EINPROGRESS})
_ONE_SEGMENT: Final = 512
"""Bytes that fit into one TCP segment on any path. The kernel sends one segment without an acknowledgement."""
_BATCH: Final = 32
"""Clients accepted in one turn."""


class RelayedConnection:
    """One connection of a client; `asked` is the port of a range that the client connected to."""

    __slots__ = (
        "asked",
        "client",
        "client_fd",
        "closed",
        "dialled",
        "down",
        "early",
        "owner",
        "peer",
        "server",
        "step",
        "target",
        "tried",
        "up",
    )
    target: BalancedEndpoint
    server: _socket.socket
    dialled: tuple[int, str, int]
    up: Direction
    down: Direction

    def __init__(
        self, owner: "StreamListener", client: _socket.socket, peer: tuple[str, int], asked: int = 0
    ) -> None:
        self.owner, self.client, self.peer, self.asked = owner, client, peer, asked
        self.client_fd = client.fileno()
        self.tried: tuple[BalancedEndpoint, ...] = ()
        self.early = b""
        self.step = -1
        self.closed = False

    @property
    def loop(self) -> EventLoop:
        return self.owner.loop

    def direction_ended(self) -> bool:
        """Report whether both directions have ended, and then close the connection."""
        if self.up.ended and self.down.ended:
            self.close()
            return True
        return False

    def dial(self) -> None:
        """Connect to an endpoint, and to the next if connect(2) fails at once."""
        owner = self.owner
        while self.step + 1 < len(DIAL_TIMEOUTS):
            self.step += 1
            target = owner.pool.choose(self.peer[0], self.peer[1], owner.loop.now, self.tried)
            if target is None:
                break
            self.target = target
            target.open += 1
            try:
                server = _socket.socket(owner.family, _STREAM, _TCP)
            except OSError:
                target.open -= 1
                self._give_up("too many open files")
                return
            self.server = server
            code = server.connect_ex(target.choose_destination(self.asked))
            if code in _BEGUN:
                self.dialled = owner.shared.dialled.add(_TCP, server, self.peer)
                if not self._is_served_at_once():
                    owner.loop.add(server.fileno(), self, EVENTS)
                    owner.loop.schedule(owner.shared.dial_timers[self.step], self)
                return
            server.close()
            self._record_failed_dial(code)
        self._give_up("no endpoint answers")

    def ready(self, fd: int, mask: int) -> None:
        if self.step >= 0:
            self._handle_answer(mask)
            return
        if fd == self.client_fd:
            coming, going = self.up, self.down
        else:
            coming, going = self.down, self.up
        if going.waiting and mask & _WRITE:
            going.flush()
        if mask & _READ and not self.closed:
            coming.pump(mask)
        if mask & _ERROR and not self.closed:
            self.close()

    def redial_if_unanswered(self, step: int) -> None:
        """Dial the next endpoint if the one of this step has not answered."""
        if self.step == step and not self.closed:
            self._redial(errno.ETIMEDOUT)

    def close(self) -> None:
        """Close both sockets, after sending all received bytes that can be sent."""
        if self.closed:
            return
        self.closed = True
        loop = self.owner.loop
        if self.step < 0:
            self.up.end()
            self.down.end()
            del self.up, self.down
        else:
            reset_on_close(self.client)
        loop.forget(self.client_fd, self.client)
        self.owner.shared.dialled.remove(self.dialled)
        loop.forget(self.server.fileno(), self.server)
        self.target.open -= 1
        self.owner.link_ended()

    def _handle_answer(self, mask: int) -> None:
        if mask & _BAD:
            code = self.server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code or not mask & _WRITE:
                self._redial(code or errno.ECONNRESET)
                return
        elif not mask & _WRITE:
            return
        self._start_copying(watched=True)
        owner, early = self.owner, self.early
        try:
            if greeting := owner.greeting(self) + early:
                sent = self.server.send(greeting, WRITE_NOW)
                self.target.sent += max(0, sent - len(greeting) + len(early))
                if sent < len(greeting):
                    self.up.left, self.up.waiting = greeting[sent:], True
                if len(greeting) > _ONE_SEGMENT:
                    self.up.hurry()
        except OSError:
            self.close()
            return
        self.early = b""
        self.up.pump()
        if mask & _READ and not self.closed:
            self.down.pump(mask)
        if not self.closed:
            owner.loop.add(self.client_fd, self, EVENTS)

    def _start_copying(self, *, watched: bool) -> None:
        """Start copying. `watched`: both sockets are, or will be, registered for writing as well."""
        self.step = -1
        self.owner.pool.record_connection(self.target)
        self.up = Direction(self, self.client, self.server, True)  # noqa: FBT003
        self.down = Direction(self, self.server, self.client, False)  # noqa: FBT003
        self.up.watched = self.down.watched = watched

    def _is_served_at_once(self) -> bool:
        """Send the client's first bytes to the endpoint now; on this machine it has already accepted.

        This saves half of the events of a short connection. If the endpoint has not answered, the relay keeps the
        bytes.
        """
        if self.early or self.owner.greets:
            return False
        try:
            size = self.client.recv_into(BUFFER, 0, NOW)
        except OSError:
            return False  # the client has sent nothing yet
        if not size:
            return False
        try:
            sent = self.server.send(VIEW[:size], WRITE_NOW)
        except OSError:
            self.early = bytes(VIEW[:size])
            return False
        self._start_copying(watched=False)
        self.target.sent += sent
        loop = self.owner.loop
        loop.add(self.server.fileno(), self, READING)
        loop.add(self.client_fd, self, READING)
        if sent < size:
            self.up.left = bytes(VIEW[sent:size])
            self.up.wait()
        elif size > _ONE_SEGMENT:
            self.up.hurry()
        return True

    def _redial(self, code: int) -> None:
        self.owner.shared.dialled.remove(self.dialled)
        self.owner.loop.forget(self.server.fileno(), self.server)
        self._record_failed_dial(code)
        self.dial()

    def _record_failed_dial(self, code: int) -> None:
        target = self.target
        self.tried = (*self.tried, target)
        owner = self.owner
        begins_ejection = owner.pool.record_failed_dial(target, owner.loop.now)
        target.open -= 1  # last: an endpoint without open connections may be forgotten
        if begins_ejection:
            owner.loop.note(f"endpoint {target} does not answer ({os.strerror(code)}); trying it again later")

    def _give_up(self, reason: str) -> None:
        self.closed = True
        self.owner.count_refusal(reason)
        reset_on_close(self.client)
        self.owner.loop.forget(self.client_fd, self.client)
        self.owner.link_ended()


class StreamListener(BaseListener):
    """A TCP listener. `greets`: sends endpoints the PROXY protocol's header."""

    def __init__(self, shared: RelayState, key: str, listener: Listener, sockets: Sequence[_socket.socket]) -> None:
        super().__init__(shared, key, listener, sockets)
        self._links = 0
        self.greets = False
        for fd in self.sockets:
            self.loop.add(fd, self, select.EPOLLIN)

    def apply(self, listener: Listener) -> None:
        super().apply(listener)
        self.greets = bool(listener.proxy_protocol)

    def ready(self, fd: int, mask: int) -> None:
        """Accept at most `_BATCH` waiting clients."""
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
                    self.count_refusal(AT_LIMIT)
                    self.shared.turn_away(listening)
                    return
                continue  # the client has already closed
            client = _socket.socket(family, kind, socket.IPPROTO_TCP, number)
            if budget.links >= budget.most or self._links >= budget.most_each:
                self._refuse_client(client, AT_LIMIT)
            elif self._sources is not None and not self.admits(peer[0]):
                self._refuse_client(client, "the source is not allowed")
            elif self.shared.dialled.goes_round(_TCP, peer):
                self._refuse_client(client, CIRCLE)
            elif (asked := self._find_requested_port(client) if self.listener.span[1] else 0) is None:
                self._refuse_client(client, NOT_LED)
            else:
                budget.links += 1
                self._links += 1
                RelayedConnection(self, client, peer, asked).dial()

    def _find_requested_port(self, client: _socket.socket) -> int | None:
        """Return the port of the range that a client connected to; None if no rule translated the client here."""
        asked = read_original_destination(client, self.family)
        return asked[1] if self.in_span(asked[1]) and asked != client.getsockname()[:2] else None

    def _refuse_client(self, client: _socket.socket, reason: str) -> None:
        self.count_refusal(reason)
        reset_on_close(client)
        client.close()

    def greeting(self, link: RelayedConnection) -> bytes:
        """Return the header of the PROXY protocol; empty if the Service does not use it."""
        if not self.greets:
            return b""
        return encode_proxy_header(
            self.listener.proxy_protocol, link.peer[:2], read_original_destination(link.client, self.family)
        )

    def link_ended(self) -> None:
        self._links -= 1
        self.shared.budget.links -= 1
        self.shared.ended()
