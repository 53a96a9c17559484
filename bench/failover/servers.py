"""Three machines as in docs/three-servers.md: each with an etcd member and `vipwire up` over all members."""

import contextlib
import json
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from bench.failover.machines import NODES, PATIENCE, UP, Machines

from vipwire_lab.cluster.cluster import Lab

ETCD_FLAGS: Final = ("--heartbeat-interval", "50", "--election-timeout", "500", "--pre-vote")
"""As in docs/three-servers.md."""
ADDRESSES: Final = {node: f"10.0.0.{number}" for number, node in enumerate(NODES, 1)}
_SERVERS: Final = ",".join(f"http://{address}:2379" for address in ADDRESSES.values())
STORE: Final = ("--store", "etcd", "--etcd-servers", _SERVERS, "--node-lease-seconds", "3")


class Servers(Machines):
    """Three machines, each with an etcd member and an API server that die together."""

    victims = NODES

    def __init__(self, lab: Lab, folder: Path, kubectl: str) -> None:
        super().__init__(lab, folder, kubectl)
        shared = Path("/dev/shm")  # noqa: S108  # disks of a test machine are slower than servers have
        self._etcd = Path(tempfile.mkdtemp(dir=shared if shared.is_dir() else folder, prefix="failover-"))
        self.members: dict[str, subprocess.Popen[Any]] = {}

    def start(self) -> None:
        for node in NODES:
            self._start_member(node)
        self._until_healthy("node-1")
        for node in NODES:
            if node != NODES[0]:
                (self.data(node) / "pki").mkdir(parents=True)
                for name in ("ca.crt", "ca.key"):
                    shutil.copy(self.data(NODES[0]) / "pki" / name, self.data(node) / "pki")
            self._start_server(node)
        self.declare()

    def _start_member(self, node: str) -> None:
        here = f"http://{ADDRESSES[node]}"
        cluster = ",".join(f"{each}=http://{address}:2380" for each, address in ADDRESSES.items())
        command = ["etcd", "--name", node, "--data-dir", str(self._etcd / node), "--initial-cluster", cluster]
        command += ["--listen-client-urls", f"{here}:2379", "--advertise-client-urls", f"{here}:2379"]
        command += ["--listen-peer-urls", f"{here}:2380", "--initial-advertise-peer-urls", f"{here}:2380"]
        command += ["--initial-cluster-state", "new", "--logger", "zap", "--log-level", "warn", *ETCD_FLAGS]
        with (self.folder / f"etcd-{node}.log").open("ab") as log:
            self.members[node] = self.lab.popen(node, command, stdout=log, stderr=log)

    def _start_server(self, node: str) -> None:
        self.run(node, "try:", *UP, *STORE, "--node-name", node, "--data-dir", str(self.data(node)))

    def ctl(self, node: str, *words: str) -> str:
        environment = {"ETCDCTL_API": "3", "PATH": "/usr/bin:/bin"}
        command = ["etcdctl", "--endpoints", f"http://{ADDRESSES[node]}:2379", *words]
        done = self.lab.run(node, command, check=False, env=environment)
        if done.returncode:
            raise OSError(done.stderr)
        return done.stdout

    def _until_healthy(self, node: str) -> None:
        end = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(OSError):
                self.ctl(node, "endpoint", "health")
                return
            if time.monotonic() > end:
                raise SystemExit("etcd does not answer")

    def bring_back(self, node: str, *_words: str) -> None:
        """Start a machine's member and server unless they run."""
        if node not in self.members:
            self._start_member(node)
        if node not in self.running:
            self._start_server(node)

    def kill_member(self, node: str) -> None:
        member = self.members.pop(node)
        member.kill()
        member.wait()

    def end_server(self, node: str, number: signal.Signals) -> None:
        super().end(node, number)

    def end(self, node: str, number: signal.Signals) -> None:
        """End a machine's server, and also its member if `number` is SIGKILL."""
        if number == signal.SIGKILL:
            self.kill_member(node)
        self.end_server(node, number)

    def choose_victim(self) -> str:
        """Choose the machine that runs the controllers, and move etcd's leader there: the worst loss."""
        victim = self.holder("vipwire-controllers").partition("_")[0] or NODES[0]
        self._until_healthy(victim)
        status = json.loads(self.ctl(victim, "endpoint", "status", "-w", "json"))[0]["Status"]
        member, leader = f"{status['header']['member_id']:x}", status["leader"]
        if leader != status["header"]["member_id"]:
            self.ctl(next(node for node in NODES if self._leads(node)), "move-leader", member)
        return victim

    def _leads(self, node: str) -> bool:
        status = json.loads(self.ctl(node, "endpoint", "status", "-w", "json"))[0]["Status"]
        return bool(status["leader"] == status["header"]["member_id"])

    def witness(self) -> str:
        return next(node for node in NODES if node in self.running and node not in self.cut_off)

    def close(self) -> None:
        super().close()
        for member in self.members.values():
            member.kill()
            member.wait()
        shutil.rmtree(self._etcd, ignore_errors=True)
