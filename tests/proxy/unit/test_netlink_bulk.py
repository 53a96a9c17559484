"""Datagrams come as they were sent, however many of them one call takes."""

import errno
import itertools
import socket
import threading

import pytest

from vipwire.linux.netlink.bulk import AT_ONCE, SIZE, receive_datagrams


def test_datagrams_come_whole_and_in_order() -> None:
    sent = [bytes([number % 256]) * (number * 997 % SIZE + 1) for number in range(40)] + [b"x" * SIZE]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
        arriving = receive_datagrams(ours.fileno())
        for at in range(0, len(sent), 5):
            for datagram in sent[at : at + 5]:
                theirs.send(datagram)
            assert list(itertools.islice(arriving, len(sent[at : at + 5]))) == sent[at : at + 5]


def test_more_than_one_call_takes_are_taken_by_the_next() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    numbers = range(2 * AT_ONCE + 9)
    with ours, theirs:
        sending = threading.Thread(target=lambda: [theirs.send(number.to_bytes(4)) for number in numbers])
        sending.start()
        found = [int.from_bytes(each) for each in itertools.islice(receive_datagrams(ours.fileno()), len(numbers))]
        sending.join()
    assert found == list(numbers)


def test_a_closed_socket_is_an_error() -> None:
    with pytest.raises(OSError, match=rf"Errno {errno.EBADF}\b"):
        next(receive_datagrams(-1))
