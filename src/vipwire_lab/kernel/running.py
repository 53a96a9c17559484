"""Boots a guest, passes on what it says, and ends it: with us, and when it takes too long.

One that says nothing for too long is asked for the state of its tasks, which its console then shows, and ended.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from vipwire_lab.kernel.emulated import Emulated
from vipwire_lab.kernel.guest import Guest, GuestKernel, Machine, found
from vipwire_lab.kernel.script import script
from vipwire_lab.kernel.uml import UserMode
from vipwire_lab.net.errors import LabError

_PLAIN = Guest()
_LOG_SHOWN = 40000
_LOOK, _CONFESSION = 0.5, 3.0
_MACHINES: Mapping[GuestKernel, Machine] = {GuestKernel.USER_MODE: UserMode(), GuestKernel.DISTRIBUTION: Emulated()}


def _machine(guest: Guest) -> Machine:
    return _MACHINES[guest.kind] if guest.unpacked is None else Emulated(guest.unpacked.resolve())


def obstacle(kind: GuestKernel = GuestKernel.USER_MODE, unpacked: Path | None = None) -> str:
    """Return why this machine cannot boot a guest of this kind, and what to install; "" if it can."""
    if why := _machine(Guest(kind=kind, unpacked=unpacked)).obstacle():
        return why
    return "" if os.geteuid() == 0 else "booting a kernel of its own needs root here: use sudo"


def run(
    command: Sequence[str],
    guest: Guest = _PLAIN,
    *,
    stdout: BinaryIO | None = None,
    stderr: BinaryIO | None = None,
) -> int:
    """Run a command in a guest, streaming its output to `stdout` and `stderr` (ours, if none are named).

    Raise LabError if the guest cannot be booted, dies before the command has ended, or takes too long.
    """
    if why := obstacle(guest.kind, guest.unpacked):
        raise LabError(why)
    with tempfile.TemporaryDirectory(prefix="vipwire-kernel-") as name:
        home = Path(name)
        (home / "root").mkdir()
        writable = [home, *(each.resolve() for each in guest.writable)]
        init = home / "init"
        init.write_text(script(_machine(guest), home, command, guest, writable), encoding="utf-8")
        init.chmod(0o700)
        with (home / "boot.log").open("w+b") as log:
            sinks = (stdout or sys.stdout.buffer, stderr or sys.stderr.buffer)
            why = _Boot(home, guest, writable).until_its_end(log, sinks)
            try:
                return int((home / "status").read_text(encoding="ascii"))
            except (OSError, ValueError) as error:
                log.seek(0)
                tail = log.read()[-_LOG_SHOWN:].decode(errors="replace")
                raise LabError(f"the guest {why}; its console said:\n{tail}") from error


class _Boot:
    """One guest, from its start to its end."""

    def __init__(self, home: Path, guest: Guest, writable: Sequence[Path]) -> None:
        self._home, self._guest, self._writable = home, guest, writable
        self._machine = _machine(guest)

    def until_its_end(self, log: BinaryIO, sinks: Sequence[BinaryIO]) -> str:
        """Start the guest and wait until it has ended; say how."""
        pipes = [os.pipe() for _ in sinks]
        lines = [write for _, write in pipes]
        process = subprocess.Popen(  # noqa: S603 - a program of this machine, and no shell
            [
                *(found("setpriv"), "--pdeathsig", "KILL"),  # it dies with us, even if we are killed
                *self._machine.command(self._home, self._guest, self._writable, lines),
            ],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=lines,
        )
        pumps = [_Pump(read, sink) for (read, _), sink in zip(pipes, sinks, strict=True)]
        for line, pump in zip(lines, pumps, strict=True):
            os.close(line)
            pump.start()
        try:
            return self._watch(process, pumps)
        finally:
            process.kill()
            with contextlib.suppress(BrokenPipeError):
                process.communicate()
            for pump in pumps:
                pump.join()

    def _watch(self, process: subprocess.Popen[bytes], pumps: Sequence["_Pump"]) -> str:
        began, guest = time.monotonic(), self._guest
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK)
                return "died before the command had ended"
            now = time.monotonic()
            if guest.given_up.is_set():
                return "was given up"
            if now - began > guest.timeout:
                return self._ended(process, f"{guest.timeout:g} s")
            if now - max(began, *(pump.heard for pump in pumps)) > guest.silence:
                return self._ended(process, f"{guest.silence:g} s without a word")

    def _ended(self, process: subprocess.Popen[bytes], after: str) -> str:
        """Make the guest's kernel print what its tasks wait for, if it still can; return why the guest is ended."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self._machine.confess(self._home, process)
            process.wait(_CONFESSION)
        return f"was ended after {after}"


class _Pump(threading.Thread):
    """Passes on what the guest says on one line. `heard` is when it did so last, by the monotonic clock."""

    def __init__(self, source: int, sink: BinaryIO) -> None:
        super().__init__(daemon=True)
        self._source, self._sink = source, sink
        self.heard = 0.0

    def run(self) -> None:
        reads = True
        with os.fdopen(self._source, "rb", buffering=0) as stream:
            while chunk := stream.read(1 << 16):
                self.heard = time.monotonic()
                if not reads:
                    continue  # nobody reads any more: go on, lest the guest block
                try:
                    self._sink.write(chunk)
                    self._sink.flush()
                except (OSError, ValueError):
                    reads = False
