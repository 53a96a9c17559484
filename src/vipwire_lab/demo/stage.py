"""The demo's stage: a lab, a folder of manifests, and a real `vipwire proxy` on node-1 that watches it.

The proxy is a separate process, started as by an operator. Its log lines `synced` tell when a change is in the
kernel, and how long it took. Leaving the stage ends and removes everything.
"""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from vipwire.file_io.files import replace_file
from vipwire.model.net import Protocol
from vipwire_lab.cluster import state
from vipwire_lab.cluster.cluster import Lab
from vipwire_lab.cluster.manifests import Manifest, dump_yaml
from vipwire_lab.cluster.outcome import ProbeResult
from vipwire_lab.demo.objects import POD_CIDRS, TOPOLOGY
from vipwire_lab.namespaces.errors import LabError
from vipwire_lab.namespaces.topology import Pod

FAMILIES = ("IPv4", "IPv6")
NODE = "node-1"
_PATIENCE = 60.0
"""Seconds until a missing sync, exit or answer is an error."""
_SYNCED = re.compile(r"\bmsg=synced\b")


@dataclass(frozen=True, slots=True)
class Sync:
    """A `synced` line: kernel objects added, changed, removed, and read (None: none read); seconds."""

    family: str
    added: int
    changed: int
    removed: int
    size: int
    observed: int | None
    seconds: float

    @property
    def written(self) -> int:
        return self.added + self.changed + self.removed

    def __str__(self) -> str:
        observed = f"read {self.observed} objects, " if self.observed is not None else ""
        counts = f"added {self.added}, changed {self.changed}, removed {self.removed}"
        return f"{self.family}: {observed}{counts}; {self.size} bytes, {self.seconds * 1000:.1f} ms"


class Listened:
    """A running process; errors call it `name`."""

    def __init__(self, name: str, process: subprocess.Popen[Any]) -> None:
        self._name, self._process = name, process
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._over = False
        self._reader = threading.Thread(target=self._read_lines, name=f"{name} log", daemon=True)
        self._reader.start()

    def count_lines(self) -> int:
        """Return the number of the output's lines until now, for `wait_until`."""
        with self._news:
            return len(self._lines)

    def wait_until(self, enough: Callable[[Sequence[str]], bool], patience: float, since: int = 0) -> list[str]:
        """Wait until the lines after a mark satisfy `enough`. Raise LabError after `patience` seconds."""
        deadline = time.monotonic() + patience
        with self._news:
            while not enough(lines := self._lines[since:]):
                if self._over or not self._news.wait(deadline - time.monotonic()):
                    what = "ended" if self._over else f"has not said it for {patience:.0f} s"
                    raise LabError(f"{self._name} {what}; it said:\n" + "\n".join(self._lines[-12:]))
            return lines

    def end_process(self, patience: float, number: signal.Signals = signal.SIGTERM) -> int:
        """End it as a service manager does, or by another signal; return its exit status."""
        self._process.send_signal(number)
        try:
            status = self._process.wait(patience)
        except subprocess.TimeoutExpired as error:
            self._process.kill()
            self._process.wait()
            raise LabError(f"{self._name} has not ended within {patience:.0f} s of {number.name}") from error
        self._reader.join()
        return status

    def _read_lines(self) -> None:
        with self._process.stdout or open(os.devnull) as lines:  # noqa: PTH123 - nothing to read
            for line in lines:
                with self._news:
                    self._lines.append(line.rstrip())
                    self._news.notify_all()
        with self._news:
            self._over = True
            self._news.notify_all()


class Proxy(Listened):
    """A running `vipwire proxy`."""

    def __init__(self, process: subprocess.Popen[Any]) -> None:
        super().__init__("vipwire proxy", process)

    def wait_until_synced(self, since: int, families: Sequence[str] = FAMILIES) -> list[Sync]:
        """Wait until every family has been synced after the mark; return the syncs in the families' order."""

        def found(lines: Sequence[str]) -> dict[str, Sync]:
            return {sync.family: sync for sync in map(_parse_sync, lines) if sync}

        lines = self.wait_until(lambda lines: found(lines).keys() >= set(families), _PATIENCE, since)
        return [found(lines)[family] for family in families]

    def stop_proxy(self) -> int:
        return self.end_process(_PATIENCE)


class Stage:
    """A lab, a folder of manifests and a proxy, all removed at the end of the `with` block."""

    def __init__(self, name: str = "") -> None:
        self.lab = Lab(TOPOLOGY, name or f"demo-{os.getpid()}")
        self._folder = tempfile.TemporaryDirectory(prefix="vipwire-demo-")
        self.folder = Path(self._folder.name)
        self.proxy: Proxy | None = None
        self._state = contextlib.ExitStack()

    def build_stage(self) -> None:
        """Build the lab; a failure leaves nothing."""
        try:
            self.lab.up()
        except BaseException:
            self._folder.cleanup()
            raise

    def __enter__(self) -> Self:
        self._state.enter_context(state.own_state(self.lab.name))
        return self

    def __exit__(self, *exc: object) -> None:
        self._state.close()
        # A second Ctrl-C must not stop the removal.
        before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            self.lab.down()
        finally:
            self._folder.cleanup()
            for number, handler in before.items():
                signal.signal(number, handler)

    @property
    def gone(self) -> bool:
        hosts = self.lab.topology.host_names()
        left = [state.directory_of(self.lab.name), self.folder, *(self.lab.namespace_of(host) for host in hosts)]
        return not any(path.exists() for path in left)

    def write_manifests(self, name: str, objects: Iterable[Manifest]) -> None:
        """Write or replace a file in the folder by a rename, so that no reader sees half of it."""
        replace_file(self.folder / f"{name}.yaml", dump_yaml(objects).encode())

    @property
    def proxy_command(self) -> list[str]:
        """Return the command of node-1's proxy. It leaves the OOM score: lowering it needs a further capability."""
        return [
            "proxy",
            f"--manifests={self.folder}",
            f"--hostname-override={NODE}",
            f"--cluster-cidr={POD_CIDRS}",
            "--oom-score-adj=0",
        ]

    def start_proxy(self, more: Sequence[str] = ()) -> list[Sync]:
        """Start the proxy with further flags; return its first sync."""
        # A session of its own: Ctrl-C reaches only the demo, which then ends the proxy.
        process = self.lab.popen(
            NODE,
            _vipwire_command(*self.proxy_command, *more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.proxy = Proxy(process)
        return self.proxy.wait_until_synced(0)

    def change_and_wait(
        self, name: str, objects: Iterable[Manifest], families: Sequence[str] = FAMILIES
    ) -> list[Sync]:
        """Write a file and wait until the kernel has been changed."""
        if self.proxy is None:
            raise LabError("no proxy runs that could read a changed file")
        mark = self.proxy.count_lines()
        self.write_manifests(name, objects)
        return self.proxy.wait_until_synced(mark, families)

    def run_cleanup(self) -> str:
        done = self.lab.run(NODE, _vipwire_command("cleanup"))
        return done.stdout + done.stderr

    def wait_until_gone(self, host: str, address: str, port: int, pod: Pod) -> None:
        """Connect until a Pod answers no more; 60 connections reach all of five Pods."""
        self._wait_until_pods(host, address, port, lambda names: pod.name not in names)

    def wait_until_seen(self, host: str, address: str, port: int, pods: Iterable[Pod]) -> None:
        wanted = {pod.name for pod in pods}
        self._wait_until_pods(host, address, port, lambda names: names >= wanted)

    def wait_until_unanswered(self, host: str, address: str, port: int) -> None:
        """Connect until no answer comes. Attempts run in parallel, because each takes its whole timeout."""
        self._wait_until_pods(host, address, port, lambda names: names == {""}, count=16)

    def _wait_until_pods(
        self, host: str, address: str, port: int, holds: Callable[[set[str]], bool], count: int = 60
    ) -> None:
        began = time.monotonic()
        while time.monotonic() - began < _PATIENCE:
            names = {result.pod for result in self.lab.probe(host, address, port, count=count, timeout=0.5)}
            if holds(names):
                return
        raise LabError(f"after {_PATIENCE:.0f} s, {', '.join(sorted(names))} still answers at {address}:{port}")

    def wait_until_answered(self, host: str, address: str, port: int) -> tuple[float, ProbeResult]:
        """Connect repeatedly until an answer comes; return the seconds, and the answer."""
        began = time.monotonic()
        while time.monotonic() - began < _PATIENCE:
            (result,) = self.lab.probe(host, address, port, Protocol.TCP, timeout=0.1)
            if result.answer:
                return time.monotonic() - began, result
        raise LabError(f"no answer at {address}:{port} for {_PATIENCE:.0f} s; the last result: {result}")


def format_syncs(syncs: Iterable[Sync]) -> str:
    return "\n".join(f"synced {sync}" for sync in syncs)


def _vipwire_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "vipwire", *arguments]


def _parse_sync(line: str) -> Sync | None:
    """Parse a `synced` line of the log; None for every other."""
    if not _SYNCED.search(line):
        return None
    fields = dict(word.split("=", 1) for word in shlex.split(line))
    added, changed, removed, size = (int(fields[name]) for name in ("added", "changed", "removed", "bytes"))
    observed = int(fields["observed"]) if "observed" in fields else None
    return Sync(fields["ip_family"], added, changed, removed, size, observed, float(fields["seconds"]))


@contextlib.contextmanager
def create_own_cgroup() -> Iterator[Path]:
    """Move this process into its own cgroup for the block, so that BPF programs see only its sockets."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()]
    root = next((Path(words[1]) for words in mounts if words[2] == "cgroup2"), None)
    if root is None:
        raise LabError("cgroup2 is not mounted")
    lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    home = next(line.removeprefix("0::/") for line in lines if line.startswith("0::"))
    own = root / f"vipwire-demo-{os.getpid()}"
    own.mkdir()
    try:
        (own / "cgroup.procs").write_text(str(os.getpid()))
        yield own
    finally:
        (root / home / "cgroup.procs").write_text(str(os.getpid()))
        own.rmdir()
