"""An unnamed network namespace for one test; ends with its last socket and process."""

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator

from vipwire.errors import UnsupportedError
from vipwire.model.net import Family
from vipwire.modes.ebpf.driver import find_node_folder
from vipwire.modes.ebpf.pinned import NodePins
from vipwire.relay.client import Call, relay_name
from vipwire.relay.messages import Retire

_CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)


def enter(namespace: int) -> None:
    """Move this thread into the namespace of a descriptor (os.setns needs Python 3.12)."""
    if _LIBC.setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


@contextlib.contextmanager
def own_network() -> Iterator[int]:
    """Move this thread into a new namespace with loopback up, and back at the end; yield its descriptor."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _LIBC.unshare(_CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "unshare")
        here = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            run("ip link set lo up")
            # A new namespace copies this machine's value, and a container host forwards.
            run("sysctl -q -e -w net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0")
            yield here
        finally:
            enter(here)  # even if the test has moved this thread
            end_relays()
            remove_programs()
            enter(before)
            os.close(here)
    finally:
        os.close(before)


def remove_programs() -> None:
    """Remove ebpf mode's programs: pinned in bpffs, they would run for their cgroup until a reboot."""
    with contextlib.suppress(UnsupportedError):  # without bpffs there are none
        NodePins(find_node_folder(), None).remove()


def end_relays() -> None:
    """End processes that outlive a userspace mode proxy, because they would hold this namespace open."""
    for family in Family:
        call = Call.find(relay_name(family))
        if call is not None:
            with contextlib.suppress(OSError):
                call.tell(Retire())
            call.close()


def run(command: str, stdin: str | None = None) -> str:
    """Run a command without a shell; return its output, or raise with its error."""
    done = subprocess.run(command.split(), input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr or done.stdout}"
    return done.stdout
