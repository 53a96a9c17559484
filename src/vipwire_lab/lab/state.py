"""Keeps a lab's state in a directory of its own, so that a later command finds it.

    /run/vipwire-lab/NAME/lab.json      its topology: says which namespaces are ours, also if only half were made
    /run/vipwire-lab/NAME/*.pid         the processes it started (see `processes`)
    /run/vipwire-lab/NAME/owner         the process that it shall not outlive, if it has one (see `leftovers`)
    /run/vipwire-lab/NAME/echo.socket, echo.log, ...
    /run/vipwire-lab/NAME/state         what its proxies keep: --state-dir

The directory appears whole, by a rename, before anything else is made: so of two that build the same lab one fails,
and what a killed one has made is found.
"""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from vipwire_lab.lab import leftovers
from vipwire_lab.lab.called import as_called
from vipwire_lab.net.errors import LabError
from vipwire_lab.net.processes import ProcessId, end
from vipwire_lab.net.topology import Topology

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
    leftovers.sweep(target)
    try:
        DIRECTORY.mkdir(mode=0o755, parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=DIRECTORY))
    except PermissionError as error:
        raise LabError("building a lab needs root: run it with sudo") from error
    try:
        (fresh / "lab.json").write_bytes(msgspec.json.encode(topology))
        if owner:
            owner.write(fresh / leftovers.OWNER)
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
        content = path.read_bytes() if leftovers.is_up(path.parent) else None
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
    up = [path for path in found if leftovers.is_up(path)]
    for path in set(found) - set(up):
        leftovers.sweep(path)
    return tuple(sorted(path.name for path in up))


def _others() -> str:
    """Say which labs are up, in a few words."""
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
