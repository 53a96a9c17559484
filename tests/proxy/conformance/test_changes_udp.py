"""UDP clients that keep sending from one port: the kernel remembers where they went, and must be told to forget."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TypeAlias

import pytest
from tests.fakes.waiting import until
from tests.proxy.conformance.cluster import Cluster
from tests.proxy.conformance.packets import NODE, OUTSIDE, POD, Caller
from tests.proxy.conformance.sentences import sentence
from tests.proxy.conformance.services import LabService

from vipwire.model.net import Family, Protocol
from vipwire.plan.plan import FrontendKind
from vipwire_lab.cluster.continuous import Connection
from vipwire_lab.cluster.manifests import Backend, Port
from vipwire_lab.cluster.outcome import Target
from vipwire_lab.echo_servers.answer import HELLO, Answer
from vipwire_lab.namespaces.topology import Pod

pytestmark = pytest.mark.conformance

UDP = [Port(53, 80, Protocol.UDP)]
FIRST, SECOND = "pod-1a", "pod-2a"
REFUSED, SILENCE = "a refusal", "nothing"
Flows: TypeAlias = Mapping[str, Connection]
_ports: Iterator[int] = iter(range(20000, 30000))


@contextmanager
def flows(cluster: Cluster, service: LabService, family: Family) -> Iterator[Flows]:
    """Begin to send, from everywhere to every frontend, each from a port that no other test has."""
    with ExitStack() as stack:
        yield {
            f"{caller} to the {kind.value}": stack.enter_context(
                cluster.connect(caller, service.at(kind, family), next(_ports), timeout=15.0)
            )
            for caller in (POD, NODE, OUTSIDE)
            for kind in FrontendKind
        }


def ask(connection: Connection, patience: float = 3.0) -> str:
    """Send a datagram from the same port as before; tell who answers within so many seconds."""
    try:
        return Answer.decode(connection.exchange(HELLO, patience)).pod
    except ConnectionRefusedError:
        return REFUSED
    except (TimeoutError, OSError):  # a host's own process is told by an error that its packet was dropped
        return SILENCE


def hears(connection: Connection, whom: str) -> bool:
    return ask(connection) == whom


def all_hear(connections: Flows, whom: str) -> None:
    """Wait until each client is answered by that one (or refused, or not answered)."""
    for words, connection in connections.items():
        until(partial(hears, connection, whom), f"{words} hears {whom}")


@sentence("S103")
def test_clients_follow_their_service_to_another_endpoint(cluster: Cluster, family: Family) -> None:
    name = f"cycling-{family.value}".lower()
    service = cluster.service(name, cluster.pods(FIRST), UDP)
    with flows(cluster, service, family) as connections:
        for pod in (FIRST, SECOND, FIRST):
            cluster.service(name, cluster.pods(pod), UDP)
            all_hear(connections, pod)


@sentence("S104")
def test_clients_of_a_service_that_runs_empty_are_refused(cluster: Cluster, family: Family) -> None:
    name = f"emptied-{family.value}".lower()
    service = cluster.service(name, cluster.pods(FIRST), UDP)
    with flows(cluster, service, family) as connections:
        all_hear(connections, FIRST)
        cluster.service(name, [], UDP)
        all_hear(connections, REFUSED)
        cluster.service(name, cluster.pods(SECOND), UDP)
        all_hear(connections, SECOND)


@sentence("S105")
def test_clients_of_a_service_that_is_deleted_are_cut_off(cluster: Cluster, family: Family) -> None:
    name = f"deleted-{family.value}".lower()
    service = cluster.service(name, cluster.pods(FIRST), UDP)
    with flows(cluster, service, family) as connections:
        all_hear(connections, FIRST)
        cluster.put(name, [])
        for words, connection in connections.items():
            until(partial(is_cut_off, connection), f"{words} is cut off")


def is_cut_off(connection: Connection) -> bool:
    return ask(connection, 0.3) in (REFUSED, SILENCE)


@sentence("S106")
def test_clients_that_came_before_an_endpoint_are_answered_later(cluster: Cluster, family: Family) -> None:
    name = f"early-{family.value}".lower()
    (pod,) = cluster.pods(SECOND)
    service = cluster.service(name, [Backend(pod, ready=False)], UDP)
    ports = {}
    for caller in (POD, NODE, OUTSIDE):
        for kind in FrontendKind:
            ports[caller, kind] = next(_ports)
            with pytest.raises(ConnectionRefusedError):
                cluster.connect(caller, service.at(kind, family), ports[caller, kind])
    cluster.service(name, [pod], UDP)
    for (caller, kind), port in ports.items():
        until(partial(answers_from, cluster, caller, service.at(kind, family), port), f"{SECOND} answers {caller}")


@sentence("S106")
def test_clients_that_came_before_the_service_are_answered_later(cluster: Cluster, family: Family) -> None:
    name = f"too-early-{family.value}".lower()
    service = cluster.named(name, UDP)
    target, ports = service.vip(family), {caller: next(_ports) for caller in (POD, NODE, OUTSIDE)}
    for caller, port in ports.items():
        with pytest.raises((TimeoutError, PermissionError)):
            cluster.connect(caller, target, port, timeout=0.3)
    cluster.service(name, cluster.pods(SECOND), UDP)
    for caller, port in ports.items():
        until(partial(answers_from, cluster, caller, target, port), f"{SECOND} answers {caller}")


def answers_from(cluster: Cluster, caller: Caller, target: Target, port: int) -> bool:
    """Begin to send from that port, and tell whether the second endpoint answers."""
    try:
        with cluster.connect(caller, target, port, timeout=0.5) as connection:
            return connection.answer.pod == SECOND
    except OSError:
        return False


@sentence("S107")
def test_clients_whose_endpoint_serves_stay_with_it(cluster: Cluster, family: Family) -> None:
    name = f"stable-{family.value}".lower()
    pods = ("pod-1a", "pod-1b", "pod-2a", "pod-2b")
    service = cluster.service(name, cluster.pods(*pods), UDP)
    with flows(cluster, service, family) as connections:
        before = {words: ask(connection) for words, connection in connections.items()}
        assert set(before.values()) <= set(pods)
        leaving = [Backend(pod, ready=False, serving=True, terminating=True) for pod in cluster.pods(*pods)]
        new = cluster.pods("pod-1c")
        steps: list[list[Pod | Backend]] = [[*cluster.pods(*pods), *new], [*leaving], [*leaving, *new]]
        for hosts in steps:
            cluster.service(name, hosts, UDP)
            assert {words: ask(connection) for words, connection in connections.items()} == before


@sentence("S108")
def test_clients_follow_a_target_port(cluster: Cluster, family: Family) -> None:
    name = f"retargeted-{family.value}".lower()
    service = cluster.service(name, cluster.pods(FIRST), UDP)
    with flows(cluster, service, family) as connections:
        for number in (80, 8080, 80):
            cluster.service(name, cluster.pods(FIRST), [Port(53, number, Protocol.UDP)])
            for words, connection in connections.items():
                until(partial(arrives_at, connection, number), f"{words} arrives at {number}")


def arrives_at(connection: Connection, port: int) -> bool:
    try:
        return Answer.decode(connection.exchange(HELLO)).local.port == port
    except TimeoutError:  # the flow was forgotten between the question and its answer
        return False
