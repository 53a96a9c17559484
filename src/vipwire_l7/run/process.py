"""Runs HAProxy as a child: starts, checks, reloads, watches and stops it.

Master-worker mode: the master stays, and a reload (SIGUSR2) makes the master start a new worker, which takes over the
listening sockets of the old one (`expose-fd listeners`), so that no connection is refused. The old worker exits when
its connections have ended. A configuration is identified by its mark, which the worker prints in `show info`.

The child has its own session, so it survives this process. The next vipwire finds the child by the master socket.
"""

import asyncio
import contextlib
import os
import resource
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from vipwire.errors import UnsupportedError
from vipwire.file_io.files import create_file
from vipwire.logging import log
from vipwire_l7.haproxy.configuration import Configuration
from vipwire_l7.run.control import list_processes, read_mark

_LOOK = 0.02
_PATIENCE, _HEARD = 60.0, 3.0
"""Seconds to wait for a start, and to wait for a reload before the next signal."""
_FOR_CLIENTS = 5
"""The part of HAProxy's files, as a divisor, that servers leave to clients and the rest."""
_KEEP = 2
"""Folders of configurations to keep: the running one, and the one before."""


class Refused(Exception):  # noqa: N818  # HAProxy's answer, on which the caller acts
    """HAProxy refuses a configuration. The text is its message.

    With `is_lost`, HAProxy got the signal but did not confirm, and may run either configuration. `excess` is the
    number of servers for which HAProxy has no files.
    """

    def __init__(self, said: str, *, is_lost: bool = False, excess: int = 0) -> None:
        super().__init__(said)
        self.is_lost, self.excess = is_lost, excess


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
        self._number = max(self._list_generations(), default=0)

    def get_next_folder(self) -> Path:
        return self.folder / f"gen-{self._number + 1}"

    @property
    def pid(self) -> int:
        """Return the master's process ID, 0 without one."""
        return self._pid

    @property
    def running(self) -> bool:
        if self._child is not None and self._child.poll() is not None:
            self._child, self._pid = None, 0
        return bool(self._pid) and _process_exists(self._pid)

    async def adopt_master(self) -> bool:
        """Find the master that an earlier vipwire left; report whether there is one."""
        for process in await list_processes(self._master) if self._master.exists() else []:
            if process.type == "master":
                self._pid = process.pid
        return self.running

    async def count_old_workers(self) -> int:
        """Count the replaced workers that still have connections."""
        return sum(each.type == "worker" and each.reloads > 0 for each in await list_processes(self._master))

    async def apply_configuration(self, configuration: Configuration) -> None:
        """Check a configuration and make it live; raise `Refused` and change nothing if HAProxy refuses it."""
        folder = Path(configuration.layout.folder)
        self._number += 1
        # `haproxy -c` accepts too many servers: the reload would fail, and its worker take CPU time from requests.
        limit = self._allow_files(configuration.descriptors)
        if configuration.server_descriptors > limit - limit // _FOR_CLIENTS:
            free = max(limit - configuration.client_descriptors, limit - limit // _FOR_CLIENTS)
            excess = configuration.server_descriptors - free
            raise Refused(f"HAProxy may open {limit} files, {excess} too few for all servers", excess=excess)
        mark = f"vipwire-{os.getpid()}-{self._number}"
        await asyncio.to_thread(_write_files, folder, configuration, mark)
        try:
            await self.check_file(folder / "haproxy.cfg")
        except Refused:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        fresh = self.folder / "haproxy.cfg.new"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(folder / "haproxy.cfg")
        fresh.replace(self._link)
        await (self._reload(mark) if self.running else self._start(mark))
        self._delete_old_folders()

    def _allow_files(self, needed: int) -> int:
        """Raise HAProxy's limit of open files to `needed`, or log that this failed; return the limit."""
        limit = min(_raise_limit(pid, needed) for pid in (0, self._pid) if pid == 0 or self.running)
        if limit < needed and needed > self._files:
            log.warning(
                "HAProxy needs more open files than its limit allows; vipwire leaves out Services that do not fit",
                needed=needed,
                limit=limit,
                remedy="raise the limit: LimitNOFILE= of a systemd unit, --ulimit nofile= of a container",
            )
        self._files = max(self._files, needed)
        return limit

    async def check_file(self, file: Path) -> None:
        command = [self._program, "-c", "-f", str(file)]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Refused(_find_alerts(done.stderr) or f"exit status {done.returncode}")

    async def _start(self, mark: str) -> None:
        for path in (self.socket, self._master):
            path.unlink(missing_ok=True)
        command = [self._program, "-W", "-S", f"{self._master},mode,600", "-f", str(self._link)]
        self._messages.unlink(missing_ok=True)
        with self._messages.open("ab") as messages:
            # asyncio's own would kill the child when this process exits.
            self._child = subprocess.Popen(  # noqa: ASYNC220, S603  # does not wait; the program is found by PATH
                command, stdin=subprocess.DEVNULL, stderr=messages, start_new_session=True
            )
        self._pid = self._child.pid
        if not await self._wait_for_answer(mark, _PATIENCE):
            raise self._make_refusal()

    async def _reload(self, mark: str) -> None:
        if self._messages.exists():
            os.truncate(self._messages, 0)
        patience = _HEARD
        while self.running and patience < _PATIENCE / 2:
            # A master ignores the signal, without an error, during its last reload.
            os.kill(self._pid, signal.SIGUSR2)
            if await self._wait_for_answer(mark, patience):
                return
            if self._read_message():
                break
            patience *= 2
        raise self._make_refusal()

    async def _wait_for_answer(self, mark: str, seconds: float) -> bool:
        """Wait for the worker with this configuration; report whether it answered."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.running:
                    if self.socket.exists() and await read_mark(self.socket) == mark:
                        return True
                    await asyncio.sleep(_LOOK)
        return False

    def _make_refusal(self) -> Refused:
        return Refused(f"HAProxy does not start: {self._read_message() or 'no answer at its socket'}", is_lost=True)

    def _read_message(self) -> str:
        """Return HAProxy's message about the last failed start or reload, if there is one."""
        return _find_alerts(self._messages.read_text(errors="replace")) if self._messages.exists() else ""

    async def wait_until_ended(self) -> None:
        while self.running:
            await _wait_for_exit(self._pid)
            if self.running:  # its parent has not read its status yet
                await asyncio.sleep(0.2)

    async def stop(self, seconds: float) -> None:
        """Stop HAProxy after giving its connections `seconds` to finish."""
        if not self.running:
            return
        os.kill(self._pid, signal.SIGUSR1)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.wait_until_ended()
        if self.running:
            os.kill(self._pid, signal.SIGTERM)
            await self.wait_until_ended()

    def _list_generations(self) -> list[int]:
        names = (path.name.removeprefix("gen-") for path in self.folder.glob("gen-*"))
        return [int(name) for name in names if name.isdigit()]

    def _delete_old_folders(self) -> None:
        for number in self._list_generations():
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


def _write_files(folder: Path, configuration: Configuration, mark: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
    for name, content in (("haproxy.cfg", configuration.write_text(mark)), *configuration.list_files()):
        create_file(folder / name, content.encode())


def _find_alerts(said: str) -> str:
    """Return the errors in HAProxy's output, without their prefix."""
    lines = (line.partition(") : ")[2] for line in said.splitlines() if line.startswith("[ALERT]"))
    return "\n".join(lines)[:4000]


async def _wait_for_exit(pid: int) -> None:
    loop, exited = asyncio.get_running_loop(), asyncio.Event()
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        loop.add_reader(descriptor, exited.set)
        await exited.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _process_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


_NAMES_THEM = """
listen asks
    mode tcp
    timeout connect 1s
    timeout client 1s
    timeout server 1s
    bind 127.0.0.1:1
    server s1 127.0.0.1:1 ssl verify required ca-file @system-ca verifyhost localhost
"""


def has_system_authorities(program: str) -> bool:
    """Report whether HAProxy accepts a configuration with `@system-ca`.

    True for a missing program: the start reports that error.
    """
    found = shutil.which(program)
    if found is None:
        return True
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "haproxy.cfg"
        file.write_text(_NAMES_THEM)
        done = subprocess.run([found, "-c", "-f", str(file)], capture_output=True, check=False)  # noqa: S603  # found by PATH
    return done.returncode == 0
