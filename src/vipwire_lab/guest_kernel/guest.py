"""Describes a guest: its kernel, resources and time limits."""

import os
import shutil
import threading
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

MARK: Final = "VIPWIRE_LAB_KERNEL"
"""The environment variable that names the `GuestKernel` inside."""
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MEMORY, TIMEOUT = "768M", 600.0
_LOADED = ("ipv6", "ip_vs", "nf_conntrack", "nf_conntrack_netlink", "dummy", "veth", "ipip", "sctp")


class GuestKernel(Enum):
    """The kernel of a guest.

    USER_MODE is Debian's User-Mode Linux, a process of this machine: programs run at full speed, system calls about
    five times slower; it has no nftables tables for IPv4 and IPv6. DISTRIBUTION is Debian's complete kernel in an
    emulator: about sixteen times slower.
    """

    USER_MODE = "user-mode"
    DISTRIBUTION = "distribution"


@dataclass(frozen=True, slots=True)
class Guest:
    """A guest's resources: memory in UML's notation (allocated as used), and directories that the guest may change.

    It ends after `timeout` seconds, after `silence` seconds without output, and when it is `given_up`. `unpacked` is
    the folder of unpacked packages of the emulator's kernel, if not that of `scripts/setup kernel`. `cpu`, modulo
    their number, is the one of this machine's CPUs on which User-Mode Linux runs.
    """

    memory: str = MEMORY
    timeout: float = TIMEOUT
    writable: tuple[Path, ...] = ()
    modules: tuple[str, ...] = _LOADED
    silence: float = float("inf")
    given_up: threading.Event = field(default_factory=threading.Event)
    kind: GuestKernel = GuestKernel.USER_MODE
    unpacked: Path | None = None
    cpu: int = field(default_factory=os.getpid)


@dataclass(frozen=True, slots=True)
class Words:
    """The parts of the init script that depend on the kernel.

    `prepare` loads overlayfs before anything can be written. `further` mounts a node's other file systems below
    `./sys`. `line` is the device of the guest's output line `$n` (0: output, 1: errors). `settle` makes `$line` pass
    all bytes unchanged, and waits for pending ones.
    """

    prepare: str
    further: str
    line: str
    settle: str


def current_guest_kernel() -> GuestKernel | None:
    """Return the kind of guest in which this process runs; None outside."""
    return GuestKernel(os.environ[MARK]) if MARK in os.environ else None


def find_program(program: str) -> str:
    """Find a program of this machine on root's PATH."""
    return shutil.which(program, path=PATH) or program


def describe_missing_packages(packages: dict[str, str]) -> str:
    """Return the packages of programs that this machine lacks; "" if it has all."""
    names = sorted({package for program, package in packages.items() if not shutil.which(program, path=PATH)})
    return f"the packages {' '.join(names)} are missing (apt-get install --no-install-recommends)" if names else ""
