"""Runs the command of a probe on this machine: as a user, with a timeout, without leftover processes.

A small program (keeper.py) starts the command, and kills all its processes when the command ends, is too slow, or
vipwire stops or is killed. Two cases remain: a command that runs as root can kill the keeper, and a keeper that is
not root cannot kill processes of another user.
"""

import asyncio
import contextlib
import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from vipwire.errors import ConfigError

_KEEPER: Final = Path(__file__).with_name("keeper.py")
_PATIENCE: Final = 5.0
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class RunAs:
    """Another user than that of this process, with all of its groups."""

    name: str
    user: int
    group: int
    groups: tuple[int, ...]
    home: str

    @classmethod
    def user_named(cls, name: str) -> Self:
        """Return a user of this machine; raise ConfigError if unknown or if this process cannot switch to it."""
        try:
            entry = pwd.getpwnam(name)
        except (KeyError, ValueError):
            raise ConfigError(f"--exec-probes-user {name}: this machine has no such user") from None
        if os.geteuid() not in (0, entry.pw_uid):
            raise ConfigError(f"--exec-probes-user {name}: only root may run commands as another user")
        groups = tuple(os.getgrouplist(name, entry.pw_gid))
        return cls(name, entry.pw_uid, entry.pw_gid, groups, entry.pw_dir)


async def run_command(command: Sequence[str], who: RunAs | None = None) -> int:
    """Run a command and return its exit code; -N if signal N ended it. Raise OSError if it cannot be started."""
    process = _start_keeper(command, who)
    assert process.stdout is not None  # noqa: S101  # it is a pipe
    with contextlib.ExitStack() as opened:
        opened.callback(process.wait)  # reap the keeper, which has ended or was killed
        opened.callback(process.stdout.close)
        watched = os.pidfd_open(process.pid)
        opened.callback(os.close, watched)
        try:
            await _wait_until_readable(watched)
        except asyncio.CancelledError:
            await _end_keeper(process, watched)
            raise
        said = process.stdout.read().decode(errors="replace").split()
    match said:
        case ["exit", code]:
            return int(code)
        case ["error", number]:
            raise OSError(int(number), os.strerror(int(number)), str(command[0]))
    return process.returncode or -signal.SIGKILL  # 0 without a report: some signal ended the keeper


def _start_keeper(command: Sequence[str], who: RunAs | None) -> "subprocess.Popen[bytes]":
    user, environment = ("-", "-", "-"), None
    if who is not None and who.user != os.geteuid():
        user = (str(who.user), str(who.group), ",".join(map(str, who.groups)))
        environment = {"PATH": _PATH, "HOME": who.home, "USER": who.name, "LOGNAME": who.name}
    null = subprocess.DEVNULL
    return subprocess.Popen(  # noqa: S603  # it is run because an admin has said so
        [sys.executable, "-I", "-S", str(_KEEPER), *user, *map(str, command)],
        stdin=null,
        stdout=subprocess.PIPE,
        stderr=null,
        cwd="/",
        start_new_session=True,
        env=environment,
    )


async def _end_keeper(process: "subprocess.Popen[bytes]", watched: int) -> None:
    """Have the keeper kill all that it has started; kill a keeper that cannot."""
    process.terminate()
    try:
        async with asyncio.timeout(_PATIENCE):
            await _wait_until_readable(watched)
    finally:
        process.kill()


async def _wait_until_readable(descriptor: int) -> None:
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, done.set)
    try:
        await done.wait()
    finally:
        loop.remove_reader(descriptor)
