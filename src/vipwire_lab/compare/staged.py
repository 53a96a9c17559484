"""A stage on which one mode runs: here, or in a guest with a kernel of its own where this one cannot run it."""

import contextlib
import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from vipwire.config.modes import mode_names
from vipwire_lab.demo import objects
from vipwire_lab.demo.stage import NODE, Stage, Sync, own_cgroup
from vipwire_lab.guest_kernel import Guest, inside, obstacle, run
from vipwire_lab.namespaces.errors import LabError

SERVICES: Final = ("web", "shop", "empty", "sticky")
_GUEST_SECONDS: Final = 240.0
MODES: Final = mode_names


@contextlib.contextmanager
def staged(mode: str) -> Iterator[tuple[Stage, list[Sync]]]:
    """Run a mode on a stage of its own; give the stage and its first sync. Raise LabError where it cannot run."""
    stage = Stage(f"mode-{os.getpid()}")
    stage.build()
    with stage, contextlib.ExitStack() as stack:
        stage.write("nodes", objects.nodes())
        for name in SERVICES:
            stage.write(name, getattr(objects, name)())
        flags = [f"--proxy-mode={mode}", *_more(mode, stage, stack)]
        yield stage, stage.start_proxy(flags)
        if stage.proxy is not None:
            stage.proxy.stop()
            stage.cleanup()


def _more(mode: str, stage: Stage, stack: contextlib.ExitStack) -> Sequence[str]:
    """Add what a mode needs here: that of sockets is to see those of node-1 and its Pods alone."""
    if mode != "ebpf":
        return ()
    try:
        cgroup = stack.enter_context(own_cgroup())
    except OSError as error:
        raise LabError(f"no cgroup of our own can be made: {error.strerror}") from error
    hosts = (NODE, *(pod.name for pod in objects.LOCAL_PODS))
    return f"--ebpf-cgroup={cgroup}", f"--ebpf-clients={','.join(str(stage.lab.netns(host)) for host in hosts)}"


def kernel_name() -> str:
    """Name the kernel that this process runs on, and whether it is a guest's."""
    guest = " in a guest" if inside() is not None else ""
    return f"Linux {platform.release()}{guest}"


def reason_of(error: LabError) -> str:
    """Choose the line that says why a mode does not run."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("error: ") or "level=error" in line]
    return (told or lines or [""])[-1].removeprefix("error: ")


def guest_obstacle() -> str:
    """Return why no guest can be booted here; "" if one can. In a guest there is none in the guest."""
    return "this is a guest already" if inside() is not None else obstacle()


def in_guest(*arguments: str) -> bytes:
    """Run `vipwire lab ARGUMENTS` in a guest; return what it prints. Raise LabError if it cannot be done."""
    command = [sys.executable, "-m", "vipwire", "lab", *arguments]
    with tempfile.TemporaryFile() as out, Path(os.devnull).open("wb") as nowhere:
        run(command, Guest(timeout=_GUEST_SECONDS), stdout=out, stderr=nowhere)
        out.seek(0)
        return out.read()
