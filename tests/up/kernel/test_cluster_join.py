"""A second machine joins `vipwire up`, serves its Services, is lost, comes back, leaves: on two nodes of a lab."""

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.up.kernel.test_cluster_up_packets import PATIENCE, Cluster, names, until
from tests.up.unit.cluster_process import CLIENTS

from vipwire_lab.cluster.cluster import Lab
from vipwire_lab.demo.stage import Listened
from vipwire_lab.demo.standalone import Standalone
from vipwire_lab.namespaces.topology import make_topology
from vipwire_up.announcing.choose import choose_machine

pytestmark = [pytest.mark.kernel, pytest.mark.slow]
ANNOUNCED = ("--announce-interface", "lan0")
FLAGS = ("--node-name", "node-1", "--bind-address", "0.0.0.0", "--no-dns", *ANNOUNCED)
POOL = [f"10.0.0.{number}" for number in range(64, 80)]
MOVING = next(each for each in POOL if choose_machine(each, ("node-1", "node-2")) == "node-2")


class Machine:
    """`vipwire join` on a node of a lab."""

    def __init__(self, lab: Lab, node: str, folder: Path) -> None:
        self.lab, self.node, self.folder = lab, node, folder
        self.process: Listened | None = None

    def vipwire(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return self.lab.run(self.node, [sys.executable, "-m", "vipwire", *words], check=False, timeout=PATIENCE)

    def start(self, *words: str) -> None:
        command = [sys.executable, "-m", "vipwire", "join", *words, "--data-dir", str(self.folder)]
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True, "stderr": subprocess.STDOUT}
        self.process = Listened("vipwire join", self.lab.popen(self.node, command, **options))
        self.process.wait_until(lambda said: any(line.startswith("joined as") for line in said), PATIENCE)

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        assert self.process
        return self.process.end_process(PATIENCE, how)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Lab(make_topology((2, 1), lan=True)) as lab:
        here = Standalone(lab, "node-1", tmp_path_factory.mktemp("up"), CLIENTS[-1])
        here.start(*FLAGS, "--load-balancer-range", "10.0.0.64/28")
        yield Cluster(lab, here)
        assert here.process
        assert here.process.end_process(PATIENCE) == 0


def nodes(cluster: Cluster) -> dict[str, str]:
    found = json.loads(cluster.here.kubectl("get", "nodes", "-o", "json"))
    return {
        each["metadata"]["name"]: condition["status"]
        for each in found["items"]
        for condition in each["status"].get("conditions", ())  # a machine that has just got its certificate has none
        if condition["type"] == "Ready"
    }


def holder(cluster: Cluster) -> str:
    """Tell who has the address that moves, as the cluster and as the client's neighbour table say it."""
    lease = f"vipwire-address-{MOVING.replace('.', '-')}"
    found = cluster.here.kubectl("get", "lease", lease, "-n", "kube-system", "-o", "jsonpath={.spec.holderIdentity}")
    neighbour = cluster.lab.run("client", ["ip", "neigh", "show", MOVING]).stdout
    link = cluster.lab.run(found or "node-1", ["ip", "-br", "link"])
    hardware = next(line.split()[2] for line in link.stdout.splitlines() if line.startswith("lan0"))
    return found if hardware in neighbour else f"{found}, but the client says {neighbour}"


def test_it_joins_serves_is_lost_comes_back_and_leaves(cluster: Cluster, tmp_path: Path) -> None:
    address, _ = cluster.applied("web", 8101)
    machine = Machine(cluster.lab, "node-2", tmp_path / "node-2")
    made = machine_on(cluster, "token", "create", "--ttl", "1h")
    words = shlex.split(made)
    assert words[:3] == ["vipwire", "join", "https://192.168.0.1:6443"]
    machine.start(*words[2:], "--node-name", "node-2", "--node-lease-seconds", "2", *ANNOUNCED)
    until(lambda: nodes(cluster), {"node-1": "True", "node-2": "True"})
    cluster.until("pod-2a", address, names())  # by the rules of its own node

    single = {"ipFamilyPolicy": "SingleStack"}
    cluster.applied("front", 8102, type="LoadBalancer", loadBalancerIP=MOVING, **single)
    cluster.until("client", MOVING, names())
    until(lambda: holder(cluster), "node-2")

    there = cluster.lab.topology.pods[-1]
    machine.end(signal.SIGKILL)
    until(lambda: nodes(cluster), {"node-1": "True", "node-2": "Unknown"})
    cluster.until("pod-1a", address, names(there))
    until(lambda: holder(cluster), "node-1")
    cluster.until("client", MOVING, names(there))
    known = (machine.folder / "ingress.kubeconfig").read_text()
    machine.start("--node-lease-seconds", "2", *ANNOUNCED)
    assert (machine.folder / "ingress.kubeconfig").read_text() == known  # who has read it goes on with it
    until(lambda: nodes(cluster), {"node-1": "True", "node-2": "True"})
    cluster.until("pod-1a", address, names())
    cluster.until("pod-2a", address, names())
    until(lambda: holder(cluster), "node-2")

    left = machine.vipwire("leave", "--data-dir", str(machine.folder))
    assert (left.returncode, left.stdout.splitlines()[-1:]) == (0, ["Node node-2 has left"]), left.stderr
    assert machine.process
    assert machine.process.end_process(PATIENCE, signal.SIGCONT) == 0, "leave has ended it"
    assert nodes(cluster) == {"node-1": "True"}
    until(lambda: holder(cluster), "node-1")
    assert cluster.lab.run("node-2", ["nft", "list", "tables"]).stdout == ""
    assert not list(machine.folder.rglob("*.key"))


def machine_on(cluster: Cluster, *words: str) -> str:
    """Run a command of vipwire on the node with the API server."""
    folder = cluster.here.folder
    command = [sys.executable, "-m", "vipwire", *words, "--data-dir", str(folder)]
    return cluster.lab.run("node-1", command).stdout.strip()
