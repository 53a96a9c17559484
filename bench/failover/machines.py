"""Three machines with moving addresses: namespaces of a lab, their processes, and faults."""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml
from bench.failover.clients import PORT

from vipwire_lab.cluster.cluster import Lab
from vipwire_lab.demo.stage import Listened
from vipwire_lab.namespaces.links import lan_port_name
from vipwire_lab.namespaces.topology import UNDERLAY
from vipwire_up.announcing.choose import choose_machine

NODES: Final = ("node-1", "node-2", "node-3")
ECHO: Final = 8080
RIVAL: Final = "10.0.0.200"
RIVAL_PORT: Final = 8090
PATIENCE: Final = 60.0
POOL: Final = [f"10.0.0.{number}" for number in range(64, 80)]
OWNED: Final = {node: next(each for each in POOL if choose_machine(each, NODES) == node) for node in NODES}
ANNOUNCE: Final = ("--announce-interface", "lan0")
UP: Final = ("up", "--bind-address", "0.0.0.0", "--no-dns", *ANNOUNCE, "--load-balancer-range", "10.0.0.64/28")  # noqa: S104
KEEPALIVED = """
global_defs {{ router_id {node}
 vrrp_garp_master_repeat 5 }}
vrrp_instance bench {{
  state BACKUP
  interface lan0
  virtual_router_id 51
  priority {priority}
  virtual_ipaddress {{ {address}/24 dev lan0 }}
}}
"""


class Machines:
    """node-1 runs `vipwire up`, the others `vipwire join`."""

    victims: tuple[str, ...] = NODES[1:]

    def __init__(self, lab: Lab, folder: Path, kubectl: str) -> None:
        self.lab, self.folder, self._kubectl = lab, folder, kubectl
        self.running: dict[str, tuple[subprocess.Popen[Any], Listened]] = {}
        self.cut_off: set[str] = set()
        self.rivals: dict[str, subprocess.Popen[Any]] = {}

    def start(self) -> None:
        self.run("node-1", "try:", *UP, "--node-name", "node-1", "--data-dir", str(self.data("node-1")))
        for node in NODES[1:]:
            self.bring_back(node, *self.token())
        self.declare()

    def token(self, *flags: str) -> list[str]:
        """Make a token; return the arguments of `vipwire join`."""
        command = [sys.executable, "-m", "vipwire", "token", "create", "--data-dir", str(self.data("node-1")), *flags]
        return shlex.split(self.lab.run("node-1", command).stdout)[2:]

    def declare(self) -> None:
        """Apply the Services, and wait until each machine has its address."""
        path = self.folder / "applied.yaml"
        path.write_text(yaml.safe_dump_all([found for node in NODES for found in _service(node)], sort_keys=False))
        self.kubectl("apply", "-f", str(path))
        for node in NODES:
            self.until_owned(OWNED[node], node)

    def data(self, node: str) -> Path:
        return self.folder / node

    def run(self, node: str, said: str, *words: str) -> None:
        """Run vipwire on a machine, and wait for a line that begins with `said`."""
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True}
        command = [sys.executable, "-m", "vipwire", *words]
        process = self.lab.popen(node, command, stderr=subprocess.STDOUT, **options)
        self.running[node] = process, Listened(node, process)
        self.running[node][1].wait_until(lambda lines: any(line.startswith(said) for line in lines), PATIENCE)

    def bring_back(self, node: str, *words: str) -> None:
        self.run(
            node, "joined as", "join", *words, "--node-name", node, "--data-dir", str(self.data(node)), *ANNOUNCE
        )

    def end(self, node: str, number: signal.Signals) -> None:
        self.running.pop(node)[1].end_process(PATIENCE, number)

    def signal(self, node: str, number: signal.Signals) -> None:
        self.running[node][0].send_signal(number)

    def save_logs(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for node, (_, listened) in self.running.items():
            (folder / f"{node}.log").write_text("\n".join(listened.wait_until(lambda _: True, PATIENCE)))
        for path in self.folder.glob("*.log"):
            shutil.copy(path, folder)

    def choose_victim(self) -> str:
        """Choose the machine to hit: any but the only API server."""
        return "node-2"

    def witness(self) -> str:
        return "node-1"

    def kubectl(self, *words: str) -> str:
        node = self.witness()
        environment = os.environ | {"KUBECONFIG": str(self.data(node) / "admin.kubeconfig"), "HOME": str(self.folder)}
        done = self.lab.run(node, [self._kubectl, *words], timeout=PATIENCE, check=False, env=environment)
        if done.returncode:
            raise SystemExit(f"kubectl {' '.join(words)}: {done.stderr}")
        return done.stdout

    def holder(self, lease: str) -> str:
        """Return the holder of a Lease of kube-system."""
        words = ("get", "lease", lease, "-n", "kube-system", "-o", "jsonpath={.spec.holderIdentity}")
        return self.kubectl(*words, "--ignore-not-found")

    def owner(self, address: str) -> str:
        return self.holder(f"vipwire-address-{address.replace('.', '-')}")

    def until_owned(self, address: str, node: str) -> None:
        end = time.monotonic() + PATIENCE
        while self.owner(address) != node:
            if time.monotonic() > end:
                raise SystemExit(f"{address} is {self.owner(address)}'s, and not {node}'s")
            time.sleep(0.1)

    def cut(self, node: str, how: str) -> None:
        """Cut a machine off: set its links down, or drop its incoming or outgoing packets."""
        self.cut_off.add(node)
        if how == "cut":
            for link in (lan_port_name(node), node):
                self._under("ip", "link", "set", link, "down")
            return
        hook = "egress" if how == "deaf" else "ingress"
        chains = "".join(
            f'chain {name} {{ type filter hook {hook} device "{link}" priority 0; drop; }}\n'
            for name, link in (("lan", lan_port_name(node)), ("routed", node))
        )
        self._under("nft", f"table netdev cut-{node} {{ {chains} }}")

    def heal(self, node: str) -> None:
        for link in (lan_port_name(node), node):
            self._under("ip", "link", "set", link, "up")
        self.lab.run(UNDERLAY, ["nft", "delete", "table", "netdev", f"cut-{node}"], check=False)
        # the kernel deleted this entry with the link
        self._under("ip", "neigh", "replace", self.lab.address_of(node), "lladdr", "02:00:00:00:00:02", "dev", node)
        self._under("ip", "route", "replace", self.lab.address_of(node), "dev", node)
        number = node[-1]
        self._under("ip", "route", "replace", f"10.244.{number}.0/24", "via", self.lab.address_of(node), "dev", node)
        self.cut_off.discard(node)

    def start_rivals(self) -> None:
        for node in NODES:
            self.lab.start_echo_servers(node, [RIVAL_PORT])
        for priority, node in ((100, "node-1"), (101, "node-3"), (110, "node-2")):
            path = self.folder / f"keepalived-{node}.conf"
            path.write_text(KEEPALIVED.format(node=node, priority=priority, address=RIVAL))
            pids = (f"--pid={self.folder}/{node}.pid", f"--vrrp_pid={self.folder}/{node}-vrrp.pid")
            command = ["keepalived", "-n", "-l", "-P", "-f", str(path), *pids]
            with (self.folder / f"keepalived-{node}.log").open("w") as log:
                self.rivals[node] = self.lab.popen(node, command, stdout=log, stderr=log)
        self.until_rival("node-2")

    def until_rival(self, node: str) -> None:
        end = time.monotonic() + PATIENCE
        while RIVAL not in self.lab.run(node, ["ip", "addr", "show", "lan0"]).stdout:
            if time.monotonic() > end:
                raise SystemExit("keepalived does not take its address")
            time.sleep(0.2)
        time.sleep(5)

    def close(self) -> None:
        for process, _ in self.running.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    def _under(self, *command: str) -> None:
        self.lab.run(UNDERLAY, command)


def _service(owner: str) -> Iterator[dict[str, Any]]:
    """Build a Service with an address of `owner`, with endpoints on the other machines."""
    name = f"on-{owner}"
    ports = [{"port": PORT, "targetPort": ECHO}]
    spec = {"type": "LoadBalancer", "loadBalancerIP": OWNED[owner], "ports": ports}
    yield {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}
    ends = [
        {"addresses": [f"10.244.{node[-1]}.11"], "nodeName": node, "conditions": {"ready": True}}
        for node in NODES
        if node != owner
    ]
    labels = {"kubernetes.io/service-name": name}
    meta = {"name": name, "labels": labels}
    kind = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4"}
    yield kind | {"metadata": meta, "endpoints": ends, "ports": [{"port": ECHO}]}
