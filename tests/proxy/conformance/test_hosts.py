"""Addresses that hosts have, and that Services name: the Service gets its ports, the host keeps all others."""

from collections.abc import Sequence

import pytest
from tests.proxy.conformance.cluster import POD_CIDRS, Cluster
from tests.proxy.conformance.conftest import ClusterWith
from tests.proxy.conformance.packets import NODE, OUTSIDE, POD, Caller
from tests.proxy.conformance.sentences import sentence
from tests.proxy.conformance.services import LabService

from vipwire.model.net import Family, Protocol
from vipwire.plan.plan import FrontendKind
from vipwire_lab.cluster.manifests import Manifest, Port, build_load_balancer_status
from vipwire_lab.cluster.outcome import Target

pytestmark = pytest.mark.conformance

_PODS = ("pod-1a", "pod-1b")
_OPEN = 9300
"""A port at which hosts answer themselves; Services have the one behind it."""
_HOSTS = ("node-1", "client", "pod-1c")
_FIELDS = ("externalIPs", "status", "clusterIPs")


def _addresses(cluster: Cluster, host: str) -> dict[Family, str]:
    return {family: cluster.lab.address_of(host, family) for family in Family}


def _naming(service: LabService, field: str, addresses: Sequence[str], cluster: Cluster) -> list[Manifest]:
    """Make the Service name these addresses in one of its fields."""
    made, *slices = service.objects(cluster.pods(*_PODS), externalIPs=None)
    del made["status"]
    if field == "status":
        made |= build_load_balancer_status(*addresses)
    elif field == "externalIPs":
        made["spec"]["externalIPs"] = list(addresses)
    else:
        made["spec"] |= {"clusterIP": addresses[0], "clusterIPs": list(addresses)}
    return [made, *slices]


def _reached(cluster: Cluster, host: str, target: Target) -> list[str]:
    """Connect from a Pod and from the node; list the answers that are not this host's."""
    wrong: list[str] = []
    for caller in (POD, NODE):
        results = cluster.probe(caller, target, 2)
        wrong += [f"{caller} to {target}: {each}, expected {host}" for each in results if each.pod != host]
    return wrong


@sentence("S57", "S171")
@pytest.mark.parametrize("host", ["node-2", "client", "pod-2a"])
def test_a_host_keeps_the_ports_that_no_service_has(cluster: Cluster, family: Family, host: str) -> None:
    addresses = _addresses(cluster, host)
    name, own = f"host-{host}-{family.value}".lower(), Target(addresses[family], _OPEN)
    cluster.lab.start_echo_servers(host, [_OPEN], [Protocol.TCP])
    wrong: list[str] = []
    try:
        wrong += _reached(cluster, host, own)
        service = cluster.named(name, [Port(_OPEN + 1, 80)])
        for field in _FIELDS:
            cluster.put(name, _naming(service, field, list(addresses.values()), cluster))
            wrong += [f"{field}: {each}" for each in _reached(cluster, host, own)]
            for caller in (POD, NODE):
                cluster.answered(caller, Target(addresses[family], _OPEN + 1), _PODS)
        cluster.put(name, [])
        wrong += _reached(cluster, host, own)
    finally:
        cluster.put(name, [])
        cluster.lab.stop_echo_servers(host, [_OPEN])
    assert not wrong, "\n".join(wrong)


@sentence("S57")
@pytest.mark.parametrize("host", _HOSTS)
def test_a_hosts_own_connections_may_begin_at_the_services_port(cluster: Cluster, family: Family, host: str) -> None:
    """The answers go to the address and port of the Service, but are not for it."""
    addresses = list(_addresses(cluster, host).values())
    name, first = f"own-{host}-{family.value}".lower(), _OPEN + 10 + 20 * _HOSTS.index(host)
    where = [target for target in ("client", "pod-1a", "pod-2a") if target != host]
    wrong: list[str] = []
    for protocol in (Protocol.TCP, Protocol.UDP):
        service = cluster.named(name, [Port(first, 80, protocol)])
        made, *slices = _naming(service, "externalIPs", addresses, cluster)
        made["metadata"]["annotations"] = {"vipwire.io/port-range": f"{first}-{first + 9}"}
        cluster.put(name, [made, *slices])
        for each in where:
            cluster.lab.start_echo_servers(each, [_OPEN], [protocol])
        try:
            for number, each in enumerate(where):
                target = Target(cluster.lab.address_of(each, family), _OPEN, protocol)
                for source_port in (first, first + 1 + number):
                    wrong += [
                        f"{host}, port {source_port}, to {target}: {result}"
                        for result in cluster.probe(Caller(host), target, 1, source_port)
                        if result.pod != each
                    ]
        finally:
            for each in where:
                cluster.lab.stop_echo_servers(each, [_OPEN])
    cluster.put(name, [])
    assert not wrong, "\n".join(wrong)


@sentence("S173")
@pytest.mark.parametrize("host", ["pod-1a", "pod-2a", "node-1"])
def test_no_other_service_takes_what_goes_to_an_endpoint(cluster: Cluster, family: Family, host: str) -> None:
    """The other Service has the endpoint's address and port, and endpoints here, elsewhere, nowhere, or for few."""
    port, name = 9350, f"endpoint-{host}-{family.value}".lower()
    cluster.lab.start_echo_servers(host, [port], [Protocol.TCP])
    backend = cluster.node(host) if host == "node-1" else cluster.pods(host)[0]
    wrong: list[str] = []
    try:
        service = cluster.service(name, [backend], [Port(80, port)])
        addresses = list(_addresses(cluster, host).values())
        other = cluster.named(f"{name}-other", [Port(port, 80, node_port=port)])
        for pods, spec in (
            (("pod-1b",), {}),
            (("pod-2b",), {"externalTrafficPolicy": "Local"}),
            ((), {}),
            (("pod-1b",), {"loadBalancerSourceRanges": ["192.0.2.77/32", "2001:db8:77::/64"]}),
        ):
            made = other.service(externalIPs=addresses, **spec) | build_load_balancer_status(*addresses)
            cluster.put(f"{name}-other", [made, *other.slices(cluster.pods(*pods))])
            for kind in FrontendKind:
                for caller in (POD, NODE, OUTSIDE):
                    results = cluster.probe(caller, service.at(kind, family), 2)
                    what = f"{pods} {spec}, {caller} to the {kind.value}"
                    wrong += [f"{what}: {result}" for result in results if result.pod != host]
    finally:
        cluster.put_all(dict.fromkeys((f"{name}-other", name), ()))
        cluster.lab.stop_echo_servers(host, [port])
    assert not wrong, "\n".join(wrong)


@sentence("S171")
def test_a_node_that_comes_after_the_service_gets_its_ports_back(cluster_with: ClusterWith, family: Family) -> None:
    cluster = cluster_with([POD_CIDRS], cidrs=False)
    addresses = _addresses(cluster, "node-2")
    name, own = f"later-{family.value}".lower(), Target(addresses[family], _OPEN)
    cluster.lab.start_echo_servers("node-2", [_OPEN], [Protocol.TCP])
    node = cluster.nodes.pop("node-2")
    try:
        service = cluster.named(name, [Port(_OPEN + 1, 80)])
        cluster.put(name, _naming(service, "clusterIPs", list(addresses.values()), cluster))
        cluster.refused(POD, own)
        cluster.nodes["node-2"] = node
        cluster.write()
        assert not _reached(cluster, "node-2", own)
        cluster.answered(POD, Target(addresses[family], _OPEN + 1), _PODS)
    finally:
        cluster.nodes["node-2"] = node
        cluster.put(name, [])
        cluster.lab.stop_echo_servers("node-2", [_OPEN])


@sentence("S172")
def test_no_service_takes_the_api_servers_port(cluster: Cluster, family: Family) -> None:
    """The API server stands on node-2; its own Service says so."""
    addresses = _addresses(cluster, "node-2")
    port, name = 6443, f"thief-{family.value}".lower()
    api = Target(addresses[family], port)
    kubernetes = cluster.named("kubernetes", [Port(443, port, name="https")])
    thief = cluster.named(name, [Port(port, 80)])
    cluster.lab.start_echo_servers("node-2", [port], [Protocol.TCP])
    wrong: list[str] = []
    try:
        for order in (("kubernetes", name), (name, "kubernetes")):
            for field in _FIELDS:
                objects = {
                    "kubernetes": kubernetes.objects([cluster.node("node-2")], type="ClusterIP", externalIPs=None),
                    name: _naming(thief, field, list(addresses.values()), cluster),
                }
                for each in order:
                    cluster.put(each, objects[each])
                wrong += [f"{order} {field}: {each}" for each in _reached(cluster, "node-2", api)]
                wrong += _reached(cluster, "node-2", kubernetes.vip(family))
                if "S146" not in cluster.mode.cannot and field != "clusterIPs":
                    wide = cluster.named(name, [Port(port + 1, 80)])
                    made, *slices = _naming(wide, field, list(addresses.values()), cluster)
                    made["metadata"]["annotations"] = {"vipwire.io/port-range": f"{port - 9}-{port + 9}"}
                    cluster.put(name, [made, *slices])
                    wrong += [f"{order} {field}, a range: {each}" for each in _reached(cluster, "node-2", api)]
                cluster.put_all(dict.fromkeys(order, ()))
    finally:
        cluster.put_all(dict.fromkeys(order, ()))
        cluster.lab.stop_echo_servers("node-2", [port])
    assert not wrong, "\n".join(wrong)
