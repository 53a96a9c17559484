"""Describes a guest: its kernel, its resources, and when it is ended."""

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
    """The kind of kernel that a guest runs.

    USER_MODE is Debian's User-Mode Linux, a process of this machine: programs run at full speed, system calls some
    five times slower. It is built without tables of nftables for IPv4 and IPv6. DISTRIBUTION is the kernel that
    Debian installs, whole, in an emulator: everything is some sixteen times slower.
    """

    USER_MODE = "user-mode"
    DISTRIBUTION = "distribution"


@dataclass(frozen=True, slots=True)
class Guest:
    """A guest's resources: memory as UML writes it (taken as it is used), directories that it may really change.

    It is ended after `timeout` seconds, after `silence` seconds without a word, and when it is `given_up`. `unpacked`
    is where the packages of a kernel for the emulator are unpacked, if it is another than `scripts/setup kernel` has.
    """

    memory: str = MEMORY
    timeout: float = TIMEOUT
    writable: tuple[Path, ...] = ()
    modules: tuple[str, ...] = _LOADED
    silence: float = float("inf")
    given_up: threading.Event = field(default_factory=threading.Event)
    kind: GuestKernel = GuestKernel.USER_MODE
    unpacked: Path | None = None


@dataclass(frozen=True, slots=True)
class Words:
    """The parts of the first process's script that depend on the kind of kernel.

    `prepare` loads overlayfs, before anything can be written. `further` mounts what else a node has, below `./sys`.
    `line` is the device of the line `$n` on which the guest speaks (0: output, 1: errors). `settle` makes `$line`
    pass on all bytes as they are, and waits for those on their way.
    """

    prepare: str
    further: str
    line: str
    settle: str


def inside() -> GuestKernel | None:
    """Return the kind of guest in which this process runs, if any."""
    return GuestKernel(os.environ[MARK]) if MARK in os.environ else None


def found(program: str) -> str:
    """Find a program of this machine where root finds them."""
    return shutil.which(program, path=PATH) or program


def missing(packages: dict[str, str]) -> str:
    """Name the packages of programs that this machine lacks; "" if it has all."""
    names = sorted({package for program, package in packages.items() if not shutil.which(program, path=PATH)})
    return f"the packages {' '.join(names)} are missing (apt-get install --no-install-recommends)" if names else ""
