"""A frontend for UDP: each client (address and port) has a socket to an endpoint until it is idle.

A client that returns from the same port gets its previous endpoint if that still serves: the relay remembers the
endpoint longer than the socket, as connection tracking does. Clients leave an endpoint at once when it is removed.
"""

import _socket
import errno
import select
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from vipwire.relay.balance import BalancedEndpoint
from vipwire.relay.header import encode_proxy_header
from vipwire.relay.listener import AT_LIMIT, CIRCLE, FULL, NOBODY, NOT_LED, BaseListener, RelayState
from vipwire.relay.messages import NOWHERE, Listener, SocketAddress
from vipwire.relay.sockets import (
    ASKED_BYTES,
    decode_original_destination,
    encode_source_address,
    reports_original_destination,
)

_BATCH: Final = 32
_BUFFER: Final = bytearray(1 << 16)
_VIEW: Final = memoryview(_BUFFER)
_NOW: Final = socket.MSG_DONTWAIT
_DATAGRAM: Final = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
_FAMILIES: Final = {4: socket.AF_INET, 16: socket.AF_INET6}
REMEMBERED: Final = 4096
"""Clients of a listener whose endpoint is remembered after their socket is closed."""
MOST_CLIENTS: Final = 16384
"""Clients of a listener with open sockets; beyond that the relay closes the oldest one's."""

Client = tuple[int, tuple[str, int], bytes]
"""The listening socket of a client, its address and port, and the destination address of its datagrams. The last is
the kernel's message if the socket listens at all addresses, else empty: answers come from there.
"""


class Session:
    """One client's socket to an endpoint; `asked` is the port of a range that the client sent to."""

    __slots__ = ("asked", "client", "closed", "dialled", "owner", "sock", "target", "used")

    def __init__(
        self,
        owner: "DatagramListener",
        client: Client,
        target: BalancedEndpoint,
        sock: _socket.socket,
        asked: int = 0,
    ) -> None:
        self.owner, self.client, self.target, self.sock, self.asked = owner, client, target, sock, asked
        self.used = owner.loop.now
        self.dialled = owner.shared.dialled.add(socket.IPPROTO_UDP, sock, client[1])
        self.closed = False

    def end(self) -> None:
        self.owner.end(self)

    def ready(self, fd: int, mask: int) -> None:
        del fd, mask
        owner, (number, peer, asked) = self.owner, self.client
        listening = owner.sockets.get(number)
        for _ in range(_BATCH):
            try:
                size = self.sock.recv_into(_BUFFER, 0, _NOW)
            except BlockingIOError:
                return
            except OSError as error:
                owner.drop_refusing_endpoint(self, error.errno or 0)
                return
            self.used = owner.loop.now
            self.target.failures = 0
            self.target.received += size
            if listening is not None:
                with suppress(OSError):  # datagrams may be lost
                    if asked:
                        listening.sendmsg((_VIEW[:size],), encode_source_address(listening.family, asked), _NOW, peer)
                    else:
                        listening.sendto(_VIEW[:size], _NOW, peer)


class DatagramListener(BaseListener):
    """A UDP listener."""

    def __init__(self, shared: RelayState, key: str, listener: Listener, sockets: Sequence[_socket.socket]) -> None:
        super().__init__(shared, key, listener, sockets)
        self._sessions: dict[Client, Session] = {}
        self._had: dict[Client, BalancedEndpoint] = {}
        self._serving: frozenset[SocketAddress] = frozenset()
        self._named = max(place.port for place in listener.binds)
        """The port that clients send to, also those that rules lead to another socket; 0 if unknown."""
        self._everywhere = frozenset(fd for fd, sock in self.sockets.items() if reports_original_destination(sock))
        for fd in self.sockets:
            self.loop.add(fd, self, select.EPOLLIN)

    def apply(self, listener: Listener) -> None:
        """Apply the description; clients of removed endpoints get another one."""
        super().apply(listener)
        self._serving = frozenset(listener.serving)
        for session in list(self._sessions.values()):
            if not self._is_served(session.target):
                self.end(session)
        self._had = {client: target for client, target in self._had.items() if self._is_served(target)}

    def ready(self, fd: int, mask: int) -> None:
        del mask
        listening, everywhere, asked = self.sockets[fd], fd in self._everywhere, b""
        for _ in range(_BATCH):
            try:
                if everywhere:
                    size, told, _, peer = listening.recvmsg_into((_BUFFER,), ASKED_BYTES, _NOW)
                    asked = decode_original_destination(told)
                else:
                    size, peer = listening.recvfrom_into(_BUFFER, 0, _NOW)
            except BlockingIOError:
                return
            except OSError:
                continue  # the error of an earlier answer
            client = (fd, peer, asked)
            session = self._sessions.get(client) or self._open_session(client)
            if session is not None:
                self._send_from_session(session, size)

    def drop_refusing_endpoint(self, session: Session, code: int) -> None:
        """Drop a client's endpoint that refuses datagrams; the next datagram goes to another endpoint."""
        target = session.target
        self.end(session)
        self._had.pop(session.client, None)
        if self.pool.record_failed_dial(target, self.loop.now):
            self.loop.note(
                f"endpoint {target} does not answer ({errno.errorcode.get(code, code)}); trying it again later"
            )

    def end(self, session: Session) -> None:
        if session.closed:
            return
        session.closed = True
        self._sessions.pop(session.client, None)
        self.shared.dialled.remove(session.dialled)
        self.loop.forget(session.sock.fileno(), session.sock)
        session.target.open -= 1
        self.shared.budget.others -= 1
        self.shared.ended()

    def close(self) -> None:
        super().close()
        for session in list(self._sessions.values()):
            self.end(session)

    def _is_served(self, target: BalancedEndpoint) -> bool:
        return target.place in self.pool.targets or target.place in self._serving

    def _open_session(self, client: Client) -> Session | None:
        host, port = client[1][:2]
        if not self.admits(host):
            self.count_refusal("the source is not allowed")
            return None
        asked = self._find_requested_port(client) if self.listener.span[1] else 0
        if asked is None:
            self.count_refusal(NOT_LED)
            return None
        target = self._had.get(client) or self._choose_endpoint(host, port)
        if target is None:
            return None
        if len(self._sessions) >= MOST_CLIENTS or self.shared.budget.most <= self.shared.budget.links:
            for oldest in list(self._sessions.values())[:1]:
                self.end(oldest)
        try:
            sock = _socket.socket(_FAMILIES[len(target.place.address)], _DATAGRAM, 0)
        except OSError as error:
            if error.errno in FULL:
                self.count_refusal(AT_LIMIT)
            return None
        try:
            sock.connect(target.choose_destination(asked))
        except OSError:
            sock.close()
            self.pool.record_failed_dial(target, self.loop.now)
            return None
        return self._register_session(Session(self, client, target, sock, asked))

    def _choose_endpoint(self, host: str, port: int) -> BalancedEndpoint | None:
        if self.shared.dialled.goes_round(socket.IPPROTO_UDP, (host, port)):
            self.count_refusal(CIRCLE)
            return None
        target = self.pool.choose(host, port, self.loop.now)
        if target is not None and target.place == NOWHERE:
            self.count_refusal(NOBODY)
            return None
        return target

    def _find_requested_port(self, client: Client) -> int | None:
        """Return the port of the range that a client sent to; None if no rule translated the client here."""
        number, peer, _ = client
        here = self.sockets[number].getsockname()[:2]
        asked = self.shared.origins.port(peer[:2], here)
        return asked if self.in_span(asked) and asked != here[1] else None

    def _register_session(self, session: Session) -> Session:
        client, target = session.client, session.target
        self._sessions[client] = session
        target.open += 1
        target.connections += 1
        self.shared.budget.others += 1
        self._had.pop(client, None)
        self._had[client] = target
        if len(self._had) > REMEMBERED:
            del self._had[next(iter(self._had))]
        self.loop.add(session.sock.fileno(), session, select.EPOLLIN)
        self.shared.watch_idle(session)
        return session

    def _send_from_session(self, session: Session, size: int) -> None:
        session.used = self.loop.now
        data: bytes | memoryview = _VIEW[:size]
        if version := self.listener.proxy_protocol:
            number, peer, _ = session.client
            host, port = self.sockets[number].getsockname()[:2]
            asked = session.asked or self._named or port
            data = encode_proxy_header(version, peer[:2], (host, asked), datagram=True) + bytes(data)
        try:
            session.sock.send(data, _NOW)
            session.target.sent += size
        except BlockingIOError:
            pass
        except OSError as error:
            self.drop_refusing_endpoint(session, error.errno or 0)
