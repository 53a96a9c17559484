"""`vipwire` in a network namespace, forked from a process with all imports, which saves Python's start.

A start takes over half a second of CPU time, and seconds under User-Mode Linux, nearly all for imports. The command
runs as with `python -m vipwire`, in a separate process. tests/proxy/kernel/test_daemon_process.py tests the real
start.
"""

import contextlib
import ctypes
import gc
import importlib
import multiprocessing
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Final

from tests.fakes.waiting import PATIENCE

from vipwire_lab.cluster import state
from vipwire_lab.cluster.cluster import Lab
from vipwire_lab.namespaces import netns
from vipwire_lab.namespaces.processes import ProcessId

_MODULES: Final = (
    "tests.fakes.forked",
    "vipwire.cli.main",
    "vipwire.cli.proxy",
    "vipwire.config.file",
    "vipwire.config.flags",
    "vipwire.inspect.drain",
    "vipwire.process_lifecycle.early_signals",
    "vipwire.logging.log",
    "vipwire_up.joining_cli",
    "vipwire_up.joining.run",
)
_PACKAGES: Final = (
    "vipwire.linux",
    "vipwire.modes",
    "vipwire.process_lifecycle",
    "vipwire.proxy_daemon",
    "vipwire.relay",
)
"""A proxy imports some 190 modules of these late, also of other modes, for their leftovers."""


def _name_modules() -> list[str]:
    """Return the modules that the fork server imports before the first fork."""
    found = [*_MODULES]
    for package in _PACKAGES:
        path = importlib.import_module(package).__path__
        found += [
            each.name for each in pkgutil.walk_packages(path, f"{package}.") if not each.name.endswith("__main__")
        ]
    return found


PROGRAM: Final = "VIPWIRE_PROGRAM"
"""Variable with the path of an installed `vipwire` to run instead of this checkout."""
_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)
_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(_name_modules())


class Forked:
    """One process with subprocess.Popen's interface. Its output goes to the files `output` and `errors`."""

    def __init__(self, namespace: Path, arguments: Sequence[str], output: Path, errors: Path | None = None) -> None:
        words = (str(namespace), tuple(arguments), str(output), str(errors or output), dict(os.environ))
        self._process: ForkServerProcess = _CONTEXT.Process(target=_become, args=words, daemon=True)
        self._process.start()
        self._status: int | None = None
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        """Return the exit status, None while it runs; negative after a signal."""
        if self._status is None and self._process.exitcode is not None:
            self._status = self._process.exitcode
            self._process.close()
        return self._status

    def wait(self, timeout: float) -> int:
        """Wait for the exit status; raise subprocess.TimeoutExpired."""
        if self._status is None:
            self._process.join(timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired("vipwire", timeout)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        if self.poll() is None:
            self._process.kill()


def started(lab: Lab, host: str, arguments: Sequence[str], output: Path, errors: Path | None = None) -> Forked:
    """Start it on a host of a lab; the end of the lab ends it."""
    made = Forked(lab.namespace_of(host), arguments, output, errors)
    if identity := ProcessId.of(made.pid):
        identity.write(state.directory_of(lab.name) / f"{made.pid}.pid")
    return made


def run(lab: Lab, host: str, arguments: Sequence[str], timeout: float) -> "subprocess.CompletedProcess[str]":
    """Run it to its end on a host of a lab; raise subprocess.TimeoutExpired."""
    with tempfile.TemporaryDirectory(prefix="vipwire-forked-") as folder:
        output, errors = Path(folder, "output"), Path(folder, "errors")
        return _finish(started(lab, host, arguments, output, errors), arguments, output, errors, timeout)


def run_here(arguments: Sequence[str], timeout: float) -> "subprocess.CompletedProcess[str]":
    """Run it to its end in this thread's network namespace; raise subprocess.TimeoutExpired."""
    with tempfile.TemporaryDirectory(prefix="vipwire-forked-") as folder:
        output, errors = Path(folder, "output"), Path(folder, "errors")
        here = Path(f"/proc/{os.getpid()}/task/{threading.get_native_id()}/ns/net")
        return _finish(Forked(here, arguments, output, errors), arguments, output, errors, timeout)


def _finish(
    process: Forked, arguments: Sequence[str], output: Path, errors: Path, timeout: float
) -> "subprocess.CompletedProcess[str]":
    try:
        status = process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return subprocess.CompletedProcess(list(arguments), status, _text(output), _text(errors))


def _text(path: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        return path.read_text(errors="replace")
    return ""


def _become(namespace: str, arguments: Sequence[str], output: str, errors: str, environ: Mapping[str, str]) -> None:
    """Become that command: in the namespace, with its arguments, environment and output."""
    gc.freeze()  # a collection would touch, and so copy, each page shared with the parent
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # ends with the tests, even if they are killed
    for descriptor, path in ((1, output), (2, errors)):
        opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.clear()
    os.environ.update(environ)
    if program := environ.get(PROGRAM):
        with netns.enter_namespace(Path(namespace)):
            os.execv(program, ["vipwire", *arguments])  # noqa: S606  # no shell: an installed program
    sys.argv = ["vipwire", *arguments]
    sys.orig_argv = [sys.executable, "-m", *sys.argv]  # a change of the mode executes these words
    from vipwire.cli.main import main  # noqa: PLC0415  # imported in the process that this is forked off
    from vipwire.inspect import drain  # noqa: PLC0415  # as above

    drain.PATIENCE = PATIENCE  # a proxy in a guest that lacks CPU time takes longer than users wait
    with netns.enter_namespace(Path(namespace)):
        main(prog_name="vipwire")
