"""Services that ask for the same address, and Services that are not ours."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.proxy.conformance.cluster import Cluster
from tests.proxy.conformance.packets import NODE, OUTSIDE, POD
from tests.proxy.conformance.sentences import sentence
from tests.proxy.conformance.services import CLUSTER_IP, EXTERNAL_IP, LOAD_BALANCER, NODE_PORT, LabService

from vipwire.model.net import Family
from vipwire.plan.plan import FrontendKind
from vipwire_lab.cluster.manifests import Manifest, Port, build_load_balancer_status
from vipwire_lab.cluster.outcome import Target

pytestmark = pytest.mark.conformance

OLD, NEW = "2024-05-01T10:00:00Z", "2025-05-01T10:00:00Z"
SHARED = {EXTERNAL_IP: ("198.18.200.{}", "2001:db8:e:ff::{}"), LOAD_BALANCER: ("198.19.200.{}", "2001:db8:1b:ff::{}")}
KINDS = pytest.mark.parametrize("kind", [EXTERNAL_IP, LOAD_BALANCER, NODE_PORT], ids=lambda kind: kind.value)


def claim(service: LabService, created: str, pod: str, cluster: Cluster, **spec: Any) -> list[Manifest]:
    made, *slices = service.objects(cluster.pods(pod), **spec)
    made["metadata"]["creationTimestamp"] = created
    return [made, *slices]


@sentence("S121", "S122")
@KINDS
@pytest.mark.parametrize("order", [(OLD, NEW), (NEW, OLD)], ids=["older first", "younger first"])
def test_the_older_service_has_it_and_the_other_inherits(
    cluster: Cluster, family: Family, kind: FrontendKind, order: tuple[str, str]
) -> None:
    number = 10 * (1 + list(Family).index(family)) + 2 * list(FrontendKind).index(kind) + order.index(OLD)
    name = f"rival-{number}"
    port = Port(80, node_port=31900 + number if kind is NODE_PORT else 0)
    first, second = cluster.named(f"{name}-b", [port]), cluster.named(f"{name}-a", [port])
    addresses = [each.format(number) for each in SHARED.get(kind, ())]
    since = len(cluster.proxy.log)
    for service, created, pod in ((first, order[0], "pod-1a"), (second, order[1], "pod-2a")):
        made, *slices = claim(service, created, pod, cluster, externalIPs=addresses if kind is EXTERNAL_IP else None)
        if kind is LOAD_BALANCER:
            made |= build_load_balancer_status(*addresses)
        cluster.put(service.name, [made, *slices])
    address = addresses[family is Family.IPV6] if addresses else cluster.lab.address_of("node-1", family)
    target = Target(address, port.node_port or 80)
    holder, other = (first, second) if order[0] == OLD else (second, first)
    held_by = {first: "pod-1a", second: "pod-2a"}
    for caller in (POD, NODE, OUTSIDE):
        cluster.answered(caller, target, [held_by[holder]])
        cluster.answered(caller, other.vip(family), [held_by[other]])
    line = cluster.proxy.said(since, "conflicting Services", f"default/{other.name}", f"ip_family={family.value}")
    assert f"default/{holder.name}" in line
    cluster.put(holder.name, [])
    cluster.answered(OUTSIDE, target, [held_by[other]])
    cluster.put(other.name, [])


@sentence("S123")
@pytest.mark.parametrize("kind", [EXTERNAL_IP, LOAD_BALANCER], ids=lambda kind: kind.value)
def test_an_address_is_shared_at_different_ports(cluster: Cluster, family: Family, kind: FrontendKind) -> None:
    addresses = [each.format(99) for each in SHARED[kind]]
    for number, pod in ((81, "pod-1a"), (82, "pod-2a")):
        service = cluster.named(f"sharing-{kind.name}-{number}".lower().replace("_", "-"), [Port(number, 80)])
        made, *slices = claim(service, OLD, pod, cluster, externalIPs=addresses if kind is EXTERNAL_IP else None)
        if kind is LOAD_BALANCER:
            made |= build_load_balancer_status(*addresses)
        cluster.put(service.name, [made, *slices])
    address = addresses[family is Family.IPV6]
    cluster.answered(OUTSIDE, Target(address, 81), ["pod-1a"])
    cluster.answered(OUTSIDE, Target(address, 82), ["pod-2a"])


@sentence("S124")
@pytest.mark.parametrize("field", [EXTERNAL_IP, LOAD_BALANCER], ids=lambda kind: kind.value)
def test_nobody_else_serves_at_a_cluster_ip(cluster: Cluster, family: Family, field: FrontendKind) -> None:
    name = f"victim-{field.name}".lower().replace("_", "-")
    victim, thief = (
        cluster.named(name),
        cluster.named(f"{name}-thief", [Port(80, name="a"), Port(8443, 80, name="b")]),
    )
    cluster.put(victim.name, claim(victim, NEW, "pod-1a", cluster))
    stolen = [victim.address(CLUSTER_IP, each) for each in Family]
    made, *slices = claim(thief, OLD, "pod-2a", cluster, externalIPs=stolen if field is EXTERNAL_IP else None)
    if field is LOAD_BALANCER:
        made |= build_load_balancer_status(*stolen)
    cluster.put(thief.name, [made, *slices])
    for caller in (POD, NODE, OUTSIDE):
        cluster.answered(caller, victim.vip(family), ["pod-1a"])
        cluster.refused(caller, Target(victim.address(CLUSTER_IP, family), 8443))
    cluster.answered(OUTSIDE, thief.vip(family), ["pod-2a"])


@sentence("S125", "S126")
def test_an_external_ip_at_the_node_comes_before_a_node_port(cluster: Cluster, family: Family) -> None:
    number = 31998
    behind = cluster.named("at-node-port", [Port(80, node_port=number)])
    cluster.put(behind.name, behind.objects(cluster.pods("pod-1a")))
    front = cluster.named("at-node-address", [Port(number, 80)])
    addresses = [cluster.lab.address_of("node-1", each) for each in Family]
    target = Target(cluster.lab.address_of("node-1", family), number)
    for pods, answering in ((["pod-2a"], "pod-2a"), ([], "pod-1a"), (["pod-2a"], "pod-2a")):
        cluster.put(front.name, front.objects(cluster.pods(*pods), externalIPs=addresses))
        for caller in (POD, OUTSIDE):
            cluster.answered(caller, target, [answering])
    cluster.put(front.name, [])
    cluster.answered(OUTSIDE, target, ["pod-1a"])


def headless(service: Manifest) -> None:
    service["spec"] |= {"clusterIP": "None", "clusterIPs": ["None"], "type": "ClusterIP"}


def external_name(service: Manifest) -> None:
    service["spec"] |= {"type": "ExternalName", "externalName": "example.com"}


def another_proxys(service: Manifest) -> None:
    service["metadata"]["labels"] = {"service.kubernetes.io/service-proxy-name": "somebody"}


def nobodys(service: Manifest) -> None:
    service["metadata"]["labels"] = {"service.kubernetes.io/service-proxy-name": ""}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(headless, marks=sentence("S127")),
        pytest.param(external_name, marks=sentence("S128")),
        pytest.param(another_proxys, marks=sentence("S129")),
        pytest.param(nobodys, marks=sentence("S129")),
    ],
)
def test_a_service_that_is_not_ours_has_no_frontend(
    cluster: Cluster, family: Family, change: Callable[[Manifest], None]
) -> None:
    service = cluster.named(f"not-ours-{change.__name__}".replace("_", "-"))
    made, *slices = service.objects(cluster.pods("pod-1a"))
    change(made)
    cluster.put(service.name, [made, *slices])
    for caller in (POD, NODE, OUTSIDE):
        cluster.dropped(caller, service.vip(family))
        cluster.refused(caller, service.at(NODE_PORT, family))
        cluster.passed_on(caller, service.at(EXTERNAL_IP, family))
        cluster.passed_on(caller, service.at(LOAD_BALANCER, family))


@sentence("S130")
def test_a_service_is_ours_without_the_label(cluster: Cluster, family: Family) -> None:
    service = cluster.named(f"labelled-{family.value}".lower())
    made, *slices = service.objects(cluster.pods("pod-1a"))
    for _ in range(2):
        another_proxys(made)
        cluster.put(service.name, [dict(made, metadata=dict(made["metadata"])), *slices])
        cluster.dropped(OUTSIDE, service.vip(family))
        del made["metadata"]["labels"]
        cluster.put(service.name, [dict(made, metadata=dict(made["metadata"])), *slices])
        for kind in FrontendKind:
            cluster.answered(OUTSIDE, service.at(kind, family), ["pod-1a"])
