"""Sends netlink requests to the kernel, and collects acknowledgements and dumps."""

import contextlib
import errno
import os
import socket
import struct
from collections.abc import Iterator
from typing import Self

from vipwire.linux.netlink.message import (
    HEADER,
    NLM_F_ACK,
    NLM_F_DUMP,
    NLM_F_DUMP_INTR,
    NLM_F_REQUEST,
    NLMSG_DONE,
    NLMSG_ERROR,
    Acknowledgement,
    Message,
    decode_acknowledgement,
    encode_message,
    split_messages,
)

NETLINK_ROUTE = 0
NETLINK_SOCK_DIAG = 4
NETLINK_NETFILTER = 12
NETLINK_GENERIC = 16

_SOL_NETLINK = 270
_NETLINK_ADD_MEMBERSHIP = 1
_NETLINK_DROP_MEMBERSHIP = 2
_NETLINK_CAP_ACK = 10
_NETLINK_EXT_ACK = 11
_NETLINK_GET_STRICT_CHK = 12
_SO_ATTACH_FILTER = 26
_SO_SNDBUFFORCE = 32
_SO_RCVBUFFORCE = 33
_MOST_PARTS = 1024  # IOV_MAX of linux/uio.h
_RECEIVE = 1 << 20
_ANSWER = 1 << 12
_DONE = 20
"""The size of the message that ends a dump: a header, and an error code."""


class NetlinkError(OSError):
    """The kernel answered a request with an error."""


class DumpInterruptedError(OSError):
    """The table changed during the dump, so the dump is inconsistent: dump again."""


class NetlinkSocket:
    """A netlink socket of the network namespace in which it was opened.

    Not thread-safe. All calls block. The kernel answers a request before `send` returns, so no call waits.
    """

    def __init__(self, protocol: int) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        self._sequence = 0
        self._quiet = self._listens = False
        self._enlarge_buffer(_SO_RCVBUFFORCE, socket.SO_RCVBUF, 8 << 20)
        self._send_buffer = 0
        for option in (_NETLINK_CAP_ACK, _NETLINK_EXT_ACK):
            self._socket.setsockopt(_SOL_NETLINK, option, 1)
        self._socket.bind((0, 0))

    def filter_dumps(self) -> None:
        """Let the kernel leave objects that requests do not ask for out of dumps; ignored before Linux 4.20."""
        with contextlib.suppress(OSError):
            self._socket.setsockopt(_SOL_NETLINK, _NETLINK_GET_STRICT_CHK, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        """Return the descriptor for an event loop; readable when a message has arrived."""
        return self._socket.fileno()

    @property
    def port(self) -> int:
        """The port ID, which the kernel chose; messages about this socket's requests carry it."""
        address: tuple[int, int] = self._socket.getsockname()
        return address[0]

    def join(self, group: int) -> None:
        """Join a multicast group; `read_pending_messages` yields its notifications.

        If notifications overflow the receive buffer, the kernel drops them, and the next receive raises OSError
        (ENOBUFS).
        """
        self._listens, self._quiet = True, False
        self._socket.setsockopt(_SOL_NETLINK, _NETLINK_ADD_MEMBERSHIP, group)

    def leave(self, group: int) -> None:
        """Leave a multicast group; notifications that have arrived stay readable."""
        self._socket.setsockopt(_SOL_NETLINK, _NETLINK_DROP_MEMBERSHIP, group)

    def filter(self, program: bytes) -> None:
        """Queue only messages that this socket filter passes; replaces the previous filter (socket(7))."""
        import ctypes  # noqa: PLC0415  # costly to import, and filters are set after the first sync

        held = ctypes.create_string_buffer(program, len(program))
        described = struct.pack("HP", len(program) // 8, ctypes.addressof(held))  # struct sock_fprog
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, described)

    def _enlarge_buffer(self, force: int, plain: int, size: int) -> None:
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, force, size)
        except PermissionError:
            self._socket.setsockopt(socket.SOL_SOCKET, plain, size)

    def reserve_sequence_numbers(self, count: int = 1) -> int:
        first = self._sequence + 1
        self._sequence += count
        return first

    def send(self, *parts: bytes) -> int:
        """Send the parts of whole messages as one datagram, growing the send buffer to hold it; return its size."""
        size = sum(map(len, parts))
        if size > self._send_buffer:
            self._send_buffer = max(2 * size, 1 << 20)
            self._enlarge_buffer(_SO_SNDBUFFORCE, socket.SO_SNDBUF, self._send_buffer)
        self._quiet = False
        self._socket.sendmsg(parts if len(parts) <= _MOST_PARTS else (b"".join(parts),))
        return size

    def read_pending_messages(self, size: int = _RECEIVE) -> Iterator[Message]:
        """Yield every message that has already arrived, without waiting.

        Callers with many small datagrams pass their largest size: Python allocates that many bytes for each receive.
        """
        for datagram in self.read_arrived_datagrams(size):
            yield from split_messages(datagram)

    def read_arrived_datagrams(self, size: int) -> Iterator[bytes]:
        """Yield every datagram that has already arrived, without waiting; `size` as in `read_pending_messages`."""
        while True:
            try:
                yield self._socket.recv(size, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return

    def read_acknowledgements(self, last: int | None = None) -> list[Acknowledgement]:
        """Collect every acknowledgement of the last send; the kernel queued them before `send` returned.

        `last`: the sequence number whose acknowledgement, if any, comes after all others.
        """
        found: list[Acknowledgement] = []
        for message in self.read_pending_messages():
            if message.type == NLMSG_ERROR:
                found.append(decode_acknowledgement(message))
                if found[-1].sequence == last:
                    self._quiet = not self._listens
                    break
        return found

    def drain(self) -> None:
        """Discard the messages left by an earlier, failed exchange."""
        if self._quiet:
            return
        with contextlib.suppress(BlockingIOError):
            while True:
                self._socket.recv(1, socket.MSG_DONTWAIT)

    def request(self, kind: int, payload: bytes, flags: int = 0) -> list[Message]:
        """Send one request; return the answers before the acknowledgement. Raise NetlinkError if refused."""
        sequence = self.reserve_sequence_numbers()
        self.send(encode_message(kind, NLM_F_REQUEST | NLM_F_ACK | flags, sequence, payload))
        answers: list[Message] = []
        while True:
            for message in split_messages(self._socket.recv(_RECEIVE)):
                if message.sequence != sequence:
                    continue
                if message.type != NLMSG_ERROR:
                    answers.append(message)
                    continue
                _raise_for(decode_acknowledgement(message))
                return answers

    def ask(self, kind: int, payload: bytes) -> Message:
        """Send a request that the kernel answers with one message or an error, without an acknowledgement."""
        sequence = self.reserve_sequence_numbers()
        self.send(encode_message(kind, NLM_F_REQUEST, sequence, payload))
        while True:
            for message in split_messages(self._socket.recv(_ANSWER)):
                if message.sequence == sequence:
                    if message.type == NLMSG_ERROR:
                        _raise_for(decode_acknowledgement(message))
                    return message

    def request_answers(self, kind: int, payload: bytes, count: int, size: int = 512) -> list[bytes]:
        """Send one request; return its `count` answers, datagrams of one message of at most `size` bytes each.

        Raise NetlinkError if the kernel refuses or sends fewer answers.
        """
        sequence, receive = self.reserve_sequence_numbers(), self._socket.recv
        self.send(encode_message(kind, NLM_F_REQUEST | NLM_F_ACK, sequence, payload))
        try:
            answers = [receive(size, socket.MSG_DONTWAIT) for _ in range(count + 1)]
        except BlockingIOError:
            raise NetlinkError(errno.ENOENT, f"less than {count} answers came") from None
        for message in split_messages(answers.pop()):
            if message.type == NLMSG_ERROR:
                _raise_for(decode_acknowledgement(message))
        return answers

    def dump(self, kind: int, payload: bytes, size: int = _RECEIVE) -> Iterator[memoryview]:
        """Yield the payload of each message of a dump. For many small dumps pass a smaller `size`.

        Raise DumpInterruptedError after the last message if the kernel reports an inconsistent dump.
        """
        return self._read_dump(kind, payload, iter(lambda: self._socket.recv(size), b""))

    def dump_datagrams(self, kind: int, payload: bytes, size: int) -> Iterator[bytes]:
        """Yield the datagrams of a dump, without the message that ends it.

        `size` is the kernel's largest datagram. The messages' flags tell of an interrupted dump.
        """
        sequence = self.reserve_sequence_numbers()
        self.send(encode_message(kind, NLM_F_REQUEST | NLM_F_DUMP, sequence, payload))
        while True:
            datagram = self._socket.recv(size)
            _, first, _, answered, _ = HEADER.unpack_from(datagram)
            if answered != sequence:
                continue
            if first not in (NLMSG_DONE, NLMSG_ERROR):
                end = len(datagram) - _DONE
                if not _is_end_of_dump(datagram, end, sequence):
                    yield datagram
                    continue
                yield datagram[:end]
                datagram = datagram[end:]
            for message in split_messages(datagram):
                _raise_for_end(message)
            return

    def dump_whole(self, kind: int, payload: bytes, size: int) -> bytes:
        return b"".join(self.dump_datagrams(kind, payload, size))

    def dump_in_bulk(self, kind: int, payload: bytes) -> Iterator[memoryview]:
        """Dump in few system calls, for a thread beside others: see `bulk`."""
        from vipwire.linux.netlink.bulk import receive_datagrams  # noqa: PLC0415  # it takes ctypes, and only a restart needs it

        return self._read_dump(kind, payload, receive_datagrams(self._socket.fileno()))

    def _read_dump(self, kind: int, payload: bytes, datagrams: Iterator[bytes]) -> Iterator[memoryview]:
        sequence = self.reserve_sequence_numbers()
        self.send(encode_message(kind, NLM_F_REQUEST | NLM_F_DUMP, sequence, payload))
        interrupted = False
        for datagram in datagrams:
            for message in split_messages(datagram):
                if message.sequence != sequence:
                    continue
                interrupted = interrupted or bool(message.flags & NLM_F_DUMP_INTR)
                _raise_for_end(message)
                if message.type == NLMSG_DONE:
                    if interrupted:
                        raise DumpInterruptedError(errno.EINTR, "the dump was interrupted by a change")
                    return
                yield message.payload


def _is_end_of_dump(datagram: bytes, at: int, sequence: int) -> bool:
    """Report whether the message at `at` ends the dump."""
    if at < HEADER.size:
        return False
    length, kind, _, answered, _ = HEADER.unpack_from(datagram, at)
    return bool(length == _DONE and kind == NLMSG_DONE and answered == sequence)


def _raise_for_end(message: Message) -> None:
    """Raise the error with which a dump ended, if the message ends the dump with one."""
    if message.type == NLMSG_DONE and len(message.payload) >= 4:
        code = struct.unpack_from("=i", message.payload)[0]
        if code < 0:
            raise NetlinkError(-code, os.strerror(-code))
    if message.type == NLMSG_ERROR:
        _raise_for(decode_acknowledgement(message))


def _raise_for(answer: Acknowledgement) -> None:
    if answer.errno:
        detail = f" ({answer.text})" if answer.text else ""
        raise NetlinkError(answer.errno, os.strerror(answer.errno) + detail)
