"""Checks that this kernel has the features of a mode; an error names the missing one."""

import errno
import os
import re
from typing import NamedTuple, Self

from vipwire.errors import UnsupportedError
from vipwire.linux.netlink.nftables.encode import ask_generation
from vipwire.linux.netlink.nftables.wire import MessageType
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, NetlinkSocket

_RELEASE = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")


class KernelRelease(NamedTuple):
    """The first numbers of a kernel's release."""

    major: int
    minor: int
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}" if self.patch else f"{self.major}.{self.minor}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse uname(2)'s release (`6.1.0-21-amd64`). Raise ValueError if it does not begin with numbers."""
        match = _RELEASE.match(text)
        if match is None:
            raise ValueError(f"{text!r} does not begin with the numbers of a kernel release")
        return cls(int(match[1]), int(match[2]), int(match[3] or 0))

    @classmethod
    def running(cls) -> Self:
        return cls.parse(os.uname().release)


def cpus() -> int:
    """Count the CPUs of this machine, not of this process's cgroup: conntrack serves the whole machine."""
    return os.cpu_count() or 1


def require_nftables() -> None:
    """Raise UnsupportedError with the missing feature unless this process can program nf_tables."""
    try:
        with NetlinkSocket(NETLINK_NETFILTER) as netfilter:
            netfilter.request(MessageType.GETGEN, ask_generation())  # changes nothing
    except OSError as error:
        raise UnsupportedError(f"cannot use nftables: {_name_missing(error)}") from error


def _name_missing(error: OSError) -> str:
    match error.errno:
        case errno.EPERM | errno.EACCES:
            return "the kernel refuses nftables to this process: run as root, or with the capability CAP_NET_ADMIN"
        case errno.EPROTONOSUPPORT | errno.EAFNOSUPPORT:
            return "the kernel has no netfilter netlink: it needs CONFIG_NETFILTER_NETLINK (module nfnetlink)"
        case errno.EINVAL | errno.EOPNOTSUPP:  # nfnetlink's answer for a subsystem without a module
            return (
                "the kernel has no nf_tables: load the module (modprobe nf_tables), "
                "or use a kernel with CONFIG_NF_TABLES"
            )
    return f"the kernel answers: {error.strerror}"
