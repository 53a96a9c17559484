"""Boots the two kernels: Debian's User-Mode Linux, and Debian's kernel in an emulator."""

import os
import shlex
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from vipwire_lab.guest_kernel.guest import Guest, Words, describe_missing_packages, find_program

_KERNEL = "linux.uml"
_UML_PACKAGES = {_KERNEL: "user-mode-linux", "insmod": "kmod", "ip": "iproute2", "setpriv": "util-linux"}
_MODULES = Path("/usr/lib/uml/modules")
_MCONSOLE, _VERSION, _REQUEST = 0xCAFEBABE, 2, struct.Struct("=III512s")  # of mconsole: arch/um/drivers/mconsole.h
_PATIENCE = 3.0


class UserMode:
    """Debian's User-Mode Linux (package user-mode-linux): a kernel that is an ordinary process of this machine.

    Its root is the machine's files (hostfs). The guest lives in a PID namespace, so that none of UML's processes can
    outlive it.
    """

    words: Final = Words(
        prepare=f"insmod {_MODULES}/$(uname -r)/kernel/fs/overlayfs/overlay.ko",
        further=":  # its kernel has no programs to attach to a cgroup",
        line="/dev/ttyS$n",
        settle="stty -F $line raw -echo",
    )
    modules: Final = _MODULES

    def find_obstacle(self) -> str:
        return describe_missing_packages(_UML_PACKAGES)

    def mount_command(self, number: int, folder: Path) -> str:
        """Mount the folder by hostfs, which writes to the machine."""
        del number
        return f"mount --bind {shlex.quote(str(folder))} {shlex.quote(f'.{folder}')}"

    def build_command(self, home: Path, guest: Guest, writable: Sequence[Path], lines: Sequence[int]) -> list[str]:
        del writable  # hostfs makes all writable
        allowed = sorted(os.sched_getaffinity(0))
        # Its kernel and its programs take turns at each system call, which between two CPUs takes twice as long.
        pinned = str(allowed[guest.cpu % len(allowed)])
        return [
            *(find_program("taskset"), "--cpu-list", pinned),
            *(find_program("unshare"), "--pid", "--fork", "--kill-child", "--mount-proc", find_program(_KERNEL)),
            *(f"mem={guest.memory}", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "rw"),
            *(f"init={home / 'init'}", f"uml_dir={home}", "umid=guest"),
            *("con=null", "con0=null,fd:1", "ssl=null"),
            *(f"ssl{number}=null,fd:{line}" for number, line in enumerate(lines)),
        ]

    def request_stacks(self, home: Path, process: subprocess.Popen[bytes]) -> None:
        """Send sysrq-t to the management console."""
        del process
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
            asking.settimeout(_PATIENCE)
            asking.bind(str(home / "asking"))  # the console answers to this name
            request = b"sysrq t"
            asking.sendto(_REQUEST.pack(_MCONSOLE, _VERSION, len(request), request), str(home / "guest" / "mconsole"))
            asking.recv(4096)


_EMULATOR = "qemu-system-x86_64"
_EMULATOR_PACKAGES = {_EMULATOR: "qemu-system-x86", "modprobe": "kmod", "ip": "iproute2", "setpriv": "util-linux"}
_MOUNT = "mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288"
_FIRST = ("virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_console")
_INIT = """#!/bin/busybox sh
set -eu
for each in {modules}; do /bin/busybox insmod /modules/$each; done
/bin/busybox {mount},cache=loose,ro root /root
exec /bin/busybox switch_root /root {init}
"""
_BREAK = (b'{"execute": "qmp_capabilities"}', b'{"execute": "chardev-send-break", "arguments": {"id": "console"}}')


class Emulated:
    """Debian's kernel in an emulator (QEMU, without KVM): it has all that a node's kernel has.

    `scripts/setup kernel` unpacks its package, and that of a static busybox, into `folder`. Its root is the machine's
    files (9p; QEMU serves only the writable folders for writing). An initramfs mounts it: busybox, and the modules
    for this.
    """

    words: Final = Words(
        prepare=":  # overlayfs is there",
        further="mount -t cgroup2 cgroup2 ./sys/fs/cgroup; mount -t bpf bpf ./sys/fs/bpf  # as systemd does",
        line="/dev/vport0p$((n + 1))",
        settle=":",
    )

    def __init__(self, folder: Path = Path(sys.prefix) / "kernel") -> None:
        self._folder = folder

    @property
    def _image(self) -> Path:
        """The kernel; a missing path if the package is not unpacked."""
        return max(self._folder.glob("boot/vmlinuz-*"), default=self._folder / "boot" / "vmlinuz-")

    @property
    def _busybox(self) -> Path:
        return self._folder / "bin" / "busybox"

    @property
    def modules(self) -> Path:
        """The folder of modules, as in an installed package."""
        return self._folder / "lib" / "modules"

    def find_obstacle(self) -> str:
        if why := describe_missing_packages(_EMULATOR_PACKAGES):
            return why
        there = self._image.exists() and self._busybox.exists()
        wanted = f"the packages linux-image-amd64 and busybox-static are not unpacked in {self._folder}"
        return "" if there else f"{wanted} (scripts/setup kernel does it)"

    def mount_command(self, number: int, folder: Path) -> str:
        """Mount the emulator's share with the folder's number."""
        return f"{_MOUNT} folder{number} {shlex.quote(f'.{folder}')}"

    def build_command(self, home: Path, guest: Guest, writable: Sequence[Path], lines: Sequence[int]) -> list[str]:
        """Boot from an initramfs, which is written into `home`."""
        first = home / "first"
        first.write_bytes(self._build_initramfs(home))
        shared = [("root", Path("/"), ",readonly=on")]
        shared += [(f"folder{number}", each, "") for number, each in enumerate(writable)]
        said = "console=ttyS0 loglevel=7 panic=-1 nokaslr mitigations=off sysrq_always_enabled"
        return [
            *(find_program(_EMULATOR), "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"),
            *("-M", "q35", "-cpu", "max,la57=off", "-m", guest.memory, "-accel", "tcg"),
            *("-kernel", str(self._image), "-initrd", str(first), "-append", said),
            *("-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"),
            *("-qmp", f"unix:{home / 'asking'},server=on,wait=off"),
            *("-device", "virtio-serial-pci"),
            *(word for number, line in enumerate(lines) for word in _serial_line_arguments(number, line)),
            *(word for each in shared for word in _share_arguments(*each)),
        ]

    def request_stacks(self, home: Path, process: subprocess.Popen[bytes]) -> None:
        """Send sysrq-t over the serial console: a break, and the letter."""
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(_PATIENCE)
            asking.connect(str(home / "asking"))
            answers = asking.makefile("rb")
            answers.readline()  # a greeting
            for request in _BREAK:
                asking.sendall(request)
                answers.readline()
        if process.stdin:
            process.stdin.write(b"t")
            process.stdin.flush()

    def _build_initramfs(self, home: Path) -> bytes:
        release = self._image.name.removeprefix("vmlinuz-")
        listing = subprocess.run(  # noqa: S603 - a program of this machine, and no shell
            [find_program("modprobe"), "-a", "-d", self._folder, "-S", release, "--show-depends", *_FIRST],
            check=True,
            capture_output=True,
            text=True,
        )
        paths = [Path(words[1]) for words in map(str.split, listing.stdout.splitlines()) if words[0] == "insmod"]
        modules = dict.fromkeys(paths)
        init = _INIT.format(
            modules=" ".join(each.name for each in modules), mount=_MOUNT, init=shlex.quote(str(home / "init"))
        )
        programs = [("init", init.encode()), ("bin/busybox", self._busybox.read_bytes())]
        programs += [(f"modules/{each.name}", each.read_bytes()) for each in modules]
        return build_cpio_archive(("bin", "modules", "root", "dev", "proc"), programs)


def _serial_line_arguments(number: int, descriptor: int) -> list[str]:
    port = f"virtserialport,chardev=line{number},nr={number + 1}"
    return ["-chardev", f"file,id=line{number},path=/dev/fd/{descriptor}", "-device", port]


def _share_arguments(tag: str, folder: Path, how: str) -> list[str]:
    """Share a folder with the guest. Files of different file systems need inode numbers of their own (`remap`)."""
    path = str(folder).replace(",", ",,")
    served = f"local,id={tag},path={path},security_model=none,multidevs=remap{how}"
    return ["-fsdev", served, "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]


_NEWC, _LAST = "070701", "TRAILER!!!"
_FOLDER, _PROGRAM = 0o040755, 0o100755


def build_cpio_archive(folders: Iterable[str], programs: Iterable[tuple[str, bytes]]) -> bytes:
    """Build an initramfs: a cpio archive in the format "newc".

    Folders (parents first) and executable files, by paths without a leading slash. See the kernel's
    Documentation/driver-api/early-userspace/buffer-format.rst.
    """
    entries = [(name, _FOLDER, b"") for name in folders] + [(name, _PROGRAM, data) for name, data in programs]
    entries.append((_LAST, 0, b""))
    return b"".join(_build_cpio_entry(number, *each) for number, each in enumerate(entries))


def _build_cpio_entry(inode: int, name: str, mode: int, data: bytes) -> bytes:
    fields: Sequence[int] = (inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
    head = (_NEWC + "".join(f"{each:08X}" for each in fields) + name + "\0").encode()
    return _pad_to_four_bytes(head) + _pad_to_four_bytes(data)


def _pad_to_four_bytes(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)


Machine = UserMode | Emulated
