"""Nat rules of other programs beside vipwire's, loaded before it or after: Services are served all the same."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.proxy.conformance.cluster import POD_CIDRS, Cluster
from tests.proxy.conformance.conftest import ClusterWith
from tests.proxy.conformance.others import (
    OTHER,
    PORT,
    Loading,
    clear,
    explain_kernel,
    firewalld,
    host_port_chains,
    host_port_rules,
    marks_in_a_nat_chain,
    marks_of_new_connections,
    portmap,
    source_nat_chains,
    source_nat_rules,
)
from tests.proxy.conformance.packets import NODE, OUTSIDE, POD
from tests.proxy.conformance.sentences import sentence
from tests.proxy.conformance.services import LOAD_BALANCER, NODE_PORT, LabService

from vipwire.model.net import Family
from vipwire_lab.cluster.manifests import Port
from vipwire_lab.cluster.outcome import Target

pytestmark = pytest.mark.conformance

ORDERS = pytest.mark.parametrize("first", [True, False], ids=["loaded before", "loaded after"])
RULES, CHAINS, SOURCES = sentence("S168"), sentence("S169"), sentence("S170")


def _loading(*cases: tuple[Loading, pytest.MarkDecorator]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("load", [pytest.param(each, marks=mark, id=each.__name__) for each, mark in cases])


@pytest.fixture
def crowded(cluster_with: ClusterWith) -> Cluster:
    """A cluster whose node others program, too."""
    return cluster_with([POD_CIDRS], "others")


@contextlib.contextmanager
def beside(cluster: Cluster, load: Loading, folder: Path, *, first: bool) -> Iterator[None]:
    """Have others' rules loaded for a while, before the proxy makes its own or after."""
    cluster.proxy.end_process()
    cluster.proxy.vipwire("cleanup")
    clear(cluster)
    with contextlib.ExitStack() as stack:
        stack.callback(clear, cluster)
        if first:
            stack.enter_context(load(cluster, folder))
        cluster.proxy.start()
        if not first:
            stack.enter_context(load(cluster, folder))
        stack.callback(cluster.proxy.end_process)
        cluster.write()
        yield
    cluster.proxy.start()


@contextlib.contextmanager
def at_the_node(cluster: Cluster, service: LabService, family: Family) -> Iterator[Target]:
    """Put a Service's load balancer IP on the node, as kube-vip, keepalived and servicelb do."""
    target = service.at(LOAD_BALANCER, family)
    address = ["ip", "address", "{}", f"{target.address}/{32 if family is Family.IPV4 else 128}", "dev", "lo"]
    cluster.lab.run(cluster.node_name, [word.format("add") for word in address])
    try:
        yield target
    finally:
        cluster.lab.run(cluster.node_name, [word.format("delete") for word in address])


@_loading((host_port_rules, RULES), (host_port_chains, CHAINS), (portmap, RULES), (firewalld, RULES))
@ORDERS
def test_a_host_port_does_not_take_a_services_port(
    crowded: Cluster, family: Family, load: Loading, tmp_path: Path, *, first: bool
) -> None:
    service = crowded.service("published", crowded.pods("pod-1a"), [Port(PORT, 8080)])
    with at_the_node(crowded, service, family) as target, beside(crowded, load, tmp_path, first=first):
        for caller in (OUTSIDE, POD, NODE):
            crowded.answered(caller, target, ["pod-1a"])
        kernel = explain_kernel(crowded, OUTSIDE, target)
        assert (kernel["state"], kernel["earlier"]) == ("same", []), kernel
        published = crowded.lab.probe(OUTSIDE.host, crowded.lab.address_of(crowded.node_name, family), PORT, count=5)
        assert {result.pod for result in published} == {OTHER}, "the host port itself is served as before"


@_loading((marks_of_new_connections, RULES), (marks_in_a_nat_chain, CHAINS))
@ORDERS
def test_a_mark_for_what_leaves_the_cluster_misses_services(
    crowded: Cluster, family: Family, load: Loading, tmp_path: Path, *, first: bool
) -> None:
    service = crowded.service("marked", crowded.pods("pod-2a"))
    with beside(crowded, load, tmp_path, first=first):
        crowded.answered(POD, service.vip(family), ["pod-2a"])


@_loading((source_nat_rules, SOURCES), (source_nat_chains, CHAINS))
@ORDERS
def test_masqueraded_clients_have_the_nodes_first_address(
    crowded: Cluster, family: Family, load: Loading, tmp_path: Path, *, first: bool
) -> None:
    service = crowded.service("masqueraded", crowded.pods("pod-2a"), [Port(80, 8080)])
    with beside(crowded, load, tmp_path, first=first):
        crowded.answered(OUTSIDE, service.at(NODE_PORT, family), ["pod-2a"], masqueraded=True)
