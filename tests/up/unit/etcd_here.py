"""etcd's members for a test: real ones, on loopback, ended by their process.

with members(folder, 3) as etcd:
    etcd.urls; etcd.stop(0); etcd.start(0)
"""

import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.fakes.waiting import until

from vipwire_up.credentials.ca import CertificatePair

PATIENCE = 60.0


def free_ports(count: int) -> list[int]:
    """Find unused ports below the kernel's ephemeral range."""
    found: list[int] = []
    first = 20_000 + time.monotonic_ns() // 1000 % 9_000
    for port in range(first, 32_000):
        with contextlib.closing(socket.socket()) as tried, contextlib.suppress(OSError):
            tried.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError("no ports are free")


@dataclass(frozen=True)
class Tls:
    """The certificates of members and of a client, and the CA of both."""

    server: CertificatePair
    client: CertificatePair
    authority: Path


@dataclass
class Etcd:
    folder: Path
    ports: Sequence[tuple[int, int]]
    flags: Sequence[str] = ()
    tls: Tls | None = None
    processes: dict[int, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @property
    def servers(self) -> str:
        """The clients' URLs in the format of --etcd-servers."""
        return ",".join(self.url(number) for number in range(len(self.ports)))

    def url(self, number: int) -> str:
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.ports[number][0]}"

    def start(self, number: int, *more: str) -> None:
        """Start a member with its earlier flags; `more` replaces those of the same name."""
        peers = [f"http://127.0.0.1:{peer}" for _, peer in self.ports]
        command = ["etcd", "--name", f"m{number}", "--data-dir", str(self.folder / f"m{number}")]
        command += ["--listen-client-urls", self.url(number), "--advertise-client-urls", self.url(number)]
        command += ["--listen-peer-urls", peers[number], "--initial-advertise-peer-urls", peers[number]]
        command += ["--initial-cluster", ",".join(f"m{each}={peer}" for each, peer in enumerate(peers))]
        command += ["--initial-cluster-state", "new", "--logger", "zap", "--log-level", "error"]
        command += ["--heartbeat-interval", "50", "--election-timeout", "500", *self.flags]
        if self.tls is not None:
            command += ["--cert-file", str(self.tls.server.certificate), "--key-file", str(self.tls.server.key)]
            command += ["--trusted-ca-file", str(self.tls.authority), "--client-cert-auth"]
        command += more
        with (self.folder / f"m{number}.log").open("ab") as log:
            self.processes[number] = subprocess.Popen(command, stdout=log, stderr=log)

    def alone(self, number: int) -> tuple[str, str]:
        """Return the flags that make a member a cluster of its own at its address."""
        return "--initial-cluster", f"m{number}=http://127.0.0.1:{self.ports[number][1]}"

    def forget(self, number: int) -> None:
        self.stop(number)
        shutil.rmtree(self.folder / f"m{number}")

    def stop(self, number: int) -> None:
        process = self.processes.pop(number)
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE)

    def ctl(self, *arguments: str, number: int = 0) -> str:
        command = ["etcdctl", "--endpoints", self.url(number), *arguments]
        if self.tls is not None:
            command += ["--cert", str(self.tls.client.certificate), "--key", str(self.tls.client.key)]
            command += ["--cacert", str(self.tls.authority)]
        environment = {"ETCDCTL_API": "3", "PATH": "/usr/bin:/bin"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=PATIENCE, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def succeeds(self, *command: str, number: int = 0) -> bool:
        with contextlib.suppress(AssertionError):
            self.ctl(*command, number=number)
            return True
        return False

    def wait(self, number: int = 0) -> None:
        """Wait until a member answers, and the cluster has a leader."""
        until(partial(self.succeeds, "endpoint", "health", number=number), "etcd does not answer")


@contextlib.contextmanager
def members(count: int = 3, *flags: str, tls: Tls | None = None, folder: Path | None = None) -> Iterator[Etcd]:
    """Run members for the block: in memory, or in a folder."""
    shared = folder or Path("/dev/shm")  # noqa: S108  # nothing of it is to last
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as made:
        ports = free_ports(2 * count)
        etcd = Etcd(Path(made), list(zip(ports[::2], ports[1::2], strict=True)), flags, tls)
        try:
            for number in range(count):
                etcd.start(number)
            etcd.wait()
            yield etcd
        finally:
            for number in list(etcd.processes):
                etcd.stop(number)
