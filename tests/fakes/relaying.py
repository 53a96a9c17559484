"""A relay in this process, on loopback, whose loop runs while a test waits; and its clients and servers."""

import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from vipwire.relay.loop import EventLoop
from vipwire.relay.messages import (
    AskCounters,
    EndpointCounters,
    Listener,
    Opened,
    Put,
    RelayCounters,
    Remove,
    Share,
    SocketAddress,
)
from vipwire.relay.relay import Relay

HERE = b"\x7f\0\0\1"
PATIENCE = 60.0


class Relaying:
    """A relay and its loop. Random choices take endpoints in the given order."""

    def __init__(self, limit: int = 4096) -> None:
        self.loop = EventLoop()
        self.relay = Relay(self.loop, limit, 1, lambda: 0.999)

    def listen(self, key: str, *places: SocketAddress, protocol: int = 6, **fields: Any) -> int:
        """Open a listener on loopback; return its port."""
        shares = tuple(Share(place) for place in places)
        described = Listener(key, protocol, (SocketAddress(HERE, 0),), shares, **fields)
        answer = self.relay.answer(Put({key: described}))
        assert isinstance(answer, Opened), answer
        return answer.ports[key][0]

    def until(self, fact: Callable[[], Any]) -> Any:
        """Run the relay until `fact` holds; return it."""
        deadline = time.monotonic() + PATIENCE
        while not (found := fact()):
            assert time.monotonic() < deadline, "the relay does not get there"
            self.loop.run_round(0.01)
        return found

    def counted(self) -> RelayCounters:
        answer = self.relay.answer(AskCounters())
        assert isinstance(answer, RelayCounters)
        return answer

    def count(self, key: str, place: SocketAddress) -> EndpointCounters:
        return next(each for each in self.counted().listeners[key] if each.place == place)

    def said(self) -> str:
        """Return all its log lines once."""
        return "\n".join(self.loop.notes)


@contextmanager
def relaying(limit: int = 4096) -> Iterator[Relaying]:
    """Run a relay; the end closes everything."""
    made = Relaying(limit)
    try:
        yield made
    finally:
        made.relay.answer(Remove(list(made.counted().listeners)))
        made.loop.run_round(0)
        for handler in made.loop.list_handlers():
            getattr(handler, "close", lambda: None)()
        made.loop.run_round(0)
        made.relay.shared.close()
        made.loop.close()


class Peer:
    """A server on loopback that accepts, reads and writes only when told."""

    def __init__(self, *, backlog: int = 64, kind: int = socket.SOCK_STREAM) -> None:
        self.listening = socket.socket(socket.AF_INET, kind)
        self.listening.bind(("127.0.0.1", 0))
        if kind == socket.SOCK_STREAM:
            self.listening.listen(backlog)
        self.listening.settimeout(0)
        self.place = SocketAddress(HERE, self.listening.getsockname()[1])
        self.accepted: list[socket.socket] = []

    def accept(self) -> socket.socket | None:
        """Accept a connection if one waits."""
        try:
            sock, _ = self.listening.accept()
        except BlockingIOError:
            return None
        sock.settimeout(0)
        self.accepted.append(sock)
        return sock

    def refuse(self) -> SocketAddress:
        """Stop serving but keep the port, so that connections to it are refused."""
        kind = self.listening.type
        self.listening.close()
        self.listening = socket.socket(socket.AF_INET, kind)
        self.listening.bind(("127.0.0.1", self.place.port))
        if kind == socket.SOCK_DGRAM:
            self.listening.connect(("127.0.0.1", 9))  # ignore datagrams of other senders
        return self.place

    def close(self) -> None:
        for sock in (*self.accepted, self.listening):
            sock.close()


@contextmanager
def peers(count: int, **fields: Any) -> Iterator[list[Peer]]:
    made = [Peer(**fields) for _ in range(count)]
    try:
        yield made
    finally:
        for peer in made:
            peer.close()


@contextmanager
def client(port: int) -> Iterator[socket.socket]:
    """Connect a non-blocking socket to a port on loopback."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as sock:
        sock.settimeout(0)
        yield sock


def heard(sock: socket.socket, size: int = 65536) -> bytes | None:
    """Read available data: None without any, b"" at the end. Raise ConnectionResetError for a reset."""
    try:
        return sock.recv(size)
    except BlockingIOError:
        return None


def was_reset(sock: socket.socket) -> bool:
    """Report whether the peer has sent a reset."""
    try:
        return sock.recv(1) is None
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def readable(sock: socket.socket) -> bool:
    """Report whether data or the end can be read."""
    return bool(select.select([sock], [], [], 0)[0])
