"""Keeps a lab's state in a directory, for later commands.

    /run/vipwire-lab/NAME/lab.json      its topology, which names its namespaces even if half-built
    /run/vipwire-lab/NAME/*.pid         its processes (see `processes`)
    /run/vipwire-lab/NAME/owner         the process that the lab must not outlive, if any
    /run/vipwire-lab/NAME/echo.socket, echo.log, ...
    /run/vipwire-lab/NAME/state         --state-dir of its proxies

A rename makes the directory before anything else, so of two processes that build the same lab one fails, and remains
of a killed one are found. Labs whose command was killed:

    young                                  may still be under construction: counts as up
    a namespace or a process of it exists  it is up
    nothing of it exists                   only the directory is left: the next listing removes it
    its owner has died                     a killed test or demo: `vipwire lab down --stale` removes it

A lab of `vipwire lab up` has no owner, because it must stay. Concurrent sweeps take turns (flock on the parent), and
rename a directory before emptying it, so that no sweep removes a new lab of the same name.
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
from vipwire_lab.namespaces.processes import ProcessId, end_gracefully
from vipwire_lab.namespaces.topology import Topology

DIRECTORY = Path("/run/vipwire-lab")
FLAGS: Final = "VIPWIRE_FLAGS"
"""The variable with default flags (`vipwire.config.flags` reads it)."""

_SHOWN: Final = 5
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")


def check_name(name: str) -> str:
    """Return `name` if it is a valid lab name; raise LabError otherwise."""
    if not _NAME.fullmatch(name):
        raise LabError(f"{name!r} cannot name a lab: at most 32 of a-z, 0-9 and -")
    return name


def directory_of(name: str) -> Path:
    return DIRECTORY / check_name(name)


def flags_for_lab(name: str, given: str) -> str:
    """Add to `VIPWIRE_FLAGS` the state folder of a lab, for its proxies and for commands beside them.

    The folder is removed with the lab, and keeps it apart from the machine's own proxy with the same node name.
    """
    return given if "--state-dir" in given else f"{given} --state-dir={directory_of(name) / 'state'}".strip()


@contextlib.contextmanager
def own_state(name: str) -> Iterator[None]:
    """Let processes started in the block keep their state in the lab's folder."""
    before = os.environ.get(FLAGS)
    os.environ[FLAGS] = flags_for_lab(name, before or "")
    try:
        yield
    finally:
        os.environ.pop(FLAGS)
        if before is not None:
            os.environ[FLAGS] = before


def namespace_of(name: str, host: str) -> str:
    """Return a host's network namespace as `ip netns` lists it."""
    return f"vipwire-{name}-{host}"


def create_state(name: str, topology: Topology, owner: ProcessId | None = None) -> Path:
    """Claim the name; raise LabError if a lab of this name exists."""
    target = directory_of(name)
    remove_leftovers(target)
    try:
        DIRECTORY.mkdir(mode=0o755, parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=DIRECTORY))
    except PermissionError as error:
        raise LabError("building a lab needs root: use sudo") from error
    try:
        (fresh / "lab.json").write_bytes(msgspec.json.encode(topology))
        if owner:
            owner.write(fresh / OWNER)
        fresh.rename(target)
    except OSError as error:
        shutil.rmtree(fresh)
        if target.exists():
            raise LabError(
                spell_command(f"the lab {name} is already up: `vipwire lab down --name {name}` removes the lab")
            ) from error
        raise
    return target


def load_topology(name: str) -> Topology:
    """Read a lab's topology; raise LabError if no lab has this name."""
    path = directory_of(name) / "lab.json"
    try:
        content = path.read_bytes() if is_up(path.parent) else None
    except FileNotFoundError:
        content = None
    if content is None:
        raise LabError(
            spell_command(
                f"no lab named {name} is up{_describe_other_labs()}: `vipwire lab up --name {name}` builds it"
            )
        )
    try:
        return msgspec.json.decode(content, type=Topology)
    except msgspec.MsgspecError as error:
        raise LabError(f"{path} is damaged: {error}") from error


def list_labs() -> tuple[str, ...]:
    """Return the names of all labs on this machine that are up. Sweeps directories of others."""
    found = [path for path in DIRECTORY.glob("[!.]*") if _NAME.fullmatch(path.name)]
    up = [path for path in found if is_up(path)]
    for path in set(found) - set(up):
        remove_leftovers(path)
    return tuple(sorted(path.name for path in up))


def _describe_other_labs() -> str:
    names = list_labs()
    more = len(names) - _SHOWN
    rest = f" and {more} {'others' if more > 1 else 'other'}" if more > 0 else ""
    return f" (up: {', '.join(names[:_SHOWN])}{rest})" if names else ""


def end_processes(directory: Path) -> list[ProcessId]:
    """End every process with a pid file in the folder, and return them."""
    read = [ProcessId.read(path) for path in directory.glob("*.pid")]
    found = [process for process in read if process]
    end_gracefully(found)
    return found


OWNER: Final = "owner"
"""The file that names the process which a lab must not outlive."""
_YOUNG_SECONDS: Final = 60.0
_UNNAMED: Final = re.compile(r"vipwire-(t(\d+)-[0-9a-f]{4})-.+")


def is_up(directory: Path) -> bool:
    """Report whether anything of a lab exists, or may in a moment."""
    try:
        if _is_young(directory) or any(netns.DIRECTORY.glob(f"vipwire-{directory.name}-*")):
            return True
        return any(_is_running(process) for path in directory.glob("*.pid") if (process := ProcessId.read(path)))
    except FileNotFoundError:
        return False


def is_abandoned(directory: Path) -> bool:
    owner = ProcessId.read(directory / OWNER)
    return owner is not None and not _is_running(owner)


def remove_leftovers(directory: Path) -> None:
    """Remove a lab's directory if nothing else of the lab exists and permissions allow it."""
    with _lock_directory(directory.parent) as allowed:
        if allowed and not is_up(directory):
            remove_state(directory)


def remove_state(directory: Path) -> None:
    if not directory.exists():
        return
    aside = Path(tempfile.mkdtemp(prefix=".old-", dir=directory.parent))
    try:
        with contextlib.suppress(FileNotFoundError):
            directory.rename(aside / directory.name)
    finally:
        shutil.rmtree(aside)


def remove_drafts() -> None:
    """Remove directories that killed commands were making or removing."""
    for draft in (*DIRECTORY.glob(".new-*"), *DIRECTORY.glob(".old-*")):
        with contextlib.suppress(OSError):
            if not _is_young(draft):
                shutil.rmtree(draft)


def namespaces_of(name: str) -> set[str]:
    """Return a lab's existing namespaces, even without its directory; none of another lab."""
    mine = f"vipwire-{name}-"
    others = [f"vipwire-{path.name}-" for path in DIRECTORY.glob(f"{name}-*")]
    found = {path.name for path in netns.DIRECTORY.glob(f"{mine}*")}
    return {each for each in found if not each.startswith(tuple(others))}


def find_orphans() -> list[str]:
    """Return labs of dead processes with only namespaces left: those that `Lab` named itself."""
    names = [path.name for path in netns.DIRECTORY.glob("vipwire-t*")]
    found = {(match[1], int(match[2])) for name in names if (match := _UNNAMED.fullmatch(name))}
    return sorted(name for name, pid in found if not (DIRECTORY / name).exists() and ProcessId.of(pid) is None)


@contextlib.contextmanager
def _lock_directory(parent: Path) -> Iterator[bool]:
    """Lock the parent folder for sweeping; yields False without permission."""
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


def _is_running(process: ProcessId) -> bool:
    return ProcessId.of(process.pid) == process


_LAB: Final = re.compile(r"\bvipwire (?=lab\b)")
_SYSTEM: Final = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin", "/bin")


def spell_command(text: str) -> str:
    """Replace `vipwire lab …` in a text by this program's own command."""
    return _LAB.sub(lambda _: f"{_program_name()} ", text)


def _program_name() -> str:
    if shutil.which("vipwire"):
        return "vipwire"
    called = Path(sys.argv[0])
    return f"{sys.executable} -m vipwire" if called.name == "__main__.py" else sys.argv[0]


def find_program(name: str) -> str | None:
    return shutil.which(name, path=extend_search_path(os.environ.get("PATH", os.defpath)))


def extend_search_path(path: str) -> str:
    """Return PATH for commands in the lab: the caller's, this program's folder, the system's."""
    own = Path(sys.executable).parent
    return os.pathsep.join(dict.fromkeys([*filter(None, path.split(os.pathsep)), str(own), *_SYSTEM]))
