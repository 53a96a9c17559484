"""Named network namespaces, as iproute2 keeps them, without starting a process.

A namespace lives while a process, a socket or a mount refers to it. Its name is a bind mount of
`/proc/thread-self/ns/net` on `/run/netns/NAME`, as `ip netns add` makes it. A new socket belongs to the namespace of
the thread that opens it, for ever, so only opening a socket (or starting a process) must happen inside. Source:
unshare(2), setns(2), ip-netns(8). Python has os.setns only from 3.12 on, so this module calls libc.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from vipwire_lab.namespaces.errors import LabError

DIRECTORY = Path("/run/netns")

_CLONE_NEWNET = 0x40000000
_MS_BIND, _MS_REC, _MS_SHARED = 0x1000, 0x4000, 0x100000
_MNT_DETACH = 2
_HERE = "/proc/thread-self/ns/net"
_LIBC = ctypes.CDLL(None, use_errno=True)


def namespace_path(name: str) -> Path:
    """Return the mount path of a namespace, existing or not."""
    return DIRECTORY / name


def create_namespace(name: str) -> Path:
    """Create an empty namespace with a name; raise LabError if the name is taken or permission is missing."""
    _share_directory()
    path = namespace_path(name)
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0))
    except FileExistsError as error:
        raise LabError(f"the network namespace {name} already exists (see: ip netns)") from error
    try:
        with _return_to_namespace():
            _call_libc("unshare", _CLONE_NEWNET)
            _call_libc("mount", _HERE.encode(), bytes(path), b"none", ctypes.c_ulong(_MS_BIND), None)
    except OSError as error:
        path.unlink()
        raise LabError(_explain_refusal(error)) from error
    return path


def delete_namespace(name: str) -> bool:
    """Delete the name; the kernel deletes the namespace once it is unused. False if the name does not exist."""
    path = namespace_path(name)
    if not path.exists():
        return False
    with contextlib.suppress(OSError):  # a plain file, left by an interrupted creation, is not mounted
        _call_libc("umount2", bytes(path), _MNT_DETACH)
    path.unlink(missing_ok=True)
    return True


@contextlib.contextmanager
def enter_namespace(path: Path) -> Iterator[None]:
    """Move the calling thread into a namespace for the block; processes started there stay there."""
    with _return_to_namespace():
        try:
            target = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise LabError(f"there is no network namespace {path}") from error
        try:
            _call_libc("setns", target, _CLONE_NEWNET)
        except OSError as error:
            raise LabError(f"cannot enter the network namespace {path}: {error.strerror}") from error
        finally:
            os.close(target)
        yield


@contextlib.contextmanager
def _return_to_namespace() -> Iterator[None]:
    home = os.open(_HERE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield
    finally:
        try:
            _call_libc("setns", home, _CLONE_NEWNET)
        finally:
            os.close(home)


def _share_directory() -> None:
    """Mount /run/netns as shared, as `ip netns add` does.

    Otherwise mounts made here stay invisible in other mount namespaces, and copies there keep deleted namespaces
    alive.
    """
    try:
        DIRECTORY.mkdir(mode=0o755, parents=True, exist_ok=True)
        lock = os.open(DIRECTORY, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two concurrent processes would mount it twice
            _mount_shared(bytes(DIRECTORY))
        finally:
            os.close(lock)
    except OSError as error:
        raise LabError(_explain_refusal(error)) from error


def _mount_shared(directory: bytes) -> None:
    shared = ctypes.c_ulong(_MS_SHARED | _MS_REC)
    try:
        _call_libc("mount", b"", directory, b"none", shared, None)
    except OSError as error:
        if error.errno != errno.EINVAL:  # EINVAL: it is not a mount point yet
            raise
        _call_libc("mount", directory, directory, b"none", ctypes.c_ulong(_MS_BIND | _MS_REC), None)
        _call_libc("mount", b"", directory, b"none", shared, None)


def _explain_refusal(error: OSError) -> str:
    if error.errno in (errno.EPERM, errno.EACCES):
        return "creating network namespaces needs root (CAP_SYS_ADMIN): use sudo"
    if error.errno == errno.EINVAL:
        return "this kernel has no network namespaces (CONFIG_NET_NS)"
    return f"cannot create a network namespace: {error.strerror}"


def _call_libc(function: str, *arguments: object) -> None:
    if getattr(_LIBC, function)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), function)
