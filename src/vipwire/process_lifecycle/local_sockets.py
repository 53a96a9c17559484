"""The Unix sockets by which processes of vipwire find each other: files in one private folder.

    /run/vipwire/sockets/NAME.NETNS     root's
    /tmp/vipwire-UID/NAME.NETNS         another user's

A name belongs to a network namespace: NETNS is its inode number. Only the folder's owner can enter it, so no other
user can take a name or connect. A process listens until it ends; the next process that takes a name removes sockets
without a listening process. Containers find each other if they share the folder: by hostPath, in a Pod.

Versions before 0.2.0 may have abstract sockets, whose names any user can take. vipwire connects to those of root and
of its own user, to take over from such a version, but binds none.
"""

import contextlib
import errno
import os
import socket
import stat
import struct
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from vipwire.errors import ConfigError
from vipwire.file_io.files import check_owner, hold_lock, make_folders, read_netns_inode

VARIABLE: Final = "VIPWIRE_SOCKET_DIR"
"""The environment variable with another folder for the sockets."""
_ROOTS: Final = Path("/run/vipwire/sockets")
_CREDENTIALS: Final = struct.Struct("3i")


def listen_at_name(name: str) -> socket.socket:
    """Listen at a name in this network namespace. Raise ConfigError, and OSError with EADDRINUSE if it is taken."""
    place = _find_socket_folder()
    _make_folder(place)
    path = place / _find_socket_file(name)
    with hold_lock(os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)):
        _remove_unused(place)
        if path.exists():
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), str(path))
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.ExitStack() as on_error:
            on_error.callback(listener.close)
            os.fchmod(listener.fileno(), 0o600)  # bind applies the umask
            listener.bind(str(path))
            listener.listen()
            on_error.pop_all()
        return listener


def connect_to_name(name: str) -> socket.socket | None:
    """Connect to the process that listens at a name; None if none does. Raise OSError if connect fails otherwise."""
    return _connect_to_address(str(_find_socket_folder() / _find_socket_file(name)))


def connect_to_older(name: str) -> socket.socket | None:
    """Connect to an abstract socket, of versions before 0.2.0, of root or this user."""
    try:
        connection = _connect_to_address(f"\0{name}")
    except OSError:
        return None
    if connection is not None and read_peer_credentials(connection)[1] not in (0, os.geteuid()):
        connection.close()
        return None
    return connection


def read_peer_credentials(connection: socket.socket) -> tuple[int, int]:
    """Return the process and the user at the other end."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return pid, uid


def is_bound_elsewhere(name: str) -> bool:
    """Report whether another folder or container has a socket with this name, in this network namespace.

    Any user can make such a path in a mount namespace of their own.
    """
    try:
        lines = Path("/proc/thread-self/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    paths = {str(place / _find_socket_file(name)) for place in (_find_socket_folder(), _ROOTS)}
    return any(line.rpartition(" ")[2] in paths for line in lines)


def is_at(listener: socket.socket, name: str) -> bool:
    return bool(listener.getsockname() == str(_find_socket_folder() / _find_socket_file(name)))


def list_names() -> set[str]:
    """List the names of this network namespace that have a socket; a process may listen there."""
    suffix = _find_socket_file("")
    with contextlib.suppress(OSError):
        return {
            unquote(path.name.removesuffix(suffix))
            for path in _find_socket_folder().iterdir()
            if path.name.endswith(suffix)
        }
    return set()


def _find_socket_folder() -> Path:
    if given := os.environ.get(VARIABLE):
        return Path(given)
    return Path(f"/tmp/vipwire-{os.geteuid()}") if os.geteuid() else _ROOTS  # noqa: S108  # `_make_folder` checks its owner


def _find_socket_file(name: str) -> str:
    return f"{quote(name, safe='*:')}.{read_netns_inode()}"


def _make_folder(place: Path) -> None:
    """Create the folder for this user alone. Raise ConfigError if that fails, or another user can replace it."""
    remedy = (
        f"vipwire keeps its sockets in this folder: in a Pod, mount the node's {_ROOTS.parent}, or set {VARIABLE}"
    )
    try:
        make_folders(place, 0o700)
        for each in (_ROOTS.parent, place) if place == _ROOTS else (place,):
            found = each.stat()
            if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) & 0o022:
                each.chmod(0o755)  # as kubelet creates an emptyDir
        if place.stat().st_uid == os.geteuid():
            place.chmod(0o700)
    except OSError as error:
        raise ConfigError(f"{error.filename or place}: {error.strerror}: {remedy}") from error
    check_owner(place, f"{VARIABLE}:")


def _remove_unused(place: Path) -> None:
    """Remove the sockets of processes that have ended, of all network namespaces."""
    for path in place.iterdir():
        with contextlib.suppress(OSError):  # a process listens, and its queue is full
            if (connection := _connect_to_address(str(path))) is None:
                path.unlink()
            else:
                connection.close()


def _connect_to_address(address: str) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(0)  # connect must not wait while the queue is full
        connection.connect(address)
        connection.settimeout(None)
    except OSError as error:
        connection.close()
        if isinstance(error, ConnectionRefusedError | FileNotFoundError | NotADirectoryError):
            return None
        raise
    return connection
