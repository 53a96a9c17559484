"""A proxy under measurement, seen from outside: start time, CPU, memory, and its children's."""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Self

from bench.pipe import memory

PATIENCE = 120.0
_TICKS = os.sysconf("SC_CLK_TCK")
_KERNEL_THREAD = 0x00200000


class Daemon:
    """A proxy's process. Leaving the context ends it with SIGTERM; its rules stay."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._log: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - closed at the end
        self.began = time.monotonic()
        self.process = subprocess.Popen(command, stderr=self._log, stdout=self._log, env=environment)
        self.children_peak = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=PATIENCE)
        finally:
            self.process.kill()
            self._log.close()

    def age(self) -> float:
        """Return the seconds since its start; raise SystemExit with its log after too long."""
        age, status = time.monotonic() - self.began, self.process.poll()
        if status is not None or age > PATIENCE:
            how = "is not ready" if status is None else f"has ended with status {status}"
            self._log.seek(0)
            raise SystemExit(f"{self.process.args!r} {how} after {age:.1f} s:\n{self._log.read()[-4000:]}")
        return age

    def cpu(self) -> float:
        """Return its CPU time with its children's; that of running children to 10 ms."""
        own = time.clock_gettime((~self.process.pid << 3) | 2)  # as clock_getcpuclockid(3) computes it
        children = sum(_ticks(pid, 11, 12) for pid in self._descendants())
        return own + (_ticks(self.process.pid, 13, 14) + children) / _TICKS

    def memory(self) -> tuple[float, float]:
        """Return current and peak memory in MB, without its children."""
        return memory(self.process.pid)

    def look_at_children(self) -> None:
        """Record the memory of its largest child, which is unknown after the child's end."""
        for pid in self._descendants():
            with contextlib.suppress(OSError, KeyError):
                self.children_peak = max(self.children_peak, memory(pid)[1])

    def _descendants(self) -> Iterator[int]:
        waiting = [self.process.pid]
        while waiting:
            found = _children(waiting.pop())
            yield from found
            waiting += found


def kernel_threads() -> float:
    """Return the CPU time of all kernel threads of the machine, in seconds."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(_stat(int(folder.name))[6]) & _KERNEL_THREAD:
                total += int((folder / "schedstat").read_text(encoding="ascii").split()[0])
    return total / 1e9


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text(encoding="ascii").split())
    return found


def _ticks(pid: int, *fields: int) -> int:
    with contextlib.suppress(OSError):
        words = _stat(pid)
        return sum(int(words[field]) for field in fields)
    return 0


def _stat(pid: int) -> list[str]:
    """Return the fields of proc_pid_stat(5) from number 3 (the state) on."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
