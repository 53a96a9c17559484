"""Receives many datagrams with one system call, recvmmsg(2), for a thread beside one that computes.

After each call Python retakes its lock, which takes 5 ms while another thread holds it. A dump of 100,000 elements is
140 datagrams; one call receives them without the lock.
"""

import ctypes
import mmap
import os
from collections.abc import Iterator
from typing import Final

AT_ONCE: Final = 256
SIZE: Final = 32 << 10
"""The largest datagram of a dump (af_netlink.c, netlink_dump)."""
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
    """struct mmsghdr: the buffer of a datagram, and its length."""

    _fields_ = (("header", _Header), ("length", ctypes.c_uint))


def receive_datagrams(descriptor: int) -> Iterator[bytes]:
    """Yield datagrams of at most `SIZE` bytes, without end. Raise OSError."""
    call = ctypes.CDLL(None, use_errno=True).recvmmsg
    with mmap.mmap(-1, AT_ONCE * SIZE) as room:  # the kernel allocates only pages that are written
        start = ctypes.addressof(ctypes.c_char.from_buffer(room))
        vectors = (_Vector * AT_ONCE)(*(_Vector(start + at * SIZE, SIZE) for at in range(AT_ONCE)))
        held = (_Message * AT_ONCE)(*(_Message(_Header(None, 0, ctypes.pointer(each), 1)) for each in vectors))
        while True:
            count = call(descriptor, held, AT_ONCE, _MSG_WAITFORONE, None)
            if count < 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            datagrams = [room[at * SIZE : at * SIZE + held[at].length] for at in range(count)]
            yield from datagrams
