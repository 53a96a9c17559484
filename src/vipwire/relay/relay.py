"""The relay: all listeners of one family, and the Unix socket by which the control process configures them.

The relay executes a `Put` as a whole or not at all: it opens every socket before any listener changes. Established
connections do not depend on listeners. See `messages`.
"""

import _socket
import random
import select
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from vipwire.errors import DecodeError
from vipwire.model.net import Protocol
from vipwire.process_lifecycle.local_sockets import read_peer_credentials
from vipwire.relay.balance import ClientMemory
from vipwire.relay.datagram import DatagramListener
from vipwire.relay.listener import BaseListener, DescriptorBudget, RelayState
from vipwire.relay.loop import EventLoop
from vipwire.relay.messages import (
    VERSION,
    Answer,
    AskCounters,
    AskNotes,
    Done,
    EndpointCounters,
    Hello,
    Listener,
    Notes,
    Observe,
    Observed,
    Opened,
    Put,
    Refused,
    RelayCounters,
    RelaySettings,
    Remove,
    Request,
    Retire,
    SocketAddress,
    Welcome,
    decode_request,
    encode_message,
    take_body,
)
from vipwire.relay.sockets import ListenError, open_listener
from vipwire.relay.stream import StreamListener

_SWEEP_SECONDS: Final = 5.0


class Relay:
    """The listeners, and the answers to the control process."""

    def __init__(self, loop: EventLoop, limit: int, pid: int, chance: Callable[[], float] = random.random) -> None:
        self._loop, self._pid = loop, pid
        self._settings = RelaySettings()
        self.budget = DescriptorBudget(limit)
        self.shared = RelayState(loop, self.budget, chance, self._settings.udp_timeout, self._end_if_idle)
        self._listeners: dict[str, BaseListener] = {}
        self._memories: dict[str, ClientMemory] = {}
        self._retired = False
        self._sweeping = loop.add_timer_queue(_SWEEP_SECONDS, self._forget_old_clients)
        loop.schedule(self._sweeping, None)

    def answer(self, request: Request) -> Answer:
        match request:
            case Hello():
                return Welcome(VERSION, self._pid, self._settings)
            case RelaySettings():
                self._settings = request
                self.shared.set_udp_timeout(request.udp_timeout)
            case Observe():
                return Observed(
                    {key: opened.listener for key, opened in self._listeners.items()},
                    {key: opened.ports for key, opened in self._listeners.items()},
                )
            case Put(listeners, instead):
                return self._open_listeners(listeners, instead)
            case Remove(keys):
                self._close_listeners(keys)
            case AskCounters():
                return self._read_counters()
            case AskNotes():
                notes = list(self._loop.notes.items())
                self._loop.notes.clear()
                return Notes(notes)
            case Retire():
                self._close_listeners(list(self._listeners))
                self._retired = True
                self._end_if_idle()
        return Done()

    def _open_listeners(self, listeners: Mapping[str, Listener], instead: Iterable[str]) -> Answer:
        ending = [key for key in instead if key in self._listeners and key not in listeners]
        moving = [
            key for key, each in listeners.items() if key in self._listeners and not self._is_unchanged(key, each)
        ]
        inherited = {place: sock for key in (*ending, *moving) for place, sock in self._listeners[key].places()}
        opened: dict[str, list[_socket.socket]] = {}
        for key, listener in listeners.items():
            if key in self._listeners and self._is_unchanged(key, listener):
                continue
            try:
                opened[key] = self._open_sockets(listener, inherited)
            except ListenError as error:
                for sock in (sock for each in opened.values() for sock in each):
                    sock.close()
                return Refused(key, error.errno or 0, f"{listener.name}: {error.strerror}")
        self._close_listeners((*ending, *moving))
        for key, listener in listeners.items():
            if key in opened:
                self._add_listener(key, listener, opened[key])
            else:
                self._apply_listener(self._listeners[key], listener)
        return Opened({key: self._listeners[key].ports for key in listeners})

    def _is_unchanged(self, key: str, listener: Listener) -> bool:
        known = self._listeners[key].listener
        return known.protocol == listener.protocol and known.binds == listener.binds

    def _open_sockets(
        self, listener: Listener, inherited: Mapping[tuple[int, SocketAddress], _socket.socket]
    ) -> list[_socket.socket]:
        """Open a listener's sockets; duplicate those of closed listeners at the same place, with their queues."""
        first, last = self._settings.ports
        ports = range(first, last + 1) if last else range(0)
        sockets: list[_socket.socket] = []
        try:
            for place in listener.binds:
                old = inherited.get((listener.protocol, place)) if place.port else None
                if old is not None:
                    sockets.append(_socket.socket(old.family, old.type, old.proto, _socket.dup(old.fileno())))
                else:
                    sockets.append(open_listener(listener.protocol, place, ports, self.shared.chance))
        except OSError as error:
            for sock in sockets:
                sock.close()
            raise error if isinstance(error, ListenError) else ListenError(error.errno, str(error)) from error
        return sockets

    def _add_listener(self, key: str, listener: Listener, sockets: list[_socket.socket]) -> None:
        kind = StreamListener if listener.protocol == Protocol.TCP else DatagramListener
        opened: BaseListener = kind(self.shared, key, listener, sockets)
        self._listeners[key] = opened
        self.budget.others += len(sockets)
        self._apply_listener(opened, listener)

    def _apply_listener(self, opened: BaseListener, listener: Listener) -> None:
        memory = self._choose_client_memory(listener.group, listener)
        if memory is None:
            memory = opened.pool.memory if not opened.listener.group else ClientMemory()
        opened.pool.set_listener(listener, memory, self._choose_client_memory(listener.beside, listener))
        opened.apply(listener)

    def _choose_client_memory(self, group: str, listener: Listener) -> ClientMemory | None:
        """Return the affinity table of a group; a new one if `whole` has changed."""
        if not group:
            return None
        found = self._memories.get(group)
        if found is None or found.whole is not listener.whole:
            found = self._memories[group] = ClientMemory(whole=listener.whole)
        return found

    def _close_listeners(self, keys: Iterable[str]) -> None:
        for key in keys:
            opened = self._listeners.pop(key, None)
            if opened is not None:
                self.budget.others -= len(opened.sockets)
                opened.close()

    def _read_counters(self) -> RelayCounters:
        now = self._loop.now
        listeners = {
            key: [
                EndpointCounters(each.place, *each.read_totals(), each.ejected_until > now)
                for each in opened.pool.targets.values()
            ]
            for key, opened in self._listeners.items()
        }
        return RelayCounters(listeners, dict(self.shared.refused), self.budget.links)

    def _forget_old_clients(self, _: object) -> None:
        for opened in self._listeners.values():
            opened.pool.sweep(self._loop.now)
        listeners = [opened.listener for opened in self._listeners.values()]
        used = {group for listener in listeners for group in (listener.group, listener.beside)}
        self._memories = {group: memory for group, memory in self._memories.items() if group in used}
        self._loop.schedule(self._sweeping, None)

    def _end_if_idle(self) -> None:
        if self._retired and not self.budget.links:
            self._loop.stopped = True


_CONTROL_TIMEOUT: Final = 5.0
"""Seconds until the relay closes the connection of a control process that does not read answers. All relaying waits
meanwhile; the control process has the same user or is root.
"""


class ControlSocket:
    """Accepts the connections of the control process, reads requests, writes answers."""

    def __init__(self, loop: EventLoop, relay: Relay, listening: socket.socket, user: int) -> None:
        self._loop, self._relay, self._listening, self._user = loop, relay, listening, user
        loop.add(listening.fileno(), self, select.EPOLLIN)

    def ready(self, fd: int, mask: int) -> None:
        """Accept a connection, if its process belongs to this user or root."""
        del fd, mask
        try:
            sock, _ = self._listening.accept()
        except OSError:
            return
        if read_peer_credentials(sock)[1] not in (0, self._user):
            sock.close()
            return
        ControlConnection(self._loop, self._relay, sock, self.close)

    def close(self) -> None:
        """Close the socket, so that another relay can take its name."""
        self._loop.forget(self._listening.fileno(), self._listening)


class ControlConnection:
    """One connection of a control process. `release` frees the relay's name when the relay retires."""

    def __init__(self, loop: EventLoop, relay: Relay, sock: socket.socket, release: Callable[[], None]) -> None:
        self._loop, self._relay, self._sock, self._release = loop, relay, sock, release
        self._heard = bytearray()
        sock.settimeout(_CONTROL_TIMEOUT)
        loop.add(sock.fileno(), self, select.EPOLLIN)

    def ready(self, fd: int, mask: int) -> None:
        del mask
        try:
            data = self._sock.recv(1 << 20, socket.MSG_DONTWAIT)
            self._heard += data
            while data and (body := take_body(self._heard)) is not None:
                request = decode_request(body)
                if isinstance(request, Retire):
                    self._release()
                self._sock.sendall(encode_message(self._relay.answer(request)))
        except BlockingIOError:
            return
        except (OSError, DecodeError) as error:
            self._loop.note(f"a control connection was closed: {error}")
            data = b""
        if not data:
            self._loop.forget(fd, self._sock)
