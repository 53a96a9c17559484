"""The capabilities of this process (capabilities(7)), and the check for CAP_NET_ADMIN."""

from pathlib import Path
from typing import Final

from vipwire.errors import UnsupportedError

BITS: Final = {
    12: "CAP_NET_ADMIN",
    13: "CAP_NET_RAW",
    16: "CAP_SYS_MODULE",
    21: "CAP_SYS_ADMIN",
    24: "CAP_SYS_RESOURCE",
    39: "CAP_BPF",
}
"""The capabilities that vipwire may need, by their number in linux/capability.h."""


def capabilities(proc: Path = Path("/proc")) -> frozenset[str]:
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
    if "CAP_NET_ADMIN" not in capabilities(proc):
        raise UnsupportedError(
            f"{what} needs the capability CAP_NET_ADMIN: run it as root, or add NET_ADMIN to the container's "
            "capabilities; `vipwire status`, `plan`, `explain` and `check` work without this capability, and list "
            f"the objects that they cannot read{way_out}"
        )
