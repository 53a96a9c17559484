"""The guest's first process: a shell script on the machine's own files.

It lays a writable copy in memory over them (overlayfs), moves in, loads the modules, and runs the command with its
output on two lines, which are pipes of ours.
"""

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from vipwire_lab.kernel.guest import MARK, PATH, Guest, Machine

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


def script(machine: Machine, home: Path, command: Sequence[str], guest: Guest, writable: Sequence[Path]) -> str:
    """Write the script that runs `command` where and as this process would, and its status into `home`/status."""
    exported = {name: value for name, value in os.environ.items() if re.fullmatch(r"[A-Za-z_]\w*", name)}
    for unwanted in _UNWANTED:
        exported.pop(unwanted, None)
    exported[MARK] = guest.kind.value
    mounts = [f'mkdir -p ".{each}"; {machine.mount(number, each)}' for number, each in enumerate(writable)]
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
