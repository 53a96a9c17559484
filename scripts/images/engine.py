"""podman with its own storage; containers share networks and cgroups of the caller."""

import contextlib
import resource
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PROCESSES: Final = 32768
"""podman's own default."""


@dataclass(frozen=True, slots=True)
class Engine:
    """Calls podman with storage below `folder`.

    `within` is a command prefix: with `unshare --mount` no mounts remain.
    """

    folder: Path
    within: tuple[str, ...] = ()

    def command(self, *arguments: str | Path) -> list[str]:
        storage = [f"--root={self.folder / 'root'}", f"--runroot={self.folder / 'run'}"]
        ways = ["--cgroup-manager=cgroupfs", "--events-backend=file", "--runtime=crun"]
        return [*self.within, "podman", *storage, *ways, *map(str, arguments)]

    def run(self, *arguments: str | Path) -> str:
        """Run a command to its end; return its output, or raise CalledProcessError."""
        return subprocess.run(self.command(*arguments), check=True, stdout=subprocess.PIPE, text=True).stdout

    def container(self, name: str, *arguments: str) -> list[str]:
        # podman's default exceeds the limit of a machine without CAP_SYS_RESOURCE.
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        limits = (f"--ulimit=nofile={files}:{files}", f"--ulimit=nproc={_PROCESSES}:{_PROCESSES}")
        return self.command("run", "--rm", "--cgroups=disabled", f"--name={name}", *limits, *arguments)


@dataclass(frozen=True, slots=True)
class Process:
    """A process by its pid on this machine; `state` as in /proc: S, or Z for a zombie."""

    number: int
    state: str
    command: str


@dataclass(frozen=True, slots=True)
class Running:
    """A container in the foreground, with its output in a file."""

    engine: Engine
    name: str
    log: Path
    process: subprocess.Popen[bytes]

    def stop(self, patience: int) -> tuple[int, float]:
        """End it as the kubelet does: SIGTERM, after `patience` seconds SIGKILL. Return exit status and seconds."""
        start = time.monotonic()
        self.engine.run("stop", f"--time={patience}", self.name)
        return self.process.wait(), time.monotonic() - start

    def processes(self) -> list[Process]:
        first = self.engine.run("inspect", "--format={{.State.Pid}}", self.name).strip()
        namespace = Path(f"/proc/{first}/ns/pid").readlink()
        found = []
        for each in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # the process has just ended
                if (each / "ns/pid").readlink() == namespace:
                    state = (each / "stat").read_text().rpartition(")")[2].split()[0]
                    command = (each / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found.append(Process(int(each.name), state, command))
        return found


@contextlib.contextmanager
def started(engine: Engine, name: str, *arguments: str) -> Iterator[Running]:
    log = engine.folder / f"{name}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(engine.container(name, *arguments), stdout=file, stderr=subprocess.STDOUT)
    running = Running(engine, name, log, process)
    try:
        yield running
    finally:
        if process.poll() is None:
            subprocess.run(engine.command("kill", name), check=False, capture_output=True)
            process.wait()
