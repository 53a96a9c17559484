"""kube-router's annotations, from the manifest to packets. Run in the guest.

service.scheduler, .schedflags   as its own documentation has them: rr, lc, dh, sh, mh; flag-1 and so on
service.local                    externalTrafficPolicy: Local
service.hairpin                  Pods reach themselves: here always
service.dsr                      tunnel: Pods answer clients directly
"""

from collections import Counter

import pytest
from tests.fakes.documents import read_document
from tests.fakes.objects import service
from tests.proxy.kernel.ipvs.proxy import EXTERNAL, FAMILIES, NODE, VIP, IpvsProxy, in_turn, slices

from vipwire.model.net import Family
from vipwire.model.service import Service
from vipwire_lab.cluster.cluster import Lab
from vipwire_lab.cluster.outcome import count_pods

pytestmark = pytest.mark.kernel

ALL = ("pod-1a", "pod-1b", "pod-1c", "pod-2a", "pod-2b")


def annotated(**pairs: str) -> Service:
    """Return the Service `web` with these annotations of kube-router: `service_dsr="tunnel"`."""
    made = service(
        clusterIP=VIP[Family.IPV4],
        clusterIPs=list(VIP.values()),
        ipFamilies=[family.value for family in Family],
        ipFamilyPolicy="RequireDualStack",
        externalIPs=list(EXTERNAL.values()),
        ports=[{"protocol": "TCP", "port": 80}],
    )
    annotations = {f"kube-router.io/{key.replace('_', '.')}": value for key, value in pairs.items()}
    made["metadata"] |= {"name": "web", "namespace": "default", "annotations": annotations}
    (found,), problems = read_document("Service", made)
    assert problems == ()
    assert isinstance(found, Service)
    return found


def shares(lab: Lab, host: str, family: Family) -> Counter[str]:
    return count_pods(lab.probe(host, VIP[family], 80, count=10, parallel=1))


@in_turn(
    "scheduler, each, together",
    *(("rr", 5, 5), ("lc", 5, 5), ("dh", 1, 1), ("sh", 1, 2), ("wlc", 5, 5), ("unheard-of", 5, 5)),
)
def test_the_scheduler_deals(
    lab: Lab, proxy: IpvsProxy, family: Family, scheduler: str, each: int, together: int
) -> None:
    """To how many of five endpoints one client comes at most, and two together."""
    proxy.put(annotated(service_scheduler=scheduler), *slices(lab, "web", ALL))
    met = [set(shares(lab, host, family)) for host in ("client", "pod-1b")]
    assert all(len(pods) <= each for pods in met), met
    assert len(met[0] | met[1]) <= together, met
    if scheduler in ("rr", "unheard-of"):
        assert met == [set(ALL)] * 2, "it deals in turn"


@in_turn("flags, by_port", ("flag-1", False), ("flag-1,flag-2", True))
def test_the_flags_of_maglev_count(lab: Lab, proxy: IpvsProxy, family: Family, flags: str, *, by_port: bool) -> None:
    proxy.put(annotated(service_scheduler="mh", service_schedflags=flags), *slices(lab, "web", ALL))
    pods = {result.pod for result in lab.probe("client", VIP[family], 80, count=30)}
    assert (len(pods) > 1) is by_port


@FAMILIES
def test_local_keeps_clients_outside_on_this_node(lab: Lab, proxy: IpvsProxy, family: Family) -> None:
    proxy.put(annotated(service_local="true"), *slices(lab, "web", ("pod-1a", "pod-2a")))
    results = lab.probe("client", EXTERNAL[family], 80, count=6)
    assert count_pods(results) == {"pod-1a": 6}
    assert {result.saw for result in results} == {lab.address_of("client", family)}
    assert set(count_pods(lab.probe("client", VIP[family], 80, count=6))) == {"pod-1a", "pod-2a"}, (
        "of external ones only"
    )


@FAMILIES
def test_a_pod_reaches_itself_with_and_without_hairpin(lab: Lab, proxy: IpvsProxy, family: Family) -> None:
    for pairs in ({"service_hairpin": ""}, {"service_hairpin_externalips": ""}, {}):
        proxy.put(annotated(**pairs), *slices(lab, "web", ("pod-1a",)))
        for address in (VIP[family], EXTERNAL[family]):
            results = lab.probe("pod-1a", address, 80, count=2)
            assert count_pods(results) == {"pod-1a": 2}, address
            assert {result.saw for result in results} == {lab.address_of(NODE, family)}


@FAMILIES
def test_with_dsr_pods_answer_as_the_vip_and_see_the_client(lab: Lab, proxy: IpvsProxy, family: Family) -> None:
    proxy.put(annotated(service_dsr="tunnel"), *slices(lab, "web", ("pod-1a", "pod-1b")))
    assert "vipwire-tunnel" in lab.run("pod-1a", ["ip", "address"]).stdout
    results = lab.probe("client", EXTERNAL[family], 80, count=4, parallel=1)
    assert count_pods(results) == {"pod-1a": 2, "pod-1b": 2}
    assert {result.saw for result in results} == {lab.address_of("client", family)}
    assert {result.answer.local.address for result in results if result.answer} == {EXTERNAL[family]}
