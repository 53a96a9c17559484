"""Node ports that programs serve: for whom, at which addresses, and what they leave to the rules.

That the programs did it is asked of their counters, as in `test_translated`.
"""

import socket

import pytest
from tests.fakes.waiting import until
from tests.proxy.conformance.cluster import POD_CIDRS, Cluster
from tests.proxy.conformance.conftest import ClusterWith
from tests.proxy.conformance.packets import NODE, POD
from tests.proxy.conformance.services import NODE_PORT
from tests.proxy.conformance.test_translated import (
    MANY,
    PODS,
    PORTS,
    UDP,
    asked,
    connected,
    counted,
    exchanged,
    knocked,
    opened,
    say_hello,
    told,
)
from tests.proxy.conformance.translated import look

from vipwire.model.net import Family
from vipwire_lab.cluster.manifests import Port
from vipwire_lab.cluster.outcome import Target

pytestmark = [pytest.mark.conformance, pytest.mark.direct]

CALLERS = [
    pytest.param(NODE.host, "Cluster", id="the node"),
    pytest.param(NODE.host, "Local", id="the node, Local"),
    pytest.param(POD.host, "Local", id="a Pod, Local"),
]


@pytest.mark.parametrize(("host", "policy"), CALLERS)
def test_a_node_port_is_reached_directly(
    cluster: Cluster, family: Family, host: str, policy: str, *, mapped: bool
) -> None:
    served = cluster.service(
        f"direct-port-{policy.lower()}", cluster.pods(*PODS), PORTS, externalTrafficPolicy=policy
    )
    stream, loose = (served.at(NODE_PORT, family, index) for index in (0, 1))
    before, seen = [counted(cluster, each) for each in (stream, loose)], set()
    for _ in range(MANY):
        with opened(cluster, host, socket.SOCK_STREAM, family, mapped=mapped) as connection:
            connection.connect(told(stream, mapped=mapped))
            assert connection.getpeername()[:2] == told(stream, mapped=mapped)
            answer = say_hello(connection)
            assert answer.saw.address == cluster.lab.address_of(host, family)
            seen.add(answer.pod)
        with opened(cluster, host, socket.SOCK_DGRAM, family, mapped=mapped) as datagrams:
            answer, source = asked(datagrams, told(loose, mapped=mapped))
            assert (answer.saw.address, source) == (cluster.lab.address_of(host, family), told(loose, mapped=mapped))
    assert seen == set(PODS)
    assert [counted(cluster, each) for each in (stream, loose)] == [number + MANY for number in before]


def test_a_contested_node_port_is_left_to_the_rules_until_it_is_contested_no_more(
    cluster: Cluster, family: Family
) -> None:
    """Rules serve an external IP at the node, and the node port behind it while that has no endpoint."""
    number = 31997
    behind = cluster.named("direct-behind", [Port(80, node_port=number)])
    cluster.put(behind.name, behind.objects(cluster.pods("pod-1a")))
    front = cluster.named("direct-front", [Port(number, 80)])
    target = behind.at(NODE_PORT, family)
    addresses = [cluster.lab.address_of("node-1", each) for each in Family]

    def reached(*, directly: bool) -> str:
        before = counted(cluster, target)
        pods = {knocked(cluster, NODE.host, target) for _ in range(4)}
        assert bool(look(cluster.lab, cluster.node_name, target).held) is directly
        assert counted(cluster, target) == before + 4 * directly
        return pods.pop() if len(pods) == 1 else ""

    assert reached(directly=True) == "pod-1a"
    for pods in (["pod-2a"], [], ["pod-2a"]):
        cluster.put(front.name, front.objects(cluster.pods(*pods), externalIPs=addresses))
        assert reached(directly=False) == (pods or ["pod-1a"])[0]
    cluster.put(front.name, [])
    assert reached(directly=True) == "pod-1a"


def test_a_node_port_is_reached_directly_at_an_address_while_the_node_has_it(
    cluster_with: ClusterWith, family: Family
) -> None:
    cluster = cluster_with([POD_CIDRS, "--nodeport-addresses=0.0.0.0/0,::/0"])
    served = cluster.service("direct-port", cluster.pods("pod-2a")).at(NODE_PORT, family)
    target = Target("192.168.1.78" if family is Family.IPV4 else "fd00:192:168:1::78", served.port)
    alias = [f"{target.address}/{family.bits}", "dev", "lo"]
    assert not look(cluster.lab, cluster.node_name, target).held
    cluster.lab.run("node-1", ["ip", "address", "add", *alias, "nodad"])
    try:
        until(lambda: look(cluster.lab, cluster.node_name, target).held, "the programs know the address")
        before = counted(cluster, target)
        assert knocked(cluster, NODE.host, target) == "pod-2a"
        assert counted(cluster, target) == before + 1
    finally:
        cluster.lab.run("node-1", ["ip", "address", "del", *alias])
    until(lambda: not look(cluster.lab, cluster.node_name, target).held, "the programs have heard that it is gone")
    assert look(cluster.lab, cluster.node_name, served).held


def test_connected_datagram_sockets_at_a_node_port_are_left_to_the_rules(connecting: Cluster, family: Family) -> None:
    """An endpoint's going is told of the node port, and the address might have been claimed by somebody meanwhile."""
    target = connecting.service("direct-udp-port", connecting.pods(*PODS), [UDP]).at(NODE_PORT, family)
    before = counted(connecting, target)
    with connected(connecting, NODE.host, told(target)) as datagrams:
        assert exchanged(datagrams)[0] in PODS
    assert counted(connecting, target) == before
    with opened(connecting, NODE.host, socket.SOCK_DGRAM, family) as loose:
        asked(loose, told(target))
    assert counted(connecting, target) == before + 1
