"""A cgroup for this process, in which ebpf mode's programs see only the sockets of its probes."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from vipwire.modes.ebpf.cgroup import list_mounted


def path() -> Path:
    return list_mounted()[0] / f"vipwire-lab-{os.getpid()}"


def sweep() -> None:
    """Remove empty cgroups of killed runs."""
    for cgroup in list_mounted()[0].glob("vipwire-lab-*") if list_mounted() else ():
        pid = cgroup.name.split("-")[2]
        if not Path(f"/proc/{pid}").exists():
            with contextlib.suppress(OSError):  # not empty, or another run removes it
                cgroup.rmdir()


@contextlib.contextmanager
def entered() -> Iterator[Path]:
    """Be in it for the block. Processes started there that outlive it, as the fork server, leave too."""
    if not list_mounted():  # as in a guest, which does not run ebpf mode
        yield Path()
        return
    own = path()
    if own.exists():  # already entered
        yield own
        return
    with _made(own, own.parent / here()):
        yield own


@contextlib.contextmanager
def beside(name: str) -> Iterator[Path]:
    """Be in a sibling cgroup for the block: programs of the other do not run there."""
    own = path()
    with _made(cgroup := own.with_name(f"{own.name}-{name}"), own.parent / here()):
        yield cgroup


@contextlib.contextmanager
def _made(cgroup: Path, home: Path) -> Iterator[None]:
    cgroup.mkdir()
    try:
        _move(cgroup)
        yield
    finally:
        _move(home)
        _remove(cgroup, home)


def _remove(cgroup: Path, home: Path) -> None:
    """Move its processes out until it is empty, because new ones may start meanwhile."""
    while True:
        for process in (cgroup / "cgroup.procs").read_text(encoding="ascii").split():
            with contextlib.suppress(ProcessLookupError):  # the process has ended meanwhile
                _move(home, int(process))
        try:
            cgroup.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
        else:
            return


@contextlib.contextmanager
def left(elsewhere: Path | None = None) -> Iterator[None]:
    """Be outside of it for the block, as a virtual machine is: new sockets belong to no program's cgroup.

    With `elsewhere`, be in that cgroup.
    """
    own = path()
    _move(elsewhere or own.parent)
    try:
        yield
    finally:
        _move(own)


def here() -> str:
    """Return this process's cgroup, relative to the root cgroup."""
    lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    return next(line.removeprefix("0::/") for line in lines if line.startswith("0::"))


def _move(cgroup: Path, process: int = 0) -> None:
    (cgroup / "cgroup.procs").write_text(str(process or os.getpid()))
