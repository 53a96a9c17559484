"""Tells labs that are up from what killed commands have left behind.

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
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from vipwire_lab.net import netns
from vipwire_lab.net.processes import ProcessId

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


def sweep_drafts(parent: Path) -> None:
    """Remove the directories that were being made or removed when their command was killed."""
    for draft in (*parent.glob(".new-*"), *parent.glob(".old-*")):
        with contextlib.suppress(OSError):
            if not _is_young(draft):
                shutil.rmtree(draft)


def namespaces_of(name: str, parent: Path) -> set[str]:
    """Name the namespaces that exist of a lab, also where its directory is gone; none that another lab has."""
    mine = f"vipwire-{name}-"
    others = [f"vipwire-{path.name}-" for path in parent.glob(f"{name}-*")]
    found = {path.name for path in netns.DIRECTORY.glob(f"{mine}*")}
    return {each for each in found if not each.startswith(tuple(others))}


def orphans(parent: Path) -> list[str]:
    """Name the labs of dead processes of which only namespaces are left: those that `Lab` has named itself."""
    names = [path.name for path in netns.DIRECTORY.glob("vipwire-t*")]
    found = {(match[1], int(match[2])) for name in names if (match := _UNNAMED.fullmatch(name))}
    return sorted(name for name, pid in found if not (parent / name).exists() and ProcessId.of(pid) is None)


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
