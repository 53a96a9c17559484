"""The control process's end: finds the relay of a family in this network namespace, starts one, and asks it."""

import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, TypeVar

from vipwire.errors import DecodeError, UnsupportedError
from vipwire.model.net import Family
from vipwire.relay.control_socket import CREDENTIALS
from vipwire.relay.messages import (
    HEAD,
    VERSION,
    Answer,
    Hello,
    Request,
    Retire,
    Settings,
    Welcome,
    decode_answer,
    encode,
)

_PATIENCE: Final = 10.0
"""Seconds for an answer: longer than any request takes on a loaded machine."""
_START_PATIENCE: Final = 30.0
_ATTEMPTS: Final = 3
T = TypeVar("T", bound=Answer)


def relay_name(family: Family) -> str:
    """Name the proxy's relay of a family, which is its abstract socket: one for each user and network namespace."""
    return f"vipwire-relay-{os.geteuid()}-{family.value.lower()}"


class Call:
    """A connection to a relay. Raises OSError where it breaks."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        sock.settimeout(_PATIENCE)

    @classmethod
    def find(cls, name: str) -> "Call | None":
        """Connect to the relay of a name (`relay_name`); None if there is none.

        Raise UnsupportedError if somebody else's process has its name: it must not be told what to relay.
        """
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(f"\0{name}")
        except OSError as error:
            sock.close()
            if isinstance(error, ConnectionRefusedError):
                return None
            raise
        pid, uid, _ = CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
        if uid != os.geteuid():
            sock.close()
            raise UnsupportedError(f"the socket @{name} belongs to process {pid} of user {uid}: end that first")
        return cls(sock)

    @classmethod
    def start(cls, name: str, settings: Settings) -> "Call":
        """Connect to the relay that is there, or start one. One of another version retires first.

        Raise OSError if it does not start.
        """
        for _ in range(_ATTEMPTS):
            with suppress(ConnectionError):  # there was one, and it has just ended
                return cls._start(name, settings)
        return cls._start(name, settings)

    @classmethod
    def _start(cls, name: str, settings: Settings) -> "Call":
        call = cls.find(name)
        if call is not None:
            with call.closed_by_failure():
                welcome = call.hello()
                if welcome is not None:
                    if welcome.settings != settings:
                        call.tell(settings)
                    return call
            call.close()
        _spawn(name)
        call = cls.find(name)
        if call is None:
            raise OSError("the relay has ended as soon as it was started")
        with call.closed_by_failure():
            call.tell(settings)
        return call

    @contextmanager
    def closed_by_failure(self) -> Iterator[None]:
        """Hang up if what is asked meanwhile fails."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def hello(self) -> Welcome | None:
        """Ask which relay runs. A relay of another version is told to retire, and None is returned."""
        try:
            welcome = self.ask(Hello(), Welcome)
        except DecodeError:
            welcome = None
        if welcome is not None and welcome.version == VERSION:
            return welcome
        self.retire()
        return None

    def retire(self) -> None:
        """Have the relay listen no more, so that another may."""
        self._sock.sendall(encode(Retire()))
        self._receive(1)

    def ask(self, request: Request, expected: type[T]) -> T:
        """Send a request and return the answer. Raise OSError if none comes, DecodeError for one of a wrong kind."""
        answer = self.tell(request)
        if not isinstance(answer, expected):
            raise DecodeError(f"the relay answered {type(answer).__name__} where {expected.__name__} was expected")
        return answer

    def tell(self, request: Request) -> Answer:
        """Send a request and wait for whatever is answered."""
        self._sock.sendall(encode(request))
        (size,) = HEAD.unpack(self._receive(HEAD.size))
        return decode_answer(self._receive(size))

    def close(self) -> None:
        """Hang up; the relay goes on."""
        self._sock.close()

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self._sock.recv(size - len(data))
            if not piece:
                raise ConnectionResetError("the relay has ended")
            data += piece
        return bytes(data)


def _spawn(name: str) -> None:
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
        said = _heard(read)
    except subprocess.SubprocessError as error:
        said = f"{error} {getattr(error, 'stderr', None) or ''}"
    finally:
        os.close(read)
    if said:
        raise OSError(f"the relay does not start: {said}")


def _heard(read: int) -> str:
    """Read what a relay says until it has nothing more to say: nothing at all if it listens."""
    said = b""
    while True:
        ready, _, _ = select.select([read], [], [], _START_PATIENCE)
        if not ready:
            return f"it says nothing for {_START_PATIENCE:.0f} s"
        piece = os.read(read, 4096)
        if not piece:
            return said.decode(errors="replace")
        said += piece
