"""Joined machines on bad days: another takes the name of one that is cut off and comes back; an address changes."""

import json
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.up.kernel.test_cluster_join import ANNOUNCED, FLAGS, MOVING, Machine, holder, machine_on, nodes
from tests.up.kernel.test_cluster_up_packets import PATIENCE, Cluster, names, until
from tests.up.unit.cluster_process import CLIENTS

from vipwire_lab.cluster.cluster import Lab
from vipwire_lab.demo.standalone import Standalone
from vipwire_lab.namespaces import links
from vipwire_lab.namespaces.topology import UNDERLAY, make_topology

pytestmark = [pytest.mark.kernel, pytest.mark.slow]
QUICK = ("--node-lease-seconds", "2", *ANNOUNCED)
REJECTED = "or another machine joined under its name (vipwire leave --force, then join with another token)"
UNPLUGGED = "add table inet cable; add chain inet cable {0} {{ type filter hook {0} priority -400; policy drop; }}; "
LOOPBACK = "add rule inet cable {0} meta {1} lo accept"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Lab(make_topology((2, 1, 1), lan=True)) as lab:
        here = Standalone(lab, "node-1", tmp_path_factory.mktemp("up"), CLIENTS[-1])
        here.start(*FLAGS, "--load-balancer-range", "10.0.0.64/28")
        yield Cluster(lab, here)
        assert here.process
        assert here.process.end_process(PATIENCE) == 0


def joined(cluster: Cluster, folder: Path, host: str, *words: str) -> Machine:
    made = shlex.split(machine_on(cluster, "token", "create", "--ttl", "1h"))
    machine = Machine(cluster.lab, host, folder / host)
    machine.start(*made[2:], "--node-name", "node-2", *QUICK, *words)
    until(lambda: nodes(cluster), {"node-1": "True", "node-2": "True"})
    return machine


def plug(cluster: Cluster, host: str, *, in_: bool) -> None:
    """Connect a machine to its networks, or cut it off."""
    state = "up" if in_ else "down"
    hooks = (("input", "iif"), ("output", "oif"))
    lines = ["delete table inet cable"] if in_ else [f"{UNPLUGGED}{LOOPBACK}".format(*hook) for hook in hooks]
    cluster.lab.run(UNDERLAY, ["ip", "link", "set", links.lan_port_name(host), state])
    cluster.lab.run(host, ["nft", "; ".join(lines)])


def addresses(cluster: Cluster) -> tuple[list[str], str]:
    """Return the Node's internal addresses, and the addresses in its annotation."""
    node: dict[str, Any] = json.loads(cluster.here.kubectl("get", "node", "node-2", "-o", "json"))
    own = [each["address"] for each in node["status"]["addresses"] if each["type"] == "InternalIP"]
    return own, node["metadata"]["annotations"]["vipwire.io/addresses"]


def moves(cluster: Cluster) -> int:
    words = ("get", "events", "-A", "--field-selector=reason=AddressAnnounced", "-o", "json")
    return sum(each.get("count", 1) for each in json.loads(cluster.here.kubectl(*words))["items"])


def test_a_machine_that_comes_back_after_another_took_its_name_has_none(cluster: Cluster, tmp_path: Path) -> None:
    cluster.applied("front", 8102, type="LoadBalancer", loadBalancerIP=MOVING, ipFamilyPolicy="SingleStack")
    first = joined(cluster, tmp_path, "node-2")
    until(lambda: addresses(cluster)[0][0], "192.168.0.2")
    plug(cluster, "node-2", in_=False)
    until(lambda: nodes(cluster), {"node-1": "True", "node-2": "Unknown"})
    second = joined(cluster, tmp_path, "node-3")
    until(lambda: addresses(cluster)[0][0], "192.168.0.3")
    until(lambda: lease_of(cluster), "node-2")
    before = moves(cluster)
    plug(cluster, "node-2", in_=True)
    assert first.process
    said = first.process.wait_until(lambda lines: any(REJECTED in line for line in lines), PATIENCE)
    assert sum(REJECTED in line for line in said) == 1
    for _ in range(20):
        assert addresses(cluster)[0][0] == "192.168.0.3"
        assert {each.pod for each in cluster.lab.probe("client", MOVING, 80, count=10)} <= names()
        assert hardware(cluster) == lan0(cluster, "node-3")
    assert moves(cluster) == before
    first.end(signal.SIGKILL)
    leave(second)


def leave(machine: Machine) -> None:
    assert machine.vipwire("leave", "--data-dir", str(machine.folder)).returncode == 0
    assert machine.process
    assert machine.process.end_process(PATIENCE, signal.SIGCONT) == 0


def lease_of(cluster: Cluster) -> str:
    return holder(cluster).partition(",")[0]


def lan0(cluster: Cluster, host: str) -> str:
    return str(json.loads(cluster.lab.run(host, ["ip", "-j", "link", "show", "lan0"]).stdout)[0]["address"])


def hardware(cluster: Cluster) -> str:
    """Return the Ethernet address to which the client sends packets for the address that moves."""
    cluster.lab.run("client", ["ip", "neigh", "flush", "to", MOVING])
    cluster.lab.probe("client", MOVING, 80, count=1)
    return str(json.loads(cluster.lab.run("client", ["ip", "-j", "neigh", "show", MOVING]).stdout)[0]["lladdr"])


def test_the_node_of_a_joined_machine_follows_its_addresses(cluster: Cluster, tmp_path: Path) -> None:
    lan = cluster.lab.topology.lan_addresses("node-2")[0]
    machine = joined(cluster, tmp_path, "node-2", "--node-ip", lan.partition("/")[0])
    until(lambda: addresses(cluster)[0][0], "10.0.0.2")
    cluster.lab.run("node-2", ["ip", "address", "add", "10.0.0.22/24", "dev", "lan0"])
    until(lambda: "10.0.0.22" in addresses(cluster)[1].split(","), wanted=True)
    assert addresses(cluster)[0][0] == "10.0.0.2"
    cluster.lab.run("node-2", ["ip", "address", "del", lan, "dev", "lan0"])
    until(lambda: addresses(cluster)[0][0], "192.168.0.2")
    until(lambda: "10.0.0.2" in addresses(cluster)[1].split(","), wanted=False)
    cluster.lab.run("node-2", ["ip", "address", "add", lan, "dev", "lan0"])
    until(lambda: addresses(cluster)[0][0], "10.0.0.2")
    leave(machine)
