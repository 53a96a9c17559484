"""The cookie of a network namespace, by which programs tell whose a socket is (SO_NETNS_COOKIE, Linux 5.14)."""

import ctypes
import os
import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

_SO_NETNS_COOKIE: Final = 71
_CLONE_NEWNET: Final = 0x40000000
T = TypeVar("T")
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def netns_cookie() -> int:
    """Tell the cookie of the calling thread's network namespace. Raise OSError where the kernel is older."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        (found,) = struct.unpack("=Q", own.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8))
    return int(found)


def cookie_of(path: Path) -> int:
    """Tell the cookie of another network namespace, such as /run/netns/NAME; needs CAP_SYS_ADMIN. Raise OSError."""
    return within(path, netns_cookie)


def within(path: Path, action: Callable[[], T]) -> T:
    """Do something in another network namespace, in a thread that need not come back. Needs CAP_SYS_ADMIN."""
    with ThreadPoolExecutor(1, "network namespace") as thread:
        return thread.submit(_entered, path, action).result()


def _entered(path: Path, action: Callable[[], T]) -> T:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _LIBC.setns(descriptor, _CLONE_NEWNET) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(path))
        return action()
    finally:
        os.close(descriptor)
