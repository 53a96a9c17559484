"""Processes that outlive the command that started them, and ending exactly those.

The kernel reuses pids, so a pid file also holds the start time (field 22 of /proc/PID/stat, proc_pid_stat(5)), and
the signal goes through a pidfd opened before comparing it.
"""

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process, unique since boot. `started` is in clock ticks since boot."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """Identify a running process; None if the pid is unused."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            return None
        return cls(pid, int(stat.rpartition(")")[2].split()[19]))  # the name in parentheses may contain anything

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Read a file of `write`; None if missing or of another format."""
        with contextlib.suppress(OSError, ValueError):
            pid, started = path.read_text().split()
            return cls(int(pid), int(started))
        return None

    def write(self, path: Path) -> None:
        path.write_text(f"{self.pid} {self.started}\n")


def end_gracefully(processes: Iterable[ProcessId], patience: float = 5.0) -> None:
    """End the processes (SIGTERM), and those that still run after `patience` seconds (SIGKILL)."""
    open_ones = [descriptor for process in processes if (descriptor := _open_pidfd(process)) is not None]
    try:
        running = _signal_and_wait(open_ones, signal.SIGTERM, patience)
        _signal_and_wait(running, signal.SIGKILL, patience)
    finally:
        for descriptor in open_ones:
            os.close(descriptor)


def reap_processes(processes: Iterable[ProcessId]) -> None:
    """Wait for those that are this process's children, so that no zombie remains."""
    for process in processes:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)


def _open_pidfd(process: ProcessId) -> int | None:
    try:
        descriptor = os.pidfd_open(process.pid)
    except (ProcessLookupError, FileNotFoundError):  # the second: it is being reaped right now (Linux 6.15 and later)
        return None
    if ProcessId.of(process.pid) == process:
        return descriptor
    os.close(descriptor)
    return None


def _signal_and_wait(descriptors: list[int], number: signal.Signals, patience: float) -> list[int]:
    """Signal all; return those whose process has not ended after `patience` seconds."""
    for descriptor in descriptors:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, number)
    running = list(descriptors)
    deadline = time.monotonic() + patience
    while running and (left := deadline - time.monotonic()) > 0:
        ended, _, _ = select.select(running, [], [], left)  # a pidfd is readable once its process has ended
        running = [descriptor for descriptor in running if descriptor not in ended]
    return running
