"""UDP clients that keep sending from one port: the kernel remembers where they went, and must be told to forget."""

from collections.abc import Iterator
from functools import partial

import pytest
from tests.conformance.cluster import NODE, OUTSIDE, POD, Caller, Cluster, until
from tests.conformance.sentences import sentence
from tests.conformance.services import CLUSTER_IP, FRONTENDS, NODE_PORT, TestService

from vipwire.lab.answer import HELLO, Answer
from vipwire.lab.continuous import Connection
from vipwire.lab.manifests import Backend, Port
from vipwire.lab.topology import Pod
from vipwire.model.net import Family, Protocol
from vipwire.plan.plan import FrontendKind

pytestmark = pytest.mark.conformance

CALLERS = pytest.mark.parametrize("caller", [POD, NODE, OUTSIDE], ids=str)
UDP = [Port(53, 80, Protocol.UDP)]
FIRST, SECOND = "pod-1a", "pod-2a"
NOBODY, SILENCE = "refused", "nothing"
_ports: Iterator[int] = iter(range(20000, 30000))


def named(kind: FrontendKind, caller: Caller, family: Family, what: str) -> str:
    return f"{what}-{kind.name}-{caller}-{family.value}".lower().replace("_", "-")


def ask(connection: Connection) -> str:
    """Send a datagram from the same port as before; tell who answers."""
    try:
        return Answer.decode(connection.exchange(HELLO)).pod
    except ConnectionRefusedError:
        return NOBODY
    except TimeoutError:
        return SILENCE


def answers(connection: Connection, pod: str) -> bool:
    return ask(connection) == pod


def flow(cluster: Cluster, caller: Caller, service: TestService, kind: FrontendKind, family: Family) -> Connection:
    """Begin to send from a port that no other test has."""
    return cluster.connect(caller, service.at(kind, family), next(_ports))


@sentence("S103")
@FRONTENDS
@CALLERS
def test_a_client_follows_its_service_to_another_endpoint(
    cluster: Cluster, family: Family, kind: FrontendKind, caller: Caller
) -> None:
    name = named(kind, caller, family, "cycling")
    service = cluster.service(name, cluster.pods(FIRST), UDP)
    with flow(cluster, caller, service, kind, family) as connection:
        assert ask(connection) == FIRST
        for pod in (SECOND, FIRST):
            cluster.service(name, cluster.pods(pod), UDP)
            until(partial(answers, connection, pod), f"{pod} answers")


@sentence("S104")
@FRONTENDS
@CALLERS
def test_a_client_of_a_service_that_runs_empty_is_refused(
    cluster: Cluster, family: Family, kind: FrontendKind, caller: Caller
) -> None:
    name = named(kind, caller, family, "emptied")
    service = cluster.service(name, cluster.pods(FIRST), UDP)
    with flow(cluster, caller, service, kind, family) as connection:
        assert ask(connection) == FIRST
        cluster.service(name, [], UDP)
        until(lambda: ask(connection) == NOBODY, "it is refused")
        cluster.service(name, cluster.pods(SECOND), UDP)
        until(lambda: ask(connection) == SECOND, f"{SECOND} answers")


@sentence("S105")
@pytest.mark.parametrize("kind", [CLUSTER_IP, NODE_PORT], ids=lambda kind: kind.value)
@CALLERS
def test_a_client_of_a_service_that_is_deleted_is_cut_off(
    cluster: Cluster, family: Family, kind: FrontendKind, caller: Caller
) -> None:
    name = named(kind, caller, family, "deleted")
    service = cluster.service(name, cluster.pods(FIRST), UDP)
    with cluster.connect(caller, service.at(kind, family), next(_ports), timeout=0.3) as connection:
        assert ask(connection) == FIRST
        cluster.put(name, [])
        # From the node itself a packet that is dropped on its way out is an error at once.
        until(lambda: not_answered(connection), "nobody answers")


def not_answered(connection: Connection) -> bool:
    try:
        return ask(connection) in (NOBODY, SILENCE)
    except PermissionError:
        return True


@sentence("S106")
@pytest.mark.parametrize("kind", [CLUSTER_IP, NODE_PORT], ids=lambda kind: kind.value)
@CALLERS
def test_a_client_that_came_too_early_is_answered_later(
    cluster: Cluster, family: Family, kind: FrontendKind, caller: Caller
) -> None:
    name = named(kind, caller, family, "early")
    (pod,) = cluster.pods(SECOND)
    service = cluster.service(name, [Backend(pod, ready=False)], UDP)
    port = next(_ports)
    with pytest.raises(ConnectionRefusedError):
        cluster.connect(caller, service.at(kind, family), port)
    cluster.service(name, [pod], UDP)
    until(lambda: answers_from(cluster, caller, service, kind, family, port), f"{SECOND} answers")
    cluster.put(name, [])


@sentence("S106")
@CALLERS
def test_a_client_that_came_before_the_service_is_answered_later(
    cluster: Cluster, family: Family, caller: Caller
) -> None:
    name = named(CLUSTER_IP, caller, family, "too-early")
    service, port = cluster.named(name, UDP), next(_ports)
    with pytest.raises((TimeoutError, PermissionError)):
        cluster.connect(caller, service.vip(family), port, timeout=0.3)
    cluster.service(name, cluster.pods(SECOND), UDP)
    until(lambda: answers_from(cluster, caller, service, CLUSTER_IP, family, port), f"{SECOND} answers")


def answers_from(
    cluster: Cluster, caller: Caller, service: TestService, kind: FrontendKind, family: Family, port: int
) -> bool:
    try:
        with cluster.connect(caller, service.at(kind, family), port, timeout=0.5) as connection:
            return connection.answer.pod == SECOND
    except OSError:
        return False


@sentence("S107")
@FRONTENDS
@CALLERS
def test_a_client_whose_endpoint_serves_stays_with_it(
    cluster: Cluster, family: Family, kind: FrontendKind, caller: Caller
) -> None:
    name = named(kind, caller, family, "stable")
    pods = ("pod-1a", "pod-1b", "pod-2a", "pod-2b")
    service = cluster.service(name, cluster.pods(*pods), UDP)
    with flow(cluster, caller, service, kind, family) as connection:
        pod = ask(connection)
        assert pod in pods
        leaving = [Backend(each, ready=False, serving=True, terminating=True) for each in cluster.pods(pod)]
        others = [each for each in cluster.pods(*pods, "pod-1c") if each.name != pod]
        steps: list[list[Backend | Pod]] = [[*cluster.pods(pod), *others], [*leaving, *others], [*cluster.pods(pod)]]
        for hosts in steps:
            cluster.service(name, hosts, UDP)
            assert {ask(connection) for _ in range(5)} == {pod}


@sentence("S108")
@pytest.mark.parametrize("kind", [CLUSTER_IP, NODE_PORT], ids=lambda kind: kind.value)
def test_a_client_follows_a_target_port(cluster: Cluster, family: Family, kind: FrontendKind) -> None:
    name = named(kind, OUTSIDE, family, "retargeted")
    service = cluster.service(name, cluster.pods(FIRST), UDP)
    with flow(cluster, OUTSIDE, service, kind, family) as connection:

        def port() -> int:
            return Answer.decode(connection.exchange(HELLO)).local.port

        assert port() == 80
        cluster.service(name, cluster.pods(FIRST), [Port(53, 8080, Protocol.UDP)])
        until(lambda: port() == 8080, "the new target port is used")
