"""What sockets see whose connections are translated when they connect: in the manners that the other tests lack.

That the programs did it is asked of their counters; that nftables did, by these not having grown.
"""

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from tests.fakes.waiting import until
from tests.proxy.conformance import own_cgroup
from tests.proxy.conformance.cluster import Cluster
from tests.proxy.conformance.packets import NODE, POD, Caller, family_of
from tests.proxy.conformance.services import CLUSTER_IP, EXTERNAL_IP, LOAD_BALANCER, NODE_PORT, LabService
from tests.proxy.conformance.test_ejection import Ejecting, closed
from tests.proxy.conformance.translated import look

from vipwire.model.net import Family, Protocol
from vipwire_lab.cluster.manifests import Port
from vipwire_lab.cluster.outcome import Target
from vipwire_lab.echo_servers.answer import HELLO, Answer

pytestmark = [pytest.mark.conformance, pytest.mark.direct]

PODS = ("pod-1a", "pod-2a")
UDP = Port(53, 80, Protocol.UDP)
PORTS = (Port(80, name="http"), Port(53, 80, Protocol.UDP, "dns"))
MANY = 24


@contextmanager
def opened(
    cluster: Cluster, host: str, kind: socket.SocketKind, family: Family, *, mapped: bool = False
) -> Iterator[socket.socket]:
    """Open a socket on a host that is bound to nothing."""
    with cluster.lab.enter_namespace(host):
        found = socket.socket(socket.AF_INET6 if mapped or family is Family.IPV6 else socket.AF_INET, kind)
    with found:
        found.settimeout(15)
        yield found


def told(target: Target, *, mapped: bool = False) -> tuple[str, int]:
    """Write a Service's address as a socket takes and tells it."""
    return f"::ffff:{target.address}" if mapped else target.address, target.port


def say_hello(stream: socket.socket) -> Answer:
    stream.sendall(HELLO)
    return Answer.decode(stream.makefile("rb").readline())


def asked(loose: socket.socket, where: tuple[str, int]) -> tuple[Answer, tuple[str, int]]:
    """Send a datagram from a socket that is connected to nobody; return the answer and from whom it came."""
    loose.sendto(HELLO, where)
    line, source = loose.recvfrom(1500)
    return Answer.decode(line), source[:2]


def counted(cluster: Cluster, target: Target) -> int:
    return look(cluster.lab, cluster.node_name, target).connections


@pytest.fixture
def web(cluster: Cluster) -> LabService:
    return cluster.service("direct-web", cluster.pods(*PODS), PORTS)


@pytest.mark.parametrize("host", [POD.host, NODE.host])
def test_a_stream_knows_its_service_and_not_the_endpoint(
    cluster: Cluster, web: LabService, family: Family, host: str, *, mapped: bool
) -> None:
    target, seen = web.vip(family), set()
    before = counted(cluster, target)
    for _ in range(MANY):
        with opened(cluster, host, socket.SOCK_STREAM, family, mapped=mapped) as stream:
            stream.connect(told(target, mapped=mapped))
            assert stream.getpeername()[:2] == told(target, mapped=mapped)
            answer = say_hello(stream)
            assert answer.saw.address == cluster.lab.address_of(host, family)
            seen.add(answer.pod)
    assert seen == set(PODS)
    assert counted(cluster, target) == before + MANY


@pytest.mark.parametrize("host", [POD.host, NODE.host])
def test_a_loose_datagram_is_answered_by_its_service(
    cluster: Cluster, web: LabService, family: Family, host: str, *, mapped: bool
) -> None:
    """A socket stays with its endpoint; others get others. Each counts once."""
    target, seen = web.at(CLUSTER_IP, family, 1), set()
    where = told(target, mapped=mapped)
    before = counted(cluster, target)
    for _ in range(MANY):
        with opened(cluster, host, socket.SOCK_DGRAM, family, mapped=mapped) as loose:
            (first, one), (second, other) = asked(loose, where), asked(loose, where)
            assert one == other == where
            assert first.pod == second.pod
            assert first.saw.address == cluster.lab.address_of(host, family)
            seen.add(first.pod)
    assert seen == set(PODS)
    assert counted(cluster, target) == before + MANY


def test_a_connected_datagram_socket_is_left_to_the_rules(
    cluster: Cluster, web: LabService, family: Family, *, mapped: bool
) -> None:
    target = web.at(CLUSTER_IP, family, 1)
    before = counted(cluster, target)
    with opened(cluster, POD.host, socket.SOCK_DGRAM, family, mapped=mapped) as datagrams:
        datagrams.connect(told(target, mapped=mapped))
        for _ in range(3):
            datagrams.send(HELLO)
            assert Answer.decode(datagrams.recv(1500)).pod in PODS
    assert counted(cluster, target) == before


def test_a_loose_socket_is_taken_elsewhere_when_its_endpoint_goes(cluster: Cluster, family: Family) -> None:
    moving = cluster.service("direct-moving", cluster.pods(*PODS), [UDP])
    target = moving.vip(family)
    with opened(cluster, POD.host, socket.SOCK_DGRAM, family) as loose:
        first, _ = asked(loose, told(target))
        rest = [pod for pod in PODS if pod != first.pod]
        cluster.service("direct-moving", cluster.pods(*rest), [UDP])
        for _ in range(3):
            answer, source = asked(loose, told(target))
            assert (answer.pod, source) == (rest[0], told(target))
        cluster.service("direct-moving", cluster.pods(*PODS), [UDP])
        assert asked(loose, told(target))[0].pod == rest[0]


def test_one_loose_socket_speaks_with_several_services(cluster: Cluster, family: Family) -> None:
    services = [cluster.service(f"direct-{number}", cluster.pods(PODS[number % 2]), [UDP]) for number in range(6)]
    with opened(cluster, POD.host, socket.SOCK_DGRAM, family) as loose:
        for service in [*services, *reversed(services)]:
            answer, source = asked(loose, told(service.vip(family)))
            assert answer.pod == PODS[services.index(service) % 2]
            assert source == told(service.vip(family))


@pytest.mark.parametrize("caller", [POD, NODE], ids=str)
def test_a_socket_outside_of_the_cgroup_meets_the_rules(
    cluster: Cluster, web: LabService, family: Family, caller: Caller
) -> None:
    target = web.vip(family)
    before = counted(cluster, target)
    with own_cgroup.left():
        streams = [opened(cluster, caller.host, socket.SOCK_STREAM, family) for _ in range(MANY)]
        entered = [each.__enter__() for each in streams]
    for stream, manager in zip(entered, streams, strict=True):
        stream.connect(told(target))
        assert say_hello(stream).pod in PODS
        manager.__exit__(None, None, None)
    assert counted(cluster, target) == before


def test_a_process_of_the_node_with_an_address_of_its_own_is_masqueraded(
    cluster: Cluster, web: LabService, family: Family
) -> None:
    target = web.vip(family)
    before = counted(cluster, target)
    cluster.answered(NODE, target, PODS, masqueraded=True)
    assert counted(cluster, target) == before


def test_a_pod_that_may_meet_itself_is_left_to_the_rules(cluster: Cluster, family: Family) -> None:
    own = cluster.service("direct-own", cluster.pods(POD.host, "pod-2a"))
    target = own.vip(family)
    for result in cluster.answered(POD, target, (POD.host, "pod-2a")):
        expected = NODE.host if result.pod == POD.host else POD.host
        assert result.saw == cluster.lab.address_of(expected, family)


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("affinity", {"sessionAffinity": "ClientIP"}),
        ("ranges", {"loadBalancerSourceRanges": ["10.244.0.0/16", "fd00:10:244::/48"]}),
    ],
)
def test_what_needs_the_clients_address_is_left_to_the_rules(
    cluster: Cluster, family: Family, name: str, spec: dict[str, Any]
) -> None:
    left = cluster.service(f"direct-{name}", cluster.pods("pod-2a"), **spec)
    target = left.at(CLUSTER_IP if name == "affinity" else LOAD_BALANCER, family)
    cluster.answered(POD, target, ["pod-2a"])
    assert look(cluster.lab, cluster.node_name, target).held == b""


def test_pods_are_masqueraded_where_the_endpoint_must_see_the_node(cluster: Cluster, family: Family) -> None:
    web = cluster.service("direct-out", cluster.pods(*PODS))
    for kind in (EXTERNAL_IP, NODE_PORT):
        target = web.at(kind, family)
        before = counted(cluster, target)
        cluster.answered(POD, target, PODS, masqueraded=True)
        assert counted(cluster, target) == before


def test_a_stranger_in_the_same_cgroup_meets_the_rules(cluster: Cluster, family: Family) -> None:
    web = cluster.service("direct-remote", cluster.pods("pod-2a"))
    target = web.vip(family)
    before = counted(cluster, target)
    with opened(cluster, "client", socket.SOCK_STREAM, family) as stranger:
        stranger.connect(told(target))
        assert say_hello(stranger).pod == "pod-2a"
    assert counted(cluster, target) == before


def test_an_endpoint_that_refuses_a_pods_sockets_is_ejected(cluster: Cluster, family: Family) -> None:
    """Whether endpoints answer is learned from what rules translate: such a Service is left to them, wholly."""
    of = Ejecting(cluster, "direct-eject", family, *PODS, eject_for="60m").write()

    def knock() -> list[str]:
        return [name for _ in range(6) if (name := answering(cluster, of.vip))]

    assert set(knock()) <= set(PODS)
    assert look(cluster.lab, cluster.node_name, of.vip).held == b""
    with closed(cluster, PODS[1]):
        until(lambda: knock() and of.ejected(), lambda: f"one is ejected:\n{cluster.proxy.log[-3000:]}")
        assert of.ejected() == [PODS[1]]
        assert knock() == [PODS[0]] * 6
    plain = cluster.service(of.service.name, cluster.pods(*PODS))
    assert look(cluster.lab, cluster.node_name, plain.vip(family)).held, "without the annotation programs lead there"
    assert set(knock()) <= set(PODS)
    of.end()


def answering(cluster: Cluster, target: Target) -> str:
    return knocked(cluster, POD.host, target)


def knocked(cluster: Cluster, host: str, target: Target) -> str:
    """Connect by a socket that is bound to nothing; name who answers, "" if it is refused."""
    with opened(cluster, host, socket.SOCK_STREAM, family_of(target)) as stream:
        return "" if stream.connect_ex(told(target)) else say_hello(stream).pod


@contextmanager
def connected(
    cluster: Cluster, host: str, where: tuple[str, int], *, mapped: bool = False
) -> Iterator[socket.socket]:
    """Open a UDP socket on a host that is connected."""
    family = Family.IPV6 if ":" in where[0] and not mapped else Family.IPV4
    with opened(cluster, host, socket.SOCK_DGRAM, family, mapped=mapped) as datagrams:
        datagrams.connect(where)
        yield datagrams


def exchanged(datagrams: socket.socket) -> tuple[str, tuple[str, int]]:
    """Send a datagram to the peer; name who answers, and from where."""
    datagrams.send(HELLO)
    line, source = datagrams.recvfrom(1500)
    return Answer.decode(line).pod, source[:2]


@pytest.mark.parametrize("host", [POD.host, NODE.host])
def test_connected_datagram_sockets_are_given_endpoints_where_that_is_asked_for(
    connecting: Cluster, family: Family, host: str, *, mapped: bool
) -> None:
    target = connecting.service("direct-udp", connecting.pods(*PODS), [UDP]).vip(family)
    where, seen, before = told(target, mapped=mapped), set(), counted(connecting, target)
    for _ in range(MANY):
        with connected(connecting, host, where, mapped=mapped) as datagrams:
            assert datagrams.getpeername()[:2] == where
            (pod, source), again = exchanged(datagrams), exchanged(datagrams)
            assert (pod, source) == again
            assert source == where
            seen.add(pod)
    assert seen == set(PODS)
    assert counted(connecting, target) == before + MANY


def test_connected_sockets_are_ended_when_their_endpoint_goes_and_no_others(
    connecting: Cluster, family: Family, *, mapped: bool
) -> None:
    name = "direct-ended"
    target = connecting.service(name, connecting.pods("pod-2a"), [UDP]).vip(family)
    address = connecting.lab.address_of("pod-2a", family)
    where = [told(target, mapped=mapped), (f"::ffff:{address}" if mapped else address, 80)]
    with (
        connected(connecting, POD.host, where[0], mapped=mapped) as ended,
        connected(connecting, NODE.host, where[0], mapped=mapped) as of_node,
        connected(connecting, POD.host, where[1], mapped=mapped) as direct,
    ):
        assert [exchanged(each)[0] for each in (ended, of_node, direct)] == ["pod-2a"] * 3
        connecting.service(name, connecting.pods("pod-1a", "pod-2a"), [UDP])
        assert [exchanged(each)[0] for each in (ended, of_node, direct)] == ["pod-2a"] * 3, "it serves still"
        connecting.service(name, connecting.pods("pod-1a"), [UDP])
        for each in (ended, of_node):
            until(partial(is_ended, each), "it is ended")
            each.connect(where[0])
            assert exchanged(each) == ("pod-1a", where[0])
        assert exchanged(direct)[0] == "pod-2a"


def is_ended(datagrams: socket.socket) -> bool:
    """Report, once, whether somebody has ended a socket."""
    return datagrams.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNABORTED
