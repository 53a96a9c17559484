"""A cgroup for this process, in which programs of ebpf mode see the sockets of its probes and nobody else's."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from vipwire.backends.ebpf.cgroup import mounted


def path() -> Path:
    """Name it."""
    return mounted()[0] / f"vipwire-lab-{os.getpid()}"


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
    home = own.parent / _here().lstrip("/")
    own.mkdir()
    try:
        _move(own)
        yield own
    finally:
        for process in {os.getpid(), *map(int, (own / "cgroup.procs").read_text(encoding="ascii").split())}:
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                _move(home, process)
        own.rmdir()


@contextlib.contextmanager
def left() -> Iterator[None]:
    """Be outside of it for a while, as a virtual machine is: sockets that are made belong to no program's cgroup."""
    own = path()
    _move(own.parent)
    try:
        yield
    finally:
        _move(own)


def _here() -> str:
    lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    return next(line.removeprefix("0::") for line in lines if line.startswith("0::"))


def _move(cgroup: Path, process: int = 0) -> None:
    (cgroup / "cgroup.procs").write_text(str(process or os.getpid()))
