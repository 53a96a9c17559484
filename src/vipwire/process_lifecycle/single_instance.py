"""One process for one thing of this machine: who comes second is told who is first, or takes its place.

What a proxy writes belongs to a network namespace, which containers may share whose files and processes are apart. So
a claim is an abstract Unix socket: its name belongs to the network namespace, and the kernel gives it back when the
process dies, however it dies. Who has a name answers there, from a thread of its own:

    second connects     first says who it is, as one line of JSON
    second: takeover    first (if the second is root, or the same user) says `ending`, and ends in its usual way
    the connection ends ▸ the first is gone ▸ the second has the names

The kernel tells each side who the other is (SO_PEERCRED). Any user of the machine can bind any name. If a stranger
has bound a name, vipwire claims the name with `~` and a random suffix, and `find_holder` looks for such names, too. A
stranger is a process of another user than root and ours that has no right to change the network's rules.
"""

import contextlib
import json
import os
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from msgspec import field

from vipwire.errors import VipwireError
from vipwire.logging import log
from vipwire.model.value import Value

INHERITED: Final = "VIPWIRE_CLAIMS"
"""The variable that tells a program, when it replaces itself, which descriptors are its claims."""
_CREDENTIALS: Final = struct.Struct("3i")
_TAKEOVER: Final = b"takeover\n"
_ENDING: Final = b"ending\n"
_HEAR_SECONDS: Final = 2.0
_END_SECONDS: Final = 90.0
_LOOK_SECONDS: Final = 0.02
_BIND_ATTEMPTS: Final = 100
_NET_ADMIN: Final = 1 << 12
_NAMES: Final = Path("/proc/thread-self/net/unix")
_MOST_HEARD: Final = 16
"""Connections at once: who has been quiet for longest is hung up on."""


class AlreadyRunningError(VipwireError):
    """Another process has what is wanted: says which, since when, and what can be done."""


class Holder(Value, frozen=True):
    """The process that has a name. `pid` is 0 where it is in a pid namespace that we do not see.

    `said` is what it says of itself: `command`, `since`, `flags` and more; empty if it does not answer.
    """

    pid: int
    uid: int
    said: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        command = self.said.get("command", "a process that does not answer")
        who = f"process {self.pid}" if self.pid else f"process {self.said.get('pid', '?')} of another pid namespace"
        since = f" since {self.said['since']}" if "since" in self.said else ""
        more = "".join(f", {each}" for each in self.said.get("details", ()))
        return f"{command} ({who}, user {self.uid}{since}{more})"

    @property
    def remedy(self) -> str:
        """The way to end it."""
        return f"end it (kill {self.pid})" if self.pid else "end its container"


class Claim:
    """Names that this process has, until it dies or closes them."""

    def __init__(self, listeners: Mapping[str, socket.socket], about: Mapping[str, Any]) -> None:
        self._listeners = dict(listeners)
        self._line = json.dumps(about).encode() + b"\n"
        self._lock = threading.Lock()
        self._end: Callable[[str], None] | None = None
        self._asked_by = ""
        self._heard: list[socket.socket] = []
        self._successors: list[socket.socket] = []
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._answer, name="claim", daemon=True)
        self._thread.start()

    def when_asked(self, end: Callable[[str], None]) -> None:
        """Set `end`, which another thread calls when a successor wants our place; at once if one does already."""
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
        """Release the names."""
        self._wake.close()
        self._thread.join()
        for each in (*self._listeners.values(), *self._heard, *self._successors, self._woken):
            each.close()

    def _answer(self) -> None:
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
                        self._hear(selector, key)

    def _hear(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        if isinstance(key.data, socket.socket):
            connection, _ = key.data.accept()
            if len(self._heard) >= _MOST_HEARD:
                self._hang_up(selector, self._heard[0])
            self._heard.append(connection)
            selector.register(connection, selectors.EVENT_READ)
            connection.send(self._line)
            return
        connection = next(each for each in self._heard if each is key.fileobj)
        if connection.recv(64) == _TAKEOVER and self._yields_to(connection):
            selector.unregister(connection)
            self._heard.remove(connection)
            self._successors.append(connection)  # it hears of our end by the end of this connection
        else:
            self._hang_up(selector, connection)

    def _hang_up(self, selector: selectors.BaseSelector, connection: socket.socket) -> None:
        selector.unregister(connection)
        self._heard.remove(connection)
        connection.close()

    def _yields_to(self, connection: socket.socket) -> bool:
        pid, uid = _peer(connection)
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
def claimed(
    names: Iterable[str],
    command: str,
    details: Iterable[str] = (),
    *,
    ready: Callable[[], object] | None = None,
    more: Mapping[str, str] = {},
) -> Iterator[Claim]:
    """Claim names for the block. Raise AlreadyRunningError if another process has one of them.

    With `ready` its holder is asked to end instead, after `ready` was called, which may raise what keeps us from
    taking its place. People are told our command, pid, the time and `details`; programs can also ask for `more`.
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
    claim = Claim(_bound(names), about)
    try:
        yield claim
    finally:
        claim.close()


def find_holder(name: str) -> Holder | None:
    """Find the holder of a name; None for nobody, or this process before it replaced itself."""
    if name in _inherited():
        return None
    connection = _call(name)
    if connection is None:
        return None
    with connection:
        return _introduced(connection)


def plain_name(place: str) -> str:
    """Return the name that a socket's name is a claim of."""
    return place.partition("~")[0]


def refusal(holder: Holder, *, takeover: bool) -> AlreadyRunningError:
    """Build the error that names the holder of what we want, and what to do."""
    way = ", or start with --takeover to take its place" if takeover else ""
    return AlreadyRunningError(f"it runs here already: {holder}; {holder.remedy}{way}")


def _bound(names: Iterable[str]) -> dict[str, socket.socket]:
    inherited = _inherited()
    os.environ.pop(INHERITED, None)
    found: dict[str, socket.socket] = {}
    with contextlib.ExitStack() as on_error:
        for name in names:
            if name in inherited:
                found[name] = socket.socket(fileno=inherited[name])
                found[name].set_inheritable(False)
            else:
                found[name] = _bind(name)
            on_error.callback(found[name].close)
        on_error.pop_all()
    return found


def _bind(name: str) -> socket.socket:
    """Claim a name; if its holder ends at that moment, try again."""
    for _ in range(_BIND_ATTEMPTS):
        if (holder := find_holder(name)) is not None:
            raise refusal(holder, takeover=True)
        stranger = _stranger_at(name)
        place = f"{name}~{os.urandom(4).hex()}" if stranger else name
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(f"\0{place}")
            listener.listen()
        except OSError:
            listener.close()
            time.sleep(_LOOK_SECONDS)
            continue
        if stranger:
            log.warning("another user's process has the socket's name: using another", socket=name, user=stranger)
        with contextlib.ExitStack() as on_error:
            on_error.callback(listener.close)
            if (connection := _call(name, but=place)) is not None:  # who has begun in the same moment
                with connection:
                    raise refusal(_introduced(connection), takeover=True)
            on_error.pop_all()
        return listener
    raise AlreadyRunningError(f"the socket @{name} belongs to a process that does not listen there: end that first")


def _end_holder(name: str) -> None:
    connection = None if name in _inherited() else _call(name)
    if connection is None:
        return
    with connection:
        holder = _introduced(connection)
        try:
            connection.sendall(_TAKEOVER)
            if not holder.said or _line(connection) != _ENDING.strip():
                raise AlreadyRunningError(f"{holder} does not let us take its place; {holder.remedy}")
            connection.settimeout(_END_SECONDS)
            while connection.recv(64):
                pass
        except TimeoutError:
            raise AlreadyRunningError(f"{holder} has not ended for {_END_SECONDS:.0f} s; {holder.remedy}") from None
        except OSError:
            return


def _call(name: str, *, but: str = "") -> socket.socket | None:
    """Connect to the holder of a name who is no stranger, wherever it listens except at one place."""
    for place in _places(name):
        connection = _connected(place) if place != but else None
        if connection is not None and not _is_stranger(*_peer(connection)):
            return connection
        if connection is not None:
            connection.close()
    return None


def _places(name: str) -> list[str]:
    """List the names of sockets that may be a claim of a name; without /proc only the name itself."""
    try:
        lines = _NAMES.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return [name]
    return [name, *sorted({place for line in lines if (place := line.rpartition(" @")[2]).startswith(f"{name}~")})]


def _connected(place: str) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_HEAR_SECONDS)
    try:
        connection.connect(f"\0{place}")
    except OSError:
        connection.close()
        return None
    return connection


def _stranger_at(name: str) -> int:
    """Return the user of the stranger who has a name; 0 where none has it."""
    connection = _connected(name)
    if connection is None:
        return 0
    with connection:
        pid, uid = _peer(connection)
        return uid if _is_stranger(pid, uid) else 0


def _is_stranger(pid: int, uid: int) -> bool:
    """Report whether a process cannot be of vipwire's: of another user, and without CAP_NET_ADMIN where we are.

    Anybody has all capabilities in a user namespace of his own. What cannot be read is taken for one of ours.
    """
    if uid in (0, os.geteuid()):
        return False
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
        is_here = os.stat(f"/proc/{pid}/ns/user").st_ino == os.stat("/proc/self/ns/user").st_ino  # noqa: PTH116
    except OSError:
        return os.geteuid() == 0
    effective = next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)
    return not (is_here and effective & _NET_ADMIN)


def _introduced(connection: socket.socket) -> Holder:
    pid, uid = _peer(connection)
    said: Any = {}
    with contextlib.suppress(OSError, ValueError):
        said = json.loads(_line(connection) or b"{}")
    return Holder(pid, uid, _understood(said))


def _understood(said: Any) -> dict[str, Any]:
    """Keep of an answer what has the right form: anybody may have the name."""
    if not isinstance(said, dict):
        return {}
    details = said.get("details")
    texts = {key: str(value) for key, value in said.items() if isinstance(value, str | int)}
    return {**texts, "details": [str(each) for each in details] if isinstance(details, list) else []}


def _line(connection: socket.socket) -> bytes:
    data, end = b"", time.monotonic() + _HEAR_SECONDS
    while not data.endswith(b"\n") and len(data) < 1 << 16 and time.monotonic() < end:
        piece = connection.recv(4096)
        if not piece:
            break
        data += piece
    return data.strip()


def _peer(connection: socket.socket) -> tuple[int, int]:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return pid, uid


def _inherited() -> dict[str, int]:
    """Read which names this process had before it replaced itself, and still has."""
    found: dict[str, int] = {}
    with contextlib.suppress(ValueError, AttributeError):
        for name, number in json.loads(os.environ.get(INHERITED, "{}")).items():
            with contextlib.suppress(OSError, ValueError, TypeError):
                probe = socket.socket(fileno=os.dup(number))
                with probe:
                    if plain_name(os.fsdecode(probe.getsockname())[1:]) == name:
                        found[name] = number
    return found
