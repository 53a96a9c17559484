"""Runs one mode on a stage: here, or in a guest kernel if this kernel lacks the mode."""

import contextlib
import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from vipwire_lab.demo import objects
from vipwire_lab.demo.stage import NODE, Stage, Sync, create_own_cgroup
from vipwire_lab.guest_kernel import Guest, current_guest_kernel, find_obstacle, run_in_guest
from vipwire_lab.namespaces.errors import LabError

SERVICES: Final = ("web", "shop", "empty", "sticky")
_GUEST_SECONDS: Final = 240.0


@contextlib.contextmanager
def run_staged(mode: str) -> Iterator[tuple[Stage, list[Sync]]]:
    """Run a mode on its own stage; yield the stage and its first sync. Raise LabError if the mode cannot run."""
    stage = Stage(f"mode-{os.getpid()}")
    stage.build_stage()
    with stage, contextlib.ExitStack() as stack:
        stage.write_manifests("nodes", objects.nodes())
        for name in SERVICES:
            stage.write_manifests(name, getattr(objects, name)())
        flags = [f"--proxy-mode={mode}", *_add_mode_flags(mode, stage, stack)]
        yield stage, stage.start_proxy(flags)
        if stage.proxy is not None:
            stage.proxy.stop_proxy()
            stage.run_cleanup()


def _add_mode_flags(mode: str, stage: Stage, stack: contextlib.ExitStack) -> Sequence[str]:
    """Return the mode's flags for a lab: programs of sockets must see only those of node-1 and its Pods."""
    if mode != "ebpf":
        return ()
    try:
        cgroup = stack.enter_context(create_own_cgroup())
    except OSError as error:
        raise LabError(f"cannot create a cgroup: {error.strerror}") from error
    hosts = (NODE, *(pod.name for pod in objects.LOCAL_PODS))
    return (
        f"--ebpf-cgroup={cgroup}",
        f"--ebpf-clients={','.join(str(stage.lab.namespace_of(host)) for host in hosts)}",
    )


def describe_kernel() -> str:
    """Return the name of this process's kernel, and whether it is a guest's."""
    guest = " in a guest" if current_guest_kernel() is not None else ""
    return f"Linux {platform.release()}{guest}"


def reason_of(error: LabError) -> str:
    """Choose the line that says why a mode does not run."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("error: ") or "level=error" in line]
    return (told or lines or [""])[-1].removeprefix("error: ")


def find_guest_obstacle() -> str:
    """Return "" if a guest can boot here. Guests cannot boot guests."""
    return "this machine is already a guest" if current_guest_kernel() is not None else find_obstacle()


def run_lab_in_guest(*arguments: str) -> bytes:
    """Run `vipwire lab ARGUMENTS` in a guest; return its output. Raise LabError on failure."""
    command = [sys.executable, "-m", "vipwire", "lab", *arguments]
    with tempfile.TemporaryFile() as out, Path(os.devnull).open("wb") as nowhere:
        run_in_guest(command, Guest(timeout=_GUEST_SECONDS), stdout=out, stderr=nowhere)
        out.seek(0)
        return out.read()
