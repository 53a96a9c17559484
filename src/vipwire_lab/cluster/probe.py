"""Probes: connect from a namespace, say hello, and report the result.

Each attempt is a generator that yields the event it waits for; `probe` runs many over one selector, so that a hundred
timeouts take no longer than one. Only opening the socket happens inside the namespace; the socket stays there.
"""

import contextlib
import errno
import fcntl
import itertools
import os
import secrets
import selectors
import socket
import struct
import sys
import termios
import time
from collections.abc import Generator, Sequence
from pathlib import Path

from vipwire.model.net import Protocol
from vipwire_lab.cluster.outcome import Outcome, ProbeOptions, ProbeResult, Target
from vipwire_lab.echo_servers import sockets as raw_sockets
from vipwire_lab.echo_servers.answer import HELLO, Answer, SocketAddress
from vipwire_lab.namespaces import netns
from vipwire_lab.namespaces.errors import LabError

_IP_RECVERR, _IPV6_RECVERR = 11, 25
_IP_BIND_ADDRESS_NO_PORT = 24
# The kernel reserves no ports for raw sockets: two with the same port would read each other's answers.
_raw_ports = itertools.count(secrets.randbelow(28232))
_TYPES = {
    Protocol.TCP: socket.SOCK_STREAM,
    Protocol.UDP: socket.SOCK_DGRAM,
    Protocol.SCTP: socket.SOCK_STREAM,
}
_OUTCOMES = {
    errno.ECONNREFUSED: Outcome.REFUSED,
    errno.ETIMEDOUT: Outcome.TIMED_OUT,
    errno.EPERM: Outcome.TIMED_OUT,  # dropped by a local rule: the kernel tells the sending process
    errno.EINVAL: Outcome.TIMED_OUT,  # the same, for a blackhole route
    errno.ENOPROTOOPT: Outcome.REFUSED,  # "protocol unreachable": a host without an SCTP port, IPv4 ...
    errno.EPROTO: Outcome.REFUSED,  # ... and IPv6
    errno.ECONNRESET: Outcome.RESET,
    errno.ECONNABORTED: Outcome.RESET,
    errno.EPIPE: Outcome.RESET,
}


def probe(namespace: Path, target: Target, options: ProbeOptions) -> list[ProbeResult]:
    """Make `count` attempts; return the results in the order of their start.

    Takes at most timeout * count / parallel seconds. Raise LabError if the host lacks the source address, DecodeError
    if the answer is no echo server's.
    """
    results: dict[int, ProbeResult] = {}
    begun, waited = 0, 0.0
    with selectors.DefaultSelector() as selector:
        try:
            while len(results) < options.count:
                while begun < options.count and begun - len(results) < options.at_a_time:
                    opened = open_socket(namespace, target, options)
                    attempt = _Attempt(begun, opened, target, options, waited + options.timeout)
                    begun += 1
                    attempt.advance(selector, results)
                waited += _wait_for_events(selector, results, waited)
        finally:
            for key in selector.get_map().values():
                key.data.socket.close()
    return [results[number] for number in range(options.count)]


def open_socket(namespace: Path, target: Target, options: ProbeOptions) -> socket.socket:
    """Open a non-blocking, unconnected socket in a namespace."""
    family = socket.AF_INET6 if ":" in target.address else socket.AF_INET
    with netns.enter_namespace(namespace):
        if target.protocol is Protocol.SCTP and not raw_sockets.has_kernel_sctp():
            opened = raw_sockets.open_raw(family)
        else:
            opened = socket.socket(family, _TYPES[target.protocol], int(target.protocol))
    try:
        _configure_socket(opened, target, options)
    except OSError as error:
        opened.close()
        raise LabError(
            f"cannot probe from {options.source or 'port'} {options.source_port or ''}: {error}"
        ) from error
    return opened


def _configure_socket(opened: socket.socket, target: Target, options: ProbeOptions) -> None:
    opened.settimeout(0)
    # Without RECVERR the kernel reports no "unreachable" to UDP, and TCP loses an ICMP error that arrives while
    # connect() runs (always, between namespaces), until it repeats its SYN a second later.
    if opened.family == socket.AF_INET:
        opened.setsockopt(socket.IPPROTO_IP, _IP_RECVERR, 1)
    else:
        opened.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVERR, 1)
    if options.source_port:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    elif options.source and not _is_raw(opened):
        # connect() chooses a unique port; for TCP also one in TIME_WAIT elsewhere. With SO_REUSEADDR two UDP sockets
        # would sometimes share a port, and one would read the other's answer.
        opened.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
    if options.source or options.source_port:
        everywhere = "::" if opened.family == socket.AF_INET6 else "0.0.0.0"  # noqa: S104 - in a lab's namespace
        opened.bind((options.source or everywhere, 0 if _is_raw(opened) else options.source_port or 0))
    if options.source_port and target.protocol is Protocol.TCP:
        # The next attempt uses this port again: RST leaves no TIME_WAIT.
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def exchange_with_echo(opened: socket.socket, target: Target) -> Generator[int, None, Answer]:
    """Connect, say hello and read the answer; yield the selector event to wait for. Raise OSError, DecodeError."""
    code = opened.connect_ex((target.address, target.port))
    if code == errno.EINPROGRESS:
        yield selectors.EVENT_WRITE
        code = opened.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) or _read_queued_error(opened)
    if code:
        raise OSError(code, os.strerror(code))
    opened.send(HELLO)
    line = b""
    while not line.endswith(b"\n"):
        yield selectors.EVENT_READ
        part = opened.recv(65536)
        if not part:
            raise ConnectionResetError(errno.ECONNRESET, "closed without an answer")
        line += part
    return Answer.decode(line)


def _is_raw(opened: socket.socket) -> bool:
    return opened.type == socket.SOCK_RAW


def error_code_of(opened: socket.socket, error: OSError) -> int:
    """Tell apart a reject and a drop rule in the output of the host's own process.

    Both give EPERM, but a reject rule's ICMP error has already arrived at the socket.
    """
    if error.errno == errno.EPERM:
        return opened.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) or errno.EPERM
    return error.errno or 0


def _read_queued_error(opened: socket.socket) -> int:
    """Read the ICMP error in the socket's error queue: the first field of sock_extended_err, ip(7)."""
    with contextlib.suppress(BlockingIOError):
        for _, _, error in opened.recvmsg(512, 512, socket.MSG_ERRQUEUE)[1]:
            return int.from_bytes(error[:4], sys.byteorder)
    return 0


def _read_progress(opened: socket.socket) -> str:
    if opened.type != socket.SOCK_STREAM or opened.proto == socket.IPPROTO_SCTP:
        return ""
    unread = int.from_bytes(fcntl.ioctl(opened, termios.FIONREAD, bytes(4)), sys.byteorder)
    return describe_progress(opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, SIZE), unread)


class _Attempt:
    """A running attempt, registered with a selector for the event of its generator."""

    def __init__(
        self, number: int, opened: socket.socket, target: Target, options: ProbeOptions, patience: float
    ) -> None:
        self.number = number
        self.socket = opened
        self.begun = time.monotonic()
        self.patience = patience
        self._raw_port = 0
        if _is_raw(opened):
            self._raw_port = options.source_port or 32768 + next(_raw_ports) % 28232
            self._steps = raw_sockets.converse_over_sctp(opened, target.address, self._raw_port, target.port)
        else:
            self._steps = exchange_with_echo(opened, target)
        self._event = 0

    def advance(self, selector: selectors.BaseSelector, results: dict[int, ProbeResult]) -> None:
        """Run until the attempt waits again or has its outcome."""
        try:
            event = next(self._steps)
        except StopIteration as stop:
            self.finish(selector, results, Outcome.ANSWERED, answer=stop.value)
        except OSError as error:
            code = error_code_of(self.socket, error)
            self.finish(selector, results, _OUTCOMES.get(code, Outcome.UNREACHABLE), code=code)
        else:
            if not self._event:
                selector.register(self.socket, event, self)
            elif event != self._event:
                selector.modify(self.socket, event, self)
            self._event = event

    def finish(
        self,
        selector: selectors.BaseSelector,
        results: dict[int, ProbeResult],
        outcome: Outcome,
        *,
        answer: Answer | None = None,
        code: int = 0,
    ) -> None:
        name = self.socket.getsockname()
        source = SocketAddress(name[0], self._raw_port or name[1])
        duration = time.monotonic() - self.begun
        told = _read_progress(self.socket) if outcome is Outcome.TIMED_OUT else ""
        results[self.number] = ProbeResult(outcome, duration, answer, source, code, told)
        if self._event:
            selector.unregister(self.socket)
        self.socket.close()


def _wait_for_events(selector: selectors.BaseSelector, results: dict[int, ProbeResult], waited: float) -> float:
    """Wait for the next event or the next timeout; return the seconds waited.

    `waited` is the earlier waiting time. Only waiting counts, because answers may arrive while this process is
    stopped.
    """
    waiting: Sequence[_Attempt] = [key.data for key in selector.get_map().values()]
    if not waiting:
        return 0.0
    allowed = max(0.0, min(attempt.patience for attempt in waiting) - waited)
    since = time.monotonic()
    ready = selector.select(allowed)
    spent = min(allowed, time.monotonic() - since)
    for key, _ in ready:
        key.data.advance(selector, results)
    if not ready:
        for attempt in waiting:
            if attempt.patience - waited <= allowed:
                attempt.finish(selector, results, Outcome.TIMED_OUT)
        return allowed
    return spent


_STATE = struct.Struct("=B")
_UNACKED_AT, _REPEATED_AT, _RECEIVED_AT, _UNSENT_AT = 24, 100, 128, 144
_UNSIGNED, _LONG = struct.Struct("=I"), struct.Struct("=Q")
SIZE = _UNSENT_AT + _UNSIGNED.size
"""Bytes of tcp_info that are needed; Linux 4.6 and later fill them all."""
_ESTABLISHED, _SYN_SENT = 1, 2


def describe_progress(info: bytes, unread: int = 0) -> str:
    """Return how far a timed-out TCP connection came; "" if the kernel does not tell.

    `info` is tcp_info of the client's socket (include/uapi/linux/tcp.h), `unread` the bytes waiting in the socket.
    Together they tell a lost packet from a silent server.
    """
    if len(info) < SIZE:
        return ""
    (state,) = _STATE.unpack_from(info)
    unacknowledged, repeated, unsent = (
        _UNSIGNED.unpack_from(info, place)[0] for place in (_UNACKED_AT, _REPEATED_AT, _UNSENT_AT)
    )
    (received,) = _LONG.unpack_from(info, _RECEIVED_AT)
    again = f"sent again {repeated} times" if repeated else "not sent again"
    if state == _SYN_SENT:
        return f"no answer to the SYN, {again}"
    where = "connected" if state == _ESTABLISHED else f"in TCP state {state}"
    if unread:
        return f"{where}, {unread} bytes of the answer are unread"
    if unsent:
        return f"{where}, {unsent} bytes of the request are unsent"
    if unacknowledged:
        return f"{where}, the request is not acknowledged, {again}"
    return f"{where}, the request is acknowledged, {received} bytes received"
