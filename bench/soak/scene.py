"""The scene of a soak: a lab, an API server (`vipwire up`) on one node, and the proxy on the other."""

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bench.soak.shim import Faults
from tests.proxy.conformance import own_cgroup

from vipwire.modes.ebpf.cgroup import list_mounted
from vipwire_lab.cluster.cluster import Lab

SERVER, NODE = "node-2", "node-1"
PATIENCE = 90.0
DISK = "64m"
_CIDRS = "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48"


class Sample(NamedTuple):
    """A process's resident MB and open files, with time and age in seconds."""

    when: float
    age: float
    memory: float
    files: int


@dataclass(eq=False)
class Part:
    """A restartable process of the scene; `samples` cover all its runs."""

    name: str
    lab: Lab
    host: str
    command: tuple[str, ...]
    log: Path
    faults: Faults
    is_ready: Callable[[], bool]

    def __post_init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.samples: list[Sample] = []
        self.unexpected: list[str] = []
        self._started = 0.0

    def start(self) -> None:
        self.launch()
        self.ready()

    def launch(self) -> None:
        self._started = time.monotonic()
        with self.log.open("ab") as log:
            environment = self.faults.environment
            self.process = self.lab.popen(self.host, self.command, stdout=log, stderr=log, env=environment)

    def ready(self) -> None:
        """Wait until it is ready. If it ended by itself, record that and restart it."""
        limit = time.monotonic() + PATIENCE
        while not self.is_ready():
            self.look_after()
            if time.monotonic() > limit:
                raise SystemExit(f"{self.name} is not ready after {PATIENCE} s; its log: {self.log}")
            time.sleep(0.05)

    def look_after(self) -> None:
        """If it ended by itself, record that and restart it, as a service manager would."""
        if self.process is None or self.process.poll() is None:
            return
        self.unexpected.append(f"{self.name} ended with status {self.process.returncode}")
        self.launch()

    def end(self, number: signal.Signals) -> None:
        """End it by a signal, and wait for its exit."""
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(number)
        status = process.wait(PATIENCE)
        if status not in (0, -number):
            self.unexpected.append(f"{self.name} ended with status {status} after {number.name}")

    def sample(self) -> None:
        if self.process is None:
            return
        folder = Path(f"/proc/{self.process.pid}")
        with contextlib.suppress(OSError):
            pages = int((folder / "statm").read_text(encoding="ascii").split()[1])
            files = len([*(folder / "fd").iterdir()])
            now = time.monotonic()
            memory = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
            self.samples.append(Sample(now, now - self._started, memory, files))


class Scene:
    """The whole scene. `up` is the API server, `proxy` the proxy under test."""

    def __init__(self, folder: Path, library: Path | None, seed: int, mode: str = "nftables", *, own: bool) -> None:
        """With `own` the proxy runs inside the API server's process, on the proxy's node."""
        self.lab, self.folder, self.data = Lab(), folder, folder / "disk"
        self.mode, self.own, self.host = mode, own, NODE if own else SERVER
        self.up_faults = Faults(folder, "up", library, seed)
        self.proxy_faults = Faults(folder, "proxy", library, seed + 1)
        self.address = next(node.addresses[0] for node in self.lab.topology.nodes if node.name == self.host)
        self.node_address = self.lab.address_of(NODE)
        vipwire = (sys.executable, "-m", "vipwire")
        more = (f"--proxy-mode={mode}", "--nodeport-addresses=0.0.0.0/0", *self._clients())
        up = (
            "up",
            f"--data-dir={self.data}",
            f"--bind-address={self.address}",
            f"--node-name={self.host}",
            "--no-dns",
        )
        often = ("--iptables-sync-period=2s", "--oom-score-adj=0")
        with_proxy = ("--", *more, *often, _CIDRS) if own else ("--no-proxy",)
        self.up = Part(
            *("up", self.lab, self.host, (*vipwire, *up, *with_proxy), folder / "up.log"),
            *(self.up_faults, self._all_is_ready if own else self._server_is_ready),
        )
        flags = (f"--kubeconfig={self.data}/admin.kubeconfig", f"--hostname-override={NODE}", _CIDRS)
        self.flags = (*flags, *more)
        self.proxy = (
            self.up
            if own
            else Part(
                *("proxy", self.lab, NODE, (*vipwire, "proxy", *self.flags, *often), folder / "proxy.log"),
                *(self.proxy_faults, self._proxy_is_ready),
            )
        )
        self.proxy_faults = self.up_faults if own else self.proxy_faults
        self.parts = tuple(dict.fromkeys((self.up, self.proxy)))

    def _clients(self) -> tuple[str, ...]:
        """Tell ebpf mode its clients' sockets: those of this process in the namespaces of Pods."""
        if self.mode != "ebpf":
            return ()
        pods = (pod.name for pod in self.lab.topology.pods if pod.node == NODE)
        clients = ",".join(str(self.lab.namespace_of(pod)) for pod in pods)
        return f"--ebpf-cgroup={list_mounted()[0] / own_cgroup.here()}", f"--ebpf-clients={clients}"

    @contextlib.contextmanager
    def standing(self) -> Iterator[None]:
        """Build the lab and mount the disk; remove both at the end."""
        self.data.mkdir()
        with contextlib.ExitStack() as stack:
            mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "soak", str(self.data)]
            subprocess.run(mount, check=True)
            stack.callback(subprocess.run, ["umount", "--lazy", str(self.data)], check=False)
            if self.mode == "ebpf":
                subprocess.run(["mount", "-t", "bpf", "soak", "/sys/fs/bpf"], check=True)
            stack.enter_context(self.lab)
            yield
            for part in reversed(self.parts):
                part.end(signal.SIGTERM)

    def run(self, *command: str) -> "subprocess.CompletedProcess[Any]":
        return self.lab.run(NODE, list(command))

    def difference(self) -> str:
        """Return the output of `vipwire diff`; "" without a difference."""
        done = self.run(sys.executable, "-m", "vipwire", "diff", *self.flags)
        return "" if done.returncode == 0 else f"status {done.returncode}: {done.stdout}{done.stderr}"[:4000]

    def _server_is_ready(self) -> bool:
        kubeconfig = self.data / "admin.kubeconfig"
        return kubeconfig.exists() and _listens(self.address, 6443)

    def _all_is_ready(self) -> bool:
        return self._server_is_ready() and self._proxy_is_ready()

    def _proxy_is_ready(self) -> bool:
        connection = http.client.HTTPConnection(self.node_address, 10256, timeout=5.0)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == http.HTTPStatus.OK
        except OSError:
            return False
        finally:
            connection.close()


def _listens(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=1.0).close()
    except OSError:
        return False
    return True
