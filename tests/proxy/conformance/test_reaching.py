"""Reaching a Service: from everywhere, at every frontend, and whoever may answer."""

import contextlib
import copy
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from tests.proxy.conformance.cluster import POD_CIDRS, Cluster
from tests.proxy.conformance.conftest import ClusterWith
from tests.proxy.conformance.packets import NODE, OUTSIDE, POD, REMOTE_POD, Caller
from tests.proxy.conformance.sentences import sentence
from tests.proxy.conformance.services import CLUSTER_IP, EXTERNAL_IP, FRONTENDS, LOAD_BALANCER, NODE_PORT, LabService

from vipwire.model.net import Family, Protocol
from vipwire.plan.plan import FrontendKind
from vipwire_lab.cluster.manifests import Backend, Manifest, Port
from vipwire_lab.namespaces.topology import UNDERLAY

pytestmark = pytest.mark.conformance

CALLERS = pytest.mark.parametrize("caller", [POD, NODE, OUTSIDE], ids=str)
BOTH = ("pod-1a", "pod-2a")


@pytest.mark.parametrize(
    ("kind", "caller"),
    [
        *(pytest.param(CLUSTER_IP, each, marks=sentence("S1")) for each in (POD, NODE, OUTSIDE)),
        *(pytest.param(EXTERNAL_IP, each, marks=sentence("S2")) for each in (POD, NODE, OUTSIDE)),
        *(pytest.param(LOAD_BALANCER, each, marks=sentence("S3")) for each in (POD, NODE, OUTSIDE)),
        *(pytest.param(NODE_PORT, each, marks=sentence("S4")) for each in (POD, NODE, OUTSIDE, REMOTE_POD)),
    ],
    ids=lambda each: getattr(each, "value", str(each)),
)
def test_whoever_connects_is_answered(cluster: Cluster, family: Family, kind: FrontendKind, caller: Caller) -> None:
    web = cluster.service("web", cluster.pods(*BOTH))
    cluster.answered(caller, web.at(kind, family), BOTH)


@sentence("S5")
@pytest.mark.parametrize("pod", ["pod-1a", "pod-2b"])
@CALLERS
def test_endpoints_here_and_elsewhere_answer(cluster: Cluster, family: Family, pod: str, caller: Caller) -> None:
    only = cluster.service(f"only-{pod}", cluster.pods(pod))
    for kind in FrontendKind:
        cluster.answered(caller, only.at(kind, family), [pod])


@sentence("S6")
@CALLERS
def test_a_connection_arrives_at_the_endpoints_own_port(cluster: Cluster, family: Family, caller: Caller) -> None:
    secure = cluster.service("secure", cluster.pods("pod-1a"), [Port(443, 8080)])
    for kind in FrontendKind:
        for result in cluster.answered(caller, secure.at(kind, family), ["pod-1a"]):
            assert result.answer is not None
            assert (result.answer.local.address, result.answer.local.port) == (
                cluster.lab.address_of("pod-1a", family),
                8080,
            )


@sentence("S7")
def test_each_port_has_its_own_target(cluster: Cluster, family: Family) -> None:
    ports = [Port(81, 80, name="a"), Port(82, 8080, name="b"), Port(80, 8080, name="c")]
    many = cluster.service("many-ports", cluster.pods(*BOTH), ports)
    for kind in FrontendKind:
        for index, port in enumerate(ports):
            for result in cluster.answered(OUTSIDE, many.at(kind, family, index), BOTH):
                assert result.answer is not None
                assert result.answer.local.port == port.target


@sentence("S8")
def test_endpoints_get_equal_shares_in_no_order(cluster: Cluster, family: Family) -> None:
    pods = ("pod-1a", "pod-1b", "pod-2a", "pod-2b")
    fair = cluster.service("fair", cluster.pods(*pods))
    results = cluster.probe(OUTSIDE, fair.vip(family), 600, parallel=1)
    shares = Counter(result.pod for result in results)
    assert set(shares) == set(pods)
    # 150 each, with a standard deviation of 10.6: seven of these are allowed.
    assert all(abs(share - 150) < 75 for share in shares.values()), shares
    again = Counter(first.pod == second.pod for first, second in pairwise(results))
    assert 75 < again[True] < 225, "in turn, the same one would never answer twice running"


@sentence("S9", "S44")
@pytest.mark.parametrize("policy", ["Cluster", "Local"])
@pytest.mark.parametrize("protocol", list(Protocol), ids=lambda protocol: protocol.label)
def test_a_pod_reaches_itself_and_sees_its_node(
    cluster: Cluster, family: Family, policy: str, protocol: Protocol
) -> None:
    name = f"itself-{policy.lower()}-{protocol.label}"
    itself = cluster.service(
        name, cluster.pods("pod-1c"), [Port(80, protocol=protocol)], externalTrafficPolicy=policy
    )
    for kind in FrontendKind:
        cluster.answered(POD, itself.at(kind, family), ["pod-1c"], masqueraded=True)


@sentence("S9", "S44")
def test_a_pod_reaches_itself_whatever_its_node_name_is(cluster: Cluster, family: Family) -> None:
    specs: tuple[dict[str, Any], ...] = ({}, {"externalTrafficPolicy": "Local"}, {"sessionAffinity": "ClientIP"})
    services, bundles = dict[str, LabService](), dict[str, list[Manifest]]()
    for at, node_name in enumerate((None, "", "node-2", "nowhere")):
        for spec in specs:
            name = f"unnamed-{at}-{next(iter(spec), 'plain')}".lower()
            service = cluster.named(name, [Port(80), Port(81, 8080, name="two", protocol=Protocol.UDP)])
            made, *slices = service.objects(cluster.pods("pod-1c"), **spec)
            for each in slices:
                del each["endpoints"][0]["nodeName"]
                if node_name is not None:
                    each["endpoints"][0]["nodeName"] = node_name
            services[f"{node_name} {spec}"], bundles[name] = service, [made, *slices]
    cluster.put_all(bundles)
    unsaid = [
        f"{about} {kind.value} {index}: {result}"
        for about, service in services.items()
        for kind in FrontendKind
        for index in range(2)
        for result in cluster.probe(POD, service.at(kind, family, index), 2)
        if result.saw != cluster.lab.address_of("node-1", family)
    ]
    cluster.put_all(dict.fromkeys(bundles, ()))
    assert not unsaid, "\n".join(unsaid)


@sentence("S9")
def test_a_pod_among_others_is_dealt_to_itself_as_often(cluster: Cluster, family: Family) -> None:
    pods = ("pod-1c", "pod-1a", "pod-2a")
    mixed = cluster.service("mixed", cluster.pods(*pods))
    cluster.answered(POD, mixed.vip(family), pods, masqueraded=False)


@sentence("S10")
def test_all_slices_of_a_service_count_each_with_its_own_ports(cluster: Cluster, family: Family) -> None:
    parts = cluster.named("parts")
    objects = [parts.service(selector=None)]
    for index, (pod, port) in enumerate([("pod-1a", 80), ("pod-2a", 8080), ("pod-2b", 80)]):
        for piece in parts.slices(cluster.pods(pod)):
            piece["metadata"]["name"] += f"-{index}"
            piece["ports"][0]["port"] = port
            objects.append(piece)
    cluster.put("parts", objects)
    results = cluster.answered(POD, parts.vip(family), ["pod-1a", "pod-2a", "pod-2b"])
    seen = {(result.pod, result.answer.local.port) for result in results if result.answer}
    assert seen == {("pod-1a", 80), ("pod-2a", 8080), ("pod-2b", 80)}


@sentence("S11")
def test_an_endpoint_in_two_slices_has_one_share(cluster: Cluster, family: Family) -> None:
    twice = cluster.named("twice")
    again = twice.slices(cluster.pods("pod-1a"))
    for piece in again:
        piece["metadata"]["name"] += "-again"
    cluster.put("twice", [*twice.objects(cluster.pods("pod-1a", "pod-1b", "pod-2a")), *again])
    results = cluster.probe(OUTSIDE, twice.vip(family), 600)
    shares = Counter(result.pod for result in results)
    assert set(shares) == {"pod-1a", "pod-1b", "pod-2a"}
    assert shares["pod-1a"] < 250, "two of four shares would be 300 of 600 connections; one of three is 200"


@sentence("S11", "S17")
@pytest.mark.parametrize("apart", [False, True], ids=["one slice", "two slices"])
def test_an_address_that_an_ended_pod_had_is_the_new_pods(cluster: Cluster, family: Family, *, apart: bool) -> None:
    """A StatefulSet or a static address: the new Pod is ready before the old one's entry goes."""
    name = f"inherited-{'apart' if apart else 'together'}"
    inherited = cluster.named(name)
    for ended_first in (False, True):
        objects = inherited.objects(cluster.pods("pod-1a"))
        for piece in [each for each in objects if each["kind"] == "EndpointSlice"]:
            ended = {"ready": False, "serving": False, "terminating": True}
            entry = {**piece["endpoints"][0], "conditions": ended, "nodeName": "node-2"}
            if apart:
                other = copy.deepcopy(piece) | {"endpoints": [entry]}
                other["metadata"]["name"] += "-0" if ended_first else "-z"
                objects.insert(1 if ended_first else len(objects), other)
            else:
                piece["endpoints"].insert(0 if ended_first else 1, entry)
        cluster.put(name, objects)
        for kind in FrontendKind:
            cluster.answered(OUTSIDE, inherited.at(kind, family), ["pod-1a"])


@contextlib.contextmanager
def narrow(cluster: Cluster, family: Family) -> Iterator[None]:
    """Let the network between the nodes pass at most 1280 octets to the client, and say so to longer packets."""
    ip = ["ip", "-4" if family is Family.IPV4 else "-6"]
    route = [f"{cluster.lab.address_of(OUTSIDE.host, family)}/{family.bits}", "dev", OUTSIDE.host]
    own = ["iif", "lo", "lookup", "100", "pref", "40001"]  # for errors to a VIP, the way of the client's packets
    for host in ("pod-1a", cluster.node_name):
        cluster.lab.run(host, [*ip, "route", "flush", "cache"])
    cluster.lab.run(UNDERLAY, [*ip, "rule", "add", *own])
    cluster.lab.run(UNDERLAY, [*ip, "route", "replace", *route, "mtu", "1280"])
    try:
        yield
    finally:
        cluster.lab.run(UNDERLAY, [*ip, "route", "replace", *route])
        cluster.lab.run(UNDERLAY, [*ip, "rule", "delete", *own])


@sentence("S1", "S2", "S3", "S4")
@pytest.mark.parametrize("policy", ["Cluster", "Local"])
@FRONTENDS
def test_large_answers_pass_a_narrow_link(cluster: Cluster, family: Family, kind: FrontendKind, policy: str) -> None:
    """The error about a long packet goes to the address of the frontend, and must reach the Pod."""
    web = cluster.service(f"narrow-{policy.lower()}", cluster.pods("pod-1a"), externalTrafficPolicy=policy)
    data = b"0123456789abcdef" * 4000
    with narrow(cluster, family), cluster.connect(OUTSIDE, web.at(kind, family)) as connection:
        assert connection.exchange(data) == data


@sentence("S12")
def test_an_endpoints_object_counts_as_slices(cluster: Cluster, family: Family) -> None:
    mirrored = cluster.named("mirrored")
    subset = {
        "addresses": [{"ip": cluster.lab.address_of(pod, family)} for pod in BOTH],
        "notReadyAddresses": [{"ip": cluster.lab.address_of("pod-1b", family)}],
        "ports": [{"port": 80, "protocol": "TCP"}],
    }
    endpoints = {
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": {"name": "mirrored", "namespace": "default"},
        "subsets": [subset],
    }
    cluster.put("mirrored", [mirrored.service(selector=None), endpoints])
    cluster.answered(OUTSIDE, mirrored.vip(family), BOTH)


@sentence("S13")
@pytest.mark.parametrize("node", ["node-1", "node-2"])
@pytest.mark.parametrize("caller", [POD, NODE, OUTSIDE], ids=str)
def test_an_endpoint_may_be_a_node(cluster: Cluster, family: Family, node: str, caller: Caller) -> None:
    cluster.lab.stop_echo_servers(node)
    cluster.lab.start_echo_servers(node, [9000], [Protocol.TCP])
    host = cluster.service(f"host-{node}", [cluster.node(node)], [Port(80, 9000)])
    for kind in FrontendKind:
        cluster.answered(caller, host.at(kind, family), [node])


@sentence("S14")
@CALLERS
def test_an_address_of_a_proxy_is_passed_on(cluster: Cluster, family: Family, caller: Caller) -> None:
    behind = cluster.named("behind-proxy")
    service, *slices = behind.objects(cluster.pods("pod-1a"))
    for ingress in service["status"]["loadBalancer"]["ingress"]:
        ingress["ipMode"] = "Proxy"
    cluster.put("behind-proxy", [service, *slices])
    cluster.passed_on(caller, behind.at(LOAD_BALANCER, family))
    cluster.answered(caller, behind.vip(family), ["pod-1a"])


@sentence("S15")
@CALLERS
def test_external_ips_can_be_switched_off(cluster_with: ClusterWith, family: Family, caller: Caller) -> None:
    cluster = cluster_with([POD_CIDRS, "--feature-gates=AllowServiceExternalIPs=false"], cidrs=False)
    web = cluster.service("web", cluster.pods("pod-1a"))
    cluster.passed_on(caller, web.at(EXTERNAL_IP, family))
    for kind in (CLUSTER_IP, LOAD_BALANCER, NODE_PORT):
        cluster.answered(caller, web.at(kind, family), ["pod-1a"])


@sentence("S16")
def test_a_load_balancer_needs_no_node_port(cluster: Cluster, family: Family) -> None:
    bare = cluster.named("no-node-port")
    service, *slices = bare.objects(cluster.pods("pod-1a"), allocateLoadBalancerNodePorts=False)
    for port in service["spec"]["ports"]:
        del port["nodePort"]
    cluster.put("no-node-port", [service, *slices])
    cluster.answered(OUTSIDE, bare.at(LOAD_BALANCER, family), ["pod-1a"])
    cluster.refused(OUTSIDE, bare.at(NODE_PORT, family))


@sentence("S17")
@FRONTENDS
def test_who_is_not_ready_gets_nothing(cluster: Cluster, family: Family, kind: FrontendKind) -> None:
    one, other = cluster.pods("pod-1a", "pod-2a")
    part = cluster.service("partly-ready", [Backend(one, ready=False), other])
    cluster.answered(OUTSIDE, part.at(kind, family), ["pod-2a"])


@sentence("S18")
def test_an_endpoint_without_conditions_is_ready(cluster: Cluster, family: Family) -> None:
    plain = cluster.named("plain")
    service, *slices = plain.objects(cluster.pods(*BOTH))
    for piece in slices:
        for endpoint in piece["endpoints"]:
            del endpoint["conditions"]
    cluster.put("plain", [service, *slices])
    cluster.answered(POD, plain.vip(family), BOTH)


@sentence("S19")
def test_ready_is_enough(cluster: Cluster, family: Family) -> None:
    one, other = cluster.pods(*BOTH)
    early = Backend(one, ready=True, serving=False, terminating=True)
    published = cluster.service("published", [early, other], publishNotReadyAddresses=True)
    cluster.answered(OUTSIDE, published.vip(family), BOTH)


@sentence("S20")
def test_serving_is_not_enough(cluster: Cluster, family: Family) -> None:
    (one,) = cluster.pods("pod-1a")
    serving = cluster.service("serving-alone", [Backend(one, ready=False, serving=True)])
    cluster.refused(OUTSIDE, serving.vip(family))


@sentence("S9")
def test_a_pod_with_the_nodes_address_reaches_itself_whatever_its_node_name_is(
    cluster: Cluster, family: Family
) -> None:
    port, services, bundles = 9771, dict[str, LabService](), dict[str, list[Manifest]]()
    for at, node_name in enumerate(("", "node-1", "node-2")):
        for protocol in (Protocol.TCP, Protocol.UDP):
            name = f"hosts-{at}-{protocol.label}-{family.value}".lower()
            service = cluster.named(name, [Port(port, port, protocol=protocol)])
            made, *slices = service.objects([cluster.node("node-1")], sessionAffinity="ClientIP")
            for each in slices:
                each["endpoints"][0]["nodeName"] = node_name
            services[f"{node_name} {protocol.label}"], bundles[name] = service, [made, *slices]
    cluster.lab.start_echo_servers("node-1", [port], [Protocol.TCP, Protocol.UDP])
    try:
        cluster.put_all(bundles)
        unsaid = [
            f"{about} {kind.value}: {each}"
            for about, service in services.items()
            for kind in FrontendKind
            for each in cluster.probe(NODE, service.at(kind, family), 2)
            if each.pod != "node-1"
        ]
        cluster.put_all(dict.fromkeys(bundles, ()))
    finally:
        cluster.lab.stop_echo_servers("node-1", [port])
    assert not unsaid, "\n".join(unsaid)
