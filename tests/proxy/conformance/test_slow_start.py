"""Slow start: an endpoint that joins a Service has a small share of new connections first, and its full one later."""

from collections import Counter

import pytest
from tests.fakes.waiting import until
from tests.proxy.conformance.cluster import Cluster
from tests.proxy.conformance.packets import OUTSIDE
from tests.proxy.conformance.sentences import sentence
from tests.proxy.conformance.services import LabService

from vipwire.model.net import Family
from vipwire_lab.cluster.outcome import Target

pytestmark = pytest.mark.conformance
OLD, NEW = "pod-1b", "pod-2a"


def joined(cluster: Cluster, name: str, time: str) -> LabService:
    """Write a Service with slow start and one endpoint; when that answers, a second one joins."""
    service = cluster.named(name)
    for pods in ((OLD,), (OLD, NEW)):
        objects = service.objects(cluster.pods(*pods))
        objects[0]["metadata"]["annotations"] = {"vipwire.io/slow-start": time}
        cluster.put(name, objects)
    return service


def met(cluster: Cluster, target: Target, count: int) -> Counter[str]:
    return Counter(result.pod for result in cluster.probe(OUTSIDE, target, count))


@sentence("S144")
def test_an_endpoint_that_joins_has_a_small_share_at_first(cluster: Cluster, family: Family) -> None:
    service = joined(cluster, f"slowly-{family.value.lower()}", "60m")
    cluster.answered(OUTSIDE, service.vip(family), [OLD, NEW])
    shares = met(cluster, service.vip(family), 72)  # by chance, more than a third is one case in a hundred million
    assert shares[NEW] <= 24, shares
    cluster.put(service.name, [])  # who reads the kernel does not know how long it has grown: a difference to others


@sentence("S145")
def test_it_has_its_full_share_when_the_time_is_over(cluster: Cluster, family: Family) -> None:
    service = joined(cluster, f"soon-{family.value.lower()}", "3s")
    until(lambda: met(cluster, service.vip(family), 24)[NEW] >= 9, "the new endpoint has its share")
