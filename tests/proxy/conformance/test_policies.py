"""Traffic policies and masquerading: kube-proxy's own matrix, cell by cell, and the ways to tell Pods from others."""

from dataclasses import dataclass
from typing import Any

import pytest
from tests.proxy.conformance.cluster import POD_CIDRS, Cluster
from tests.proxy.conformance.conftest import ClusterWith
from tests.proxy.conformance.mode import Mode
from tests.proxy.conformance.packets import BLOCKED, NODE, OTHER_POD, OUTSIDE, PATIENCE, POD, REMOTE_POD, Caller
from tests.proxy.conformance.sentences import sentence
from tests.proxy.conformance.services import CLUSTER_IP, EXTERNAL, FRONTENDS, NODE_PORT, LabService

from vipwire.model.net import Family, Protocol
from vipwire.plan.plan import FrontendKind
from vipwire_lab import guest_kernel
from vipwire_lab.cluster.manifests import Port
from vipwire_lab.cluster.outcome import Target, count_pods

pytestmark = pytest.mark.conformance

LOCAL, REMOTE = "pod-1a", "pod-2a"
BOTH = (LOCAL, REMOTE)
CALLERS = (POD, NODE, OUTSIDE)
DEFAULT, EXTERNAL_LOCAL, INTERNAL_LOCAL = "by-default", "external-local", "internal-local"
POLICIES: dict[str, dict[str, Any]] = {
    DEFAULT: {},
    EXTERNAL_LOCAL: {"externalTrafficPolicy": "Local"},
    INTERNAL_LOCAL: {"internalTrafficPolicy": "Local"},
}
DETECTOR, NO_DETECTOR = [POD_CIDRS], list[str]()
UNHEARD = 1.0 if guest_kernel.current_guest_kernel() else 0.3
"""Seconds to wait where some answers never arrive, and the others must."""
ALL, ALL_NO_DETECTOR = [POD_CIDRS, "--masquerade-all"], ["--masquerade-all"]


@dataclass(frozen=True)
class Cell:
    """One cell of the matrix: who connects where, who may answer, and whether the caller is masqueraded."""

    policy: str
    kind: FrontendKind
    caller: Caller
    pods: tuple[str, ...]
    masqueraded: bool

    def __str__(self) -> str:
        return f"{self.policy} {self.kind.value} from {self.caller}"


def cells(*, detector: bool, all_: bool) -> list[Cell]:
    """Write the matrix of kube-proxy's InternalExternalMasquerade test, with external IPs added."""
    found = []
    for policy in POLICIES:
        for caller in CALLERS:
            known_pod = caller is POD and detector
            pods = (LOCAL,) if policy == INTERNAL_LOCAL else BOTH
            found.append(Cell(policy, CLUSTER_IP, caller, pods, all_ or (detector and not known_pod)))
            for kind in EXTERNAL:
                if policy != EXTERNAL_LOCAL:
                    found.append(Cell(policy, kind, caller, BOTH, masqueraded=True))
                elif known_pod or caller is NODE:
                    found.append(Cell(policy, kind, caller, BOTH, masqueraded=caller is NODE))
                else:
                    found.append(Cell(policy, kind, caller, (LOCAL,), masqueraded=False))
    return found


def check(cluster: Cluster, family: Family, cell: Cell) -> None:
    for policy, spec in POLICIES.items():
        cluster.service(policy, cluster.pods(*BOTH), **spec)
    target = cluster.named(cell.policy).at(cell.kind, family)
    if cell.caller is OUTSIDE and REMOTE in cell.pods and not cell.masqueraded and not cluster.relayed:
        # The other node answers the client directly, from an address that the client has not asked.
        results = cluster.probe(cell.caller, target, 24, timeout=UNHEARD)
        assert set(count_pods(results)) == {LOCAL, "(timed out)"}
        assert {result.saw for result in results if result.answer} == {cluster.address(cell.caller, family)}
    else:
        cluster.answered(cell.caller, target, cell.pods, masqueraded=cell.masqueraded)


@sentence("S26", "S27", "S29", "S30", "S31")
@sentence("S33", "S34")
@sentence("S36", "S37", "S38", "S39", "S40")
@pytest.mark.parametrize("cell", cells(detector=True, all_=False), ids=str)
def test_policies_and_masquerading(cluster: Cluster, family: Family, cell: Cell) -> None:
    check(cluster, family, cell)


@sentence("S42")
@pytest.mark.parametrize("cell", cells(detector=False, all_=False), ids=str)
def test_policies_and_masquerading_without_a_detector(cluster_with: ClusterWith, family: Family, cell: Cell) -> None:
    check(cluster_with(NO_DETECTOR), family, cell)


@sentence("S41")
@pytest.mark.parametrize("cell", cells(detector=True, all_=True), ids=str)
def test_policies_with_masquerade_all(cluster_with: ClusterWith, family: Family, cell: Cell) -> None:
    check(cluster_with(ALL), family, cell)


@sentence("S43")
@pytest.mark.parametrize("cell", cells(detector=False, all_=True), ids=str)
def test_policies_with_masquerade_all_and_no_detector(cluster_with: ClusterWith, family: Family, cell: Cell) -> None:
    check(cluster_with(ALL_NO_DETECTOR), family, cell)


@sentence("S27")
@pytest.mark.parametrize(
    "pods", [("pod-1a", "pod-1b"), ("pod-1a", "pod-1b", "pod-1c"), ("pod-1b",)], ids=lambda pods: f"{len(pods)} local"
)
def test_all_local_endpoints_answer_and_no_other(cluster: Cluster, family: Family, pods: tuple[str, ...]) -> None:
    hosts = cluster.pods(*pods, "pod-2a", "pod-2b")
    service = cluster.service(f"local-{len(pods)}", hosts, internalTrafficPolicy="Local")
    for caller in CALLERS:
        cluster.answered(caller, service.vip(family), pods)


@sentence("S28", "S29")
@pytest.mark.parametrize("protocol", list(Protocol), ids=lambda protocol: protocol.label)
def test_without_a_local_endpoint_the_internal_policy_drops(
    cluster: Cluster, family: Family, protocol: Protocol
) -> None:
    service = none_local(cluster, f"internal-none-{protocol.label}", protocol, internalTrafficPolicy="Local")
    for caller in CALLERS:
        cluster.dropped(caller, service.vip(family))
        for kind in EXTERNAL:
            cluster.answered(caller, service.at(kind, family), [REMOTE])


@sentence("S32", "S33")
@pytest.mark.parametrize("protocol", list(Protocol), ids=lambda protocol: protocol.label)
def test_without_a_local_endpoint_the_external_policy_drops_the_outside(
    cluster: Cluster, family: Family, protocol: Protocol
) -> None:
    service = none_local(cluster, f"external-none-{protocol.label}", protocol, externalTrafficPolicy="Local")
    for kind in EXTERNAL:
        cluster.dropped(OUTSIDE, service.at(kind, family))
        for caller in (POD, NODE):
            cluster.answered(caller, service.at(kind, family), [REMOTE])
    cluster.answered(OUTSIDE, service.vip(family), [REMOTE])


def none_local(cluster: Cluster, name: str, protocol: Protocol, **spec: str) -> LabService:
    return cluster.service(name, cluster.pods(REMOTE), [Port(80, protocol=protocol)], **spec)


@sentence("S35")
def test_each_node_has_its_own_local_endpoints(cluster: Cluster, family: Family) -> None:
    """Node 2 of the same lab runs a proxy of its own while this is looked at."""
    hosts = cluster.pods(LOCAL, REMOTE)
    here = cluster.service("each-node", hosts, externalTrafficPolicy="Local", internalTrafficPolicy="Local")
    with cluster.beside("node-2") as other:
        there = other.service("each-node", hosts, externalTrafficPolicy="Local", internalTrafficPolicy="Local")
        cluster.answered(OUTSIDE, here.at(NODE_PORT, family), [LOCAL], masqueraded=False)
        other.answered(OUTSIDE, there.at(NODE_PORT, family), [REMOTE], masqueraded=False)
        cluster.answered(POD, here.vip(family), [LOCAL], masqueraded=False)
        other.answered(REMOTE_POD, there.vip(family), [REMOTE], masqueraded=False)


# How Pods are told from others. A Pod is who is not masqueraded at a ClusterIP, and who reaches all endpoints of a
# Service with a Local policy; the outside reaches the local ones.


def counts_as_pod(cluster: Cluster, family: Family, caller: Caller, *, at: FrontendKind = CLUSTER_IP) -> bool:
    """Tell by the ClusterIP whom the endpoint saw; or by an external frontend how far the caller gets."""
    service = cluster.service(EXTERNAL_LOCAL, cluster.pods(*BOTH), externalTrafficPolicy="Local")
    at = NODE_PORT if cluster.relayed else at
    target: Target = service.at(at, family)
    # A Pod of node 2 that is dealt to another one there is answered from an address that it has not asked.
    unheard = caller is REMOTE_POD and not cluster.relayed
    results = cluster.probe(caller, target, 24, timeout=UNHEARD if unheard else PATIENCE)
    if at is CLUSTER_IP:
        return {result.saw for result in results if result.answer} == {cluster.address(caller, family)}
    return set(count_pods(results)) == {LOCAL, "(timed out)" if unheard else REMOTE}


@sentence("S46")
def test_cluster_cidr_knows_the_pods_of_all_nodes(cluster: Cluster, family: Family) -> None:
    for caller in (POD, OTHER_POD):
        assert counts_as_pod(cluster, family, caller)
        assert counts_as_pod(cluster, family, caller, at=NODE_PORT)
    assert counts_as_pod(cluster, family, REMOTE_POD, at=NODE_PORT)
    assert not counts_as_pod(cluster, family, OUTSIDE)
    assert not counts_as_pod(cluster, family, OUTSIDE, at=NODE_PORT)


@sentence("S47")
def test_node_cidr_knows_the_pods_of_this_node(cluster_with: ClusterWith, mode: Mode, family: Family) -> None:
    check_pods_of_this_node(cluster_with(["--detect-local-mode=NodeCIDR"]), family)
    if mode.relays:  # by ClusterCIDR no others either: see what the mode says of S46
        check_pods_of_this_node(cluster_with([POD_CIDRS]), family)


@sentence("S48")
def test_an_interface_of_pods_is_told_by_its_name(cluster_with: ClusterWith, family: Family) -> None:
    """The lab has no bridge; one Pod's interface stands for it, and the other Pod is not behind it."""
    cluster = cluster_with(["--detect-local-mode=BridgeInterface", f"--pod-bridge-interface={POD.host}"])
    assert counts_as_pod(cluster, family, POD)
    assert counts_as_pod(cluster, family, POD, at=NODE_PORT)
    assert not counts_as_pod(cluster, family, OTHER_POD)
    assert not counts_as_pod(cluster, family, OTHER_POD, at=NODE_PORT)
    assert not counts_as_pod(cluster, family, OUTSIDE)


@sentence("S49")
def test_interfaces_of_pods_are_told_by_the_beginning_of_their_names(
    cluster_with: ClusterWith, family: Family
) -> None:
    by_name = ["--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=pod-"]
    check_pods_of_this_node(cluster_with(by_name), family)


def check_pods_of_this_node(cluster: Cluster, family: Family) -> None:
    for caller in (POD, OTHER_POD):
        assert counts_as_pod(cluster, family, caller)
        assert counts_as_pod(cluster, family, caller, at=NODE_PORT)
    assert not counts_as_pod(cluster, family, REMOTE_POD, at=NODE_PORT)
    assert not counts_as_pod(cluster, family, OUTSIDE)


@sentence("S45")
@pytest.mark.parametrize("protocol", [Protocol.TCP, Protocol.UDP], ids=lambda protocol: protocol.label)
@FRONTENDS
def test_two_clients_with_one_source_port_do_not_disturb_each_other(
    cluster: Cluster, family: Family, protocol: Protocol, kind: FrontendKind
) -> None:
    single = cluster.service(f"single-{protocol.label}", cluster.pods(REMOTE), [Port(80, protocol=protocol)])
    with (
        cluster.connect(OUTSIDE, single.at(kind, family), source_port=4711) as one,
        cluster.connect(BLOCKED, single.at(kind, family), source_port=4711) as other,
    ):
        node = cluster.lab.address_of("node-1", family)
        assert one.answer.saw.address == other.answer.saw.address == node
        assert one.answer.saw.port != other.answer.saw.port
        for _ in range(3):
            assert one.exchange(b"one\n")
            assert other.exchange(b"other\n")
