"""HAProxy as a child: started, checked, reloaded, watched, ended.

Master-worker mode: the master stays, and a reload (SIGUSR2) makes it start a new worker, which takes the listening
sockets over from the old one (`expose-fd listeners`), so that no connection is refused. The old worker ends when its
connections have. A configuration is known by its mark, which the worker tells in `show info`.

The child is in a session of its own: it goes on when we die, and the next vipwire finds it by its master socket.
"""

import asyncio
import contextlib
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from vipwire.errors import UnsupportedError
from vipwire.file_io.files import create_file
from vipwire.logging import log
from vipwire_l7.haproxy.configuration import Configuration
from vipwire_l7.run.control import mark_of, processes

_LOOK = 0.02
_PATIENCE, _HEARD = 60.0, 3.0
"""Seconds for a start; for a reload before it is asked for again."""
_KEEP = 2
"""Folders of configurations that are kept: the one that runs, and the one before."""


class Refused(Exception):  # noqa: N818  # what HAProxy says, for the caller to act on
    """HAProxy does not want a configuration. The text is what it says.

    With `is_lost` it has been told to take it, so that it may have either.
    """

    def __init__(self, said: str, *, is_lost: bool = False) -> None:
        super().__init__(said)
        self.is_lost = is_lost


class Haproxy:
    """The child and its folder. All paths are below `folder`."""

    def __init__(self, program: str, folder: Path) -> None:
        found = shutil.which(program)
        if found is None:
            raise UnsupportedError(f"{program} is not installed (Debian: apt install haproxy; 2.6 or newer)")
        self._program, self.folder = found, folder
        self.socket, self._master = folder / "haproxy.sock", folder / "master.sock"
        self._link, self._messages = folder / "haproxy.cfg", folder / "messages"
        self._child: subprocess.Popen[bytes] | None = None
        self._pid = self._files = 0
        self._number = max(self._generations(), default=0)

    def next_folder(self) -> Path:
        """Name the folder for the next configuration."""
        return self.folder / f"gen-{self._number + 1}"

    @property
    def pid(self) -> int:
        """Return the master's process, 0 without one."""
        return self._pid

    @property
    def running(self) -> bool:
        """Whether there is a master."""
        if self._child is not None and self._child.poll() is not None:
            self._child, self._pid = None, 0
        return bool(self._pid) and _exists(self._pid)

    async def adopt(self) -> bool:
        """Find a master that an earlier vipwire has left; report whether there is one."""
        for process in await processes(self._master) if self._master.exists() else []:
            if process.type == "master":
                self._pid = process.pid
        return self.running

    async def old_workers(self) -> int:
        """Count the workers that are replaced and still have connections."""
        return sum(each.type == "worker" and each.reloads > 0 for each in await processes(self._master))

    async def put(self, configuration: Configuration) -> None:
        """Check a configuration and make it live; raise `Refused` and change nothing if HAProxy does not want it."""
        folder = Path(configuration.layout.folder)
        self._number += 1
        self._allow_files(configuration.descriptors)
        mark = f"vipwire-{os.getpid()}-{self._number}"
        await asyncio.to_thread(_write, folder, configuration, mark)
        try:
            await self.check(folder / "haproxy.cfg")
        except Refused:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        fresh = self.folder / "haproxy.cfg.new"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(folder / "haproxy.cfg")
        fresh.replace(self._link)
        await (self._reload(mark) if self.running else self._start(mark))
        self._tidy()

    def _allow_files(self, needed: int) -> None:
        """Let HAProxy open as many files, or tell that it may not: one that runs keeps the limit of its start."""
        if needed <= self._files:
            return
        self._files = needed
        limits = [_raise_limit(pid, needed) for pid in (0, self._pid) if pid == 0 or self.running]
        if min(limits) < needed:
            log.warning(
                "HAProxy needs more open files than it may have; vipwire leaves Services out if they do not suffice",
                needed=needed,
                limit=min(limits),
                remedy="raise the limit: LimitNOFILE= of a systemd unit, --ulimit nofile= of a container",
            )

    async def check(self, file: Path) -> None:
        """Validate a file with HAProxy; raise `Refused` with its message."""
        command = [self._program, "-c", "-f", str(file)]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Refused(_alerts(done.stderr) or f"exit status {done.returncode}")

    async def _start(self, mark: str) -> None:
        for path in (self.socket, self._master):
            path.unlink(missing_ok=True)
        command = [self._program, "-W", "-S", f"{self._master},mode,600", "-f", str(self._link)]
        self._messages.unlink(missing_ok=True)
        with self._messages.open("ab") as messages:
            # asyncio's own would kill the child when we end.
            self._child = subprocess.Popen(  # noqa: ASYNC220, S603  # does not wait; the program is found by PATH
                command, stdin=subprocess.DEVNULL, stderr=messages, start_new_session=True
            )
        self._pid = self._child.pid
        if not await self._answers(mark, _PATIENCE):
            raise self._refusal()

    async def _reload(self, mark: str) -> None:
        if self._messages.exists():
            os.truncate(self._messages, 0)
        patience = _HEARD
        while self.running and patience < _PATIENCE / 2:
            # A master that is still at its last reload does not hear the signal, and nothing tells us so.
            os.kill(self._pid, signal.SIGUSR2)
            if await self._answers(mark, patience):
                return
            if self._said():
                break
            patience *= 2
        raise self._refusal()

    async def _answers(self, mark: str, seconds: float) -> bool:
        """Wait for the worker that has a configuration; tell whether it came."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.running:
                    if self.socket.exists() and await mark_of(self.socket) == mark:
                        return True
                    await asyncio.sleep(_LOOK)
        return False

    def _refusal(self) -> Refused:
        return Refused(f"it does not start: {self._said() or 'no answer at its socket'}", is_lost=True)

    def _said(self) -> str:
        """Read why the last start or reload has failed, if HAProxy has told that."""
        return _alerts(self._messages.read_text(errors="replace")) if self._messages.exists() else ""

    async def ended(self) -> None:
        """Wait until the master has ended."""
        while self.running:  # noqa: ASYNC110  # of another's child nobody is told that it has ended
            await asyncio.sleep(0.2)

    async def stop(self, seconds: float) -> None:
        """End HAProxy: its connections may go on for so long."""
        if not self.running:
            return
        os.kill(self._pid, signal.SIGUSR1)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.ended()
        if self.running:
            os.kill(self._pid, signal.SIGTERM)
            await self.ended()

    def _generations(self) -> list[int]:
        names = (path.name.removeprefix("gen-") for path in self.folder.glob("gen-*"))
        return [int(name) for name in names if name.isdigit()]

    def _tidy(self) -> None:
        for number in self._generations():
            if number <= self._number - _KEEP:
                shutil.rmtree(self.folder / f"gen-{number}", ignore_errors=True)


def _raise_limit(pid: int, needed: int) -> int:
    """Raise a process's limit of open files to `needed`, as far as this user may; return the hard limit."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    for most in (max(needed, hard), hard):
        with contextlib.suppress(OSError, ValueError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (max(soft, min(needed, most)), most))
            return most
    return hard


def _write(folder: Path, configuration: Configuration, mark: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
    for name, content in _contents(configuration, mark):
        create_file(folder / name, content.encode())


def _contents(configuration: Configuration, mark: str) -> Iterator[tuple[str, str]]:
    yield "haproxy.cfg", configuration.text(mark)
    yield from configuration.files()


def _alerts(said: str) -> str:
    """Pick the errors out of what HAProxy says, without its prefix."""
    lines = (line.partition(") : ")[2] for line in said.splitlines() if line.startswith("[ALERT]"))
    return "\n".join(lines)[:4000]


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
