"""Debian's User-Mode Linux (package user-mode-linux): a kernel that is an ordinary process of this machine.

Its root is the machine's files (hostfs). The whole guest lives in a PID namespace, so that none of UML's many
processes can outlive it.
"""

import shlex
import socket
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from vipwire_lab.kernel.guest import Guest, Words, found, missing

_KERNEL = "linux.uml"
_PACKAGES = {_KERNEL: "user-mode-linux", "insmod": "kmod", "ip": "iproute2", "setpriv": "util-linux"}
_MODULES = Path("/usr/lib/uml/modules")
_MAGIC, _VERSION, _REQUEST = 0xCAFEBABE, 2, struct.Struct("=III512s")  # of mconsole: arch/um/drivers/mconsole.h
_PATIENCE = 3.0


class UserMode:
    """The `guest.Machine` of `Kind.USER_MODE`."""

    words: Final = Words(
        prepare=f"insmod {_MODULES}/$(uname -r)/kernel/fs/overlayfs/overlay.ko",
        further=":  # its kernel has no programs to attach to a cgroup",
        line="/dev/ttyS$n",
        settle="stty -F $line raw -echo",
    )
    modules: Final = _MODULES

    def obstacle(self) -> str:
        """Name the packages that are missing."""
        return missing(_PACKAGES)

    def mount(self, number: int, folder: Path) -> str:
        """Mount the folder by hostfs, which writes to the machine."""
        del number
        return f"mount --bind {shlex.quote(str(folder))} {shlex.quote(f'.{folder}')}"

    def command(self, home: Path, guest: Guest, writable: Sequence[Path], lines: Sequence[int]) -> list[str]:
        """Boot from hostfs."""
        del writable  # all is
        return [
            *(found("unshare"), "--pid", "--fork", "--kill-child", "--mount-proc", found(_KERNEL)),
            *(f"mem={guest.memory}", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "rw"),
            *(f"init={home / 'init'}", f"uml_dir={home}", "umid=guest"),
            *("con=null", "con0=null,fd:1", "ssl=null"),
            *(f"ssl{number}=null,fd:{line}" for number, line in enumerate(lines)),
        ]

    def confess(self, home: Path, process: subprocess.Popen[bytes]) -> None:
        """Send sysrq-t to the management console."""
        del process
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
            asking.settimeout(_PATIENCE)
            asking.bind(str(home / "asking"))  # it answers to this name
            request = b"sysrq t"
            asking.sendto(_REQUEST.pack(_MAGIC, _VERSION, len(request), request), str(home / "guest" / "mconsole"))
            asking.recv(4096)
