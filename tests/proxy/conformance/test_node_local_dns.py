"""A DNS cache of the node at the ClusterIP of the DNS Service, as NodeLocal DNSCache: it answers every client."""

import contextlib
import socket
from collections.abc import Iterator

import pytest
from tests.fakes.waiting import until
from tests.proxy.conformance.cluster import Cluster
from tests.proxy.conformance.others import explain_kernel, iptables
from tests.proxy.conformance.packets import NODE, POD, Caller
from tests.proxy.conformance.sentences import sentence
from tests.proxy.conformance.services import CLUSTER_IP, LabService

from vipwire.model.net import Family, Protocol
from vipwire_lab.cluster.manifests import Port
from vipwire_lab.cluster.outcome import Target
from vipwire_lab.echo_servers.answer import HELLO, Answer

pytestmark = pytest.mark.conformance

PODS = ("pod-1a", "pod-2a")
TCP, UDP = Protocol.TCP, Protocol.UDP


@contextlib.contextmanager
def cache(cluster: Cluster, target: Target, family: Family) -> Iterator[None]:
    """Serve a Service's address on the node, with the rules of NodeLocal DNSCache (KEP-1024)."""
    bits = 32 if family is Family.IPV4 else 128
    place = [f"{target.address}/{bits}", "dev", "lo"]
    rules = [
        (*chain, "-p", protocol, port, str(target.port), "-j", "NOTRACK")
        for protocol in ("udp", "tcp")
        for chain, port in (
            (("PREROUTING", "-d", target.address), "--dport"),
            (("OUTPUT", "-d", target.address), "--dport"),
            (("OUTPUT", "-s", target.address), "--sport"),
        )
    ]
    with contextlib.ExitStack() as stack:
        # Without nodad the kernel refuses to bind an IPv6 address for a moment.
        cluster.lab.run(cluster.node_name, ["ip", "address", "add", *place, "nodad"])
        stack.callback(cluster.lab.run, cluster.node_name, ["ip", "address", "delete", *place])
        cluster.lab.start_echo_servers(cluster.node_name, [target.port], (TCP, UDP), [target.address])
        stack.callback(cluster.lab.stop_echo_servers, cluster.node_name, [target.port])
        for rule in rules:
            iptables(cluster, family, "-t", "raw", "-A", *rule)
            stack.callback(iptables, cluster, family, "-t", "raw", "-D", *rule)
        yield


def loose(cluster: Cluster, caller: Caller, target: Target, family: Family) -> str:
    """Ask by a datagram of a socket that is not connected, as musl does; return who answers."""
    with cluster.lab.enter_namespace(caller.host):
        found = socket.socket(socket.AF_INET6 if family is Family.IPV6 else socket.AF_INET, socket.SOCK_DGRAM)
    with found:
        found.settimeout(15)
        found.sendto(HELLO, (target.address, target.port))
        return Answer.decode(found.recv(1500)).pod


def asked(cluster: Cluster, caller: Caller, service: LabService, family: Family) -> set[str | None]:
    """Ask by TCP, and by UDP from connected sockets and others; return all who answer."""
    tcp, udp = service.at(CLUSTER_IP, family, 0), service.at(CLUSTER_IP, family, 1)
    results = [
        result
        for target in (tcp, udp)
        for result in cluster.lab.probe(caller.host, target.address, target.port, target.protocol, count=4)
    ]
    return {*(result.pod for result in results), *(loose(cluster, caller, udp, family) for _ in range(4))}


def answers(cluster: Cluster, service: LabService, family: Family, expected: set[str]) -> None:
    """Wait until all clients are answered by the expected hosts only."""

    def is_so() -> bool:
        return all(asked(cluster, caller, service, family) <= expected for caller in (POD, NODE))

    until(is_so, f"{expected} answer")


@sentence("S174")
def test_a_cache_at_the_address_of_the_dns_service_answers_every_client(cluster: Cluster, family: Family) -> None:
    ports = (Port(53, 80, TCP, "dns-tcp"), Port(53, 80, UDP, "dns"))
    service = cluster.service("node-local-dns", cluster.pods(*PODS), ports)
    answers(cluster, service, family, {*PODS})
    with cache(cluster, service.at(CLUSTER_IP, family, 1), family):
        answers(cluster, service, family, {cluster.node_name})
        for caller in (POD, NODE):
            found = explain_kernel(cluster, caller, service.at(CLUSTER_IP, family, 1))["earlier"]
            assert any("untrack" in chain["may"] for chain in found), (caller, found)
    answers(cluster, service, family, {*PODS})
    for caller in (POD, NODE):
        cluster.answered(caller, service.at(CLUSTER_IP, family, 0), PODS)
