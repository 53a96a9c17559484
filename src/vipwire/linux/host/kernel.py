"""Checks the rights of this process: capabilities(7), nf_tables. An error names the missing right."""

import errno
import os
from pathlib import Path
from typing import Final

from vipwire.errors import UnsupportedError
from vipwire.linux.netlink.nftables.encode import request_generation
from vipwire.linux.netlink.nftables.wire import MessageType
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, NetlinkSocket

BITS: Final = {
    12: "CAP_NET_ADMIN",
    13: "CAP_NET_RAW",
    16: "CAP_SYS_MODULE",
    21: "CAP_SYS_ADMIN",
    24: "CAP_SYS_RESOURCE",
    39: "CAP_BPF",
}
"""The capabilities that vipwire may need, by their number in linux/capability.h."""


def read_capabilities(proc: Path = Path("/proc")) -> frozenset[str]:
    """Return which of these are effective; empty if /proc cannot be read."""
    try:
        text = (proc / "self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return frozenset()
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    mask = int(lines.get("CapEff", "0").strip() or "0", 16)
    return frozenset(name for bit, name in BITS.items() if mask >> bit & 1)


def require_net_admin(what: str, proc: Path = Path("/proc"), *, way_out: str = "") -> None:
    """Raise UnsupportedError, with the remedy and what works without, if the kernel would refuse `what`.

    `way_out` is another remedy, in words, after a semicolon.
    """
    if "CAP_NET_ADMIN" not in read_capabilities(proc):
        raise UnsupportedError(
            f"{what} needs the capability CAP_NET_ADMIN: run it as root, or add NET_ADMIN to the container's "
            "capabilities; `vipwire status`, `plan`, `explain` and `check` work without this capability, and list "
            f"the objects that they cannot read{way_out}"
        )


def count_cpus() -> int:
    """Count the CPUs of this machine, not of this process's cgroup: conntrack serves the whole machine."""
    return os.cpu_count() or 1


def require_nftables() -> None:
    """Raise UnsupportedError with the missing feature unless this process can program nf_tables."""
    try:
        with NetlinkSocket(NETLINK_NETFILTER) as netfilter:
            netfilter.request(MessageType.GETGEN, request_generation())  # changes nothing
    except OSError as error:
        raise UnsupportedError(f"cannot use nftables: {_describe_missing(error)}") from error


def _describe_missing(error: OSError) -> str:
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
