"""Confines HAProxy's workers where possible: another user, in an empty root folder.

The master keeps the user of this process, since the master starts workers and reads keys. Only workers take
connections. A worker opens all files and sockets before it changes user and root; changes come by open sockets.
That needs the capabilities to change user, group and root: in a container without them, the container confines
HAProxy.
"""

import grp
import os
import pwd
from dataclasses import replace
from pathlib import Path
from typing import Final

from vipwire.errors import ConfigError
from vipwire.logging import log
from vipwire_l7.haproxy.layout import Layout

USUAL: Final = ("haproxy", "nobody")
"""The default users of workers: the first that exists."""
_NEEDED: Final = {6: "CAP_SETGID", 7: "CAP_SETUID", 18: "CAP_SYS_CHROOT"}


def confine_workers(layout: Layout, folder: Path, user: str) -> Layout:
    """Set the user of HAProxy's workers: `user`, the default one for "", that of this process for `-`.

    Raise ConfigError.
    """
    if user == "-" or os.geteuid() != 0:
        return layout
    if missing := sorted(_NEEDED[number] for number in _NEEDED if not _read_capabilities() >> number & 1):
        if user:
            raise ConfigError(f"--haproxy-user {user}: needs {', '.join(missing)}")
        log.info("HAProxy's workers keep the user of vipwire", missing=",".join(missing))
        return layout
    found = next((name for name in ((user,) if user else USUAL) if _user_exists(name)), "")
    if not found:
        if user:
            raise ConfigError(f"--haproxy-user {user}: there is no such user")
        log.warning("HAProxy's workers run as root: no user for them exists", looked_for=",".join(USUAL))
        return layout
    root = folder / "empty"
    root.mkdir(exist_ok=True)
    root.chmod(
        0o711
    )  # workers connect to sockets in it, so the umask must not matter; other users cannot enter `folder`
    group = grp.getgrgid(pwd.getpwnam(found).pw_gid).gr_name
    return replace(layout, user=found, group=group, chroot=str(root))


def _user_exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def _read_capabilities() -> int:
    """Read the effective capabilities of this process (proc(5))."""
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    return next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)
