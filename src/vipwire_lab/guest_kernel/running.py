"""Boots a guest, passes on its output, and ends it: with this process, and when it takes too long.

A guest that is silent for too long must print the state of its tasks on the console, and is then ended.
"""

import contextlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from vipwire_lab.guest_kernel.guest import MARK, PATH, Guest, GuestKernel, find_program
from vipwire_lab.guest_kernel.machines import Emulated, Machine, UserMode
from vipwire_lab.namespaces.errors import LabError

_PLAIN = Guest()
_LOG_SHOWN = 40000
_LOOK, _CONFESSION = 0.5, 3.0
_MACHINES: Mapping[GuestKernel, Machine] = {GuestKernel.USER_MODE: UserMode(), GuestKernel.DISTRIBUTION: Emulated()}


def _choose_machine(guest: Guest) -> Machine:
    return _MACHINES[guest.kind] if guest.unpacked is None else Emulated(guest.unpacked.resolve())


def find_obstacle(kind: GuestKernel = GuestKernel.USER_MODE, unpacked: Path | None = None) -> str:
    """Return why this machine cannot boot a guest of this kind, and what to install; "" if it can."""
    if why := _choose_machine(Guest(kind=kind, unpacked=unpacked)).find_obstacle():
        return why
    return "" if os.geteuid() == 0 else "booting a guest kernel needs root here: use sudo"


def run_in_guest(
    command: Sequence[str],
    guest: Guest = _PLAIN,
    *,
    stdout: BinaryIO | None = None,
    stderr: BinaryIO | None = None,
) -> int:
    """Run a command in a guest, streaming its output to `stdout` and `stderr` (by default this process's).

    Raise LabError if the guest cannot boot, dies before the command has ended, or takes too long.
    """
    if why := find_obstacle(guest.kind, guest.unpacked):
        raise LabError(why)
    with tempfile.TemporaryDirectory(prefix="vipwire-kernel-") as name:
        home = Path(name)
        (home / "root").mkdir()
        writable = [home, *(each.resolve() for each in guest.writable)]
        init = home / "init"
        init.write_text(build_init_script(_choose_machine(guest), home, command, guest, writable), encoding="utf-8")
        init.chmod(0o700)
        with (home / "boot.log").open("w+b") as log:
            sinks = (stdout or sys.stdout.buffer, stderr or sys.stderr.buffer)
            why = _Boot(home, guest, writable).run_until_end(log, sinks)
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
        self._machine = _choose_machine(guest)

    def run_until_end(self, log: BinaryIO, sinks: Sequence[BinaryIO]) -> str:
        """Start the guest and wait for its end; return the reason."""
        pipes = [os.pipe() for _ in sinks]
        lines = [write for _, write in pipes]
        process = subprocess.Popen(  # noqa: S603 - a program of this machine, and no shell
            [
                *(
                    find_program("setpriv"),
                    "--pdeathsig",
                    "KILL",
                ),  # it dies with this process, even if that is killed
                *self._machine.build_command(self._home, self._guest, self._writable, lines),
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
            return self._watch_process(process, pumps)
        finally:
            process.kill()
            with contextlib.suppress(BrokenPipeError):
                process.communicate()
            for pump in pumps:
                pump.join()

    def _watch_process(self, process: subprocess.Popen[bytes], pumps: Sequence["_Pump"]) -> str:
        began, guest = time.monotonic(), self._guest
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK)
                return "died before the end of the command"
            now = time.monotonic()
            if guest.given_up.is_set():
                return "was stopped"
            if now - began > guest.timeout:
                return self._wait_for_exit(process, f"{guest.timeout:g} s")
            if now - max(began, *(pump.heard for pump in pumps)) > guest.silence:
                return self._wait_for_exit(process, f"{guest.silence:g} s without a word")

    def _wait_for_exit(self, process: subprocess.Popen[bytes], after: str) -> str:
        """Make the guest's kernel print its tasks, if it still can; return why the guest is ended."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self._machine.request_stacks(self._home, process)
            process.wait(_CONFESSION)
        return f"was ended after {after}"


class _Pump(threading.Thread):
    """Passes on the guest's output of one line. `heard` is the monotonic time of the last output."""

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
                    continue  # the reader has gone: continue, lest the guest block
                try:
                    self._sink.write(chunk)
                    self._sink.flush()
                except (OSError, ValueError):
                    reads = False


_UNWANTED = ("TMPDIR", "PWD", "OLDPWD")

_INIT = r"""#!/bin/sh
set -eu
trap 'echo o >/proc/sysrq-trigger; sleep 60' EXIT    # whatever fails, the guest ends
export PATH={path}
if [ "${{1-}}" != inside ]; then
    mount -t proc proc /proc
    {prepare}
    mount -t tmpfs -o size=100% tmpfs {home}/root
    cd {home}/root
    mkdir upper work merged
    mount -t overlay -o lowerdir=/,upperdir=upper,workdir=work overlay merged
    cd merged
    mkdir -p ./lib/modules ./mnt
    mount --bind {modules} ./lib/modules
    {mounts}
    mount -t devtmpfs dev ./dev
    mkdir -p ./dev/pts ./dev/shm
    mount -t devpts -o ptmxmode=666 devpts ./dev/pts
    for dir in dev/shm run; do mount -t tmpfs tmpfs ./$dir; done
    mount -t sysfs sysfs ./sys
    {further}
    pivot_root . mnt
    exec chroot . {home}/init inside
fi
mount -t proc proc /proc
umount -l /mnt
mount --make-rprivate /
mkdir -p /run/netns
echo vipwire-lab >/proc/sys/kernel/hostname
for module in {loaded}; do modprobe "$module"; done
ip link set lo up
readers=
for n in 0 1; do
    line={line}
    {settle}
    mkfifo /run/fd$n
    cat /run/fd$n >$line &
    readers="$readers $!"
done
status=0
(
    {environment}
    cd {directory}
    exec setsid {command}
) </dev/null >/run/fd0 2>/run/fd1 || status=$?
for each in /proc/[0-9]*; do    # what the command has left would keep the lines open for ever
    pid=${{each#/proc/}}
    case "$readers 1 " in *" $pid "*) ;; *) kill -KILL $pid 2>/dev/null || true ;; esac
done
wait
for n in 0 1; do
    line={line}
    {settle}
done
echo $status >{home}/status
"""


def build_init_script(
    machine: Machine, home: Path, command: Sequence[str], guest: Guest, writable: Sequence[Path]
) -> str:
    """Build the guest's init: a shell script that runs `command` as this process would.

    It lays a writable copy in memory over the machine's files (overlayfs), moves in, loads the modules, runs the
    command with its output on two pipes of this process, and writes its status into `home`/status.
    """
    exported = {name: value for name, value in os.environ.items() if re.fullmatch(r"[A-Za-z_]\w*", name)}
    for unwanted in _UNWANTED:
        exported.pop(unwanted, None)
    exported[MARK] = guest.kind.value
    mounts = [f'mkdir -p ".{each}"; {machine.mount_command(number, each)}' for number, each in enumerate(writable)]
    return _INIT.format(
        path=PATH,
        prepare=machine.words.prepare,
        further=machine.words.further,
        home=shlex.quote(str(home)),
        modules=shlex.quote(str(machine.modules)),
        mounts="\n    ".join(mounts),
        loaded=shlex.join(guest.modules),
        line=machine.words.line,
        settle=machine.words.settle,
        environment="\n    ".join(f"export {name}={shlex.quote(value)}" for name, value in exported.items()),
        directory=shlex.quote(str(Path.cwd())),
        command=shlex.join(command),
    )
