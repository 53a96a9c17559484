"""Refused, dropped, passed on: what becomes of those whom no endpoint answers."""

from typing import Any

import pytest
from tests.fakes.waiting import until
from tests.proxy.conformance.cluster import POD_CIDRS, Cluster
from tests.proxy.conformance.conftest import ClusterWith
from tests.proxy.conformance.packets import NODE, OUTSIDE, POD, REMOTE_POD, Caller
from tests.proxy.conformance.sentences import sentence
from tests.proxy.conformance.services import CLUSTER_IP, EXTERNAL_IP, FRONTENDS, LOAD_BALANCER, NODE_PORT

from vipwire.model.net import Family, Protocol
from vipwire.plan.plan import FrontendKind
from vipwire_lab.cluster.manifests import Backend, Port
from vipwire_lab.cluster.outcome import Target

pytestmark = pytest.mark.conformance

CALLERS = pytest.mark.parametrize("caller", [POD, NODE, OUTSIDE], ids=str)
PORTS = [Port(80, protocol=protocol, name=protocol.label) for protocol in Protocol]


@pytest.mark.parametrize(
    "index",
    [
        pytest.param(0, marks=sentence("S50", "S51"), id="tcp"),
        pytest.param(1, marks=sentence("S50", "S52"), id="udp"),
        pytest.param(2, marks=sentence("S50", "S52"), id="sctp"),
    ],
)
@FRONTENDS
@CALLERS
def test_without_endpoints_everybody_is_refused_at_once(
    cluster: Cluster, family: Family, caller: Caller, kind: FrontendKind, index: int
) -> None:
    assert [port.protocol for port in PORTS] == [Protocol.TCP, Protocol.UDP, Protocol.SCTP]
    empty = cluster.service("empty", [], PORTS)
    cluster.refused(caller, empty.at(kind, family, index))


@sentence("S50")
@pytest.mark.parametrize("policy", ["internalTrafficPolicy", "externalTrafficPolicy"])
@FRONTENDS
def test_a_local_policy_refuses_as_well_where_there_is_nobody_anywhere(
    cluster: Cluster, family: Family, kind: FrontendKind, policy: str
) -> None:
    pods = [Backend(pod, ready=False) for pod in cluster.pods("pod-1a", "pod-2a")]
    spec: dict[str, Any] = {policy: "Local"}
    empty = cluster.service(f"empty-{policy[:8]}", pods, **spec)
    for caller in (POD, NODE, OUTSIDE):
        cluster.refused(caller, empty.at(kind, family))


@sentence("S50")
def test_a_remote_pod_is_refused_at_a_node_port(cluster: Cluster, family: Family) -> None:
    cluster.refused(REMOTE_POD, cluster.service("empty", [], PORTS).at(NODE_PORT, family))


@sentence("S53")
@pytest.mark.parametrize("protocol", list(Protocol), ids=lambda protocol: protocol.label)
@CALLERS
def test_a_cluster_ip_refuses_ports_it_has_not(
    cluster: Cluster, family: Family, caller: Caller, protocol: Protocol
) -> None:
    web = cluster.service("web", cluster.pods("pod-1a", "pod-2a"))
    cluster.answered(caller, web.vip(family), ["pod-1a", "pod-2a"])
    cluster.refused(caller, Target(web.address(CLUSTER_IP, family), 8443, protocol))


@sentence("S54")
@CALLERS
def test_a_cluster_ip_refuses_another_protocol(cluster: Cluster, family: Family, caller: Caller) -> None:
    web = cluster.service("web", cluster.pods("pod-1a", "pod-2a"))
    for protocol in (Protocol.UDP, Protocol.SCTP):
        cluster.refused(caller, Target(web.address(CLUSTER_IP, family), 80, protocol))
    dns = cluster.service("only-udp", cluster.pods("pod-1a"), [Port(80, protocol=Protocol.UDP)])
    cluster.refused(caller, Target(dns.address(CLUSTER_IP, family), 80, Protocol.TCP))


@sentence("S55")
@pytest.mark.parametrize("protocol", list(Protocol), ids=lambda protocol: protocol.label)
@CALLERS
def test_a_cluster_ip_that_nobody_has_is_dropped(
    cluster: Cluster, family: Family, caller: Caller, protocol: Protocol
) -> None:
    nobody = cluster.named("never-written").vip(family)
    cluster.dropped(caller, Target(nobody.address, 80, protocol))


@sentence("S56")
@CALLERS
def test_without_a_service_cidr_it_is_passed_on(cluster_with: ClusterWith, family: Family, caller: Caller) -> None:
    cluster = cluster_with([POD_CIDRS, "--feature-gates=AllowServiceExternalIPs=false"], cidrs=False)
    cluster.passed_on(caller, cluster.named("never-written").vip(family))


@sentence("S57")
@pytest.mark.parametrize("kind", [EXTERNAL_IP, LOAD_BALANCER], ids=lambda kind: kind.value)
@CALLERS
def test_other_ports_of_an_external_address_are_passed_on(
    cluster: Cluster, family: Family, caller: Caller, kind: FrontendKind
) -> None:
    web = cluster.service("web", cluster.pods("pod-1a", "pod-2a"))
    cluster.passed_on(caller, Target(web.address(kind, family), 8443))
    cluster.passed_on(caller, Target(web.address(kind, family), 80, Protocol.UDP))


@sentence("S58")
@pytest.mark.parametrize("caller", [POD, NODE, OUTSIDE, REMOTE_POD], ids=str)
def test_other_ports_of_the_node_are_its_own(cluster: Cluster, family: Family, caller: Caller) -> None:
    cluster.service("web", cluster.pods("pod-1a", "pod-2a"))
    node = cluster.lab.address_of("node-1", family)
    cluster.lab.stop_echo_servers("node-1", [9100])
    cluster.refused(caller, Target(node, 9100))
    cluster.lab.start_echo_servers("node-1", [9100], [Protocol.TCP])
    cluster.answered(caller, Target(node, 9100), ["node-1"], masqueraded=False)


@sentence("S68")
@pytest.mark.parametrize("caller", [POD, NODE, OUTSIDE, REMOTE_POD], ids=str)
def test_a_node_port_is_served_at_the_primary_address(cluster: Cluster, family: Family, caller: Caller) -> None:
    web = cluster.service("web", cluster.pods("pod-1a", "pod-2a"))
    cluster.answered(caller, web.at(NODE_PORT, family), ["pod-1a", "pod-2a"], masqueraded=True)
    cluster.refused(caller, Target(second(cluster, family), web.node_port()))


@sentence("S69")
@pytest.mark.parametrize("caller", [POD, OUTSIDE, REMOTE_POD], ids=str)
def test_a_node_port_is_served_where_the_ranges_say(
    cluster_with: ClusterWith, family: Family, caller: Caller
) -> None:
    cluster = cluster_with([POD_CIDRS, "--nodeport-addresses=192.168.1.0/24,fd00:192:168:1::/64"])
    web = cluster.service("web", cluster.pods("pod-1a", "pod-2a"))
    cluster.answered(caller, Target(second(cluster, family), web.node_port()), ["pod-1a", "pod-2a"], masqueraded=True)
    cluster.refused(caller, web.at(NODE_PORT, family))


def _is_own(cluster: Cluster, address: str) -> bool:
    route = cluster.lab.run("node-1", ["ip", "route", "get", address], check=False)
    return route.stdout.startswith("local ")


@sentence("S69")
def test_an_address_that_comes_later_serves_too(cluster_with: ClusterWith, family: Family) -> None:
    cluster = cluster_with([POD_CIDRS, "--nodeport-addresses=192.168.1.0/24,fd00:192:168:1::/64"])
    web = cluster.service("web", cluster.pods("pod-1a", "pod-2a"))
    address = "192.168.1.77" if family is Family.IPV4 else "fd00:192:168:1::77"
    alias = [f"{address}/{family.bits}", "dev", "lo"]
    cluster.lab.run("node-1", ["ip", "address", "add", *alias, "nodad"])
    try:
        target = Target(address, web.node_port())
        until(lambda: _is_own(cluster, address), "the kernel has it: IPv6 is given its route some time later")
        until(lambda: cluster.probe(NODE, target)[0].answer, "the proxy has heard of it, where it has to")
        for caller in (NODE, POD):
            cluster.answered(caller, target, ["pod-1a", "pod-2a"])
    finally:
        cluster.lab.run("node-1", ["ip", "address", "del", *alias])


@sentence("S70")
@pytest.mark.parametrize("caller", [POD, NODE, OUTSIDE, REMOTE_POD], ids=str)
def test_a_node_port_is_served_at_all_addresses(cluster_with: ClusterWith, family: Family, caller: Caller) -> None:
    cluster = cluster_with([POD_CIDRS, "--nodeport-addresses=0.0.0.0/0,::/0"])
    web = cluster.service("web", cluster.pods("pod-1a", "pod-2a"))
    for address in (cluster.lab.address_of("node-1", family), second(cluster, family)):
        cluster.answered(caller, Target(address, web.node_port()), ["pod-1a", "pod-2a"], masqueraded=True)


@sentence("S71")
@pytest.mark.parametrize("addresses", ["primary", "0.0.0.0/0,::/0"])
def test_a_node_port_is_never_served_on_loopback(cluster_with: ClusterWith, family: Family, addresses: str) -> None:
    cluster = cluster_with(
        [POD_CIDRS] if addresses == "primary" else [POD_CIDRS, f"--nodeport-addresses={addresses}"]
    )
    web = cluster.service("web", cluster.pods("pod-1a", "pod-2a"))
    for loopback in ["127.0.0.1", "127.9.9.9"] if family is Family.IPV4 else ["::1"]:
        cluster.refused(Caller("node-1", address=loopback), Target(loopback, web.node_port()))


def second(cluster: Cluster, family: Family) -> str:
    """Tell the node's secondary address."""
    return cluster.address(NODE, family)
