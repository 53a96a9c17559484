"""Connections that must survive a change: `Continuous` makes a stream of short ones, `Connection` stays open.

A restart of the proxy, a rolling update and a takeover must lose no connection.
"""

import os
import selectors
import socket
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from vipwire.model.net import format_endpoint, parse_address
from vipwire_lab.cluster.outcome import ProbeOptions, ProbeResult, Target
from vipwire_lab.cluster.probe import error_code_of, exchange_with_echo, open_socket, probe
from vipwire_lab.echo_servers.answer import Answer
from vipwire_lab.namespaces.errors import LabError


@dataclass(frozen=True, slots=True)
class Report:
    """The results of a stream of connections: their number, answers by Pod, and failures."""

    target: Target
    attempts: int
    pods: Counter[str]
    failures: tuple[ProbeResult, ...]
    seconds: float


class Continuous:
    """While entered, a thread connects every `interval` seconds. Afterwards `report` is complete."""

    def __init__(self, namespace: Path, target: Target, options: ProbeOptions, interval: float = 0.01) -> None:
        self._work = (namespace, target, replace(options, count=1))
        self._interval = interval
        self._stop = threading.Event()
        self._progress = threading.Condition()
        self._pods: Counter[str] = Counter()
        self._failures: list[ProbeResult] = []
        self._attempts = 0
        self._begun = self._ended = 0.0
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"probe {target}", daemon=True)

    def __enter__(self) -> Self:
        self._begun = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()
        self._ended = time.monotonic()
        if self._error and exc == (None, None, None):
            raise self._error

    @property
    def report(self) -> Report:
        with self._progress:
            seconds = (self._ended or time.monotonic()) - self._begun
            return Report(self._work[1], self._attempts, self._pods.copy(), tuple(self._failures), seconds)

    def wait_for(self, attempts: int, timeout: float = 60.0) -> None:
        """Wait for so many more connections; raise LabError after `timeout` seconds."""
        with self._progress:
            wanted = self._attempts + attempts
            if not self._progress.wait_for(lambda: self._attempts >= wanted or self._error, timeout):
                raise LabError(f"{self._attempts} connections after {timeout} s, expected {wanted}")
        if self._error:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._record_result(probe(*self._work)[0])
                self._stop.wait(self._interval)
        except Exception as error:  # noqa: BLE001 - raised again in the thread that asked
            with self._progress:
                self._error = error
                self._progress.notify_all()

    def _record_result(self, result: ProbeResult) -> None:
        with self._progress:
            self._attempts += 1
            if result.answer:
                self._pods[result.pod] += 1
            else:
                self._failures.append(result)
            self._progress.notify_all()


class Connection:
    """A lasting connection to an echo server; over UDP, one source port for all exchanges."""

    def __init__(self, namespace: Path, target: Target, options: ProbeOptions) -> None:
        """Connect; raise OSError as the kernel says, TimeoutError without an answer."""
        self._socket = open_socket(namespace, target, options)
        if self._socket.type == socket.SOCK_RAW:
            self._socket.close()
            raise LabError("this kernel has no SCTP sockets: probes work, but no connection stays open")
        self._timeout, self.target = options.timeout, target
        try:
            self.answer: Answer = self._begin_conversation(target)
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __str__(self) -> str:
        address, port = self._socket.getsockname()[:2]
        return f"{format_endpoint(parse_address(address), port)} to {self.target}"

    def close(self) -> None:
        self._socket.close()

    def exchange(self, data: bytes, timeout: float | None = None) -> bytes:
        """Send data and return the answer: the same data over TCP and SCTP, an answer's line over UDP.

        `timeout` is in seconds from now; None keeps the earlier one. Raise OSError as the kernel says, TimeoutError,
        or ConnectionResetError if the other end has gone.
        """
        if timeout is not None:
            self._socket.settimeout(timeout)
        if self._socket.type == socket.SOCK_DGRAM:
            self._drop_late_answers()
        try:
            self._socket.sendall(data)
        except PermissionError as error:
            code = error_code_of(self._socket, error)
            raise OSError(code, os.strerror(code)) from error
        reply = b""
        while len(reply) < len(data):
            part = self._socket.recv(1 << 20)
            if not part:
                raise ConnectionResetError("the other end has closed the connection")
            reply += part
        return reply

    def _drop_late_answers(self) -> None:
        """Drop datagrams and errors that answer an earlier exchange after its timeout."""
        timeout = self._socket.gettimeout()
        self._socket.settimeout(0.0)
        try:
            while True:
                try:
                    self._socket.recv(1 << 16)
                except BlockingIOError:
                    return
                except OSError:
                    continue
        finally:
            self._socket.settimeout(timeout)

    def _begin_conversation(self, target: Target) -> Answer:
        steps = exchange_with_echo(self._socket, target)
        deadline = time.monotonic() + self._timeout
        with selectors.DefaultSelector() as selector:
            while True:
                try:
                    event = next(steps)
                except PermissionError as error:
                    code = error_code_of(self._socket, error)
                    raise OSError(code, os.strerror(code)) from error
                except StopIteration as stop:
                    self._socket.settimeout(self._timeout)
                    answer: Answer = stop.value
                    return answer
                key = selector.register(self._socket, event)
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError(f"{target} does not answer")
                selector.unregister(key.fileobj)
