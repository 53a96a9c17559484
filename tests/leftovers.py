"""Removes, once in a process, leftovers of killed runs on this machine: labs, cgroups, lock files."""

import contextlib
import functools
import os
from pathlib import Path

from tests.proxy.conformance import own_cgroup

from vipwire.linux.bpf.programs import HOOKS, list_attached
from vipwire.modes.ebpf.cgroup import list_mounted
from vipwire_lab.cluster.cluster import take_down_stale


@functools.cache
def sweep() -> None:
    """Remove leftovers; those of running sessions stay."""
    take_down_stale()
    own_cgroup.sweep()
    for lock in Path("/run").glob("xtables-*.lock"):
        if (pid := lock.stem.partition("-")[2]).isdecimal() and not Path(f"/proc/{pid}").exists():
            lock.unlink(missing_ok=True)


def programs_of_the_machine() -> set[int]:
    """Return the ids of programs attached to the root cgroup."""
    found: set[int] = set()
    for root in list_mounted()[:1]:
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with contextlib.suppress(PermissionError):  # without permission no test has attached one either
                found.update(number for hook in HOOKS for number in list_attached(descriptor, hook)[0])
        finally:
            os.close(descriptor)
    return found
