"""Sweeps, once in a process, what runs that were killed have left on this machine: labs, cgroups, lock files."""

import functools
from pathlib import Path

from tests.proxy.conformance import own_cgroup

from vipwire_lab.lab.cluster import take_down_stale


@functools.cache
def sweep() -> None:
    """Remove them; those of runs that are alive stay."""
    take_down_stale()
    own_cgroup.sweep()
    for lock in Path("/run").glob("xtables-*.lock"):
        if (pid := lock.stem.partition("-")[2]).isdecimal() and not Path(f"/proc/{pid}").exists():
            lock.unlink(missing_ok=True)
