"""loadBalancerSourceRanges: who is let in at a load balancer's address, and where they do not count."""

import pytest
from tests.proxy.conformance.cluster import Cluster
from tests.proxy.conformance.packets import BLOCKED, NODE, OUTSIDE, PATIENCE, POD, Caller
from tests.proxy.conformance.sentences import sentence
from tests.proxy.conformance.services import CLUSTER_IP, EXTERNAL_IP, LOAD_BALANCER, NODE_PORT, LabService

from vipwire.model.net import Family, Protocol
from vipwire.plan.plan import FrontendKind
from vipwire_lab.cluster.manifests import Port

pytestmark = pytest.mark.conformance

PODS = ("pod-1a", "pod-2a")
CLIENTS = ["203.0.113.0/25", "2001:db8:113::/121"]
"""203.0.113.2 and 2001:db8:113::2 are inside, .130 and ::130 are not."""
NODES = ["192.168.0.0/16", "fd00:192:168::/48"]


def guarded(cluster: Cluster, name: str, *ranges: str, protocol: Protocol = Protocol.TCP) -> LabService:
    return cluster.service(
        name, cluster.pods(*PODS), [Port(80, protocol=protocol)], loadBalancerSourceRanges=list(ranges)
    )


@sentence("S59", "S60")
@pytest.mark.parametrize("protocol", list(Protocol), ids=lambda protocol: protocol.label)
def test_only_sources_in_the_ranges_are_answered(cluster: Cluster, family: Family, protocol: Protocol) -> None:
    target = guarded(cluster, f"guarded-{protocol.label}", *CLIENTS, protocol=protocol).at(LOAD_BALANCER, family)
    cluster.answered(OUTSIDE, target, PODS, masqueraded=True)
    for caller in (BLOCKED, POD, NODE):
        cluster.dropped(caller, target)


@sentence("S60")
def test_without_endpoints_only_sources_in_the_ranges_are_told(cluster: Cluster, family: Family) -> None:
    empty = cluster.service("guarded-empty", [], loadBalancerSourceRanges=CLIENTS).at(LOAD_BALANCER, family)
    cluster.refused(OUTSIDE, empty)
    for caller in (BLOCKED, POD, NODE):
        cluster.dropped(caller, empty)


@sentence("S61")
@pytest.mark.parametrize("kind", [CLUSTER_IP, EXTERNAL_IP, NODE_PORT], ids=lambda kind: kind.value)
@pytest.mark.parametrize("caller", [BLOCKED, POD, NODE], ids=str)
def test_other_frontends_are_open_to_all(
    cluster: Cluster, family: Family, kind: FrontendKind, caller: Caller
) -> None:
    cluster.answered(caller, guarded(cluster, "guarded-tcp", *CLIENTS).at(kind, family), PODS)


@sentence("S62")
def test_the_node_is_answered_if_its_address_is_in_a_range(cluster: Cluster, family: Family) -> None:
    target = guarded(cluster, "guarded-nodes", *NODES).at(LOAD_BALANCER, family)
    cluster.answered(NODE, target, PODS, masqueraded=True)
    for caller in (OUTSIDE, POD):
        cluster.dropped(caller, target)


@sentence("S63")
def test_a_load_balancers_own_address_may_send_where_the_node_may(cluster: Cluster, family: Family) -> None:
    """Clouds give the node the load balancer's address: then what runs on it connects from that address to it."""
    with_node = guarded(cluster, "guarded-with-node", *NODES, *CLIENTS).at(LOAD_BALANCER, family)
    without = guarded(cluster, "guarded-without-node", *CLIENTS).at(LOAD_BALANCER, family)
    for target, expected in ((with_node, set(PODS)), (without, {""})):
        alias = [f"{target.address}/{family.bits}", "dev", "lo"]
        cluster.lab.run("node-1", ["ip", "address", "add", *alias, "nodad"])
        try:
            cluster.write()  # the proxy has heard of the address, where that matters, when this counts
            patience = PATIENCE if target is with_node else 0.5
            results = cluster.probe(Caller("node-1", address=target.address), target, 24, timeout=patience)
        finally:
            cluster.lab.run("node-1", ["ip", "address", "del", *alias])
        assert {result.pod for result in results} == expected


@sentence("S64")
@pytest.mark.parametrize("ranges", [["0.0.0.0/0", "::/0"], [*CLIENTS, "0.0.0.0/0", "::/0"]], ids=["alone", "among"])
def test_a_range_of_length_zero_lets_everyone_in(cluster: Cluster, family: Family, ranges: list[str]) -> None:
    target = guarded(cluster, f"open-{len(ranges)}", *ranges).at(LOAD_BALANCER, family)
    for caller in (OUTSIDE, BLOCKED, POD, NODE):
        cluster.answered(caller, target, PODS)


@sentence("S65")
def test_ranges_of_one_family_say_nothing_about_the_other(cluster: Cluster, family: Family) -> None:
    ours, other = CLIENTS if family is Family.IPV4 else reversed(CLIENTS)
    target = guarded(cluster, f"half-{family.value.lower()}", ours).at(LOAD_BALANCER, family)
    cluster.answered(OUTSIDE, target, PODS)
    cluster.dropped(BLOCKED, target)
    target = guarded(cluster, f"other-half-{family.value.lower()}", other).at(LOAD_BALANCER, family)
    cluster.answered(BLOCKED, target, PODS)


@sentence("S66")
def test_spaces_around_a_range_do_not_matter(cluster: Cluster, family: Family) -> None:
    target = guarded(cluster, "spaced", *(f"  {each} " for each in CLIENTS)).at(LOAD_BALANCER, family)
    cluster.answered(OUTSIDE, target, PODS)
    cluster.dropped(BLOCKED, target)


@sentence("S67")
def test_ranges_that_are_all_invalid_open_nothing(cluster: Cluster, family: Family) -> None:
    service = guarded(cluster, "mistaken", "203.0.113.0/99", "anyone")
    for caller in (OUTSIDE, BLOCKED, POD):
        cluster.passed_on(caller, service.at(LOAD_BALANCER, family))
        cluster.answered(caller, service.vip(family), PODS)
