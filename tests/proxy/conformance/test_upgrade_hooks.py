"""From a table whose nat chains have iptables' priorities, as earlier versions wrote it, while connections are made.

The kernel changes no priority of a base chain: vipwire replaces the chains, in one transaction.
"""

import json
import re

import pytest
from tests.proxy.conformance.cluster import Cluster
from tests.proxy.conformance.packets import NODE, OUTSIDE, POD
from tests.proxy.conformance.sentences import sentence
from tests.proxy.conformance.services import CLUSTER_IP, EXTERNAL_IP, NODE_PORT
from tests.proxy.conformance.traffic import check_nothing_lost, check_open, pass_some, traffic

from vipwire.model.net import Family, Protocol
from vipwire_lab.cluster.manifests import Port

pytestmark = pytest.mark.conformance

TABLES = {Family.IPV4: "ip vipwire", Family.IPV6: "ip6 vipwire"}
BEFORE = {
    "nat-prerouting": -100,
    "nat-output": -100,
    "nat-input": 100,
    "nat-postrouting": 100,
    "nat-prerouting-ranges": -99,
    "nat-output-ranges": -99,
    "nat-postrouting-ranges": 101,
}
"""The chains of nat, and where they were."""
PORTS = (Port(80, name="http"), Port(81, 80, Protocol.UDP, name="datagrams"))
WAYS = (
    (POD.host, CLUSTER_IP, 0),
    (NODE.host, CLUSTER_IP, 0),
    (OUTSIDE.host, NODE_PORT, 0),
    (OUTSIDE.host, EXTERNAL_IP, 0),
    (POD.host, CLUSTER_IP, 1),
    (OUTSIDE.host, NODE_PORT, 1),
)
PODS = ("pod-1a", "pod-2a")
RANGE = {"vipwire.io/port-range": "10000-10099"}


def priorities(cluster: Cluster, family: Family) -> dict[str, int]:
    """Read the priorities of the nat chains."""
    listed = cluster.lab.run(cluster.node_name, ["nft", "-j", "list", "table", *TABLES[family].split()]).stdout
    chains = (each["chain"] for each in json.loads(listed)["nftables"] if "chain" in each)
    return {chain["name"]: chain["prio"] for chain in chains if chain.get("type") == "nat"}


def restore(cluster: Cluster) -> None:
    """Write the nat chains as they were before, with the same rules."""
    script = []
    for family, table in TABLES.items():
        for name, priority in BEFORE.items():
            listed = cluster.lab.run(cluster.node_name, ["nft", "list", "chain", *table.split(), name]).stdout
            script += [f"flush chain {table} {name}", f"delete chain {table} {name}"]
            script.append(re.sub(r"priority [^;]+;", f"priority {priority};", listed))
        assert priorities(cluster, family).keys() == BEFORE.keys()
    cluster.lab.run(cluster.node_name, ["nft", "-f", "-"], input="\n".join(script))


def counted(cluster: Cluster, name: str) -> int:
    """Tell how many connections of a Service were counted."""
    said = cluster.proxy.vipwire("status", name, "-o", "json", *cluster.proxy.flags)
    found: int = json.loads(said)["services"][0]["ports"][0]["counts"]["connections"]
    return found


@sentence("S111")
def test_chains_move_to_the_front_and_no_connection_fails(restless: Cluster) -> None:
    if restless.mode.name not in ("nftables", "ebpf"):
        pytest.skip(f"{restless.mode} has nothing of that kind")
    service = restless.service("moved", restless.pods(*PODS), PORTS)
    wide = restless.named("wide", [Port(10000, 80)])
    made, *slices = wide.objects(restless.pods("pod-1a"))
    made["metadata"]["annotations"] = RANGE
    restless.put("wide", [made, *slices])
    sticky = restless.service("sticky", restless.pods(*PODS), sessionAffinity="ClientIP")
    now = {family: priorities(restless, family) for family in Family}
    assert all(now[family][name] < priority for family in Family for name, priority in BEFORE.items())
    held = {family: restless.sticks(OUTSIDE, sticky.at(NODE_PORT, family)) for family in Family}
    restless.proxy.stop()
    restore(restless)
    assert all(priorities(restless, family) == BEFORE for family in Family)
    opened = [
        restless.lab.connect(host, target.address, target.port, target.protocol)
        for family in Family
        for host, kind, port in WAYS
        for target in [service.at(kind, family, port)]
    ]
    try:
        with traffic(restless.lab, service, WAYS, interval=0.002) as streams:
            pass_some(streams, 20)
            since, before = len(restless.proxy.log), counted(restless, "moved")
            restless.proxy.start()
            pass_some(streams, 20)
        check_nothing_lost(restless.lab, streams, restless.pods(*PODS))
        check_open(opened)
    finally:
        for connection in opened:
            connection.close()
    assert {family: priorities(restless, family) for family in Family} == now
    for family in Family:
        restless.answered(OUTSIDE, wide.at(EXTERNAL_IP, family), ["pod-1a"])
        assert restless.sticks(OUTSIDE, sticky.at(NODE_PORT, family)) == held[family], "still remembered"
        writing = [
            line
            for line in restless.proxy.log[since:].splitlines()
            if "msg=synced" in line and f"ip_family={family.value}" in line and "changed=0" not in line
        ]
        assert len(writing) == 1, "one transaction"
    assert counted(restless, "moved") > before > 0, "counters go on"
    restless.put("wide", [])
    restless.put("sticky", [])
