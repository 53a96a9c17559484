"""A dump as one piece: its end may come alone or with the last messages, and what is of another dump is skipped."""

import errno
import struct
from collections.abc import Iterable

import pytest

from vipwire.linux.netlink.message import NLMSG_DONE, NLMSG_ERROR, encode_message, split_messages
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, NetlinkError, NetlinkSocket


class Kernel:
    """Stands in the place of the socket: answers with these datagrams, whatever it is asked."""

    def __init__(self, *answers: bytes) -> None:
        self._answers = [*answers]

    def setsockopt(self, *_: object) -> None:
        """Take any option."""

    def sendmsg(self, parts: Iterable[bytes]) -> int:
        """Take a request."""
        return sum(map(len, parts))

    def recv(self, _: int) -> bytes:
        """Return the next datagram."""
        return self._answers.pop(0)


def dumped(*answers: bytes) -> list[bytes]:
    netlink = NetlinkSocket(NETLINK_NETFILTER)
    netlink.close()
    netlink._socket = Kernel(*answers)  # type: ignore[assignment]  # noqa: SLF001
    return [bytes(each.payload) for each in split_messages(netlink.dump_whole(1, b"", 4096))]


def rule(text: bytes, sequence: int = 1) -> bytes:
    return encode_message(0xA06, 2, sequence, text)


def done(code: int = 0, sequence: int = 1) -> bytes:
    return encode_message(NLMSG_DONE, 2, sequence, struct.pack("=i", code))


def test_the_end_comes_by_itself() -> None:
    assert dumped(done()) == []
    assert dumped(rule(b"one"), rule(b"two") + rule(b"three"), done()) == [b"one", b"two", b"three"]


def test_the_end_comes_with_the_last_messages() -> None:
    assert dumped(rule(b"one"), rule(b"two") + done()) == [b"one", b"two"]


def test_what_was_left_of_another_dump_is_skipped() -> None:
    assert dumped(rule(b"old", 9), done(0, 9), rule(b"new"), done()) == [b"new"]


def test_a_refused_dump_raises() -> None:
    refusal = encode_message(NLMSG_ERROR, 0, 1, struct.pack("=i", -errno.ENOENT) + bytes(16))
    for end in (done(-errno.EINTR), refusal, rule(b"one") + done(-errno.EINTR)):
        with pytest.raises(NetlinkError):
            dumped(end)
