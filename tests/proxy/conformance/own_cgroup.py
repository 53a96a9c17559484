"""A cgroup for this process, in which programs of ebpf mode see the sockets of its probes and nobody else's."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from vipwire.modes.ebpf.cgroup import mounted


def path() -> Path:
    """Name it."""
    return mounted()[0] / f"vipwire-lab-{os.getpid()}"


def sweep() -> None:
    """Remove those of runs that were killed: their process is gone, and nobody is in them."""
    for cgroup in mounted()[0].glob("vipwire-lab-*") if mounted() else ():
        pid = cgroup.name.split("-")[2]
        if not Path(f"/proc/{pid}").exists():
            with contextlib.suppress(OSError):  # somebody is in it, or another run sweeps, too
                cgroup.rmdir()


@contextlib.contextmanager
def entered() -> Iterator[Path]:
    """Be in it for a while. Processes that were started meanwhile and outlive it, as the fork server, leave too."""
    if not mounted():  # as in a guest, where ebpf mode is not tried
        yield Path()
        return
    own = path()
    if own.exists():  # it is entered already
        yield own
        return
    with _made(own, own.parent / here()):
        yield own


@contextlib.contextmanager
def beside(name: str) -> Iterator[Path]:
    """Be in a cgroup beside it for a while: programs of others in this process are not called there."""
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
    """Send home who is in it, until nobody is: processes may be born there meanwhile."""
    while True:
        for process in (cgroup / "cgroup.procs").read_text(encoding="ascii").split():
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
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
    """Be outside of it for a while, as a virtual machine is: sockets that are made belong to no program's cgroup.

    Or be in another cgroup, if one is named.
    """
    own = path()
    _move(elsewhere or own.parent)
    try:
        yield
    finally:
        _move(own)


def here() -> str:
    """Name the cgroup that this process is in, as seen from the topmost."""
    lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    return next(line.removeprefix("0::/") for line in lines if line.startswith("0::"))


def _move(cgroup: Path, process: int = 0) -> None:
    (cgroup / "cgroup.procs").write_text(str(process or os.getpid()))
