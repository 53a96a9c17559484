"""Runs a command as root under a Linux kernel that has IPVS: `python -m vipwire.lab.kernel -- COMMAND`.

The kernel is Debian's User-Mode Linux: an ordinary process of this machine, so that neither KVM nor a module of the
machine's kernel is needed, and no network of the machine can be touched. The command sees the machine's files under
their own names and may change any of them: the changes live in memory and vanish with the guest, but for those below
directories that are named as writable. Its output is streamed, its input is empty, and its exit status is returned.

How it works: the guest's first process is a shell script on the machine's own files (hostfs). It lays a writable copy
in memory over them (overlayfs), moves in, loads the modules, and runs the command with its output on two serial
lines, which are pipes of ours. The whole guest lives in a PID namespace, so that none of UML's many processes can
outlive it, and it dies with us. One that says nothing for too long is asked for the state of its tasks, which its
console then shows, and ended.
"""

import contextlib
import os
import re
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

import click

from vipwire.lab.errors import LabError

MARK: Final = "VIPWIRE_LAB_KERNEL"
"""The environment variable that is set inside."""
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_KERNEL = "linux.uml"
_MODULES = Path("/usr/lib/uml/modules")
_PACKAGES = {_KERNEL: "user-mode-linux", "insmod": "kmod", "ip": "iproute2", "setpriv": "util-linux"}
_LOADED = ("ipv6", "ip_vs", "nf_conntrack", "nf_conntrack_netlink", "dummy", "veth", "ipip", "sctp")
_LOG_SHOWN = 12000
_LOOK, _CONFESSION = 0.5, 3.0
_MAGIC, _VERSION, _REQUEST = 0xCAFEBABE, 2, struct.Struct("=III512s")  # of mconsole: arch/um/drivers/mconsole.h
_MEMORY, _TIMEOUT = "768M", 600.0

_INIT = r"""#!/bin/sh
set -eu
trap 'echo o >/proc/sysrq-trigger; sleep 60' EXIT    # whatever fails, the guest ends
export PATH={path}
if [ "${{1-}}" != inside ]; then
    mount -t proc proc /proc
    insmod {modules}/$(uname -r)/kernel/fs/overlayfs/overlay.ko
    mount -t tmpfs -o size=100% tmpfs {home}/root
    cd {home}/root
    mkdir upper work merged
    mount -t overlay -o lowerdir=/,upperdir=upper,workdir=work overlay merged
    cd merged
    mkdir -p ./lib/modules ./mnt
    mount --bind {modules} ./lib/modules
    for dir in {writable}; do mkdir -p ".$dir"; mount --bind "$dir" ".$dir"; done
    mount -t devtmpfs dev ./dev
    mkdir -p ./dev/pts ./dev/shm
    mount -t devpts -o ptmxmode=666 devpts ./dev/pts
    for dir in dev/shm run; do mount -t tmpfs tmpfs ./$dir; done
    mount -t sysfs sysfs ./sys
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
for line in 0 1; do
    stty -F /dev/ttyS$line raw -echo
    mkfifo /run/fd$line
    cat /run/fd$line >/dev/ttyS$line &
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
for line in 0 1; do stty -F /dev/ttyS$line raw; done   # returns once all is written
echo $status >{home}/status
"""


@dataclass(frozen=True, slots=True)
class Guest:
    """What the guest has: memory as UML writes it (taken as it is used), directories that it may really change.

    It is ended after `timeout` seconds, after `silence` seconds without a word, and when it is `given_up`.
    """

    memory: str = _MEMORY
    timeout: float = _TIMEOUT
    writable: tuple[Path, ...] = ()
    modules: tuple[str, ...] = _LOADED
    silence: float = float("inf")
    given_up: threading.Event = field(default_factory=threading.Event)


def inside() -> bool:
    """Tell whether this process runs in such a guest."""
    return MARK in os.environ


def obstacle() -> str:
    """Say why this machine cannot boot a guest, and what to install; "" if it can."""
    missing = sorted({package for program, package in _PACKAGES.items() if not shutil.which(program, path=PATH)})
    if missing:
        return f"the packages {' '.join(missing)} are missing (apt-get install --no-install-recommends)"
    return "" if os.geteuid() == 0 else "booting a kernel of its own needs root here: use sudo"


def run(
    command: Sequence[str],
    guest: Guest = Guest(),
    *,
    stdout: BinaryIO | None = None,
    stderr: BinaryIO | None = None,
) -> int:
    """Run a command in a guest, streaming its output to `stdout` and `stderr` (ours, if none are named).

    Raise LabError if the guest cannot be booted, dies before the command has ended, or takes too long.
    """
    if why := obstacle():
        raise LabError(why)
    with tempfile.TemporaryDirectory(prefix="vipwire-kernel-") as name:
        home = Path(name)
        (home / "root").mkdir()
        init = home / "init"
        init.write_text(_script(home, command, guest), encoding="utf-8")
        init.chmod(0o700)
        with (home / "boot.log").open("w+b") as log:
            why = _boot(home, guest, log, (stdout or sys.stdout.buffer, stderr or sys.stderr.buffer))
            try:
                return int((home / "status").read_text(encoding="ascii"))
            except (OSError, ValueError) as error:
                log.seek(0)
                tail = log.read()[-_LOG_SHOWN:].decode(errors="replace")
                raise LabError(f"the guest {why}; its console said:\n{tail}") from error


def _script(home: Path, command: Sequence[str], guest: Guest) -> str:
    exported = {name: value for name, value in os.environ.items() if re.fullmatch(r"[A-Za-z_]\w*", name)}
    for unwanted in ("TMPDIR", "PWD", "OLDPWD"):
        exported.pop(unwanted, None)
    exported[MARK] = "1"
    return _INIT.format(
        path=PATH,
        home=shlex.quote(str(home)),
        modules=_MODULES,
        loaded=shlex.join(guest.modules),
        writable=shlex.join([str(home), *(str(each.resolve()) for each in guest.writable)]),
        environment="\n    ".join(f"export {name}={shlex.quote(value)}" for name, value in exported.items()),
        directory=shlex.quote(str(Path.cwd())),
        command=shlex.join(command),
    )


def _boot(home: Path, guest: Guest, log: BinaryIO, sinks: tuple[BinaryIO, BinaryIO]) -> str:
    """Start the guest and wait until it has ended; say how."""
    pipes = [os.pipe() for _ in sinks]
    lines = [f"ssl{number}=null,fd:{write}" for number, (_, write) in enumerate(pipes)]
    process = subprocess.Popen(  # noqa: S603 - a program of this machine, and no shell
        [
            *(_found("setpriv"), "--pdeathsig", "KILL"),  # it dies with us, even if we are killed
            *(_found("unshare"), "--pid", "--fork", "--kill-child", "--mount-proc", _found(_KERNEL)),
            *(f"mem={guest.memory}", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "rw"),
            *(f"init={home / 'init'}", f"uml_dir={home}", "umid=guest"),
            *("con=null", "con0=null,fd:1", "ssl=null", *lines),
        ],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
        pass_fds=[write for _, write in pipes],
    )
    pumps = [_Pump(read, sink) for (read, _), sink in zip(pipes, sinks, strict=True)]
    for (_, write), pump in zip(pipes, pumps, strict=True):
        os.close(write)
        pump.start()
    try:
        return _watch(process, guest, home, pumps)
    finally:
        process.kill()
        process.wait()
        for pump in pumps:
            pump.join()


def _found(program: str) -> str:
    return shutil.which(program, path=PATH) or program


def _watch(process: subprocess.Popen[bytes], guest: Guest, home: Path, pumps: Sequence["_Pump"]) -> str:
    began = time.monotonic()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK)
            return "died before the command had ended"
        now = time.monotonic()
        if guest.given_up.is_set():
            return "was given up"
        if now - began > guest.timeout:
            return _ended(home, process, f"{guest.timeout:g} s")
        if now - max(began, *(pump.heard for pump in pumps)) > guest.silence:
            return _ended(home, process, f"{guest.silence:g} s without a word")


def _ended(home: Path, process: subprocess.Popen[bytes], after: str) -> str:
    """Have the guest's kernel say what its tasks wait for, if it still can; tell why it is ended."""
    with (
        contextlib.suppress(OSError, subprocess.TimeoutExpired),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking,
    ):
        asking.settimeout(_CONFESSION)
        asking.bind(str(home / "asking"))  # it answers to this name
        asking.sendto(_REQUEST.pack(_MAGIC, _VERSION, len(b"sysrq t"), b"sysrq t"), str(home / "guest" / "mconsole"))
        asking.recv(4096)
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


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--memory", default=_MEMORY, show_default=True, help="The guest's memory, taken as it is used.")
@click.option("--timeout", default=_TIMEOUT, show_default=True, help="Seconds after which the guest is ended.")
@click.option("--write", "writable", multiple=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def main(memory: str, timeout: float, writable: tuple[Path, ...], command: tuple[str, ...]) -> None:
    """Run COMMAND as root under a Linux kernel of its own that has IPVS."""
    with contextlib.suppress(KeyboardInterrupt):
        try:
            sys.exit(run(command, Guest(memory, timeout, writable)))
        except LabError as error:
            raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
