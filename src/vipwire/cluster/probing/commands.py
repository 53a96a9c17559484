"""A command of a probe, run on this machine: as which user, for how long, and nothing of it stays.

It runs in a process group of its own, which is ended when the command ends, is too slow, or vipwire stops: what it
has left in the background goes with it, unless it has made a session of its own. The group is ended before its leader
is reaped, so that its number cannot have become somebody else's.
"""

import asyncio
import contextlib
import os
import pwd
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from vipwire.errors import ConfigError

_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class RunAs:
    """Another user than the one of this process, with all of its groups."""

    name: str
    user: int
    group: int
    groups: tuple[int, ...]
    home: str

    @classmethod
    def named(cls, name: str) -> Self:
        """Find a user of this machine; raise ConfigError for one that is not here, or cannot be become."""
        try:
            entry = pwd.getpwnam(name)
        except (KeyError, ValueError):
            raise ConfigError(f"--exec-probes-user {name}: this machine has no such user") from None
        if os.geteuid() not in (0, entry.pw_uid):
            raise ConfigError(f"--exec-probes-user {name}: only root may run commands as another user")
        groups = tuple(os.getgrouplist(name, entry.pw_gid))
        return cls(name, entry.pw_uid, entry.pw_gid, groups, entry.pw_dir)


async def run_command(command: Sequence[str], who: RunAs | None = None) -> int:
    """Run a command and give its exit code; -N if signal N ended it. Raise OSError if it cannot be started."""
    process = _start(command, who)
    try:
        with contextlib.ExitStack() as opened:
            watched = os.pidfd_open(process.pid)
            opened.callback(os.close, watched)
            await _readable(watched)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return process.returncode


def _start(command: Sequence[str], who: RunAs | None) -> "subprocess.Popen[bytes]":
    null = subprocess.DEVNULL
    if who is None or who.user == os.geteuid():
        return subprocess.Popen(  # noqa: S603  # it is run because an admin has said so
            command, stdin=null, stdout=null, stderr=null, cwd="/", start_new_session=True
        )
    environment = {"PATH": _PATH, "HOME": who.home, "USER": who.name, "LOGNAME": who.name}
    return subprocess.Popen(  # noqa: S603  # as above
        command,
        stdin=null,
        stdout=null,
        stderr=null,
        cwd="/",
        start_new_session=True,
        env=environment,
        user=who.user,
        group=who.group,
        extra_groups=who.groups,
    )


async def _readable(descriptor: int) -> None:
    """Wait until a descriptor can be read."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, done.set)
    try:
        await done.wait()
    finally:
        loop.remove_reader(descriptor)
