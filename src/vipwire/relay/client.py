"""The control process's side: finds or starts the relay of a family in this network namespace, and configures it."""

import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from itertools import islice
from typing import Final, TypeVar

from vipwire.errors import CommitError, DecodeError
from vipwire.model.net import Address, Family, Protocol
from vipwire.process_lifecycle.local_sockets import connect_to_name, connect_to_older, read_peer_credentials
from vipwire.relay.messages import (
    HEAD,
    VERSION,
    Answer,
    AskCounters,
    AskNotes,
    Done,
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
    Welcome,
    decode_answer,
    encode_message,
)

_PATIENCE: Final = 10.0
"""Seconds for an answer: longer than any request takes on a loaded machine."""
_START_PATIENCE: Final = 30.0
_ATTEMPTS: Final = 3
_BATCH: Final = 256
"""Listeners in one request."""
T = TypeVar("T", bound=Answer)


def relay_name(family: Family) -> str:
    """Return the socket name of a family's relay: one for each user and network namespace."""
    return f"vipwire-relay-{os.geteuid()}-{family.value.lower()}"


class Call:
    """A connection to a relay. Raises OSError if the connection breaks."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        sock.settimeout(_PATIENCE)

    @classmethod
    def find(cls, name: str) -> "Call | None":
        """Connect to the relay of this name (`relay_name`); None if there is none."""
        sock = connect_to_name(name)
        if sock is None:
            return None
        if read_peer_credentials(sock)[1] != os.geteuid():
            sock.close()
            return None
        return cls(sock)

    @classmethod
    def start(cls, name: str, settings: RelaySettings) -> "Call":
        """Connect to the running relay, or start one. A relay of another version retires first.

        Raise OSError if the relay does not start.
        """
        for _ in range(_ATTEMPTS):
            with suppress(ConnectionError):  # the relay has just ended
                return cls._start(name, settings)
        return cls._start(name, settings)

    @classmethod
    def _start(cls, name: str, settings: RelaySettings) -> "Call":
        call = cls.find(name)
        if call is not None:
            with call.closed_by_failure():
                welcome = call.exchange_hello()
                if welcome is not None:
                    if welcome.settings != settings:
                        call.tell(settings)
                    return call
            call.close()
        elif (older := connect_to_older(name)) is not None:
            with closing(cls(older)) as call:
                call.retire()
        _start_relay(name)
        call = cls.find(name)
        if call is None:
            raise OSError("the relay ended immediately after its start")
        with call.closed_by_failure():
            call.tell(settings)
        return call

    @contextmanager
    def closed_by_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    def exchange_hello(self) -> Welcome | None:
        """Return the relay's answer to `Hello`; tell a relay of another version to retire, and return None."""
        with suppress(DecodeError):
            welcome = self.ask_relay(Hello(), Welcome)
            if welcome.version == VERSION:
                return welcome
        self.retire()
        return None

    def retire(self) -> None:
        """Let the relay close its listeners, so that another relay can open them."""
        self._sock.sendall(encode_message(Retire()))
        self._receive(1)

    def ask_relay(self, request: Request, expected: type[T]) -> T:
        """Send a request and return the answer. Raise OSError without answer, DecodeError for a wrong kind."""
        answer = self.tell(request)
        if not isinstance(answer, expected):
            raise DecodeError(f"the relay answered {type(answer).__name__} where {expected.__name__} was expected")
        return answer

    def tell(self, request: Request) -> Answer:
        """Send a request and return the answer of any kind."""
        self._sock.sendall(encode_message(request))
        (size,) = HEAD.unpack(self._receive(HEAD.size))
        return decode_answer(self._receive(size))

    def close(self) -> None:
        """Close the connection; the relay continues."""
        self._sock.close()

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self._sock.recv(size - len(data))
            if not piece:
                raise ConnectionResetError("the relay has ended")
            data += piece
        return bytes(data)


def _start_relay(name: str) -> None:
    """Start a relay in the network namespace of this thread; return when it listens."""
    read, write = os.pipe()
    try:
        try:
            subprocess.run(  # noqa: S603 - ourselves
                [sys.executable, "-m", "vipwire.relay", name, str(write)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(write,),
                start_new_session=True,
                cwd="/",
                timeout=_START_PATIENCE,
                check=True,
            )
        finally:
            os.close(write)
        said = _read_start_error(read)
    except subprocess.SubprocessError as error:
        said = f"{error} {getattr(error, 'stderr', None) or ''}"
    finally:
        os.close(read)
    if said:
        raise OSError(f"the relay does not start: {said}")


def _read_start_error(read: int) -> str:
    """Read the starting relay's error until end of file; "" if the relay listens."""
    said = b""
    while True:
        ready, _, _ = select.select([read], [], [], _START_PATIENCE)
        if not ready:
            return f"no answer within {_START_PATIENCE:.0f} s"
        piece = os.read(read, 4096)
        if not piece:
            return said.decode(errors="replace")
        said += piece


class Remote:
    """A relay by its name (`relay_name`), as the control process sees it.

    With `starts`, starts a relay if none runs; otherwise there is none to see. `ports` are each listener's, as last
    read or assigned. Every method raises OSError if the relay is lost; the next call looks for a new one.
    """

    def __init__(self, name: str, settings: RelaySettings, *, starts: bool) -> None:
        self._name, self._settings, self._starts = name, settings, starts
        self._call: Call | None = None
        self.ports: dict[str, list[int]] = {}

    def close(self) -> None:
        """Close the connection; the relay continues."""
        if self._call is not None:
            self._call.close()
            self._call = None

    def read_listeners(self) -> dict[str, Listener]:
        self.ports = {}
        if self._call is not None and not self.is_alive():
            self.close()  # the relay has ended; another may run
        if self._call is None and not self._find():
            return {}
        observed = self._ask(Observe(), Observed)
        self.ports = observed.ports
        return observed.listeners

    def map_fronts(self, listeners: Mapping[str, Listener]) -> dict[tuple[str, int], str]:
        """Return the listener of each (port, protocol) to which rules lead clients."""
        return {
            (Protocol(listener.protocol).label, port): key
            for key, listener in listeners.items()
            for place, port in zip(listener.binds, self.ports.get(key, ()), strict=False)
            if not place.port
        }

    def list_places(self, listeners: Mapping[str, Listener], protocol: Protocol) -> frozenset[tuple[Address, int]]:
        return frozenset(
            (Address(place.address), port)
            for key, listener in listeners.items()
            for place, port in zip(listener.binds, self.ports.get(key, ()), strict=False)
            if listener.protocol == protocol
        )

    def put(
        self, wanted: Mapping[str, Listener], before: Mapping[str, Listener], instead: Iterable[str] = ()
    ) -> None:
        """Open listeners and close those in `instead`; `before` are the previous values of all listeners.

        Raise CommitError if one fails; then nothing has changed.
        """
        ending = list(instead)
        rest = iter(sorted(wanted.items(), key=lambda item: not _is_fixed(item[1])))
        done: list[str] = []
        # The first request closes `ending`, so listeners that take over their sockets must be in it.
        most = max(_BATCH, sum(map(_is_fixed, wanted.values())) if ending else 0)
        batch = dict(islice(rest, most))
        while batch or ending:
            answer = self._report(Put(batch, ending))
            if isinstance(answer, Opened):
                self.ports.update(answer.ports)
                done += [*batch, *ending]
                for key in ending:
                    self.ports.pop(key, None)
                ending, batch = [], dict(islice(rest, _BATCH))
                continue
            self.undo(done, before)
            if isinstance(answer, Refused):
                raise CommitError(answer.why, errno=answer.errno)
            raise CommitError(f"the relay answered {answer}")

    def undo(self, keys: Iterable[str], before: Mapping[str, Listener]) -> None:
        keys = tuple(keys)
        self.remove(key for key in keys if key not in before)
        if changed := {key: before[key] for key in keys if key in before}:
            answer = self._report(Put(changed))
            if isinstance(answer, Opened):
                self.ports.update(answer.ports)

    def remove(self, keys: Iterable[str]) -> None:
        if gone := list(keys):
            self._ask(Remove(gone), Done)
            for key in gone:
                self.ports.pop(key, None)

    def is_alive(self) -> bool:
        if self._call is not None:
            with suppress(OSError):
                self._ask(Hello(), Welcome)
                return True
        return False

    def read_notes(self) -> list[tuple[str, int]]:
        """Return the relay's notes for the operator: (text, number of times)."""
        return [] if self._call is None else self._ask(AskNotes(), Notes).notes

    def read_counters(self) -> RelayCounters:
        return self._ask(AskCounters(), RelayCounters)

    def retire(self) -> bool:
        """Let the relay exit after its last connection; return False if no relay runs."""
        if self._call is None and not self._find(starts=False):
            return False
        self._ask(Retire(), Done)
        self.close()
        self.ports = {}
        return True

    def _find(self, *, starts: bool = True) -> bool:
        if self._starts and starts:
            self._call = Call.start(self._name, self._settings)
        else:
            self._call = Call.find(self._name)
        return self._call is not None

    def _ask(self, request: Request, expected: type[T]) -> T:
        answer = self._report(request)
        if not isinstance(answer, expected):
            raise OSError(f"the relay answered {answer} where {expected.__name__} was expected")
        return answer

    def _report(self, request: Request) -> Answer:
        if self._call is None and not self._find():
            raise ConnectionRefusedError("no relay runs")
        call = self._call
        assert call is not None  # noqa: S101 - just found
        try:
            return call.tell(request)
        except (OSError, DecodeError) as error:
            self.close()
            raise OSError(f"the relay does not answer: {error}") from error


def _is_fixed(listener: Listener) -> bool:
    return any(place.port for place in listener.binds)


def ask_counts(name: str) -> RelayCounters | None:
    """Return a relay's counters, over a new connection; None if no relay runs."""
    if (call := Call.find(name)) is None:
        return None
    with closing(call):
        return call.ask_relay(AskCounters(), RelayCounters)
