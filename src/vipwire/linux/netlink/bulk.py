"""Receives many datagrams with one system call, recvmmsg(2), for a thread that reads beside one that computes.

Python takes its lock back after each call, for which it waits 5 ms while another thread has it. A dump of 100,000
elements comes in 140 datagrams; this takes them all while the lock is free.
"""

import ctypes
import mmap
import os
from collections.abc import Iterator
from typing import Final

AT_ONCE: Final = 256
SIZE: Final = 32 << 10
"""No datagram of a dump is larger (af_netlink.c, netlink_dump)."""
_MSG_WAITFORONE: Final = 0x10000


class _Vector(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Header(ctypes.Structure):
    """struct msghdr."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint),
        ("vectors", ctypes.POINTER(_Vector)),
        ("vector_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _Message(ctypes.Structure):
    """struct mmsghdr: where to put a datagram, and how long it is."""

    _fields_ = (("header", _Header), ("length", ctypes.c_uint))


def received(descriptor: int) -> Iterator[bytes]:
    """Yield datagrams of at most `SIZE` bytes as they come, without end. Raises OSError."""
    call = ctypes.CDLL(None, use_errno=True).recvmmsg
    with mmap.mmap(-1, AT_ONCE * SIZE) as room:  # of which only what is written to takes memory
        start = ctypes.addressof(ctypes.c_char.from_buffer(room))
        vectors = (_Vector * AT_ONCE)(*(_Vector(start + at * SIZE, SIZE) for at in range(AT_ONCE)))
        held = (_Message * AT_ONCE)(*(_Message(_Header(None, 0, ctypes.pointer(each), 1)) for each in vectors))
        while True:
            count = call(descriptor, held, AT_ONCE, _MSG_WAITFORONE, None)
            if count < 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            datagrams = [room[at * SIZE : at * SIZE + held[at].length] for at in range(count)]
            yield from datagrams
