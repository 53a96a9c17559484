"""Keeps a lab's state in a directory of its own, so that a later command finds it.

    /run/vipwire-lab/NAME/lab.json      its topology: says which namespaces are ours, also if only half were made
    /run/vipwire-lab/NAME/*.pid         the processes it started (see `processes`)
    /run/vipwire-lab/NAME/owner         the process that it shall not outlive, if it has one
    /run/vipwire-lab/NAME/echo.socket, echo.log, ...
    /run/vipwire-lab/NAME/state         what its proxies keep: --state-dir

The directory appears whole, by a rename, before anything else is made: so of two that build the same lab one fails,
and what a killed one has made is found. Of labs whose command was killed:

    young                                  somebody may just be making it: it counts as up
    a namespace or a process of it exists  it is up
    nothing of it exists                   only its directory is left: whoever looks for labs removes that
    its owner has died                     a test or a demo that was killed: `vipwire lab down --stale` ends it

A lab of `vipwire lab up` has no owner: it is meant to stay. Two that sweep at once take turns (flock on the parent),
and a directory is renamed before it is emptied: so nobody removes a lab that somebody else makes of the same name.
"""

import contextlib
import fcntl
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from vipwire_lab.namespaces import netns
from vipwire_lab.namespaces.errors import LabError
from vipwire_lab.namespaces.processes import ProcessId, end
from vipwire_lab.namespaces.topology import Topology

DIRECTORY = Path("/run/vipwire-lab")
FLAGS: Final = "VIPWIRE_FLAGS"
"""The variable with flags that count where they are not given (`vipwire.config.flags` reads it)."""

_SHOWN: Final = 5
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")


def check_name(name: str) -> str:
    """Return the name of a lab if it is one; raise LabError otherwise."""
    if not _NAME.fullmatch(name):
        raise LabError(f"{name!r} cannot name a lab: at most 32 of a-z, 0-9 and -")
    return name


def directory_of(name: str) -> Path:
    """Return where the lab of this name keeps its files."""
    return DIRECTORY / check_name(name)


def flags_of(name: str, given: str) -> str:
    """Add to the flags of `VIPWIRE_FLAGS` that a lab's proxies, and commands beside them, keep their state with it.

    It goes with the lab, and a proxy of this machine whose node has the name of one here has nothing to do with it.
    """
    return given if "--state-dir" in given else f"{given} --state-dir={directory_of(name) / 'state'}".strip()


@contextlib.contextmanager
def own_state(name: str) -> Iterator[None]:
    """Have the processes that are started in the block keep their state with a lab."""
    before = os.environ.get(FLAGS)
    os.environ[FLAGS] = flags_of(name, before or "")
    try:
        yield
    finally:
        os.environ.pop(FLAGS)
        if before is not None:
            os.environ[FLAGS] = before


def namespace_of(name: str, host: str) -> str:
    """Name a host's network namespace, as `ip netns` lists it."""
    return f"vipwire-{name}-{host}"


def create(name: str, topology: Topology, owner: ProcessId | None = None) -> Path:
    """Claim the name; raise LabError if there is a lab of this name already."""
    target = directory_of(name)
    sweep(target)
    try:
        DIRECTORY.mkdir(mode=0o755, parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=DIRECTORY))
    except PermissionError as error:
        raise LabError("building a lab needs root: run it with sudo") from error
    try:
        (fresh / "lab.json").write_bytes(msgspec.json.encode(topology))
        if owner:
            owner.write(fresh / OWNER)
        fresh.rename(target)
    except OSError as error:
        shutil.rmtree(fresh)
        if target.exists():
            raise LabError(
                as_called(f"the lab {name} is up already: `vipwire lab down --name {name}` ends it")
            ) from error
        raise
    return target


def load(name: str) -> Topology:
    """Read which hosts a lab has; raise LabError if there is none of this name."""
    path = directory_of(name) / "lab.json"
    try:
        content = path.read_bytes() if is_up(path.parent) else None
    except FileNotFoundError:
        content = None
    if content is None:
        raise LabError(as_called(f"no lab named {name} is up{_others()}: `vipwire lab up --name {name}` builds it"))
    try:
        return msgspec.json.decode(content, type=Topology)
    except msgspec.MsgspecError as error:
        raise LabError(f"{path} is damaged: {error}") from error


def labs() -> tuple[str, ...]:
    """Name every lab that is up on this machine. Directories of others are swept."""
    found = [path for path in DIRECTORY.glob("[!.]*") if _NAME.fullmatch(path.name)]
    up = [path for path in found if is_up(path)]
    for path in set(found) - set(up):
        sweep(path)
    return tuple(sorted(path.name for path in up))


def _others() -> str:
    names = labs()
    more = len(names) - _SHOWN
    rest = f" and {more} {'others' if more > 1 else 'other'}" if more > 0 else ""
    return f" (up: {', '.join(names[:_SHOWN])}{rest})" if names else ""


def end_processes(directory: Path) -> list[ProcessId]:
    """End every process whose pid file is there, and return them."""
    read = [ProcessId.read(path) for path in directory.glob("*.pid")]
    found = [process for process in read if process]
    end(found)
    return found


OWNER: Final = "owner"
"""The file with the process that a lab shall not outlive."""
_YOUNG_SECONDS: Final = 60.0
_UNNAMED: Final = re.compile(r"vipwire-(t(\d+)-[0-9a-f]{4})-.+")


def is_up(directory: Path) -> bool:
    """Report whether anything of a lab exists, or may do so in a moment."""
    try:
        return _is_young(directory) or _has_namespaces(directory.name) or _has_processes(directory)
    except FileNotFoundError:
        return False


def is_abandoned(directory: Path) -> bool:
    """Report whether a lab's owner has died."""
    owner = ProcessId.read(directory / OWNER)
    return owner is not None and not _runs(owner)


def sweep(directory: Path) -> None:
    """Remove a lab's directory if nothing else of the lab exists, and this process may."""
    with _locked(directory.parent) as allowed:
        if allowed and not is_up(directory):
            remove(directory)


def remove(directory: Path) -> None:
    """Remove a lab's directory, if it is there."""
    if not directory.exists():
        return
    aside = Path(tempfile.mkdtemp(prefix=".old-", dir=directory.parent))
    try:
        with contextlib.suppress(FileNotFoundError):
            directory.rename(aside / directory.name)
    finally:
        shutil.rmtree(aside)


def sweep_drafts() -> None:
    """Remove the directories that were being made or removed when their command was killed."""
    for draft in (*DIRECTORY.glob(".new-*"), *DIRECTORY.glob(".old-*")):
        with contextlib.suppress(OSError):
            if not _is_young(draft):
                shutil.rmtree(draft)


def namespaces_of(name: str) -> set[str]:
    """Name the namespaces that exist of a lab, also where its directory is gone; none that another lab has."""
    mine = f"vipwire-{name}-"
    others = [f"vipwire-{path.name}-" for path in DIRECTORY.glob(f"{name}-*")]
    found = {path.name for path in netns.DIRECTORY.glob(f"{mine}*")}
    return {each for each in found if not each.startswith(tuple(others))}


def orphans() -> list[str]:
    """Name the labs of dead processes of which only namespaces are left: those that `Lab` has named itself."""
    names = [path.name for path in netns.DIRECTORY.glob("vipwire-t*")]
    found = {(match[1], int(match[2])) for name in names if (match := _UNNAMED.fullmatch(name))}
    return sorted(name for name, pid in found if not (DIRECTORY / name).exists() and ProcessId.of(pid) is None)


@contextlib.contextmanager
def _locked(parent: Path) -> Iterator[bool]:
    """Take the turn to sweep; False for who may not remove anything here."""
    if not os.access(parent, os.W_OK):
        yield False
        return
    lock = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield True
    finally:
        os.close(lock)


def _is_young(directory: Path) -> bool:
    return abs(time.time() - directory.stat().st_mtime) < _YOUNG_SECONDS


def _has_namespaces(name: str) -> bool:
    return any(netns.DIRECTORY.glob(f"vipwire-{name}-*"))


def _has_processes(directory: Path) -> bool:
    return any(_runs(process) for path in directory.glob("*.pid") if (process := ProcessId.read(path)))


def _runs(process: ProcessId) -> bool:
    return ProcessId.of(process.pid) == process


_LAB: Final = re.compile(r"\bvipwire (?=lab\b)")
_SYSTEM: Final = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin", "/bin")


def as_called(text: str) -> str:
    """Write `vipwire lab …` in a text as this program was called."""
    return _LAB.sub(lambda _: f"{_program()} ", text)


def _program() -> str:
    if shutil.which("vipwire"):
        return "vipwire"
    called = Path(sys.argv[0])
    return f"{sys.executable} -m vipwire" if called.name == "__main__.py" else sys.argv[0]


def search_path(path: str) -> str:
    """Give the PATH of a command in the lab: the caller's, then this program's folder, then the system's."""
    own = Path(sys.executable).parent
    return os.pathsep.join(dict.fromkeys([*filter(None, path.split(os.pathsep)), str(own), *_SYSTEM]))
