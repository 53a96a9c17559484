"""Chain names are kube-proxy's: the vectors are those of its own tests and of real clusters."""

import pytest
from tests.fakes.values import named

from vipwire.model.names import ObjectName, ServicePortName
from vipwire.model.net import Protocol
from vipwire.modes.iptables.rules.names import FILTER, NAT, endpoint_chain, port_chains, rank_chain, tree_root

SVC1 = ServicePortName(ObjectName("ns1", "svc1"), "p80", Protocol.TCP)


@pytest.mark.parametrize(
    ("namespace", "name", "port", "protocol", "suffix"),
    [
        ("ns1", "svc1", "p80", Protocol.TCP, "XPGD46QRK7WJZT7O"),
        ("ns2", "svc2", "p80", Protocol.TCP, "GNZBNJ2PO5MGZ6GT"),
        ("ns5", "svc5", "p80", Protocol.TCP, "NUKIZ6OKUXPJNT4C"),
        ("default", "kubernetes", "https", Protocol.TCP, "NPX46M4PTMTKRN6Y"),
        ("kube-system", "kube-dns", "dns", Protocol.UDP, "TCOU7JCQXEZGVUNU"),
        ("kube-system", "kube-dns", "dns-tcp", Protocol.TCP, "ERIFXISQEP7F7OF4"),
        ("kube-system", "kube-dns", "metrics", Protocol.TCP, "JD5MR3NA4I4DYORP"),
        ("default", "nginx", "", Protocol.TCP, "2CMXP7HKUVJN7L6M"),
    ],
)
def test_the_chains_of_a_service_port_have_kube_proxys_hash(
    namespace: str, name: str, port: str, protocol: Protocol, suffix: str
) -> None:
    chains = port_chains(ServicePortName(ObjectName(namespace, name), port, protocol))
    assert chains == tuple(f"KUBE-{kind}-{suffix}" for kind in ("SVC", "SVL", "EXT", "FW", "NPFW"))


@pytest.mark.parametrize(
    ("endpoint", "suffix"), [("10.180.0.1:80", "SXIVWICOYRO3J4NJ"), ("[fd00:10:244::5]:80", "JR6YXXN6Y3V4FLYE")]
)
def test_an_endpoints_chain_has_kube_proxys_hash(endpoint: str, suffix: str) -> None:
    assert endpoint_chain(SVC1, endpoint) == f"KUBE-SEP-{suffix}"


def test_the_hash_depends_on_the_protocol() -> None:
    tcp, udp = (port_chains(ServicePortName(named("dns"), "", each)) for each in (Protocol.TCP, Protocol.UDP))
    assert tcp.cluster != udp.cluster


def test_each_chain_of_a_service_port_comes_after_those_it_jumps_to() -> None:
    ranks = [rank_chain(f"KUBE-{kind}-XPGD46QRK7WJZT7O") for kind in ("SEP", "SVC", "SVL", "EXT", "FW")]
    assert ranks == sorted(ranks)
    assert len(set(ranks)) == 5
    assert rank_chain("KUBE-SERVICES") == rank_chain("KUBE-SVCS-2-1") == 0


def test_a_chain_of_a_tree_belongs_to_its_root_and_table() -> None:
    assert tree_root(NAT, "KUBE-SVCS-2-1") == tree_root(FILTER, "KUBE-SERVICES") == "KUBE-SERVICES"
    assert tree_root(NAT, "KUBE-EXTERNAL-SERVICES") is None
    assert tree_root(NAT, "KUBE-SVC-XPGD46QRK7WJZT7O") is None
