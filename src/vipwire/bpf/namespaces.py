"""The cookie of a network namespace, by which programs tell whose a socket is (SO_NETNS_COOKIE, Linux 5.14)."""

import ctypes
import os
import socket
import struct
import threading
from pathlib import Path
from typing import Final

_SO_NETNS_COOKIE: Final = 71
_CLONE_NEWNET: Final = 0x40000000
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def netns_cookie() -> int:
    """Tell the cookie of the calling thread's network namespace. Raise OSError where the kernel is older."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        (found,) = struct.unpack("=Q", own.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8))
    return int(found)


def cookie_of(path: Path) -> int:
    """Tell the cookie of another network namespace, such as /run/netns/NAME; needs CAP_SYS_ADMIN. Raise OSError."""
    found: list[int | OSError] = []
    thread = threading.Thread(target=lambda: found.append(_inside(path)), name="netns cookie")
    thread.start()
    thread.join()
    if isinstance(found[0], OSError):
        raise found[0]
    return found[0]


def _inside(path: Path) -> int | OSError:
    """Enter a namespace for good, in a thread of its own."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if _LIBC.setns(descriptor, _CLONE_NEWNET) != 0:
                code = ctypes.get_errno()
                return OSError(code, os.strerror(code), str(path))
            return netns_cookie()
        finally:
            os.close(descriptor)
    except OSError as error:
        return error
