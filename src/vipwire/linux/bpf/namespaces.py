"""The cookie of a network namespace, by which BPF programs recognise a socket's (SO_NETNS_COOKIE, Linux 5.14).

Also reports deleted network namespaces. The kernel opens a namespace by its cookie and inode number as long as a
process, a mount, a descriptor or a socket holds it (open_by_handle_at(2) on nsfs, Linux 6.18). Without rights, the
kernel answers as for a deleted one. So vipwire first makes a namespace that only a socket holds: if the kernel does
not open that one, vipwire assumes that none is deleted.
"""

import contextlib
import ctypes
import errno
import os
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

_SO_NETNS_COOKIE: Final = 71
_CLONE_NEWNET: Final = 0x40000000
_HANDLE: Final = struct.Struct("=IiQII")
"""struct file_handle with a struct nsfs_file_handle: size, type; cookie, type of namespace, inode number."""
_FILEID_NSFS: Final = 0xF1
_ALL_USERS: Final = "0 0 4294967295"
"""/proc/PID/uid_map in the initial user namespace: only its capabilities count for every network namespace."""
_HERE: Final = Path("/proc/thread-self/ns/net")
T = TypeVar("T")
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def read_netns_cookie() -> int:
    """Return the cookie of the calling thread's network namespace. Raise OSError on older kernels."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        (found,) = struct.unpack("=Q", own.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8))
    return int(found)


def read_netns_inode() -> int:
    """Return the inode number of the calling thread's network namespace. Raise OSError."""
    return _HERE.stat().st_ino


def find_gone(namespaces: Iterable[tuple[int, int]]) -> frozenset[tuple[int, int]]:
    """Return the deleted network namespaces, by cookie and inode number; none if the kernel does not tell."""
    try:
        with _HERE.open("rb", 0) as nsfs, _make_socket_namespace() as living:
            if _can_open(nsfs.fileno(), living):
                return frozenset(each for each in namespaces if not _can_open(nsfs.fileno(), each))
    except (OSError, AttributeError):  # an older kernel, another C library, no right
        pass
    return frozenset()


@contextlib.contextmanager
def _make_socket_namespace() -> Iterator[tuple[int, int]]:
    """Make a network namespace that only a socket holds; yield its cookie and inode number. Raise OSError."""
    if " ".join(Path("/proc/self/uid_map").read_text(encoding="ascii").split()) != _ALL_USERS:
        raise PermissionError(errno.EPERM, "not in the initial user namespace")
    with ThreadPoolExecutor(1, "network namespace") as thread:
        held, cookie, inode = thread.submit(_make_namespace).result()
    with held:
        yield cookie, inode


def _make_namespace() -> tuple[socket.socket, int, int]:
    with _HERE.open("rb", 0) as before:
        if _LIBC.unshare(_CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        found = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), read_netns_cookie(), read_netns_inode()
        if _LIBC.setns(before.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
        return found


def _can_open(nsfs: int, namespace: tuple[int, int]) -> bool:
    cookie, inode = namespace
    handle = ctypes.create_string_buffer(_HANDLE.pack(16, _FILEID_NSFS, cookie, _CLONE_NEWNET, inode))
    descriptor = _LIBC.open_by_handle_at(nsfs, handle, os.O_RDONLY | os.O_CLOEXEC)
    if descriptor >= 0:
        os.close(descriptor)
    elif (code := ctypes.get_errno()) != errno.ESTALE:
        raise OSError(code, os.strerror(code))
    return bool(descriptor >= 0)


def read_cookie_of(path: Path) -> int:
    """Return the cookie of another network namespace, such as /run/netns/NAME; needs CAP_SYS_ADMIN. Raise OSError."""
    return run_in_namespace(path, read_netns_cookie)


def run_in_namespace(path: Path, action: Callable[[], T]) -> T:
    """Call `action` in another network namespace, in a thread of its own. Needs CAP_SYS_ADMIN."""
    with ThreadPoolExecutor(1, "network namespace") as thread:
        return thread.submit(_run_inside, path, action).result()


def _run_inside(path: Path, action: Callable[[], T]) -> T:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _LIBC.setns(descriptor, _CLONE_NEWNET) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(path))
        return action()
    finally:
        os.close(descriptor)
