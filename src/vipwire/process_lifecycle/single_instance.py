"""One process for each claim on this machine: a second process gets an error about the first, or takes over.

A claim is a Unix socket whose name belongs to the network namespace (`local_sockets`), which containers with separate
pid namespaces may share. The kernel closes the socket when the process ends in any way. The owner answers there in a
thread of its own, and the kernel tells each side the other's process and user (SO_PEERCRED):

    second connects     first describes itself, as one line of JSON
    second: takeover    first (if the second is root, or the same user) answers `ending`, and ends in its usual way
    the connection ends ▸ the first has ended ▸ the second has the names
"""

import contextlib
import errno
import json
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import field

from vipwire.errors import ConfigError, VipwireError
from vipwire.logging import log
from vipwire.model.value import Value
from vipwire.process_lifecycle.local_sockets import (
    connect_to_name,
    connect_to_older,
    is_at,
    is_bound_elsewhere,
    listen_at_name,
    read_peer_credentials,
)

INHERITED: Final = "VIPWIRE_CLAIMS"
"""The variable in which a program, when it replaces itself, passes on the descriptors of its claims."""
_TAKEOVER: Final = b"takeover\n"
_ENDING: Final = b"ending\n"
_HEAR_SECONDS: Final = 2.0
_END_SECONDS: Final = 90.0
_LOOK_SECONDS: Final = 0.02
_BIND_ATTEMPTS: Final = 100
_MOST_HEARD: Final = 16
"""Open connections at most: beyond that, the one that has been silent longest is closed."""


class AlreadyRunningError(VipwireError):
    """Another process has the claim: the text says which, since when, and the remedy."""


class Holder(Value, frozen=True):
    """The process that has a name. `pid` is 0 for a process in an invisible pid namespace.

    `said` is its description: `command`, `since`, `flags` and more; empty if it does not answer.
    """

    pid: int
    uid: int
    said: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        command = self.said.get("command", "a process that does not answer")
        who = f"process {self.pid}" if self.pid else f"process {self.said.get('pid', '?')} of another pid namespace"
        if not self.pid and not self.said:
            return f"a process of user {self.uid} that does not answer"
        since = f" since {self.said['since']}" if "since" in self.said else ""
        more = "".join(f", {each}" for each in self.said.get("details", ()))
        return f"{command} ({who}, user {self.uid}{since}{more})"

    @property
    def remedy(self) -> str:
        if not self.pid and not self.said:
            return "find it as root (ss -xlp)"
        return f"end it (kill {self.pid})" if self.pid else "end its container"


class Claim:
    """Names that this process has, until it ends or closes them."""

    def __init__(self, listeners: Mapping[str, socket.socket], about: Mapping[str, Any]) -> None:
        self._listeners = dict(listeners)
        self._line = json.dumps(about).encode() + b"\n"
        self._lock = threading.Lock()
        self._end: Callable[[str], None] | None = None
        self._asked_by = ""
        self._heard: list[socket.socket] = []
        self._successors: list[socket.socket] = []
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._answer_requests, name="claim", daemon=True)
        self._thread.start()

    def when_asked(self, end: Callable[[str], None]) -> None:
        """Set `end`, which another thread calls when a successor takes over; at once if one already waits."""
        with self._lock:
            self._end, asked = end, self._asked_by
        if asked:
            end(asked)

    def keep_over_exec(self) -> None:
        """Pass the names to the program that replaces this one: see `claimed`."""
        for listener in self._listeners.values():
            listener.set_inheritable(True)
        numbers = {name: listener.fileno() for name, listener in self._listeners.items()}
        os.environ[INHERITED] = json.dumps(numbers)

    def close(self) -> None:
        self._wake.close()
        self._thread.join()
        for each in (*self._listeners.values(), *self._heard, *self._successors, self._woken):
            each.close()

    def _answer_requests(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            for listener in self._listeners.values():
                listener.settimeout(0)
                selector.register(listener, selectors.EVENT_READ, listener)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._woken:
                        return
                    with contextlib.suppress(OSError):
                        self._read_request(selector, key)

    def _read_request(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        if isinstance(key.data, socket.socket):
            connection, _ = key.data.accept()
            if len(self._heard) >= _MOST_HEARD:
                self._close_connection(selector, self._heard[0])
            self._heard.append(connection)
            selector.register(connection, selectors.EVENT_READ)
            connection.send(self._line)
            return
        connection = next(each for each in self._heard if each is key.fileobj)
        if connection.recv(64) == _TAKEOVER and self._may_take_over(connection):
            selector.unregister(connection)
            self._heard.remove(connection)
            self._successors.append(connection)  # the successor waits for the end of this connection
        else:
            self._close_connection(selector, connection)

    def _close_connection(self, selector: selectors.BaseSelector, connection: socket.socket) -> None:
        selector.unregister(connection)
        self._heard.remove(connection)
        connection.close()

    def _may_take_over(self, connection: socket.socket) -> bool:
        pid, uid = read_peer_credentials(connection)
        if uid not in (0, os.geteuid()):
            return False
        connection.send(_ENDING)
        who = f"process {pid}" if pid else "a process of another pid namespace"
        with self._lock:
            self._asked_by, end = who, self._end
        if end is not None:
            end(who)
        return True


@contextlib.contextmanager
def claim_names(
    names: Iterable[str],
    command: str,
    details: Iterable[str] = (),
    *,
    ready: Callable[[], object] | None = None,
    more: Mapping[str, str] = {},
) -> Iterator[Claim]:
    """Claim names for the block. Raise AlreadyRunningError if another process has one of them.

    With `ready`, asks that process to end instead, after calling `ready`, which may raise to prevent the takeover.
    The error of other processes shows our command, pid, the time and `details`; programs can also read `more`.
    """
    names = tuple(names)
    about = {
        "command": command,
        "pid": os.getpid(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),  # noqa: TID251  # what others are told
        "flags": sys.argv[1:],
        "details": list(details),
        **more,
    }
    if ready is not None and any(map(find_holder, names)):
        ready()
        for name in names:
            _end_holder(name)
    claim = Claim(_bind_sockets(names), about)
    try:
        yield claim
    finally:
        claim.close()


def find_holder(name: str) -> Holder | None:
    """Return the process with a name; None if there is none, or it is this process before it replaced itself."""
    if name in _list_inherited_sockets():
        return None
    try:
        connection = _connect_to_holder(name)
    except BlockingIOError:  # the process hangs, and its queue is full
        return Holder(0, os.geteuid())
    except OSError:
        connection = None
    if connection is None:
        return Holder(0, 0) if os.geteuid() and is_bound_elsewhere(name) else None
    with connection:
        return _read_introduction(connection)


def build_already_running_error(holder: Holder, *, takeover: bool) -> AlreadyRunningError:
    way = ", or start with --takeover to take its place" if takeover else ""
    return AlreadyRunningError(f"it already runs: {holder}; {holder.remedy}{way}")


def _bind_sockets(names: Iterable[str]) -> dict[str, socket.socket]:
    inherited = _list_inherited_sockets()
    os.environ.pop(INHERITED, None)
    found: dict[str, socket.socket] = {}
    with contextlib.ExitStack() as on_error:
        for name in names:
            own = socket.socket(fileno=inherited[name]) if name in inherited else None
            if own is not None and is_at(own, name):
                own.set_inheritable(False)
            else:
                if own is not None:
                    own.close()  # the abstract socket of this program's previous version
                own = _bind_socket(name)
            found[name] = own
            on_error.callback(own.close)
        on_error.pop_all()
    return found


def _bind_socket(name: str) -> socket.socket:
    """Claim a name; try again if its owner ends at that moment."""
    for _ in range(_BIND_ATTEMPTS):
        if (holder := find_holder(name)) is not None:
            raise build_already_running_error(holder, takeover=True)
        if is_bound_elsewhere(name):
            log.warning("a socket of this name is in another container: mount the node's /run/vipwire", socket=name)
        try:
            return listen_at_name(name)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise ConfigError(f"{error.filename or name}: {error.strerror or error}") from error
            time.sleep(_LOOK_SECONDS)
    raise AlreadyRunningError(f"the socket {name} belongs to a process that does not answer: stop that process first")


def _end_holder(name: str) -> None:
    try:
        connection = None if name in _list_inherited_sockets() else _connect_to_holder(name)
    except OSError:
        return  # `_bind_socket` raises the error
    if connection is None:
        return
    with connection:
        holder = _read_introduction(connection)
        try:
            connection.sendall(_TAKEOVER)
            if not holder.said or _read_line(connection) != _ENDING.strip():
                raise AlreadyRunningError(f"{holder} refuses the takeover; {holder.remedy}")
            connection.settimeout(_END_SECONDS)
            while connection.recv(64):
                pass
        except TimeoutError:
            raise AlreadyRunningError(
                f"{holder} has not ended within {_END_SECONDS:.0f} s; {holder.remedy}"
            ) from None
        except OSError:
            return


def _connect_to_holder(name: str) -> socket.socket | None:
    """Connect to the process with a name, also of an older version. Raise OSError if connect fails."""
    connection = connect_to_name(name) or connect_to_older(name)
    if connection is not None:
        connection.settimeout(_HEAR_SECONDS)
    return connection


def _read_introduction(connection: socket.socket) -> Holder:
    pid, uid = read_peer_credentials(connection)
    said: Any = {}
    with contextlib.suppress(OSError, ValueError):
        said = json.loads(_read_line(connection) or b"{}")
    return Holder(pid, uid, _select_known_fields(said))


def _select_known_fields(said: Any) -> dict[str, Any]:
    """Return the valid fields of an answer: any process may have the name."""
    if not isinstance(said, dict):
        return {}
    details = said.get("details")
    texts = {key: str(value) for key, value in said.items() if isinstance(value, str | int)}
    return {**texts, "details": [str(each) for each in details] if isinstance(details, list) else []}


def _read_line(connection: socket.socket) -> bytes:
    data, end = b"", time.monotonic() + _HEAR_SECONDS
    while not data.endswith(b"\n") and len(data) < 1 << 16 and time.monotonic() < end:
        piece = connection.recv(4096)
        if not piece:
            break
        data += piece
    return data.strip()


def _list_inherited_sockets() -> dict[str, int]:
    """Return the names, with descriptors, that this process has from before it replaced itself."""
    found: dict[str, int] = {}
    with contextlib.suppress(ValueError, AttributeError):
        for name, number in json.loads(os.environ.get(INHERITED, "{}")).items():
            with contextlib.suppress(OSError, ValueError, TypeError):
                probe = socket.socket(fileno=os.dup(number))
                with probe:
                    if is_at(probe, name) or probe.getsockname() == b"\0" + name.encode():
                        found[name] = number
    return found
