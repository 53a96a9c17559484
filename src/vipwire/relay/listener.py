"""The base of a relay's TCP and UDP frontends, and the limits that all of them share.

At the limit of open files the relay resets new connections and reports it; established ones continue. One listener
may use only a part of the descriptors, so that a flood leaves some to the others.
"""

import _socket
import errno
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final, Protocol

from vipwire.model.net import Address, Prefix, parse_address
from vipwire.relay.balance import Pool
from vipwire.relay.direction import reset_on_close
from vipwire.relay.loop import EventLoop, TimerQueue
from vipwire.relay.messages import Listener, SocketAddress
from vipwire.relay.sockets import Origins

DIAL_TIMEOUTS: Final = (0.25, 0.5, 1.0, 2.0)
"""Seconds for each endpoint to answer a dial, one after the other."""
RESERVE: Final = 64
"""Descriptors that connections never use: for new listeners, pipes and the control process."""
_EACH: Final = 2
_SHARE: Final = 0.75
"""The part of all connections that one listener may have."""
FULL: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
AT_LIMIT: Final = "too many open files"
NOBODY: Final = "the listener refuses clients"
NOT_LED: Final = "they did not come from a port of the range"
CIRCLE: Final = "the relay connects to itself in a loop"
_MOST_STEPS: Final = 4
"""The most passes of one connection through this relay: an endpoint may be an address of another Service."""


class DescriptorBudget:
    """Limits the number of connections. `others` counts all other descriptors: listeners, UDP clients."""

    __slots__ = ("_limit", "_others", "links", "most", "most_each")
    most: int
    most_each: int

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.links = self.others = 0

    @property
    def others(self) -> int:
        return self._others

    @others.setter
    def others(self, number: int) -> None:
        # Computed here, because every connection reads the limits.
        self._others = number
        self.most = max(0, (self._limit - RESERVE - number) // _EACH)
        self.most_each = int(self.most * _SHARE)


class Dialled:
    """The relay's sockets to endpoints, by protocol and local address, with the number of passes through the relay.

    If a Service claims an endpoint's address and port, rules lead the relay's connection back to the relay. If that
    Service has the same endpoint, a single client would otherwise use up all descriptors.
    """

    def __init__(self) -> None:
        self._steps: dict[tuple[int, str, int], int] = {}

    def count_steps(self, protocol: int, peer: tuple[str, int]) -> int:
        """Return how often a client's connection has passed through the relay."""
        return self._steps.get((protocol, *peer[:2]), 0)

    def goes_round(self, protocol: int, peer: tuple[str, int]) -> bool:
        return self.count_steps(protocol, peer) >= _MOST_STEPS

    def add(self, protocol: int, sock: _socket.socket, peer: tuple[str, int]) -> tuple[int, str, int]:
        """Record a socket opened for this client; return the key for `remove`."""
        place = protocol, *sock.getsockname()[:2]
        self._steps[place] = self.count_steps(protocol, peer) + 1
        return place

    def remove(self, place: tuple[int, str, int]) -> None:
        self._steps.pop(place, None)


class Idle(Protocol):
    """A UDP client with the time of its last datagram in either direction."""

    used: float
    closed: bool

    def end(self) -> None:
        """Close its socket."""


def accept(listening: _socket.socket) -> tuple[int, tuple[str, int]]:
    """Accept a client as socket.accept does, without its Python socket object, which takes most of the time."""
    found: tuple[int, tuple[str, int]] = listening._accept()  # type: ignore[attr-defined]  # noqa: SLF001
    return found


class RelayState:
    """The state that all listeners of a relay share. The timeout is of idle UDP clients, in seconds.

    The relay calls `ended` when a connection or a UDP client's session has ended.
    """

    def __init__(
        self,
        loop: EventLoop,
        budget: DescriptorBudget,
        chance: Callable[[], float],
        udp_timeout: float,
        ended: Callable[[], None],
    ) -> None:
        self.loop, self.budget, self.chance, self.ended = loop, budget, chance, ended
        self.refused: Counter[str] = Counter()
        self.origins = Origins()
        self.dialled = Dialled()
        self.dial_timers: list[TimerQueue] = [
            loop.add_timer_queue(seconds, lambda link, step=step: link.redial_if_unanswered(step))  # type: ignore[misc]
            for step, seconds in enumerate(DIAL_TIMEOUTS)
        ]
        self._spare = socket.socket()
        self._idle = loop.add_timer_queue(udp_timeout, self._look)

    def close(self) -> None:
        self._spare.close()
        self.origins.close()

    def watch_idle(self, session: Idle) -> None:
        """End a UDP client's session after the idle timeout."""
        self.loop.schedule(self._idle, session)

    def set_udp_timeout(self, seconds: float) -> None:
        self._idle.seconds = seconds

    def _look(self, session: Idle) -> None:
        if session.closed:
            return
        silent = self.loop.now - session.used
        if silent >= self._idle.seconds * 0.999:
            session.end()
        else:
            self.loop.schedule(self._idle, session)

    def turn_away(self, listening: _socket.socket) -> None:
        """Refuse a client at the limit of descriptors, by giving up the spare one."""
        self._spare.close()
        with suppress(OSError):
            fd, _ = accept(listening)
            client = _socket.socket(fileno=fd)
            reset_on_close(client)
            client.close()
        with suppress(OSError):  # another socket took the descriptor: the next close frees one
            self._spare = socket.socket()


class BaseListener:
    """The common part of TCP and UDP listeners: sockets, a pool, allowed clients."""

    def __init__(self, shared: RelayState, key: str, listener: Listener, sockets: Sequence[_socket.socket]) -> None:
        self.shared, self.loop, self.key, self.listener = shared, shared.loop, key, listener
        self.sockets = {sock.fileno(): sock for sock in sockets}
        self.ports = [sock.getsockname()[1] for sock in sockets]
        self.family = sockets[0].family
        self.pool = Pool(shared.chance)
        self._sources: tuple[Prefix, ...] | None = None
        self._admitted: dict[str, bool] = {}

    def places(self) -> Iterator[tuple[tuple[int, SocketAddress], _socket.socket]]:
        for place, sock in zip(self.listener.binds, self.sockets.values(), strict=True):
            yield (self.listener.protocol, place), sock

    def apply(self, listener: Listener) -> None:
        """Apply a listener's description, except its sockets."""
        self.listener = listener
        self._admitted.clear()
        sources = listener.sources
        self._sources = None if sources is None else tuple(Prefix(Address(net), length) for net, length in sources)

    def in_span(self, port: int) -> bool:
        first, last = self.listener.span
        return first <= port <= last

    def admits(self, client: str) -> bool:
        """Report whether `sources` allow a client."""
        if self._sources is None:
            return True
        known = self._admitted.get(client)
        if known is None:
            address = parse_address(client)
            known = any(address in prefix for prefix in self._sources)
            if len(self._admitted) < 1024:
                self._admitted[client] = known
        return known

    def count_refusal(self, reason: str) -> None:
        self.shared.refused[reason] += 1
        self.loop.note(f"{self.listener.name}: refusing clients: {reason}")

    def close(self) -> None:
        for fd, sock in self.sockets.items():
            self.loop.remove_descriptor(fd, sock)
        self.sockets = {}
