"""Which cgroup programs are attached to: the machine's root wherever it is mounted, or the one that is named."""

from pathlib import Path

import pytest

from vipwire.errors import UnsupportedError
from vipwire.modes.ebpf.cgroup import find_cgroup


def cgroup(path: Path, *, root: bool) -> Path:
    """Make what a folder of cgroup2 looks like."""
    path.mkdir(parents=True)
    for name in ("cgroup.procs",) if root else ("cgroup.procs", "cgroup.type"):
        (path / name).touch()
    return path


def mounts(tmp_path: Path, *cgroups: Path) -> Path:
    """Write a list of mounts, with others around these."""
    found = tmp_path / "mounts"
    lines = ["proc /proc proc rw 0 0", *(f"cgroup2 {each} cgroup2 rw 0 0" for each in cgroups), "x /x tmpfs rw 0 0"]
    found.write_text("".join(f"{line}\n" for line in lines))
    return found


def test_without_a_name_it_is_the_machines_root(tmp_path: Path) -> None:
    root = cgroup(tmp_path / "root", root=True)
    assert find_cgroup("", mounts(tmp_path, root)) == root


def test_in_a_container_the_nodes_root_is_found_wherever_it_is_mounted(tmp_path: Path) -> None:
    own, nodes = cgroup(tmp_path / "own", root=False), cgroup(tmp_path / "node", root=True)
    assert find_cgroup("", mounts(tmp_path, own, nodes)) == nodes


def test_a_containers_own_cgroup_is_not_taken_for_the_machines(tmp_path: Path) -> None:
    own = cgroup(tmp_path / "own", root=False)
    with pytest.raises(UnsupportedError, match=rf"{own} is a container's own cgroup: mount the node's .*hostPath"):
        find_cgroup("", mounts(tmp_path, own))
    assert find_cgroup(str(own)) == own, "whoever names it wants it"


def test_without_cgroup2_it_is_said_how_to_mount_it(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="not mounted: run `mount -t cgroup2"):
        find_cgroup("", mounts(tmp_path))
