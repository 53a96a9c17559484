"""Finds the cgroup whose sockets the programs translate, and kubelet's cgroup of all Pods.

The machine's root of cgroup2 has no `cgroup.type`. A container may see its own cgroup as the root; programs attached
there would see only the container's sockets.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from vipwire.errors import ConfigError, UnsupportedError

_MOUNTS: Final = Path("/proc/self/mounts")
_PODS: Final = re.compile(r"(?:.*-)?kubepods(?:\.slice)?")
"""kubelet's name of the cgroup, by driver and --cgroup-root: kubepods, kubelet-kubepods.slice."""
_KUBELETS: Final = re.compile(r"kubelet(?:\.slice)?")


class PodsCgroup(NamedTuple):
    """The cgroup of all Pods: its id, which is the inode of its folder, and its depth below the root."""

    number: int = 0
    level: int = 0


def list_mounted(mounts: Path = _MOUNTS) -> list[Path]:
    lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    return [Path(words[1]) for words in map(str.split, lines) if len(words) > 2 and words[2] == "cgroup2"]


def find_cgroup(named: str, mounts: Path = _MOUNTS) -> Path:
    """Return the named cgroup, or else the machine's root. Raise UnsupportedError if not found."""
    if named:
        path = Path(named)
        if not (path / "cgroup.procs").exists():
            raise ConfigError(f"--ebpf-cgroup: {named} is not a folder of cgroup2")
        return path
    found = list_mounted(mounts)
    for path in found:
        if (path / "cgroup.procs").exists() and not (path / "cgroup.type").exists():
            return path
    if found:
        raise UnsupportedError(
            f"ebpf mode needs the machine's root of cgroup2, and {found[0]} is a container's own cgroup: mount the "
            "node's /sys/fs/cgroup by hostPath (read-only suffices) and set --ebpf-cgroup to this folder"
        )
    raise UnsupportedError(
        "ebpf mode needs cgroup2, which is not mounted: run `mount -t cgroup2 none /sys/fs/cgroup/unified`, or set "
        "--ebpf-cgroup"
    )


def find_pods(cgroup: Path) -> PodsCgroup:
    """Find the cgroup of all Pods in or below a root of cgroup2; its id is 0 if there is none."""
    for path, depth in _list_candidate_cgroups(cgroup):
        if _PODS.fullmatch(path.name):
            return PodsCgroup(path.stat().st_ino, depth)
    return PodsCgroup()


def _list_candidate_cgroups(cgroup: Path) -> Iterator[tuple[Path, int]]:
    above = 0
    while (cgroup.parents[above] / "cgroup.procs").exists() if above < len(cgroup.parents) else False:
        above += 1
    for path in _list_folders(cgroup):
        yield path, above + 1
        if _KUBELETS.fullmatch(path.name):
            yield from ((inner, above + 2) for inner in _list_folders(path))


def _list_folders(path: Path) -> list[Path]:
    return sorted(each for each in path.iterdir() if each.is_dir())
